"""The queues of all trees as one frozen value: parents, inherited settings, and problems.

A `Forest` is built anew when a declaration changes. A tree with a circle or without its parent takes no gang, and all
other trees are served. Nothing here is recursive: a tree may be hundreds of queues deep. Each place has its whole path,
so a forest of N queues costs O(N * depth), and the depth is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.api.names import DEFAULT_QUEUE
from dispatcher.api.selector import EVERYTHING, Selector
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.resources import is_requestable
from dispatcher.core.queues.queue import (
    Access,
    Elastic,
    Order,
    Queue,
    QueueingStrategy,
    Reclaim,
    Sharing,
    StopPolicy,
    WhileBorrowing,
    WithinQueue,
)

PARENT_NOT_FOUND: Final = "ParentNotFound"
CIRCLE: Final = "Circle"
TOO_DEEP: Final = "TooDeep"

MOST_LEVELS: Final = 1000
"""Queues on one path, the root included; one further down is not valid, and the one above it counts as a leaf."""


class Defaults(Struct, frozen=True):
    """The dispatcher's own settings, which count where no queue on the way to the root has one."""

    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    starvation_bound: timedelta = timedelta(minutes=10)
    min_runtime: timedelta = timedelta(0)
    max_preemptions: int = 5
    approvals: tuple[str, ...] = ()
    access: Access = Access.OPEN


class Place(Struct, frozen=True):
    """A queue in its tree.

    `position` is its place in the order of declaration. `path` has its name and those of all queues above it, the root
    last. The settings are those that count here: its own or inherited. The selectors are those on the path, each with
    the name of its queue. `stop_policy` is the strictest on the path, `stopped_by` the queue that has it. It
    `is_selective` if there is no namespace selector on the path, and the dispatcher's setting opens no queue: then it
    serves only namespaces that name it in their own label. It `is_opened` if there is a namespace selector on the path,
    be it an empty one.
    """

    queue: Queue
    position: int
    path: tuple[str, ...]
    children: tuple[str, ...]
    sharing: Sharing
    strategy: QueueingStrategy
    starvation_bound: timedelta
    min_runtime: timedelta
    max_preemptions: int
    preemptible_below: int | None
    cluster_selectors: tuple[tuple[str, Selector], ...] = ()
    namespace_selectors: tuple[tuple[str, Selector], ...] = ()
    stop_policy: StopPolicy = StopPolicy.NONE
    stopped_by: str = ""
    approvals: tuple[str, ...] = ()
    provisioning: ProvisioningClass | None = None
    elastic: Elastic = Elastic.LAST
    is_selective: bool = False
    is_opened: bool = False
    expected_runtime: timedelta | None = None

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.queue.name

    @property
    def root(self) -> str:
        """The name of the root of its tree."""
        return self.path[-1]

    @property
    def parent(self) -> str | None:
        """The name of the queue above; None for a root."""
        return self.path[1] if len(self.path) > 1 else None

    @property
    def is_leaf(self) -> bool:
        """True if it takes gangs."""
        return not self.children

    @property
    def while_borrowing(self) -> WhileBorrowing | None:
        """The setting of that name; it has an effect only under the sharing Priority."""
        return self.queue.preemption.while_borrowing if self.sharing is Sharing.PRIORITY else None

    def is_preemptible(self, priority: int) -> bool:
        """True if gangs of this priority may be preempted and may borrow."""
        return self.preemptible_below is None or priority < self.preemptible_below


class Tree(Struct, frozen=True):
    """The valid queues of one tree, each after its parent, siblings in the order of declaration."""

    root: str
    names: tuple[str, ...]
    sharing: Sharing


class Forest(Struct, frozen=True):
    """All declared queues. `problems` are the reasons of the invalid ones, by name.

    `charged_in` names the valid queue in which the gangs of another one are charged that is not valid any more: the
    nearest above, by its last valid path. `with_held` is the forest with the held queues, None if there is none: queues
    that are not valid, and not surely gone. They take no gang, and their last valid declaration still counts for quota.
    `deleted` are queues that were there until lately, with the time of their deletion if it is known.

    If nothing `is_declared`, there is only the queue `default`, without limits, and no answer names it. A gang that
    names another queue waits until that is declared; where queues are open to all, its label names none until then.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)
    charged_in: Mapping[str, str] = field(default_factory=dict)
    with_held: Forest | None = None
    deleted: Mapping[str, datetime | None] = field(default_factory=dict)
    is_declared: bool = True

    @classmethod
    def of(
        cls, queues: Iterable[Queue], defaults: Defaults | None = None, *, has_default: bool = True
    ) -> Forest:
        """The forest of these queues, in the order of declaration; their names are unique.

        If it `has_default`, the queue `default` exists unless it is declared.
        """
        return _built(list(queues), defaults or Defaults(), has_default=has_default)

    @classmethod
    def undeclared(cls, defaults: Defaults | None = None) -> Forest:
        """The forest of a hub without declared queues."""
        return replace(cls.of((), defaults), is_declared=False)

    def charging(self, charged_in: Mapping[str, str], held: Iterable[Queue] = ()) -> Forest:
        """The forest with the queues that bear the charges of invalid ones, and with held queues at its end.

        Of the held queues only those count whose path to the root is there, of valid and of held queues.
        """
        forest, added = replace(self, charged_in=charged_in), tuple(held)
        if not added:
            return forest
        valid = (place.queue for place in self.places.values())
        found = Forest.of((*valid, *added), self.defaults, has_default=False)
        elsewhere = {name: bearer for name, bearer in charged_in.items() if name not in found.places}
        return replace(forest, with_held=replace(found, problems=self.problems, charged_in=elsewhere))

    @property
    def for_quota(self) -> Forest:
        """The forest by which quota is counted: this one, with the held queues."""
        return self if self.with_held is None else self.with_held

    def is_within(self, leaf: str, queue: str) -> bool:
        """True if a leaf is this queue, or below it; also for held queues."""
        place = self.places.get(leaf) or self.for_quota.places.get(leaf)
        return place is not None and queue in place.path

    def has_changed(self, since: Forest, leaves: Iterable[str]) -> bool:
        """True if one of these queues, or a queue above one, is declared otherwise than in an earlier forest.

        Quota that other queues lend is not compared.
        """
        return self is not since and any(
            self._declared(leaf) != since._declared(leaf) for leaf in set(leaves)
        )

    def _declared(self, leaf: str) -> tuple[object, ...] | None:
        """The declarations that count for the gangs of a leaf; None if it takes none."""
        place = self.places.get(leaf)
        if place is None or not place.is_leaf:
            return None
        return self.defaults, self.is_declared, *(self.places[name].queue for name in place.path)

    def why_missing(self, name: str) -> str:
        """Why no gang goes to a queue that is not among the valid ones, in a sentence."""
        if not self.is_declared:
            return f"there is no queue {name}: none is declared, and a gang waits for the queue that its label names"
        if name in self.problems:
            return f"queue {name} is not valid: {self.problems[name]}"
        if name not in self.deleted:
            return f"there is no queue {name}"
        time = self.deleted[name]
        at = "" if time is None else f" at {time:%Y-%m-%d %H:%M:%S} UTC"
        return f"queue {name} was deleted{at}: declare it again, and its gangs go on"

    @property
    def counts_running(self) -> bool:
        """True if decisions depend on which gangs run: some queue has quota, preempts, or drains its gangs."""
        return any(
            _limits(each) or each.stop_policy is StopPolicy.HOLD_AND_DRAIN
            for each in self.for_quota.places.values()
        )

    @property
    def held(self) -> tuple[Queue, ...]:
        """The held queues, by their last valid declarations."""
        return tuple(each.queue for name, each in self.for_quota.places.items() if name not in self.places)

    @property
    def leaves(self) -> Iterator[Place]:
        """The leaves in the order of declaration."""
        return (place for place in self.places.values() if place.is_leaf)

    @property
    def approvals(self) -> dict[str, tuple[str, ...]]:
        """The approvals that gangs await, by the name of the queue; only queues with approvals."""
        return {name: place.approvals for name, place in self.places.items() if place.approvals}

    @property
    def unlimited(self) -> Iterator[Place]:
        """The leaves that are trees of their own, without quota, preemption or order by use.

        Only age and priority decide whose turn it is there, and only clusters decide whether a gang goes.
        """
        for root, tree in self.for_quota.trees.items():
            place = self.for_quota.places[root]
            if len(tree.names) == 1 and not _limits(place) and place.queue.order is Order.PRIORITY:
                yield place

    @property
    def do_labels_count(self) -> bool:
        """False where none is declared and queues are open to all: a label names a queue only once one is declared."""
        return self.is_declared or self.defaults.access is Access.SELECTED

    def queues_of(self, named: tuple[str, ...]) -> tuple[str, ...]:
        """The queues in which a gang waits that names these."""
        return named if self.do_labels_count else (DEFAULT_QUEUE,)

    def places_of(self, leaves: Iterable[str]) -> list[Place]:
        """The places in which a gang of these queues is charged, without queues that never had any."""
        charged = self.charged(leaves) if self.charged_in else leaves
        return [self.places[leaf] for leaf in charged if leaf in self.places]

    def charged(self, leaves: Iterable[str]) -> tuple[str, ...]:
        """The queues in which a gang of these queues is charged; the same ones, as long as they are valid."""
        return tuple(self.bearer_of(leaf) for leaf in leaves)

    def bearer_of(self, leaf: str) -> str:
        """The queue in which the gangs of a queue are charged; the same one, as long as it is valid."""
        return self.charged_in.get(leaf, leaf)

    def clusters_of(self, leaves: Iterable[str]) -> Selector:
        """The clusters that the queues of a gang select, and all queues above them."""
        selectors = (each for place in self.places_of(leaves) for _, each in place.cluster_selectors)
        return Selector(tuple(one for each in selectors for one in each.requirements))

    def class_of(self, leaves: Iterable[str], gang: Gang) -> ProvisioningClass | None:
        """The class from which the queues of a gang request its capacity; None without one that manages it."""
        return gang.requested_from(place.provisioning for place in self.places_of(leaves))

    def class_named_by(self, leaves: Iterable[str]) -> ProvisioningClass | None:
        """The class that the queues of a gang name first, whether it manages the gang or not; None without one."""
        return next((each.provisioning for each in self.places_of(leaves) if each.provisioning), None)

    def below(self, name: str) -> Iterator[Place]:
        """A valid queue and all below it, each after its parent."""
        names = [name]
        for each in names:  # grows while it is read
            place = self.places[each]
            yield place
            names += place.children

    def ignored(self, name: str) -> list[str]:
        """The fields of a valid queue that have no effect where it is."""
        place = self.places[name]
        leaves = [each for each in self.below(name) if each.is_leaf]
        is_strict = all(each.strategy is QueueingStrategy.STRICT_FIFO for each in leaves)
        bound = ["starvationBoundSeconds"] if is_strict and place.queue.starvation_bound is not None else []
        return [*_ignored(place), *bound]


def _limits(place: Place) -> bool:
    """True if a queue has quota, or its gangs preempt others."""
    preemption = place.queue.preemption
    preempts = preemption.within_queue is not WithinQueue.NEVER or preemption.reclaim is not Reclaim.NEVER
    return bool(place.queue.resources) or preempts


def _ignored(place: Place) -> Iterator[str]:
    queue, is_root = place.queue, place.parent is None
    if not is_root and queue.sharing is not None:
        yield "sharing"
    for name, quota in sorted(queue.resources.items()):
        if not is_requestable(name):
            yield f"resources.{name}"
            continue
        if is_root and quota.borrowing_limit is not None:
            yield f"resources.{name}.borrowingLimit"
        if (is_root or place.sharing is Sharing.DIVISION) and quota.lending_limit is not None:
            yield f"resources.{name}.lendingLimit"
    if (is_root or place.sharing is Sharing.PRIORITY) and queue.weight != 1:
        yield "weight"
    if (is_root or place.sharing is not Sharing.DIVISION) and queue.priority:
        yield "priority"
    if not place.is_leaf and queue.order is not Order.PRIORITY:
        yield "order"
    if not place.is_leaf and queue.preemption.within_queue is not WithinQueue.NEVER:
        yield "preemption.withinQueue"
    if not place.is_leaf and queue.preemption.reclaim is not Reclaim.NEVER:
        yield "preemption.reclaim"
    is_searching = place.is_leaf and place.sharing is Sharing.PRIORITY
    if not is_searching and queue.preemption.while_borrowing is not None:
        yield "preemption.whileBorrowing"


def last_valid_places(parents: Mapping[str, str], places: Mapping[str, Place]) -> dict[str, str]:
    """The nearest valid queue above each queue that is not valid, by the last valid `parents`.

    A queue without any is left out: its whole tree is gone. Each chain of parents is followed once.
    """
    found: dict[str, str] = {}
    for name in parents.keys() - places.keys():
        chain: dict[str, None] = {}
        at = name
        while at in parents and at not in places and at not in chain and at not in found:
            chain[at] = None
            at = parents[at]
        nearest = at if at in places else found.get(at)
        if nearest is not None:
            found.update(dict.fromkeys(chain, nearest))
    return found


def _built(queues: list[Queue], defaults: Defaults, *, has_default: bool) -> Forest:
    if has_default and all(queue.name != DEFAULT_QUEUE for queue in queues):
        queues.append(Queue(DEFAULT_QUEUE, namespace_selector=_selector_of_default(defaults)))
    by_name = {queue.name: queue for queue in queues}
    children: dict[str, list[str]] = {name: [] for name in by_name}
    for queue in queues:
        if queue.parent in children:
            children[queue.parent].append(queue.name)
    position = {queue.name: number for number, queue in enumerate(queues)}
    found: dict[str, Place] = {}
    trees = {}
    for queue in queues:
        if queue.parent is None:
            names = [queue.name]
            for name in names:  # grows while it is read
                above = found.get(by_name[name].parent or "")
                below = children[name] if above is None or len(above.path) < MOST_LEVELS - 1 else []
                names += below
                found[name] = _placed(by_name[name], position[name], below, above, defaults)
            trees[queue.name] = Tree(queue.name, tuple(names), found[queue.name].sharing)
    places = {queue.name: found[queue.name] for queue in queues if queue.name in found}
    return Forest(places, trees, _problems(by_name, places), defaults)


def _selector_of_default(defaults: Defaults) -> Selector | None:
    """The implied queue `default` serves every namespace, whatever the access: nobody can declare its selector."""
    return None if defaults.access is Access.OPEN else EVERYTHING


def _placed(
    queue: Queue, position: int, children: Sequence[str], above: Place | None, defaults: Defaults
) -> Place:
    stop, stopped_by = queue.stop_policy, queue.name if queue.stop_policy is not StopPolicy.NONE else ""
    if above is not None and _STRICTNESS[above.stop_policy] >= _STRICTNESS[stop] and above.stopped_by:
        stop, stopped_by = above.stop_policy, above.stopped_by
    inherited = above or defaults
    own_clusters = () if queue.cluster_selector == EVERYTHING else ((queue.name, queue.cluster_selector),)
    selects, own_namespaces = queue.namespace_selector, list[tuple[str, Selector]]()
    if selects is not None and selects != EVERYTHING:
        own_namespaces.append((queue.name, selects))
    below = queue.preemptible_below
    return Place(
        queue=queue,
        position=position,
        path=(queue.name, *(above.path if above else ())),
        children=tuple(children),
        sharing=above.sharing if above else queue.sharing or Sharing.PRIORITY,
        strategy=queue.strategy or inherited.strategy,
        starvation_bound=_first(queue.starvation_bound, inherited.starvation_bound),
        min_runtime=_first(queue.min_runtime, inherited.min_runtime),
        max_preemptions=_first(queue.max_preemptions, inherited.max_preemptions),
        preemptible_below=below if below is not None or above is None else above.preemptible_below,
        cluster_selectors=(*own_clusters, *(above.cluster_selectors if above else ())),
        namespace_selectors=(*own_namespaces, *(above.namespace_selectors if above else ())),
        stop_policy=stop,
        stopped_by=stopped_by,
        approvals=_first(queue.approvals, inherited.approvals),
        provisioning=queue.provisioning or (above.provisioning if above else None),
        elastic=queue.elastic or (above.elastic if above else Elastic.LAST),
        is_selective=selects is None
        and (above.is_selective if above else defaults.access is Access.SELECTED),
        is_opened=selects is not None or (above is not None and above.is_opened),
        expected_runtime=_first(queue.expected_runtime, above.expected_runtime if above else None),
    )


_Setting = TypeVar("_Setting")


def _first(own: _Setting | None, inherited: _Setting) -> _Setting:
    return inherited if own is None else own


_STRICTNESS: Final = {StopPolicy.NONE: 0, StopPolicy.HOLD: 1, StopPolicy.HOLD_AND_DRAIN: 2}


def _problems(by_name: Mapping[str, Queue], places: Mapping[str, Place]) -> dict[str, str]:
    """Why the queues without a place have none; each chain of parents is followed once."""
    problems: dict[str, str] = {}
    for name in by_name.keys() - places.keys():
        chain: dict[str, None] = {}
        at = name
        while at in by_name and at not in chain and at not in problems and at not in places:
            chain[at] = None
            at = by_name[at].parent or ""
        reason = problems.get(at) or _reason(is_below_a_place=at in places, is_circle=at in chain)
        problems.update(dict.fromkeys(chain, reason))
    return problems


def _reason(*, is_below_a_place: bool, is_circle: bool) -> str:
    if is_below_a_place:
        return TOO_DEEP
    return CIRCLE if is_circle else PARENT_NOT_FOUND

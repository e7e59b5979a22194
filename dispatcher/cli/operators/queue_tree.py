"""Queues as tables: all queues as trees, and one queue with the origin of each of its settings.

The values are those of the statuses that the leader wrote; a node of MCAD's trees has no status, and its use is counted
from the records of the database, if there is one. Trees and inheritance follow from the declarations, by the
same functions as in the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from dispatcher.api.spec_errors import one_line
from dispatcher.cli.screens.tables import Heading, folded, table
from dispatcher.core.model import incremental
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.resources import is_device
from dispatcher.core.queues.declared_queues import DeclaredQueues, read_dispatch_queue
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import Elastic, Queue, Sharing, StopPolicy

if TYPE_CHECKING:
    from dispatcher.core.status.queue_status import QueueGangs

Json = dict[str, Any]

NO_QUEUES: Final = (
    "No DispatchQueues: AppWrappers without a label of a queue are in default, which has no limits; others wait for "
    "the queue that they name. "
    "Declare one with: kubectl apply -f FILE"
)
HEADINGS: Final = (
    Heading("QUEUE"),
    Heading("RESOURCE", 1),
    Heading("NOMINAL"),
    Heading("USED"),
    Heading("BORROWED", 2),
    Heading("AVAILABLE", 4),
    Heading("RUNNING", 3),
    Heading("PENDING"),
    Heading("SHARE", 5),
    Heading("STATE"),
)
WIDE_HEADINGS: Final = (*HEADINGS, *map(Heading, ("SHARING", "WEIGHT", "OTHER RESOURCES", "WHY")))
SETTINGS: Final = (Heading("SETTING"), Heading("VALUE", wraps=True), Heading("FROM"))
AMOUNTS: Final = (
    Heading("RESOURCE"),
    Heading("NOMINAL"),
    Heading("BORROWING LIMIT", 1),
    Heading("LENDING LIMIT", 2),
    Heading("USED"),
    Heading("BORROWED"),
    Heading("AVAILABLE"),
    Heading("FAIR SHARE", 3),
)

NO_LIMIT: Final = "no limit"
ITSELF: Final = "itself"
DEFAULT: Final = "default"
MCAD: Final = "MCAD"
"""The origin of a value that MCAD's rules decide for a node of its trees."""
DISPATCHER: Final = "dispatcher"
"""The origin of a value that the dispatcher's settings decide; a command does not know it."""

GPU: Final = "nvidia.com/gpu"
MOST_PROBLEMS: Final = 10
"""Malformed parts of QuotaSubtrees that are shown."""
DEEPEST: Final = 20
"""Levels that are indented; a tree may be hundreds of queues deep."""


class Setting(NamedTuple):
    """One setting that counts for a queue, and the queue that has it, or `ITSELF`, `DEFAULT` or `DISPATCHER`."""

    name: str
    value: str
    origin: str


class QueueList(Struct, frozen=True):
    """The DispatchQueues of a list, as the API server gives them, by name, and MCAD's trees.

    `declared` are the queues of both. `node_statuses` are like the statuses of DispatchQueues, for the nodes of trees.
    """

    items: Mapping[str, Json]
    declared: DeclaredQueues
    node_statuses: Mapping[str, Json]

    @classmethod
    def of(cls, listed: Json, subtrees: Iterable[Json] = (), gangs: QueueGangs | None = None) -> QueueList:
        """The queues of a list and of QuotaSubtrees; of their nodes only the quota is known without `gangs`."""
        items = {str(each["metadata"]["name"]): each for each in listed.get("items") or ()}
        queues = [
            read_dispatch_queue(
                each, name, each["metadata"].get("uid", ""), each["metadata"].get("creationTimestamp") or ""
            )
            for name, each in items.items()
        ]
        declared = DeclaredQueues.of(queues, subtrees)
        return cls(items, declared, _node_statuses(declared, gangs) if declared.trees else {})

    @property
    def forest(self) -> Forest:
        """The forest of the queues."""
        return self.declared.forest

    def status(self, name: str) -> Json:
        """The status of a queue; empty if no dispatcher has written one.

        Whether a valid queue is stopped follows from the stop policies that are declared now: its status lags behind.
        """
        if name not in self.items:
            return self.node_statuses[name]
        written, place = self.items[name].get("status") or {}, self.forest.places.get(name)
        if place is None or written.get("state") not in _STATES:
            return written
        return {**written, "state": _state_of(place)}

    def is_shown(self, name: str) -> bool:
        """True if a queue is declared; the queue `default` exists without a declaration."""
        return name in self.items or name in self.node_statuses

    def leaves_below(self, name: str) -> list[str]:
        """The queues in which the gangs of a queue are; of an invalid queue its own name."""
        if name not in self.forest.places:
            return [name]
        return [place.name for place in self.forest.below(name) if place.is_leaf] or [name]


_STATES: Final = frozenset({"Active", StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN})
"""States of a valid queue."""


def _state_of(place: Place) -> str:
    return "Active" if place.stop_policy is StopPolicy.NONE else place.stop_policy.value


def _node_statuses(declared: DeclaredQueues, gangs: QueueGangs | None) -> dict[str, Json]:
    """The state and the quota of each node of MCAD's trees, and if the gangs are known its use."""
    from dispatcher.core.status.queue_status import QueueCounter, QueueGangs  # imports numpy

    known = gangs or QueueGangs((), (), datetime.min.replace(tzinfo=UTC))
    states = incremental.run(QueueCounter(declared.forest).count_in_steps(known))
    found: dict[str, Json] = {}
    for name, state in states.items():
        if not is_node(name):
            continue
        found[name] = {"state": state.state, "nominal": _amounts_in_words(state.nominal)}
        if gangs is not None:
            found[name] |= {
                "used": _amounts_in_words(state.used),
                "borrowed": _amounts_in_words(state.borrowed),
                "available": _amounts_in_words(state.available),
                "running": state.running,
                "pending": state.pending,
            }
    return found


def _amounts_in_words(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: in_words(name, amount) for name, amount in amounts.items()}


def is_node(name: str) -> bool:
    """True for the name of a node of MCAD's trees, `TREE/NODE`."""
    return "/" in name


# --- all queues ----------------------------------------------------------------------------------------------


def as_tree(queues: QueueList, width: int | None) -> str:
    """A line for each queue, in a terminal of `width` characters; without any, a sentence that says what that means."""
    rows = [_row(each) for each in lines(queues)]
    return folded(_with_problems(queues, table(HEADINGS, rows, width) if rows else NO_QUEUES), width)


def as_wide_tree(queues: QueueList) -> str:
    """The same with more columns, as wide as it gets."""
    rows = [(*_row(each), *_more(queues, each.name)) for each in lines(queues)]
    return _with_problems(queues, table(WIDE_HEADINGS, rows) if rows else NO_QUEUES)


def _with_problems(queues: QueueList, shown: str) -> str:
    """A table with a line for each malformed part of a QuotaSubtree below it."""
    problems = queues.declared.problems
    told = [f"QuotaSubtree {each.subtree}: {each.message}" for each in problems[:MOST_PROBLEMS]]
    told += [f"and {len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    return "\n".join([shown, "", *map(one_line, told)]) if told else shown


def _walk(queues: QueueList) -> Iterator[tuple[str, int]]:
    """Each declared queue below its parent, with its depth, in the order of declaration; invalid queues come last."""
    forest = queues.forest
    left = [(root, 0) for root in reversed(list(forest.trees))]
    while left:
        name, depth = left.pop()
        if queues.is_shown(name):
            yield name, depth
        left += [(child, depth + 1) for child in reversed(forest.places[name].children)]
    shown = (*queues.items, *queues.node_statuses)
    yield from ((name, 0) for name in shown if name in forest.problems)


class QueueLine(Struct, frozen=True):
    """A queue in its tree, `depth` below the root: the scarcest resource, and what the leader's status says of it.

    Amounts are written as people do; empty where the status has none.
    """

    name: str
    depth: int
    resource: str
    nominal: str
    used: str
    borrowed: str
    available: str
    running: str
    pending: str
    share: str
    state: str


def lines(queues: QueueList) -> Iterator[QueueLine]:
    """A line for each queue, each below its parent."""
    return (_line(queues, name, depth) for name, depth in _walk(queues))


def _line(queues: QueueList, name: str, depth: int) -> QueueLine:
    status, place = queues.status(name), queues.forest.places.get(name)
    resource = "" if place is None else _dearest(_limited(queues.forest, place))
    nominal, used, borrowed, available = (
        str((status.get(key) or {}).get(resource, "")) for key in ("nominal", "used", "borrowed", "available")
    )
    if place is not None and place.sharing is Sharing.DIVISION and nominal and not available:
        available = NO_LIMIT
    return QueueLine(
        name,
        depth,
        resource,
        nominal,
        used,
        borrowed,
        available,
        str(status.get("running", "")),
        str(status.get("pending", "")),
        _share(place, status, resource),
        str(status.get("state", "")),
    )


def _row(line: QueueLine) -> tuple[str, ...]:
    name, depth, *cells = astuple(line)
    return ("  " * min(depth, DEEPEST) + name, *cells)


def _more(queues: QueueList, name: str) -> tuple[str, ...]:
    place, status = queues.forest.places.get(name), queues.status(name)
    if place is None:
        return "", "", "", _why(status)
    limited = _limited(queues.forest, place)
    nominal, used = status.get("nominal") or {}, status.get("used") or {}
    others = [
        f"{each} {used.get(each, '')}/{nominal[each]}"
        for each in sorted(limited)
        if each != _dearest(limited) and each in nominal
    ]
    return place.sharing.value, _decimal(place.queue), ", ".join(others), _why(status)


def _why(status: Json) -> str:
    """The messages of the conditions."""
    messages = (str(each.get("message") or "") for each in status.get("conditions") or ())
    return "; ".join(filter(None, messages))


def _limited(forest: Forest, place: Place) -> set[str]:
    """The resources that the tree of a queue limits."""
    names = forest.trees[place.root].names
    return {resource for name in names for resource in forest.places[name].queue.resources}


def _dearest(resources: Iterable[str]) -> str:
    """The resource of a line: GPUs, else another device, else cpu, else memory; empty without any."""
    order = (GPU, "cpu", "memory")

    def rank(resource: str) -> tuple[bool, bool, int, str]:
        known = order.index(resource) if resource in order else len(order)
        return resource != GPU, not is_device(resource), known, resource

    return min(resources, key=rank, default="")


def _share(place: Place | None, status: Json, resource: str) -> str:
    if place is None or not status:
        return ""
    if place.sharing is Sharing.DOMINANT_SHARE:
        return str(status.get("share", "infinite"))
    return str((status.get("fairShare") or {}).get(resource, ""))


# --- one queue -----------------------------------------------------------------------------------------------


def settings_of(queues: QueueList, name: str) -> list[Setting]:
    """The settings that count for a valid queue, and where each is inherited from."""
    forest, place = queues.forest, queues.forest.places[name]
    path = [forest.places[each].queue for each in place.path]
    queue, root = path[0], path[-1]
    spec, preemption = queues.items.get(name, {}).get("spec") or {}, queue.preemption
    unset = MCAD if is_node(name) else DEFAULT

    def own(key: str, value: str) -> Setting:
        return Setting(key, value, ITSELF if _has(spec, key) else unset)

    found = [
        Setting("parent", queue.parent or "none: it is the root of a tree", ITSELF),
        Setting("sharing", place.sharing.value, _origin(root.sharing, root.name, name)),
        _inherited("queueingStrategy", path, lambda each: each.strategy, str, ""),
        _inherited("starvationBoundSeconds", path, lambda each: each.starvation_bound, _seconds, ""),
        _inherited("minRuntimeSeconds", path, lambda each: each.min_runtime, _seconds, "0"),
        _inherited("expectedRuntimeSeconds", path, lambda each: each.expected_runtime, _seconds, "unknown"),
        _inherited(
            "maxPreemptions",
            path,
            lambda each: each.max_preemptions,
            lambda count: str(count or "no bound"),
            str(forest.defaults.max_preemptions),
        ),
        _inherited(
            "approvals", path, lambda each: each.approvals, lambda names: ", ".join(names) or "none", "none"
        ),
        _inherited("provisioning", path, lambda each: each.provisioning, lambda asked: asked.name, "none"),
        _inherited("elastic", path, lambda each: each.elastic, str, Elastic.LAST.value),
        _inherited("preemptibleBelow", path, lambda each: each.preemptible_below, str, "every priority"),
        *_selectors("clusterSelector", place.cluster_selectors, "every cluster", name),
        *_selectors("namespaceSelector", place.namespace_selectors, _namespaces(place), name),
        _stop_policy(place),
        own("weight", _decimal(queue)),
        own("priority", str(queue.priority)),
        own("order", queue.order.value),
        own("preemption.withinQueue", preemption.within_queue.value),
        own("preemption.reclaim", preemption.reclaim.value),
    ]
    if preemption.while_borrowing is not None:
        most = preemption.while_borrowing.max_priority
        words = "any lower priority" if most is None else f"lower priorities up to {most}"
        found.append(Setting("preemption.whileBorrowing", words, ITSELF))
    ignored = set(forest.ignored(name))
    return [
        each._replace(value=f"{each.value} (no effect here)") if each.name in ignored else each
        for each in found
    ]


def as_text(queues: QueueList, name: str, width: int | None) -> str:
    """A queue with its state, its settings and its amounts; blocks of text, one below the other."""
    status, place = queues.status(name), queues.forest.places.get(name)
    blocks = ["\n".join([name, *_facts(queues, name)])]
    if place is None:
        return folded(blocks[0], width)
    blocks.append("Settings:\n" + table(SETTINGS, settings_of(queues, name), width))
    amounts = list(_amounts(place, status, sorted(_limited(queues.forest, place))))
    if amounts:
        blocks.append("Resources:\n" + table(AMOUNTS, amounts, width))
    return folded("\n\n".join(blocks), width)


def _facts(queues: QueueList, name: str) -> Iterator[str]:
    status, place = queues.status(name), queues.forest.places.get(name)
    facts = {
        "State": status.get("state", "unknown: no dispatcher has written a status yet"),
        "Path": "" if place is None else " > ".join(reversed(place.path)),
        "Children": "" if place is None else ", ".join(place.children),
        "Running": str(status.get("running", "")),
        "Pending": str(status.get("pending", "")),
        "Share": "" if place is None else _share(place, {**status, "fairShare": {}}, ""),
    }
    facts |= {
        str(each.get("type")): str(each["message"])
        for each in status.get("conditions") or ()
        if each.get("message")
    }
    room = max(len(key) for key, value in facts.items() if value) + 1
    return (f"  {f'{key}:':{room}}  {one_line(value)}" for key, value in facts.items() if value)


def _amounts(place: Place, status: Json, limited: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name in limited:
        quota = place.queue.resources.get(name)
        borrowing, lending = (
            (NO_LIMIT if limit is None else in_words(name, limit))
            for limit in ((None, None) if quota is None else (quota.borrowing_limit, quota.lending_limit))
        )
        shown = (
            (status.get(key) or {}).get(name, "") for key in ("used", "borrowed", "available", "fairShare")
        )
        nominal = (status.get("nominal") or {}).get(name, in_words(name, quota.nominal) if quota else "")
        yield name, nominal, borrowing, lending, *shown


def _inherited(
    name: str,
    path: Sequence[Queue],
    of: Callable[[Queue], Any],
    written: Callable[[Any], str],
    default: str,
) -> Setting:
    """A setting of the nearest queue on the way to the root that has it."""
    for queue in path:
        value = of(queue)
        if value is not None:
            return Setting(name, written(value), ITSELF if queue is path[0] else queue.name)
    return Setting(name, default, DEFAULT) if default else Setting(name, "", DISPATCHER)


def _has(spec: Json, key: str) -> bool:
    """True if a spec has a field."""
    at: Any = spec
    for part in key.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at is not None


def _origin(value: object, owner: str, name: str) -> str:
    if value is None:
        return DEFAULT
    return ITSELF if owner == name else owner


def _selectors(
    name: str, selectors: Sequence[tuple[str, object]], everything: str, queue: str
) -> Iterator[Setting]:
    """The selectors on the way to the root, which must all match."""
    if not selectors:
        yield Setting(name, everything, DEFAULT)
    for owner, selector in selectors:
        yield Setting(name, str(selector), ITSELF if owner == queue else owner)


def _namespaces(place: Place) -> str:
    """The namespaces that a queue serves without a selector on the way to its root."""
    return "namespaces whose label names the queue" if place.is_selective else "every namespace"


def _stop_policy(place: Place) -> Setting:
    if place.stop_policy is StopPolicy.NONE:
        return Setting("stopPolicy", place.stop_policy.value, DEFAULT)
    owner = ITSELF if place.stopped_by == place.name else place.stopped_by
    return Setting("stopPolicy", place.stop_policy.value, owner)


def _seconds(value: timedelta) -> str:
    return f"{value.total_seconds():g}"


def _decimal(queue: Queue) -> str:
    return f"{float(queue.weight):g}"

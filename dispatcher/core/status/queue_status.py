"""The state of declared queues at one moment, and the status of a DispatchQueue.

A `QueueState` has amounts in base units, for metrics; `status_of` writes them as quantities. The amounts count every
gang that holds capacity, also one that is leaving: it is charged until its pods are confirmed gone.

    nominal    the quota of the queue and all below it
    used       what the gangs hold that are charged in the queue and all below it, whatever its lending limit keeps
    borrowed   the use beyond the queue's own quota
    available  what one more gang of the queue could use; negative if more is used than there is, for example after a
               quota was lowered; absent if nothing limits it (sharing Division only)

A gang counts as pending only in queues that take it, so a label that names a queue changes nothing there (`access`).
A gang whose queue is not valid any more is charged in the nearest valid queue above it, and counts there as running.
The status of that queue says so, since no valid queue below it has the gang.

A queue that is not valid has counts and no amounts. The nodes of MCAD's trees have a state, but no status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.incremental import Steps, in_parts
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues.access import counted_in
from dispatcher.core.queues.accounts import Account, TreeQuota, tree_quotas
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import MOST_LEVELS, TOO_DEEP, Forest, Place
from dispatcher.core.queues.ordering import is_eligible
from dispatcher.core.queues.queue import Sharing, StopPolicy
from dispatcher.core.scheduling.sharing import division, dominant_share
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.dominant_share import Share
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

ACTIVE: Final = "Active"
"""The state of a valid queue that dispatches. Other states are its stop policy, or why it is not valid."""

VALID: Final = "Valid"
STOPPED: Final = "Stopped"
IGNORED: Final = "Ignored"
ORPHANED_USE: Final = "OrphanedUse"
"""A condition that is there only while it is true: gangs of queues that are not valid any more are charged here."""

CHILDREN_EXCEED_QUOTA: Final = "ChildrenExceedQuota"
"""The reason of a true condition `Valid`: the queues below have more nominal quota than the queue itself."""
NO_EFFECT: Final = "NoEffect"
"""The reason of a true condition `Ignored`."""
QUEUE_NOT_VALID: Final = "QueueNotValid"
"""The reason of a condition `OrphanedUse`."""

MOST_RESOURCES: Final = 256
"""Resources in one field of the status, by the CRD; a tree may limit more."""
AT_ONCE: Final = 10
"""Queues, or charged gangs, of one step: each costs its depth in the tree times the resources that the tree limits."""
MOST_NAMED: Final = 8
"""Names and fields in one message."""

Amounts = Mapping[str, int]

_NOWHERE_ELSE: Final[Mapping[str, str]] = {}


class QueueState(Struct, frozen=True):
    """The state of one declared queue; amounts are in base units by resource.

    `state` is `ACTIVE`, a stop policy, or the problem of an invalid queue. `share` is None unless the sharing is
    DominantShare, `fair` unless it is Division. `excess` is the quota of the queues just below it, of each resource of
    which they have more than the queue itself. `orphans` counts the gangs of other queues that are charged in the queue
    because theirs are not valid any more, by the name of their queue; `charged_in` is the queue in which those of an
    invalid one are charged, empty if there is none.
    """

    name: str
    state: str = ACTIVE
    pending: int = 0
    running: int = 0
    nominal: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    borrowed: Amounts = field(default_factory=dict)
    available: Amounts = field(default_factory=dict)
    share: Share | None = None
    fair: Amounts | None = None
    excess: Amounts = field(default_factory=dict)
    orphans: Mapping[str, int] = field(default_factory=dict)
    charged_in: str = ""


class QueueGangs(Struct, frozen=True):
    """The gangs at one moment: all records, of which the queued ones are pending, and those that hold capacity.

    `capacities` is what the clusters have that a tree with the sharing Division selects, by the root of the tree.
    """

    records: Sequence[Record]
    active: Sequence[ActiveGang]
    now: datetime
    capacities: Mapping[str, Resources] = field(default_factory=dict)


class QueueCounter:
    """Counts the states of the queues of one forest; what follows from the declarations alone is computed once."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._quotas = tree_quotas(forest)
        self._divided = frozenset(
            root for root, tree in forest.trees.items() if tree.sharing is Sharing.DIVISION
        )

    def count_in_steps(self, gangs: QueueGangs) -> Steps[dict[str, QueueState]]:
        """The state of each declared queue by name, valid or not, and of the queue `default`."""
        charged, later = QuotaLedger(self._forest, self._quotas), QuotaLedger(self._forest, self._quotas)
        running: Counter[str] = Counter()
        for active in in_parts(gangs.active, AT_ONCE):
            for gang in active:
                self._charge(charged, later, gang)
                running.update(gang.leaves)
            yield
        pending: Counter[str] = Counter()
        wanted: dict[str, Resources] = {}
        for records in in_parts(gangs.records):
            for record in records:
                if record.phase is Phase.QUEUED:
                    pending.update(counted_in(record, self._forest))
                    self._want(wanted, record, gangs.now)
            yield
        shares = {
            root: self._division(later.accounts[root], wanted, gangs.capacities.get(root, NOTHING))
            for root in self._divided
        }
        found: dict[str, QueueState] = {}
        orphans = self._orphans(running)
        pending, running = (
            self._with_all_below(pending),
            self._with_all_below(running, self._forest.charged_in),
        )

        def counted(state: QueueState) -> QueueState:
            name = state.name
            return replace(state, pending=pending[name], running=running[name], orphans=orphans.get(name, {}))

        for places in in_parts(self._forest.places.values(), AT_ONCE):
            for place in places:
                account = charged.accounts[place.root]
                state = _state(self._forest, place, account, shares.get(place.root))
                found[place.name] = counted(state)
            yield
        for name, problem in self._forest.problems.items():
            own = name if name in self._forest.for_quota.places else ""
            bearer = self._forest.charged_in.get(name, own)
            found[name] = counted(QueueState(name, problem, charged_in=bearer))
        return found

    def _charge(self, charged: QuotaLedger, later: QuotaLedger, gang: ActiveGang) -> None:
        """Charge a gang now and, if a tree is divided, also later: fair shares are those without gangs that leave."""
        charge, priority = gang.record.quota_charge, gang.record.priority
        charged.charge(gang.leaves, charge, priority)
        if self._divided and not gang.is_leaving:
            later.charge(gang.leaves, charge, priority)

    def _want(self, wanted: dict[str, Resources], record: Record, now: datetime) -> None:
        if self._divided and is_eligible(record, now):
            for leaf in counted_in(record, self._forest):
                place = self._forest.for_quota.places.get(leaf)
                if place is not None and place.root in self._divided:
                    wanted[leaf] = wanted.get(leaf, NOTHING) + record.gang.charged

    def _division(self, account: Account, wanted: Mapping[str, Resources], capacity: Resources) -> Shares:
        of_tree = {leaf: demand for leaf, demand in wanted.items() if leaf in account.quota.queues}
        return division.divide(account, self._forest.for_quota, capacity, of_tree)

    def _orphans(self, running: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """The gangs of queues that are not valid any more, by the queue in which they are charged, and by their own."""
        found: dict[str, dict[str, int]] = {}
        for name, count in running.items():
            bearer = self._forest.charged_in.get(name)
            if bearer is not None:
                found.setdefault(bearer, {})[name] = count
        return found

    def _with_all_below(
        self, counts: Mapping[str, int], charged_in: Mapping[str, str] = _NOWHERE_ELSE
    ) -> Counter[str]:
        """The counts of queues with those of all queues below each; of an invalid queue its own.

        The count of a queue that `charged_in` names is also that of the queue in which it is charged.
        """
        found: Counter[str] = Counter()
        for name, count in counts.items():
            place = self._forest.places.get(charged_in.get(name, name))
            for each in {name, *(() if place is None else place.path)}:
                found[each] += count
        return found


def _state(forest: Forest, place: Place, account: Account, shares: Shares | None) -> QueueState:
    """The state of a valid queue, without its counts."""
    name, quota = place.name, account.quota.queues[place.name]
    limited = _shown_resources(place, account.quota.limited)
    used = account.plain[name]
    if shares is None:
        borrowed = {each: account.borrowed(name, each) for each in limited}
        available = {each: account.available(name, each) for each in limited}
    else:  # without lending, the own quota of a queue is all of its nominal quota
        borrowed = {each: max(0, used[each] - quota.total[each]) for each in limited}
        left = {each: account.left_of_limits(name, each) for each in limited}
        available = {each: amount for each, amount in left.items() if amount is not None}
    is_by_share = place.sharing is Sharing.DOMINANT_SHARE
    return QueueState(
        name,
        ACTIVE if place.stop_policy is StopPolicy.NONE else place.stop_policy.value,
        nominal={each: quota.total[each] for each in limited},
        used={each: used[each] for each in limited},
        borrowed=borrowed,
        available=available,
        share=dominant_share.share(account, forest.for_quota, name) if is_by_share else None,
        fair=None if shares is None else {each: shares.fair[name][each] for each in limited},
        excess=_excess(place, account.quota),
    )


def _excess(place: Place, quota: TreeQuota) -> dict[str, int]:
    """The quota of the queues just below, of each resource of which they have more than the queue itself."""
    found = {}
    for name, own in place.queue.resources.items():
        below = sum(quota.queues[child].total[name] for child in place.children)
        if below > own.nominal:
            found[name] = below
    return found


def _shown_resources(place: Place, limited: Sequence[str]) -> Sequence[str]:
    """The limited resources of a tree, those first that the queue itself names."""
    if len(limited) <= MOST_RESOURCES:
        return limited
    named = place.queue.resources
    return sorted(limited, key=lambda each: each not in named)[:MOST_RESOURCES]


def beyond_quota(record: Record, states: Mapping[str, QueueState]) -> str:
    """That a gang grew and its queue uses more than it may, in a sentence; empty if that is not so."""
    for leaf in record.leaves:
        state = states.get(leaf)
        for name in sorted(record.growth_charge) if state is not None else ():
            if state is not None and state.available.get(name, 0) < 0:
                more = in_words(name, record.growth_charge[name])
                nominal = in_words(name, state.nominal[name])
                return (
                    f"it holds {more} {name} beyond its demand, and queue {leaf} uses more than it may (nominal "
                    f"{nominal}): no gang is evicted for that, but the queue's gangs may be preempted, and others wait"
                )
    return ""


# --- the document --------------------------------------------------------------------------------------------


class _Condition(NamedTuple):
    """A condition of a DispatchQueue; `holds` is None where it is not known."""

    type: str
    holds: bool | None
    reason: str = ""
    message: str = ""


class QueueStatuses:
    """Writes the statuses of the DispatchQueues; `queues` are all of them, also malformed ones."""

    def __init__(self, declared: DeclaredQueues, queues: Iterable[DispatchQueue]) -> None:
        self._declared = declared
        self._parents = {each.queue.name: each.queue.parent for each in queues}

    def status_of(self, state: QueueState, present: object, now: datetime) -> dict[str, Any]:
        """The whole `status` of a DispatchQueue, as JSON.

        `present` is the status at the API server, as JSON: a condition keeps its time there until its status changes.
        """
        times = dict(_times(present))
        status: dict[str, Any] = {
            "conditions": [_entry(each, times, now) for each in self._conditions(state)],
            "state": state.state,
            "pending": state.pending,
            "running": state.running,
        }
        if state.name in self._declared.forest.places:
            for key in ("nominal", "used", "borrowed", "available"):
                status[key] = _in_words(getattr(state, key))
        if state.share is not None and state.share.shown is not None:
            status["share"] = state.share.shown
        if state.fair is not None:
            status["fairShare"] = _in_words(state.fair)
        return status

    def _conditions(self, state: QueueState) -> Iterator[_Condition]:
        place = self._declared.forest.places.get(state.name)
        if place is None:
            yield _Condition(VALID, holds=False, reason=state.state, message=self._invalid(state))
            yield _Condition(STOPPED, holds=None)
            yield _Condition(IGNORED, holds=None)
            return
        yield _valid(place, state)
        yield _stopped(place)
        yield _ignored(self._declared.forest, place)
        if state.orphans:
            yield _orphaned_use(state.orphans)

    def _invalid(self, state: QueueState) -> str:
        """Why a queue is not valid, and where its gangs are charged meanwhile, if it has any."""
        problem = self._problem(state)
        if not state.running:
            return problem
        if state.charged_in:
            return f"{problem}; its AppWrappers that hold capacity stay charged in queue {state.charged_in}"
        return (
            f"{problem}; its AppWrappers that hold capacity are charged in no queue until it is valid again"
        )

    def _problem(self, state: QueueState) -> str:
        """Why a queue is not valid, in a sentence."""
        malformed = self._declared.malformed
        if state.name in malformed:
            return malformed[state.name]
        if state.state == TOO_DEEP:
            return f"it is more than {MOST_LEVELS} levels deep in its tree"
        chain, above = [state.name], self._parents.get(state.name)
        while above is not None and above not in chain:
            if len(chain) >= MOST_LEVELS:
                return f"more than {MOST_LEVELS} queues above it have no valid root"
            chain.append(above)
            above = None if above in malformed else self._parents.get(above)
        if above is not None:
            return f"its parents form a circle: {_listed([*chain[chain.index(above) :], above], ' -> ')}"
        *_, child, top = chain
        if top in malformed:
            return f"queue {top} above it is malformed"
        whose = "its parent" if child == state.name else f"the parent of queue {child} above it"
        return f"{whose}, queue {top}, does not exist"


def _valid(place: Place, state: QueueState) -> _Condition:
    if not state.excess:
        return _Condition(VALID, holds=True)
    found = [
        f"{name} {in_words(name, below)} of {in_words(name, place.queue.resources[name].nominal)}"
        for name, below in sorted(state.excess.items())
    ]
    message = f"the queues below it have more quota than the queue itself: {_listed(found, ', ')}"
    return _Condition(VALID, holds=True, reason=CHILDREN_EXCEED_QUOTA, message=message)


def _stopped(place: Place) -> _Condition:
    if place.stop_policy is StopPolicy.NONE:
        return _Condition(STOPPED, holds=False)
    who = "it" if place.stopped_by == place.name else f"queue {place.stopped_by} above it"
    policy = place.stop_policy.value
    return _Condition(STOPPED, holds=True, reason=policy, message=f"{who} has the stopPolicy {policy}")


def _ignored(forest: Forest, place: Place) -> _Condition:
    fields = forest.ignored(place.name)
    if not fields:
        return _Condition(IGNORED, holds=False)
    found = [f"{each}: {_why_ignored(each, place)}" for each in fields]
    return _Condition(IGNORED, holds=True, reason=NO_EFFECT, message=_listed(found, "; "))


def _orphaned_use(orphans: Mapping[str, int]) -> _Condition:
    count = sum(orphans.values())
    named = _listed([f"{name} ({each})" for name, each in sorted(orphans.items())], ", ")
    gangs = "1 AppWrapper is" if count == 1 else f"{count} AppWrappers are"
    message = f"{gangs} charged here, as the queues that they are in are not valid any more: {named}"
    return _Condition(ORPHANED_USE, holds=True, reason=QUEUE_NOT_VALID, message=message)


def _why_ignored(field_name: str, place: Place) -> str:
    if field_name == "sharing":
        return "the root of the tree decides"
    if field_name == "starvationBoundSeconds":
        return "has no effect under StrictFIFO"
    if not place.is_leaf and field_name.startswith(("order", "preemption.")):
        return "has an effect in queues without children only"
    if field_name in {f"resources.{name}" for name in place.queue.resources}:
        return "no gang can ask for this resource"
    if place.parent is None and not field_name.startswith("preemption."):
        return "has no effect in a root"
    if field_name == "priority":
        return "has an effect under sharing Division only"
    if field_name == "preemption.whileBorrowing":
        return "has an effect under sharing Priority only"
    return f"has no effect under sharing {place.sharing.value}"


def _listed(found: Sequence[str], separator: str) -> str:
    if len(found) <= MOST_NAMED:
        return separator.join(found)
    more = len(found) - MOST_NAMED
    return f"{separator.join(found[:MOST_NAMED])}{separator}and {more} more"


def _times(present: object) -> Iterator[tuple[tuple[str, str], str]]:
    """The time of each present condition, by its type and status; whatever else there is does not count."""
    conditions = present.get("conditions") if isinstance(present, Mapping) else None
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping):
            key, since = (each.get("type"), each.get("status")), each.get("lastTransitionTime")
            if isinstance(since, str):
                yield (str(key[0]), str(key[1])), since


def _entry(condition: _Condition, times: Mapping[tuple[str, str], str], now: datetime) -> dict[str, str]:
    status = "Unknown" if condition.holds is None else str(condition.holds)
    entry = {
        "type": condition.type,
        "status": status,
        "lastTransitionTime": times.get((condition.type, status)) or timestamp(now),
    }
    if condition.reason:
        entry |= {"reason": condition.reason, "message": condition.message}
    return entry


def _in_words(amounts: Amounts) -> dict[str, str]:
    return {name: in_words(name, amount) for name, amount in sorted(amounts.items())}

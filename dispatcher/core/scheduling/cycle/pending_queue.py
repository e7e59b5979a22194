"""The pending queue, kept ready for the next cycle: makes the decisions of `plan` at the cost of the changes.

`in_order` and `plan` are the definition, from scratch: they sort and evaluate every record. A `PendingQueue` makes the
same decisions (a property test holds the two equal), but keeps the queue between cycles in order, by equivalence class
(`equivalence_classes`) and by pending reason. So a cycle in which no gang fits evaluates one record of each class, and
returns only outcomes that change a record. Refusals are remembered for each cluster, so a gang is compared only with
the clusters that have changed. If no cluster has changed, the refusals of classes without new records are kept without
an evaluation. If nothing has changed since a cycle without new outcomes, the next cycle evaluates nothing.

A cycle over a long queue takes seconds, so it runs in steps, between which the event loop runs other tasks. Records
that are put or removed meanwhile take part in the next cycle.

On a hub with queues, a planner over queues (`sharing.queue_planner`) reads the changes of the queue instead.

Two kinds of record are evaluated in every cycle nevertheless: records with a slope, because their order changes with
time, and in a strict queue the records before the head, which fit no cluster even without other gangs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from dispatcher.core.lifecycle.queue_changes import (
    PendingKey,
    is_known_not_evaluated,
    pending_key,
    pending_key_of,
    says_otherwise,
)
from dispatcher.core.model import incremental
from dispatcher.core.model.failures import Failure
from dispatcher.core.model.gang import Gang
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.record import Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.queues.queue import Access, QueueingStrategy
from dispatcher.core.scheduling.capacity.pods_there import FollowedTerms
from dispatcher.core.scheduling.capacity.queued_terms import QueuedTerms
from dispatcher.core.scheduling.cycle.cycle import (
    CycleState,
    NotEvaluated,
    Outcome,
    Placed,
    Remembered,
    awaits_queue,
    none_declared,
    not_evaluated,
)
from dispatcher.core.scheduling.cycle.frontier import Candidate, Frontier, Stream, itself
from dispatcher.core.scheduling.cycle.gang_class import GangClass, Key, key_of
from dispatcher.core.scheduling.cycle.ordering import is_eligible, starved
from dispatcher.core.scheduling.cycle.refused import Refused
from dispatcher.core.scheduling.cycle.search_budget import SearchBudget
from dispatcher.core.scheduling.fit.affected_classes import AffectedClasses
from dispatcher.core.scheduling.fit.backfill import Backfill
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.equivalence_classes import Classes, ClassKey, DistinctRequirements
from dispatcher.core.scheduling.sharing.news import NewOutcome, Unplaced, outcome_of

_Class = GangClass[ClassKey]
_Refusals = dict[_Class, Refused]

TAKEN_IN_AT_ONCE: Final = 25
"""Records that one step moves from class to class; each move takes some fifty microseconds."""


class Changes(NamedTuple):
    """The last state of each record that changed, by uid; None for one that is no longer queued.

    If `are_all`, they are all records, and everything kept of the queue is out of date.
    """

    records: Mapping[str, Record | None]
    are_all: bool


class PendingQueue:
    """The queued records. The time in successive calls of `plan` never decreases.

    `access` says whether a gang that names a queue waits for it where none is declared.
    """

    def __init__(
        self,
        backfill: Backfill | None = None,
        budget: SearchBudget | None = None,
        access: Access = Access.SELECTED,
    ) -> None:
        self._backfill = backfill or Backfill()
        self.access = access
        self._records: dict[str, Record] = {}
        self._requirements = DistinctRequirements()
        self._postponed: list[tuple[datetime, str]] = []
        self._inbox: dict[str, Record | None] = {}
        self._with_terms: dict[str, Gang] = {}
        self._terms = QueuedTerms()
        self._reader: object = self
        self._barred: set[str] = set()
        self._failures: list[Failure] = []
        self._budget = budget or SearchBudget()
        self._forget_classes()

    def _forget_classes(self) -> None:
        # The records that take part in a cycle; they change only when one begins.
        self._in_cycle: dict[str, tuple[Record, _Class]] = {}
        self._classes = Classes[str]()
        self._by_key: dict[ClassKey, _Class] = {}
        self._blocked: dict[str, Record] = {}
        self._sloped = 0
        self._without_queue: list[Record] = []
        """The records of the last inbox that await a queue: where none is declared, they are in no class."""
        self._touched: set[_Class] = set()
        """The classes with records that came or went since the last cycle, or that it had news for."""
        self._last = _LastCycle()
        self._requests = AffectedClasses[_Class]()

    def __iter__(self) -> Iterator[Record]:
        """The queued records, in no order."""
        return iter(self._records.values())

    def put(self, record: Record) -> None:
        """Adds a queued record, or replaces its last state."""
        self._forget(record.uid)
        self._records[record.uid] = self._inbox[record.uid] = record
        self._requirements.add(record.requirements)
        if any(each.depends_on_others for each in record.gang.pod_sets):
            self._note_terms(record.uid, record.gang)
        elif record.uid in self._with_terms:
            self._note_terms(record.uid, None)
        if record.eligible_at:
            insort(self._postponed, (record.eligible_at, record.uid))

    def remove(self, uid: str) -> None:
        """Removes a record that is no longer queued; safe to repeat."""
        if self._forget(uid):
            self._inbox[uid] = None
            self._note_terms(uid, None)

    def holds(self, record: Record) -> bool:
        """True if the record is queued and this is its last state."""
        return self._records.get(record.uid) is record

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """The backfill reservations of the last cycle, by the uid of the gang."""
        return self._backfill.reservations

    def requirements(self) -> Iterable[ClusterRequirements]:
        """Requirements that cover every required namespace and kind, in no order; fewer than the records have."""
        return self._requirements

    @property
    def followed(self) -> FollowedTerms:
        """The terms about pods of the queued gangs; the same value as long as they do not change."""
        return self._terms.followed

    def next_eligible(self, now: datetime) -> datetime | None:
        """The time at which the next postponed record becomes eligible; None if there is none."""
        following = bisect_right(self._postponed, now, key=itemgetter(0))
        return self._postponed[following][0] if following < len(self._postponed) else None

    def bar(self, uids: Iterable[str], until: datetime) -> None:
        """Let these gangs take part in no cycle before that time, or until they change.

        The next cycle reads all records again.
        """
        for uid in uids:
            if uid in self._records:
                self._barred.add(uid)
                insort(self._postponed, (until, uid))
        self._reader = object()

    def in_cycles(self) -> list[Record]:
        """The queued records but for those that are barred, in no order."""
        return [each for uid, each in self._records.items() if uid not in self._barred]

    @property
    def has_left_out(self) -> bool:
        """True if the last cycle left gangs to a following one, because its searches were over their budget."""
        return self._budget.has_left_out

    def take_failures(self) -> list[Failure]:
        """The exceptions for which cycles refused a class, each once, with the uid of the gang that was decided."""
        failures, self._failures = self._failures, []
        return failures

    def plan(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        policy: QueueingStrategy,
        bound: timedelta,
        now: datetime,
    ) -> list[Outcome]:
        """All steps of `plan_in_steps` at once; the outcomes have messages."""
        return list(map(outcome_of, incremental.run(self.plan_in_steps(snapshots, policy, bound, now))))

    def plan_in_steps(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        policy: QueueingStrategy,
        bound: timedelta,
        now: datetime,
    ) -> Steps[list[NewOutcome]]:
        """The outcomes of a cycle that change a record, in queue order.

        The cycle decides on the queue of this moment, even if records are put or removed before its last step. All
        steps must run, one cycle at a time. `bound` is the starvation bound. Placed gangs reduce the snapshots.
        """
        changes = self.changes_for(self, now)
        if changes.are_all:
            self._forget_classes()
        return self._plan_or_forget(changes.records, snapshots, policy, bound, now)

    def changes_for(self, reader: object, now: datetime) -> Changes:
        """The changes since the last call for this reader, with the records that have become eligible by now.

        With queues, a planner over queues reads the changes; without, this queue does.
        """
        self._take_due(now)
        inbox, self._inbox = self._inbox, {}
        are_all = reader is not self._reader
        self._reader = reader
        if are_all:
            return Changes({each.uid: each for each in self.in_cycles()}, are_all=True)
        return Changes(inbox, are_all=False)

    # --- the records -----------------------------------------------------------------------------------------

    def _forget(self, uid: str) -> bool:
        self._barred.discard(uid)
        record = self._records.pop(uid, None)
        if record is None:
            return False
        self._requirements.remove(record.requirements)
        if record.eligible_at:
            due = record.eligible_at, uid
            at = bisect_left(self._postponed, due)
            if at < len(self._postponed) and self._postponed[at] == due:
                del self._postponed[at]
        return True

    def _note_terms(self, uid: str, gang: Gang | None) -> None:
        before = self._with_terms.pop(uid, None)
        if gang is not None:
            self._with_terms[uid] = gang
        if gang is None:
            self._terms.remove(uid)
        elif before is not gang:
            self._terms.put(uid, gang.pod_sets)

    def _take_due(self, now: datetime) -> None:
        """Adds the records that have become eligible to the inbox."""
        until = bisect_right(self._postponed, now, key=itemgetter(0))
        for _, uid in self._postponed[:until]:
            self._barred.discard(uid)
            if uid in self._records:
                self._inbox[uid] = self._records[uid]
        del self._postponed[:until]

    def _take_in(self, inbox: Mapping[str, Record | None], now: datetime) -> Steps[None]:
        self._without_queue = []
        for part in incremental.in_parts(inbox.items(), TAKEN_IN_AT_ONCE):
            for uid, record in part:
                _, before = self._in_cycle.get(uid, (None, None))
                self._discard(uid)
                if record is None or not is_eligible(record, now):
                    continue
                if awaits_queue(record, self.access):
                    self._without_queue.append(record)
                else:
                    self._add(record, before)
            yield

    def _add(self, record: Record, before: _Class | None) -> None:
        key = self._classes.add(record.uid, record.shape)
        self._enter_class(record, key, before)
        self._sloped += bool(record.priority_slope)
        if record.blocked_since:
            self._blocked[record.uid] = record

    def _discard(self, uid: str) -> None:
        record = self._leave_class(uid)
        if record is None:
            return
        self._classes.remove(record.uid, record.shape)
        self._sloped -= bool(record.priority_slope)
        self._blocked.pop(uid, None)

    def _enter_class(self, record: Record, key: ClassKey, before: _Class | None = None) -> None:
        """Adds the record to its class; `before` is the class of its last state.

        A class that only this record left is used again: the last cycle's refusal is remembered for that object.
        """
        class_ = self._by_key.get(key)
        if class_ is None:
            class_ = before if before is not None and before.key == key else GangClass(key)
            self._by_key[key] = class_
            if not key.repelled:
                self._requests.add(class_, record.gang)
        class_.add(record)
        self._touched.add(class_)
        self._in_cycle[record.uid] = record, class_

    def _leave_class(self, uid: str) -> Record | None:
        record, class_ = self._in_cycle.pop(uid, (None, None))
        if record is not None and class_ is not None:
            class_.remove(record)
            self._touched.add(class_)
            if not class_:
                del self._by_key[class_.key]
                self._requests.remove(class_)
        return record

    def _follow(self, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[None]:
        """Updates the equivalence classes to these clusters."""
        moved = yield from self._classes.follow(snapshots, self._gangs_in_cycle())
        for part in incremental.in_parts(moved):
            for uid in part:
                record = self._leave_class(uid)
                if record is not None:
                    self._enter_class(record, self._classes.key(record.shape))
            yield

    def _gangs_in_cycle(self) -> Iterator[tuple[str, Gang]]:
        """The gangs by uid; costs nothing until the first is asked for."""
        for uid, (record, _) in list(self._in_cycle.items()):
            yield uid, record.gang

    # --- a cycle ---------------------------------------------------------------------------------------------

    def _plan_or_forget(
        self,
        inbox: Mapping[str, Record | None],
        snapshots: Mapping[str, ClusterSnapshot],
        policy: QueueingStrategy,
        bound: timedelta,
        now: datetime,
    ) -> Steps[list[NewOutcome]]:
        """As `_plan`; after an exception the next cycle reads all records again: classes may be half changed."""
        try:
            return (yield from self._plan(inbox, snapshots, policy, bound, now))
        except Exception:
            self._reader = object()
            raise

    def _plan(
        self,
        inbox: Mapping[str, Record | None],
        snapshots: Mapping[str, ClusterSnapshot],
        policy: QueueingStrategy,
        bound: timedelta,
        now: datetime,
    ) -> Steps[list[NewOutcome]]:
        yield from self._follow(snapshots)
        yield from self._take_in(inbox, now)
        self._budget.begin()
        starved = yield from self._starved(policy, bound, now)
        known = self._backfill.reservations
        starved = [each for each in starved if each.uid in known or self._budget.admits(each)]
        reservations = yield from self._backfill.renew_in_steps(starved, snapshots, now)
        # Refusals depend on the reservations of starved gangs. A queued gang never changes.
        reserved_for = tuple((each.uid, reservations.get(each.uid)) for each in starved)
        remembered = self._last.remembered(snapshots, reserved_for)
        if self._last.is_quiet and not remembered.changed and not inbox and not self._sloped:
            return []
        state = CycleState(snapshots, self._class_of, remembered)
        outdated: dict[str, set[_Class]] = {}
        cycle = _Cycle(state)
        yield from cycle.reserve(starved, reservations, self._budget)
        if policy is QueueingStrategy.STRICT_FIFO:
            yield from self._evaluate_up_to_head(cycle, now)
        else:
            is_in_order = not starved and not self._sloped
            kept = (yield from self._kept(remembered, snapshots)) if is_in_order else {}
            changed = frozenset(remembered.changed)
            yield from self._evaluate_by_class(cycle, kept, now)
            outdated = yield from self._outdated(state.refusals, kept, changed)
            yield from incremental.update(state.refusals, kept)
        self._failures += state.failures
        news = yield from _news_in_order(cycle.outcomes, now)
        self._touched = yield from self._classes_of(news)
        forgotten, self._last = self._last, _LastCycle()
        self._last = _LastCycle(
            clusters=frozenset(snapshots),
            snapshots={name: each for name, each in snapshots.items() if name not in state.placed_on},
            starved=reserved_for,
            keepers=state.keepers,
            refusals=state.refusals,
            is_quiet=not news and not self._budget.has_left_out,
            outdated=outdated,
        )
        yield from incremental.release(forgotten.refusals)
        without_queue = [none_declared(each) for each in self._without_queue]
        told = [each for each in without_queue if says_otherwise(each.record, each.pending)]
        if not told:
            return news
        return list(
            (yield from incremental.in_order([*news, *told], key=lambda each: key_of(each.record, now)))
        )

    def _class_of(self, record: Record) -> _Class:
        return self._in_cycle[record.uid][1]

    def _starved(self, policy: QueueingStrategy, bound: timedelta, now: datetime) -> Steps[list[Record]]:
        """The starved gangs, in order."""
        if policy is QueueingStrategy.STRICT_FIFO:
            return []
        uids = starved(self._blocked.values(), now, bound)
        if not uids:
            return []
        keys = yield from incremental.in_order([key_of(self._blocked[uid], now) for uid in uids], key=itself)
        return [self._blocked[uid] for _, uid in keys]

    def _evaluate_up_to_head(self, cycle: _Cycle, now: datetime) -> Steps[None]:
        """Evaluates the gangs one by one up to the first that waits; the gangs after it are not evaluated.

        A gang whose search is over the budget of the cycle stops the queue, too: nothing is said of the gangs from
        there on, but that a following cycle decides them.
        """
        frontier = yield from self._frontier(frozenset(), now)
        while cycle.head is None and (candidate := frontier.pop()) is not None:
            (_, uid), stream = candidate
            record = self._in_cycle[uid][0]
            if cycle.knows(record):
                cycle.evaluate(record)  # without a search, whose steps would count
            elif self._budget.admits(record):
                cycle.evaluate(record, budget=self._budget)
            elif not self._budget.may_pass(record):
                return  # the queue stops here, and a following cycle decides the gangs from here on
            yield from frontier.go_on(stream)
        if cycle.head is not None:
            answer = not_evaluated(cycle.head, cycle.head)
            for class_ in self._by_key.values():
                yield from self._note_class(class_, answer, cycle)

    def _classes_of(self, news: Iterable[NewOutcome]) -> Steps[set[_Class]]:
        found: set[_Class] = set()
        for part in incremental.in_parts(news):
            found.update(self._in_cycle[each.record.uid][1] for each in part)
            yield
        return found

    def _kept(self, remembered: Remembered, snapshots: Mapping[str, ClusterSnapshot]) -> Steps[_Refusals]:
        """The refusals of the last cycle that hold without an evaluation, but for the amounts in their messages.

        All gangs of these classes have them in their records. The first gang that may be the head is left out, because
        a cycle finds its head among the gangs that it evaluates.
        """
        refusals: Mapping[Any, Refused] = remembered.refusals
        changed = frozenset(remembered.changed)
        affected = (yield from self._affected_by(changed, snapshots)) if refusals else None
        kept: _Refusals = {}
        if affected is None:
            return kept
        first: tuple[Key, _Class] | None = None
        for part in incremental.in_parts(self._by_key.values()):
            for class_ in part:
                refused = None if class_ in self._touched or class_ in affected else refusals.get(class_)
                if refused is not None and changed and not self._holds(class_, refused, changed):
                    refused = None
                if refused is not None:
                    kept[class_] = refused
                    if refused.may_be_head and (first is None or class_.keys[0] < first[0]):
                        first = class_.keys[0], class_
            yield
        if first is not None:
            del kept[first[1]]
        return kept

    def _affected_by(
        self, changed: Collection[str], snapshots: Mapping[str, ClusterSnapshot]
    ) -> Steps[set[_Class] | None]:
        """The classes that the changed clusters may refuse in another way than before; None for all."""
        found: set[_Class] = set()
        for name in changed:
            affected = yield from self._requests.of(self._last.snapshots.get(name), snapshots[name])
            if affected is None:
                return None
            found |= affected
        return found

    def _holds(self, class_: _Class, refused: Refused, changed: Collection[str]) -> bool:
        """True if the refusal of a class that is not affected by the changed clusters holds there."""
        return self._requests.knows(class_) and not (
            len(class_.key.pods) > 1 and refused.depends_on_packing(changed)
        )

    def _outdated(
        self, evaluated: Mapping[Any, Refused], kept: _Refusals, changed: Iterable[str]
    ) -> Steps[dict[str, set[_Class]]]:
        """The classes by the clusters whose amounts in their refusals are from an earlier cycle."""
        found = self._last.outdated
        for classes in found.values():
            if len(classes) > 2 * len(self._by_key):
                classes &= kept.keys()
            for part in incremental.in_parts(evaluated if classes else ()):
                classes.difference_update(part)
                yield
        for name in changed:
            classes = found.setdefault(name, set())
            for part in incremental.in_parts(kept):
                classes.update(part)
                yield
        return found

    def _evaluate_by_class(self, cycle: _Cycle, kept: _Refusals, now: datetime) -> Steps[None]:
        """Evaluates the gangs in order. Once one gang of a class does not fit, its whole class is refused.

        Each starved gang has its own outcome from before. The classes of `kept` are only evaluated after a gang was
        placed before them, because then less is free for them; they are removed from it.
        """
        frontier = yield from self._frontier(frozenset(cycle.outcomes), now, kept)
        refused: dict[_Class, Refused] = {}
        are_kept = bool(kept)
        while (candidate := frontier.pop()) is not None:
            key, stream = candidate
            uid = key[1]
            record, class_ = self._in_cycle[uid]
            shares_refusal = uid not in cycle.starved
            if class_ in refused and shares_refusal:
                continue
            if shares_refusal and not self._budget.admits(record):
                yield
                continue  # nothing is known of its class, so a following cycle decides it
            answer = cycle.evaluate(
                record, is_noted_with_class=shares_refusal, budget=self._budget if shares_refusal else None
            )
            if isinstance(answer, Placed):
                if are_kept:
                    are_kept = False
                    yield from frontier.add(_behind(key, kept))
                yield from frontier.go_on(stream)
            elif shares_refusal:
                refused[class_] = answer
            yield
        while refused:  # in any order: the new outcomes are sorted later
            yield from self._note_class(*refused.popitem(), cycle)

    def _frontier(
        self, alone: frozenset[str], now: datetime, without: Collection[_Class] = ()
    ) -> Steps[Frontier]:
        """The first gang of each class, but not of some, and the gangs of `alone`, in order."""
        # In parts, because each garbage collection traverses all of a long new list.
        heads: list[Candidate] = [(key_of(self._in_cycle[uid][0], now), Stream(iter(()))) for uid in alone]
        parts: list[list[Candidate]] = []
        for class_ in self._by_key.values():
            if class_ in without:
                continue
            keys = (key for key in class_.keys if key[1] not in alone) if alone else iter(class_.keys)
            if (first := next(keys, None)) is not None:
                heads.append((first, Stream(keys)))
            if class_.sloped:
                sloped = yield from _keys(class_.sloped, alone, now)
                if sloped:
                    heads.append((min(sloped), Stream(iter(()), sloped)))
            if len(heads) >= incremental.PART:
                heads.sort(key=itemgetter(0))
                parts.append(heads)
                heads = []
                yield
        heads.sort(key=itemgetter(0))
        return Frontier(incremental.merged([*parts, heads], key=itemgetter(0)))

    def _note_class(self, class_: _Class, answer: Refused | NotEvaluated, cycle: _Cycle) -> Steps[None]:
        """Adds the answer of a class for each of its gangs that has no outcome yet and whose record it changes."""
        yield
        for known, uids in class_.by_pending_key.items():
            if _is_known(known, answer):
                continue
            for part in incremental.in_parts(uids):
                for uid in part:
                    if uid not in cycle.outcomes:
                        record = self._in_cycle[uid][0]
                        cycle.outcomes[uid] = (
                            Unplaced(record, answer)
                            if isinstance(answer, Refused)
                            else NotEvaluated(record, answer.pending)
                        )
                yield


def _behind(key: Key, kept: _Refusals) -> Iterator[_Class]:
    """Takes the classes behind a key out of `kept`, and yields them."""
    for class_ in [class_ for class_ in kept if key < class_.keys[0]]:
        del kept[class_]
        yield class_


class _LastCycle(Struct, frozen=True):
    """The input and the refusals of the last cycle; `is_quiet` if no outcome changed a record.

    `snapshots` are those that the cycle placed no gang on: refusals by the other `clusters` do not hold any more.
    `outdated` has the classes by the clusters whose amounts in their refusals are from an earlier cycle.
    """

    clusters: frozenset[str] = frozenset()
    snapshots: Mapping[str, ClusterSnapshot] = field(default_factory=dict)
    starved: tuple[tuple[str, Reservation | None], ...] = ()
    keepers: Mapping[str, str] = field(default_factory=dict)
    refusals: dict[Hashable, Refused] = field(default_factory=dict)
    is_quiet: bool = False
    outdated: dict[str, set[_Class]] = field(default_factory=dict)

    def remembered(
        self,
        snapshots: Mapping[str, ClusterSnapshot],
        starved: tuple[tuple[str, Reservation | None], ...],
    ) -> Remembered:
        """The refusals that hold for these clusters and reservations."""
        if (self.clusters, self.starved) != (frozenset(snapshots), starved):
            return Remembered(changed=set(snapshots))
        changed = {name for name, each in snapshots.items() if self.snapshots.get(name) != each}
        return Remembered(self.refusals, changed, self.keepers, self.outdated)


class _Cycle:
    """The outcomes of a cycle so far, by uid, and its head."""

    def __init__(self, state: CycleState) -> None:
        self.outcomes: dict[str, NewOutcome] = {}
        self.starved: dict[str, Placed | Refused] = {}
        self.head: Record | None = None
        self._state = state

    def reserve(
        self, records: list[Record], reservations: Mapping[str, Reservation], budget: SearchBudget
    ) -> Steps[None]:
        """Decides on the starved gangs, which are in order, before all others."""
        decided = []
        for record in records:
            if record.uid not in reservations and not budget.admits(record):
                continue  # those before it cost more than was expected
            before = self._state.steps_so_far(record, budget)
            self.starved |= self._state.reserve([record], reservations)
            self._state.settle(record, before, budget)
            decided.append(record)
            yield
        for record in decided:
            answer = self.starved[record.uid]
            self.outcomes[record.uid] = Unplaced(record, answer) if isinstance(answer, Refused) else answer

    def knows(self, record: Record) -> bool:
        """True if the decision about a gang is known without any search."""
        return self._state.knows(record)

    def evaluate(
        self, record: Record, *, is_noted_with_class: bool = False, budget: SearchBudget | None = None
    ) -> Placed | Refused:
        """Decides on the next gang in order; `_note_class` adds a refusal that `is_noted_with_class`.

        The steps of its searches are noted in the `budget`.
        """
        before = None if budget is None else self._state.steps_so_far(record, budget)
        answer = self.starved.get(record.uid) or self._state.place(record)
        if budget is not None:
            self._state.settle(record, before, budget)
        if isinstance(answer, Placed):
            self.outcomes[record.uid] = answer
            return answer
        is_head = self.head is None and answer.may_be_head
        if is_head:
            self.head = record
        # Only the new refusals of a class become outcomes; in a long queue it would take long to free all of them.
        if is_head or not is_noted_with_class:
            self.outcomes[record.uid] = Unplaced(record, answer, is_head=is_head)
        return answer


def _news_in_order(outcomes: dict[str, NewOutcome], now: datetime) -> Steps[list[NewOutcome]]:
    """The outcomes that change a record, in queue order; empties `outcomes`."""
    keyed: list[tuple[Key, NewOutcome]] = []
    for part in incremental.in_parts(outcomes.values()):
        keyed += [(key_of(each.record, now), each) for each in part if _is_news(each)]
        yield
    yield from incremental.release(outcomes)
    in_order = yield from incremental.in_order(keyed, key=itemgetter(0))
    del keyed  # otherwise all of it would be freed at once
    found: list[NewOutcome] = []
    for sorted_part in incremental.in_parts(in_order):
        found += [each for _, each in sorted_part]
        yield
    return found


def _keys(records: Mapping[str, Record], but: frozenset[str], now: datetime) -> Steps[list[Key]]:
    keys: list[Key] = []
    for part in incremental.in_parts(records.values()):
        keys += [key_of(record, now) for record in part if record.uid not in but]
        yield
    return keys


def _is_known(known: PendingKey, answer: Placed | Refused | NotEvaluated) -> bool:
    """True if the answer does not change a record with the pending reason `known`."""
    match answer:
        case Placed():
            return False
        case NotEvaluated():
            return is_known_not_evaluated(known, answer.pending)
        case Refused(reservation=Reservation()):
            return known == pending_key_of(answer.pending)
        case Refused():
            return known == PendingKey(*answer.nearest, is_backoff=True)


def _is_news(news: NewOutcome) -> bool:
    if isinstance(news, Placed | NotEvaluated):
        return not _is_known(pending_key(news.record), news)
    if not isinstance(news, Unplaced):
        return True
    becomes_head = news.is_head and not news.record.blocked_since
    return becomes_head or not _is_known(pending_key(news.record), news.refused)

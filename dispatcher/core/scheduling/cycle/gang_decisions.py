"""The decision about one gang that its queues take: dispatch, promise, preemption or refusal, and what that takes.

The clusters are asked which of them take the gang, and whether it has room there now and later. What a decision takes
is gone for the decisions after it: room, quota, and the victims of a preemption. `cycle.cycle` has the order in which
the gangs are decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.core.model.gangs.gang import ASSIGNED_NOWHERE, Assignment
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.pending_reasons import AWAITING_RELEASE, PREEMPTED_TOO_OFTEN
from dispatcher.core.model.records.record import Pending
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.cycle.news import NewOutcome, Unplaced
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting, Waiting
from dispatcher.core.scheduling.cycle.refusals import Refusals
from dispatcher.core.scheduling.cycle.turns import Turns
from dispatcher.core.scheduling.fit.cluster_filters import score, score_of_request
from dispatcher.core.scheduling.fit.cluster_room import ClusterRoom
from dispatcher.core.scheduling.fit.refused import (
    ClusterShortfall,
    Refused,
    why_no_other,
    why_no_request,
)
from dispatcher.core.scheduling.preemption.surplus import with_surplus
from dispatcher.core.scheduling.preemption.victims import Victims, VictimSearch
from dispatcher.core.scheduling.queued.cluster_answers import Acceptance, ClusterAnswers, requested
from dispatcher.core.scheduling.sharing import division
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang, gave_way_too_often
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.search import victim_order
from dispatcher.text import counted

MOST_NAMED: Final = 10
"""Victims that the pending reason of their preemptor names."""

_AFTER_RELEASE: Final = "fits once gangs that are leaving have released their capacity"


class GangDecisions(Struct):
    """The decisions of one cycle, one gang at a time; each changes the `rooms`, the ledgers and the order of `turns`.

    `ledger` has every gang that holds quota now, and `later` those that do not leave. `parts` are the gangs that grew,
    in parts, by uid; `shares` are those of the trees with the sharing Division, by root.
    """

    forest: Forest
    rooms: Mapping[str, ClusterRoom]
    clusters: ClusterAnswers
    refusals: Refusals
    search: VictimSearch
    turns: Turns
    ledger: QuotaLedger
    later: QuotaLedger
    parts: Mapping[str, list[ActiveGang]]
    shares: Mapping[str, Shares]
    is_changing: bool = False
    """True while accounts, rooms or a search are changed for a gang: then an exception ends the cycle."""
    trials: int = 0
    """The steps of all searches for victims so far."""

    def of(self, gang: PendingGang) -> Steps[NewOutcome]:
        """The outcome for a gang that its queues take."""
        gang = self.clusters.with_class(gang)
        accepted = self.clusters.to(gang)
        if not accepted.rooms:
            refused_by = Refused(
                gang.record.gang,
                accepted.rejections,
                accepted.shortfalls,
                has_members=self.clusters.has_members,
            )
            return Unplaced(gang.record, refused_by, self.refusals.named(gang))
        if gang.is_by_clusters:
            return self._answer_by_clusters(gang, accepted)
        if queue := self._exhausted_queue(gang):
            message = gave_way_too_often("was preempted", gang.preemptions)
            return Waiting(gang.record, Pending(PREEMPTED_TOO_OFTEN, message, queue=queue))
        record, demand = gang.record, gang.record.gang.charged
        has_quota_later = self.later.has_quota(gang.leaves, demand, record.priority)
        known = self.clusters.known_refusal(accepted.answers)
        if has_quota_later and known is None:
            if self.ledger.has_quota(gang.leaves, demand, record.priority):
                placed = self._dispatch(gang, accepted)
                if isinstance(placed, Placed):
                    return placed
            if promised := self._promise(gang, accepted):
                return promised
        if self.search.may_preempt(gang):
            self.is_changing = True  # a search gives back what it took only once it ends
            victims = yield from self._counted(
                self.search.find(gang, [each.name for each in accepted.rooms], self.clusters.accepting)
            )
            self.is_changing = victims is not None
            if victims is not None:
                return self._preempt(gang, victims)
        lacking = self.refusals.lacking_quota(gang.leaves, demand, record.priority)
        if lacking is not None:
            return Waiting(record, lacking)
        if known is not None:
            return Unplaced(record, known, self.refusals.named(gang))
        short = [*accepted.shortfalls, *self.clusters.shortfalls(gang, accepted)]
        answer = self.refusals.without_room(gang, accepted.rejections, short)
        if has_quota_later and isinstance(answer, Unplaced):
            self.clusters.note_refusal(accepted.answers, answer.refused)
        return answer

    def leave(self, gangs: Iterable[ActiveGang]) -> None:
        """Let gangs that hold capacity leave: their room and their quota are free later."""
        leaving = with_surplus(gangs, self.parts)
        self.search.leave(gang.uid for gang in leaving)
        for gang in leaving:
            self.later.charge(gang.record.leaves, gang.charge, gang.record.priority, -1)
            if gang.cluster in self.rooms:
                self.rooms[gang.cluster].free_later([(gang.uid, gang.demand)])
            self._changed(gang.leaves)

    def _counted(self, search: Steps[Victims | None]) -> Steps[Victims | None]:
        """The result of a search for victims, whose steps count as those of searches for places do."""
        try:
            while True:
                try:
                    next(search)
                except StopIteration as end:
                    found: Victims | None = end.value
                    return found
                self.trials += 1
                yield
        finally:
            search.close()

    def _answer_by_clusters(self, gang: PendingGang, accepted: Acceptance) -> NewOutcome:
        """The outcome for a gang that some cluster accepts, in a queue without quota and preemption."""
        known = self.clusters.known_refusal(accepted.answers)
        if known is not None:
            return Unplaced(gang.record, known, self.refusals.named(gang))
        found = self._dispatch(gang, accepted)
        if isinstance(found, Placed):
            return found
        if promised := self._promise(gang, accepted):
            return promised
        answer = self.refusals.without_room(gang, accepted.rejections, found)
        if isinstance(answer, Unplaced):
            self.clusters.note_refusal(accepted.answers, answer.refused)
        return answer

    def _exhausted_queue(self, gang: PendingGang) -> str:
        """The leaf that a gang would have to borrow in although it was preempted too often; empty if there is none."""
        if not gang.preemptions:
            return ""
        demand = gang.record.gang.charged
        for place in self.forest.places_of(gang.leaves):
            if not place.max_preemptions or gang.preemptions < place.max_preemptions:
                continue
            account = self.later.accounts[place.root]
            if place.sharing is Sharing.DIVISION:
                if division.would_exceed(account, self.shares[place.root], place.name, demand):
                    return place.name
            elif account.would_borrow(place.name, demand):
                return place.name
        return ""

    def _dispatch(self, gang: PendingGang, accepted: Acceptance) -> Placed | list[ClusterShortfall]:
        """Dispatch to the best cluster with room now and later; the shortfalls of all clusters if there is none."""
        fitting, short = dict[str, Assignment](), list(accepted.shortfalls)
        for room in accepted.rooms:
            found = self.clusters.fit(gang, room, accepted.answers)
            if isinstance(found, Assignment):
                fitting[room.name] = found
            else:
                short.append(found)
        if not fitting:
            return short
        best = self._best(gang, fitting, is_later=False)
        record, assignment = gang.record, fitting[best.name]
        why = (
            why_no_request(
                record.gang, self.forest.class_named_by(gang.leaves) or best.snapshot.capacity.provisioning
            ),
            why_no_other(record.gang, best.name, fitting, accepted.rejections, short),
        )
        self.is_changing = True
        best.dispatch(record.gang, assignment)
        for ledger in (self.ledger, self.later):
            ledger.charge(gang.leaves, record.gang.charged, record.priority)
        self._changed(gang.leaves)
        return Placed(record, best.name, "; ".join(filter(None, why)), assignment)

    def _promise(self, gang: PendingGang, accepted: Acceptance) -> Waiting | None:
        """Promise the gang room on the best cluster later; None if there is none."""
        fitting = dict[str, Assignment]()
        for room in accepted.rooms:
            found = self.clusters.fit_later(gang, room, accepted.answers)
            if found is not None:
                fitting[room.name] = found
        if not fitting:
            return None
        best = self._best(gang, fitting, is_later=True)
        self._promise_on(gang, best, fitting[best.name])
        return Waiting(gang.record, Pending(AWAITING_RELEASE, _AFTER_RELEASE, cluster=best.name))

    def _promise_on(self, gang: PendingGang, room: ClusterRoom, assignment: Assignment) -> None:
        self.is_changing = True
        room.promise(gang.record.gang, assignment)
        self.later.charge(gang.leaves, gang.record.gang.charged, gang.record.priority)
        self._changed(gang.leaves)

    def _best(self, gang: PendingGang, fitting: Mapping[str, Assignment], *, is_later: bool) -> ClusterRoom:
        record = gang.record

        def scored(room: ClusterRoom) -> object:
            if gang.asked is not None:
                return score_of_request(record.requirements, room.snapshot)
            available = room.available_later(record.gang) if is_later else room.available(record.gang)
            return score(record.gang, record.requirements, room.snapshot, available, fitting[room.name])

        return min((self.rooms[name] for name in fitting), key=scored)  # type: ignore[arg-type]

    def _preempt(self, gang: PendingGang, victims: Victims) -> Preempting:
        self.leave([victim for victim, _ in victims.gangs])
        room = self.rooms[victims.cluster]
        found = requested(gang) or room.fit_later(gang.record.gang)
        self._promise_on(gang, room, found if isinstance(found, Assignment) else ASSIGNED_NOWHERE)
        ordered = sorted(victims.gangs, key=lambda each: victim_order(each[0], gang.leaves[0]))
        message = f"fits once {_in_words(victim for victim, _ in ordered)} gone, which it preempts"
        names = list(dict.fromkeys(victim.record.key for victim, _ in ordered))
        pending = Pending(
            AWAITING_RELEASE, message, cluster=victims.cluster, preempting=tuple(names[:MOST_NAMED])
        )
        return Preempting(gang.record, pending, victims.cluster, victims.gangs)

    def _changed(self, leaves: Iterable[str]) -> None:
        """The use of these leaves' trees and the room of a cluster have changed."""
        self.search.changed(leaves)
        self.turns.changed(leaves)


def _in_words(victims: Iterable[ActiveGang]) -> str:
    """The gangs that leave, else the surplus pods, with the verb: `ns/x and 1 more are`."""
    gangs, pods = list[str](), Counter[str]()
    for victim in victims:
        if victim.is_surplus:
            pods[victim.record.key] += 1
        else:
            gangs.append(victim.record.key)
    pods = Counter({key: count for key, count in pods.items() if key not in gangs})
    names = gangs + [f"{counted(count, 'surplus pod')} of {key}" for key, count in pods.items()]
    are_several = len(names) > 1 or (not gangs and pods.total() > 1)
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more} {'are' if are_several else 'is'}"

"""The explanation of an AppWrapper from the leader's snapshot: the decision of the next cycle, and its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.conditions import ConditionType
from dispatcher.cli.people.author import AuthorFacts
from dispatcher.cli.screens.explanation import (
    NEVER_GOES,
    NO_POSITION_YET,
    NO_QUEUE_TAKES_IT,
    Block,
    Document,
    does_not_go,
    meant_queue,
    missing_queue,
    rejections,
    would_be_dispatched,
)
from dispatcher.cli.screens.output import UNKNOWN, as_of, text
from dispatcher.cli.screens.tables import Heading
from dispatcher.core.lifecycle.record_change import noted_warning
from dispatcher.core.model.clusters import potential
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.quantity import in_words as amount_in_words
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed
from dispatcher.core.scheduling.explain.advice import NEVER_ON_A_CLUSTER
from dispatcher.core.scheduling.explain.estimate_words import why_unknown
from dispatcher.core.scheduling.explain.estimates import Estimate, UnknownStart, Why
from dispatcher.core.scheduling.explain.explanation import CordonedNodes, Explanation
from dispatcher.core.scheduling.explain.repair import AddNodes, RemoveGangs, Repair, apply, in_words, listed
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.fit.estimated_ends import stated_end
from dispatcher.core.scheduling.preemption.account_report import AccountRow

_HOLDERS: Final = (
    Heading("HELD BY", is_namespaced=True),
    Heading("USER", 2),
    Heading("CLUSTER"),
    Heading("HOLDS", wraps=True),
    Heading("SINCE"),
    Heading("EXPECTED UNTIL", 1),
)
_ACCOUNTS: Final = (
    Heading("QUEUE"),
    Heading("RESOURCE"),
    Heading("NOMINAL"),
    Heading("USED"),
    Heading("BORROWS", 2),
    Heading("AVAILABLE"),
    Heading("AT MOST", 1),
)
_SPARED: Final = (
    Heading("NOT PREEMPTED", is_namespaced=True),
    Heading("QUEUE", 1),
    Heading("CLUSTER", 2),
    Heading("BECAUSE", wraps=True),
)
_ABOUT_THE_POSITION: Final = frozenset({Why.TOO_LARGE, Why.IN_NO_QUEUE})
"""Reasons of an unknown start that the line about the position has said."""
_MOST_SPARED: Final = 10
"""Gangs that are not preempted, in the table for people."""
_MOST_NEIGHBOURS: Final = 3
"""Names before and after it in the queue; JSON has them all."""


class HelpfulChange(NamedTuple):
    """A change that would dispatch a gang: in words, to be read after "it would be dispatched", and as it is made."""

    words: str
    after: Callable[[World], World]
    """The world after the change."""


class Report(Struct, frozen=True):
    """An explanation with the records and the world that it is about; `author` is for one that is not submitted.

    `estimate` is the estimated start of the gang, None if it was not sought. `taken_at` is the time of the facts about
    clusters and queues, whose age the report tells; None for a world that is no snapshot.
    """

    explanation: Explanation
    world: World
    records: Mapping[str, Record]
    taken_at: datetime | None = None
    author: AuthorFacts | None = None
    estimate: Estimate | None = None

    @property
    def age(self) -> timedelta | None:
        """The age of the oldest facts about a cluster and about the queues; None if that is not known."""
        return max(self.world.now - self.taken_at, timedelta(0)) if self.taken_at else None

    def document(self, *, is_wide: bool = False) -> Document:
        """The explanation; tables have exact times in wide output."""
        found, value = self.explanation, self._value()
        key, outcome = found.record.key, found.outcome
        author = tuple(self.author.lines()) if self.author else ()
        if found.awaited is not None:
            heading = f"{key} waits: {found.awaited.reason}"
            return Document(value, heading, (*author, NO_POSITION_YET, found.awaited.message))
        if outcome is None:
            heading = f"{key} may not be dispatched before {text(found.eligible_at)}."
            return Document(value, heading, (self._start(),))
        if isinstance(outcome, Placed):
            return Document(value, f"{key} {_goes(outcome)}.", (*author, self._place_in_queue()))
        pending = outcome.pending
        warning = noted_warning(found.record, ConditionType.UNKNOWN_FIELDS)
        facts = (
            *author,
            self._place_in_queue(),
            self._start(),
            "" if pending.clusters else pending.message + self._meant_queue(pending),
            warning and f"warning: {warning}",
        )
        kept = pending.clusters and pending.reservation
        blocks = (
            rejections((each.cluster, each.reason, each.message) for each in pending.clusters),
            Block(below=(f"A backfill reservation {pending.reservation}.",) if kept else ()),
            Block(_ACCOUNTS, [_account_row(each) for each in (*found.accounts, *found.borrowers)]),
            self._spared(),
            *self._help(None if is_wide else self.world.now),
        )
        heading = does_not_go(key, pending.reason, fits_nowhere=_fits_nowhere(outcome))
        return Document(value, heading, facts, blocks)

    def _value(self) -> dict[str, Any]:
        found, record = self.explanation, self.explanation.record
        return {
            "name": record.name,
            "namespace": record.namespace,
            "uid": record.uid,
            "state": record.phase,
            "verdict": _verdict(found),
            "position": found.position,
            "ahead": [each.key for each in found.ahead],
            "behind": [each.key for each in found.behind],
            "eligibleAt": _time(found.eligible_at),
            "estimatedStart": _time(self._estimated_start()),
            "estimateUnknown": self._why_unknown(),
            **self._decision(found.outcome),
            "holders": [self._holder(uid) for uid in found.advice.holders],
            "repair": [self._named(each).as_document() for each in found.advice.repairs],
            "uncordon": [{"cluster": each.cluster, "nodes": list(each.nodes)} for each in found.cordoned],
            "priority": found.priority,
            **self._queues(),
            **(self.author.as_value() if self.author else {}),
            "takenAt": _time(self.taken_at),
            **({} if self.age is None else {"ageSeconds": int(self.age.total_seconds())}),
        }

    # --- for programs --------------------------------------------------------------------------------------

    def _decision(self, outcome: Outcome | None) -> dict[str, Any]:
        if outcome is None:
            awaited = self.explanation.awaited
            return {} if awaited is None else self._pending(awaited)
        if isinstance(outcome, Placed):
            nodes = [[[node, pods] for node, pods in each] for each in outcome.assignment.places]
            placed: dict[str, Any] = {"cluster": outcome.cluster, "nodes": nodes, "message": outcome.message}
            if trusted := outcome.assignment.trusted:
                placed["potential"] = dict(trusted)
            asked = outcome.assignment.provisioning
            return placed if asked is None else {**placed, "provisioningClass": asked.name}
        return self._pending(outcome.pending)

    def _pending(self, pending: Pending) -> dict[str, Any]:
        return {
            "cluster": pending.cluster,
            "reason": pending.reason,
            "resource": pending.resource,
            "message": "; ".join(filter(None, (pending.message, self.explanation.advice.message))),
            "clusters": [
                {"cluster": each.cluster, "reason": each.reason, "message": each.message}
                for each in pending.clusters
            ],
        }

    def _queues(self) -> dict[str, Any]:
        """The queues of the gang; nothing where none is declared."""
        found = self.explanation
        if not self.world.has_queues:
            return {}
        return {
            "queue": found.record.queue,
            "accounts": list(map(_account, found.accounts)),
            "borrowers": list(map(_account, found.borrowers)),
            "spared": [
                {
                    "name": each.gang.record.name,
                    "namespace": each.gang.record.namespace,
                    "queue": each.queue,
                    "cluster": each.gang.cluster,
                    "priority": each.gang.record.priority,
                    "reason": each.reason,
                }
                for each in found.spared
            ],
        }

    def _holder(self, uid: str) -> dict[str, Any]:
        record = self.records[uid]
        attempt = record.attempt
        return {
            "name": record.name,
            "namespace": record.namespace,
            "uid": uid,
            "user": record.user,
            "cluster": attempt.cluster if attempt else "",
            "demand": dict(record.gang.demand),
            "since": _time(attempt.decided_at if attempt else None),
            "expectedUntil": _time(_expected_end(record, self.world.now)),
        }

    def _named(self, repair: Repair) -> Repair:
        """The repair with gangs by namespace and name instead of uids."""
        if not isinstance(repair, RemoveGangs):
            return repair
        return replace(repair, gangs=tuple(self.records[uid].key for uid in repair.gangs))

    # --- for people ----------------------------------------------------------------------------------------

    def _place_in_queue(self) -> str:
        found = self.explanation
        if found.position is None:
            return NO_QUEUE_TAKES_IT if found.is_in_no_queue else NEVER_GOES
        count = len(found.ahead) + 1 + len(found.behind)
        after = _neighbours("after", found.ahead, found.ahead[-_MOST_NEIGHBOURS:])
        before = _neighbours("before", found.behind, found.behind[:_MOST_NEIGHBOURS])
        return f"position {found.position} of {count} in the queue{after}{before}"

    def _meant_queue(self, pending: Pending) -> str:
        missing = missing_queue(pending.reason, pending.message, pending.queue)
        return meant_queue(missing, (each.name for each in self.world.queues or ()))

    def _start(self) -> str:
        if start := self._estimated_start():
            return f"estimated start {text(start)}"
        if isinstance(self.estimate, UnknownStart) and self.estimate.why not in _ABOUT_THE_POSITION:
            return f"estimated start unknown: {self._why_unknown()}"
        return ""

    def _estimated_start(self) -> datetime | None:
        """The estimated start; None if it is unknown, and for a gang that the next cycle dispatches."""
        is_placed = isinstance(self.explanation.outcome, Placed)
        return self.estimate if isinstance(self.estimate, datetime) and not is_placed else None

    def _why_unknown(self) -> str | None:
        return why_unknown(self.estimate, self.records) if isinstance(self.estimate, UnknownStart) else None

    def _spared(self) -> Block:
        spared = self.explanation.spared
        rows = [
            (each.gang.record.key, each.queue, each.gang.cluster, each.reason)
            for each in spared[:_MOST_SPARED]
        ]
        more = len(spared) - len(rows)
        return Block(_SPARED, rows, (f"and {more} more, which -o json lists",) if more else ())

    def changes(self) -> list[HelpfulChange]:
        """The changes that would dispatch the gang, each of them alone: opened nodes, a higher priority, repairs."""
        found, uid = self.explanation, self.explanation.record.uid
        changes = [_open(each) for each in found.cordoned]
        if (least := found.priority) is not None:
            words = f"with priority {least} instead of {found.record.priority}"
            changes.append(HelpfulChange(words, lambda world: world.with_priority(uid, least)))
        return [*changes, *map(self._repaired, found.advice.repairs)]

    def _repaired(self, repair: Repair) -> HelpfulChange:
        words = in_words(self._named(repair), self._like(repair))
        return HelpfulChange(words, lambda world: apply(world, repair))

    def _help(self, now: datetime | None) -> Iterator[Block]:
        """The holders of the missing capacity, and the changes that would dispatch the gang, or why none is known."""
        found = self.explanation
        advice = found.advice
        yield Block(_HOLDERS, [self._holder_row(uid, now) for uid in advice.holders])
        yield would_be_dispatched([each.words for each in self.changes()])
        is_unknown = advice.message and not found.cordoned and found.priority is None
        yield Block(below=(f"{advice.message[0].upper()}{advice.message[1:]}.",) if is_unknown else ())

    def _holder_row(self, uid: str, now: datetime | None) -> tuple[str, ...]:
        record = self.records[uid]
        attempt = record.attempt
        end = _expected_end(record, self.world.now)
        since = attempt.decided_at if attempt else None
        return (
            record.key,
            record.user,
            attempt.cluster if attempt else "",
            _amounts(self._held(record)),
            text(since, now),
            _end_in_words(end, now),
        )

    def _held(self, record: Record) -> Resources:
        """The demand of a holder, with its number of pods if these are what the explained gang lacks quota of."""
        outcome = self.explanation.outcome
        short = "" if outcome is None or isinstance(outcome, Placed) else outcome.pending.resource
        held = record.gang.demand
        charge = record.quota_charge.get(short, 0)
        return held.highest({short: charge}) if charge and short not in held else held

    def _like(self, repair: Repair) -> str:
        """The name of a node of the shape that is to be added; empty if the cluster has none."""
        if not isinstance(repair, AddNodes):
            return ""
        nodes = next(each.nodes for each in self.world.clusters if each.name == repair.cluster)
        return next((node.name for node in nodes if node.shape == repair.node), "")


def _open(opened: CordonedNodes) -> HelpfulChange:
    nodes = "node" if len(opened.nodes) == 1 else "nodes"
    words = f"with {nodes} {listed(opened.nodes)} in {opened.cluster} uncordoned"
    return HelpfulChange(words, lambda world: world.with_open_nodes(opened.cluster, opened.nodes))


def _account(row: AccountRow) -> dict[str, Any]:
    """An account, with amounts in base units."""
    amounts = {
        "nominal": row.nominal,
        "used": row.used,
        "borrows": row.borrows,
        "kept": row.kept,
        "available": row.available,
        "most": row.most,
        "limit": row.limit,
    }
    return {"queue": row.queue, "resource": row.resource, **amounts}


def _account_row(row: AccountRow) -> tuple[str, ...]:
    amounts = (
        row.nominal,
        row.used,
        row.borrows,
        row.available,
        row.most if row.limit is None else row.limit,
    )
    return (
        row.queue,
        row.resource,
        *("-" if each is None else amount_in_words(row.resource, each) for each in amounts),
    )


def _neighbours(word: str, every: Sequence[Record], nearest: Sequence[Record]) -> str:
    """The gangs next to one in the queue, in order, and how many more there are; empty if there are none."""
    more = len(every) - len(nearest)
    names = ", ".join(each.key for each in nearest) + (f" and {more} more" if more else "")
    return f", {word} {names}" if nearest else ""


def _verdict(explanation: Explanation) -> str:
    outcome = explanation.outcome
    match outcome:
        case None:
            return "NotEligible" if explanation.awaited is None else "Waits"
        case Placed():
            return "Dispatch"
    return "DoesNotFit" if _fits_nowhere(outcome) else "Waits"


def _fits_nowhere(outcome: Outcome) -> bool:
    """True if only a change of the clusters helps; a gang that its queue does not take fits when the queue changes."""
    return isinstance(outcome, Impossible) and outcome.pending.reason not in NEVER_ON_A_CLUSTER


def _goes(placed: Placed) -> str:
    where = f"{placed.cluster}{_on(placed.assignment)}"
    if (asked := placed.assignment.provisioning) is None:
        return f"fits: the next cycle dispatches it to {where}"
    return f"goes: the next cycle requests its capacity from class {asked.name} in {where}"


def _on(assignment: Assignment) -> str:
    nodes = sorted(each for each in assignment.nodes if not potential.is_potential(each))
    on = f", on {listed(nodes)}" if nodes else ""
    return f"{on}, and trusts {potential.in_words(assignment.trusted)} to come" if assignment.trusted else on


def _amounts(demand: Resources) -> str:
    return ", ".join(f"{name} {amount_in_words(name, demand[name])}" for name in sorted(demand))


def _expected_end(record: Record, now: datetime) -> datetime | None:
    """The end that estimates of starts assume, else the last stated end if that is over; None without either."""
    attempt = record.attempt
    if attempt is None:
        return None
    over = attempt.decided_at + timedelta(seconds=max(record.expected_seconds, record.limit_seconds))
    is_overdue = attempt.decided_at < over <= now
    return over if is_overdue else stated_end(record, now)


def _end_in_words(end: datetime | None, now: datetime | None) -> str:
    """The expected end; one in the past says so, because a bare span would be read as the time that is left."""
    if end is None:
        return UNKNOWN
    return text(end, now) if now is None or end > now else f"{text(end, now)} ago"


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def age_of(reports: Sequence[Report]) -> str:
    """The sentence about the age of the facts of some reports; empty if none knows it."""
    age = max((each.age for each in reports if each.age is not None), default=None)
    if age is None:
        return ""
    return as_of(age)

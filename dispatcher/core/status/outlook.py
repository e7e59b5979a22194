"""The outlook of a waiting gang, as fields of `status.waiting`: position, estimated start, holders, least changes.

An outlook is no part of the record: it changes with other gangs, and no decision depends on it. Few statuses may change
when one gang leaves the queue. So only the first `MOST_EXACT` gangs of a queue have their exact position, and the
length of the queue; a later position is rounded down. Starts are estimated for these first gangs, and holders, repairs
and priorities are searched for the first few. A status that shows a start keeps it while the estimate moves a little.

The reader of a status may be a user of one namespace. So holders and gangs to remove are named only if they are in the
namespace of the gang, and nodes are not named. Of a node to add, the status has the labels that pods of the gang ask
for, and no others.

Outlooks are renewed in rounds, because a write costs the API server as much as a dispatch. A round is busy if more than
`MOST_DISPATCHED` gangs were dispatched since the round before. Of busy rounds in a row, `MOST_PASSED` are passed over.
A busy round writes the statuses of the first gangs, and `MOST_BUSY_WRITES` others; any other at most `MOST_WRITES` of
gangs with an exact position, and as many of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.names import WOULD_BE_DISPATCHED
from dispatcher.core.model import incremental
from dispatcher.core.model.clock import time_in, timestamp
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.incremental import Steps, in_order, in_parts
from dispatcher.core.model.records.failures import UNDECIDED_BY_ERROR, Failure
from dispatcher.core.model.records.pending_reasons import INTERNAL_ERROR
from dispatcher.core.model.records.record import HOLDING, Phase, Record
from dispatcher.core.queues import ordering
from dispatcher.core.scheduling.cycle.isolation import (
    PLAIN,
    Culprits,
    alike_in,
    culprits_by_stand_ins,
    plain_of,
)
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.advice import Advice, advise_some
from dispatcher.core.scheduling.explain.estimate_words import (
    IN_NO_QUEUE,
    NOT_AMONG_FIRST,
    NOT_SEARCHED,
    TOO_LARGE,
    why_unknown,
)
from dispatcher.core.scheduling.explain.estimates import MOST_ESTIMATED, Estimate, estimated_starts
from dispatcher.core.scheduling.explain.explanation import has_position
from dispatcher.core.scheduling.explain.leader_snapshot import (
    ClusterFacts,
    SchedulingRules,
    rules_of,
    world_of,
)
from dispatcher.core.scheduling.explain.least_priority import least_priority
from dispatcher.core.scheduling.explain.repair import (
    AddNodes,
    AddQuota,
    AddQuotas,
    RemoveGangs,
    RemoveTaints,
    Repair,
    in_words,
)
from dispatcher.core.scheduling.explain.trials import is_too_large as is_world_too_large
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, set_aside

Outlook = Mapping[str, Any]
"""Fields of `status.waiting`, as JSON; absent fields are unknown or empty."""

START: Final = "estimatedStart"
UNKNOWN: Final = "estimateUnknown"

LEAST_PRIORITY: Final = "leastPriority"

FIELDS: Final = frozenset(
    {"position", "queueLength", START, UNKNOWN, "holders", "otherHolders", "repair", LEAST_PRIORITY}
)
"""The fields of `status.waiting` that are the outlook."""

MOST_EXACT: Final = MOST_ESTIMATED
"""The last exact position in a queue, which is the last one with an estimated start."""
LEAST_MOVE: Final = timedelta(minutes=1)
"""A shown start that is nearer than this to the new estimate stays, and one nearer than a tenth of the time left."""
MOST_HOLDERS: Final = 5
"""Holders that are named."""
MOST_REMOVED: Final = 10
"""Gangs to remove that are named."""
_TOO_LARGE: Final[Outlook] = {UNKNOWN: TOO_LARGE}
_IN_NO_QUEUE: Final[Outlook] = {UNKNOWN: IN_NO_QUEUE}

MOST_ADVISED: Final = 20
"""Gangs with advice: of all queues the first, then the second ones, up to `MOST_ADVISED_OF_A_QUEUE`."""
MOST_ADVISED_OF_A_QUEUE: Final = 5
MOST_WORK: Final = 100_000
"""Bounds the search for the advice of all gangs, as `advice.MOST_WORK` does: some seconds in the largest clusters."""


def outlook_in(status: Mapping[str, Any]) -> Outlook:
    """The outlook that a status has; empty if it has none."""
    waiting = status.get("waiting")
    if not isinstance(waiting, Mapping):
        return {}
    return {field: value for field, value in waiting.items() if field in FIELDS}


class Positions(Struct, frozen=True):
    """The outlooks by position alone, by uid, and the uids of the gangs for which advice and starts are sought.

    Advice is for the `first` gangs by position, and the first ones that are too large: for those, only advice can help.
    Starts are for the `exact` positions. The gangs of `failures`, which raised exceptions, have no position.
    """

    outlooks: Mapping[str, Outlook]
    first: tuple[str, ...]
    exact: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


def rounded(position: int) -> int:
    """The position as it is shown: exact up to `MOST_EXACT`, else rounded down to 1, 2 or 5 times a power of ten."""
    if position <= MOST_EXACT:
        return position
    power = int(10 ** (len(str(position)) - 1))
    return max(step * power for step in (1, 2, 5) if step * power <= position)


def positions(queued: Iterable[Record], now: datetime, *, has_queues: bool) -> Steps[Positions]:
    """The positions of the gangs that wait and may be dispatched now; without queues, all are in one queue.

    A gang waits once a cycle has refused it: a gang that is dispatched by its first cycle changes no position. A gang
    that is too large to ever go has no position, and neither has one that its queue does not take: it changes neither
    the positions nor the advice of the gangs in that queue.
    """
    eligible: list[tuple[ordering.Rank, Record, bool]] = []
    lengths: Counter[str] = Counter()
    failures: list[Failure] = []
    outlooks: dict[str, Outlook] = {}
    for part in in_parts(queued):
        for record in part:
            try:
                if record.pending is not None and ordering.is_eligible(record, now):
                    if record.pending.is_in_no_queue:
                        outlooks[record.uid] = _IN_NO_QUEUE
                        continue
                    is_counted = record.pending.has_position
                    eligible.append((ordering.rank(record, now), record, is_counted))
                    lengths[record.queue if has_queues else ""] += is_counted
            except Exception as error:  # noqa: BLE001  # one gang must not end the positions of the others
                failures.append(Failure.of(record.uid, error))
        yield
    passed: Counter[str] = Counter()
    too_large: Counter[str] = Counter()
    shown: dict[int, Outlook] = {}
    first: list[tuple[int, str]] = []
    exact: list[str] = []
    ordered = yield from in_order(eligible, itemgetter(0))
    for ranked in in_parts(ordered):
        for _, record, is_counted in ranked:
            queue = record.queue if has_queues else ""
            counted = passed if is_counted else too_large
            counted[queue] += 1
            position = counted[queue]
            if not is_counted:
                outlooks[record.uid] = _TOO_LARGE
            elif position <= MOST_EXACT:
                outlooks[record.uid] = {"position": position, "queueLength": lengths[queue]}
                exact.append(record.uid)
            else:
                far = rounded(position)
                outlooks[record.uid] = shown.setdefault(far, {"position": far, UNKNOWN: NOT_AMONG_FIRST})
            if position <= MOST_ADVISED_OF_A_QUEUE:
                first.append((position, record.uid))
        yield
    first.sort(key=lambda each: each[0])
    return Positions(outlooks, tuple(uid for _, uid in first[:MOST_ADVISED]), tuple(exact), tuple(failures))


class Found(Struct, frozen=True):
    """The outlooks beside the positions, by uid. Without any other change they hold before `until`, or always.

    `culprits` are gangs that caused exceptions, and are to be set aside for some time. The queued ones have no outlook
    but that.
    """

    outlooks: Mapping[str, Outlook]
    until: datetime | None = None
    culprits: Sequence[Culprits] = ()


_UNDECIDED: Final[Outlook] = {UNKNOWN: UNDECIDED_BY_ERROR.message}


def search(
    facts: Sequence[ClusterFacts], records: Sequence[Record], sought: Positions, now: datetime
) -> Found:
    """All steps of `search_in_steps` at once."""
    return incremental.run(search_in_steps(facts, records, sought, now))


def search_in_steps(
    facts: Sequence[ClusterFacts],
    records: Sequence[Record],
    sought: Positions,
    now: datetime,
    aside: Collection[str] = (),
) -> Steps[Found]:
    """The estimated starts of the gangs with exact positions, and the advice for the first ones.

    There are none for a gang that is about to be dispatched. With queues, there are none in a world that is too
    large for a plan (`trials.is_too_large`).

    Gangs `aside` (uids) caused exceptions before: those that wait are left out, as in cycles, and so are those that a
    cycle refused with `InternalError`; those that hold capacity are charged, and nothing else of them is considered. If
    an exception ends a search, the gangs that cause it are found (`culprits_by_stand_ins`), and all others are sought
    anew. Raises the exception if no gang causes it.

    A step is one search, whose time grows with the nodes and pods of all clusters: seconds for 20,000 nodes. There is
    one step, but after an exception.
    """
    waiting = ((each.uid, each.pending) for each in records if each.pending is not None)
    refused = {uid for uid, pending in waiting if pending.reason == INTERNAL_ERROR}
    left_out = refused.union(aside)
    try:
        found = _search(facts, records, sought, now, left_out)
        if not found.culprits:
            return found
        first = found.culprits[
            0
        ].failure.error  # another gang may be the cause, as one that capacity is kept for
    except Exception as error:  # noqa: BLE001  # one gang must not end the search of the others
        first = _not_of_memory(error)
    yield

    def raises(stood_for: frozenset[str]) -> Steps[Exception | None]:
        try:
            culprits = _search(facts, records, sought, now, left_out, stood_for).culprits
            cause = culprits[0].failure.error if culprits else None
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            cause = _not_of_memory(error)
        yield
        return cause

    # Those that wait come first: plain ones are searched for as before, but not if those that hold are set aside.
    others = [each for each in records if each.uid not in left_out]
    suspects = [each for each in others if each.phase is Phase.QUEUED]
    suspects += [each for each in others if each.phase in HOLDING]
    culprits = yield from culprits_by_stand_ins(raises, suspects, first)
    left_out = left_out.union(record.uid for each in culprits for record in each.records)
    found = _search(facts, records, sought, now, left_out)
    return replace(found, culprits=(*culprits, *found.culprits))


def _not_of_memory(error: Exception) -> Exception:
    """The exception; raises it if it is no gang's fault."""
    return Failure.of("", error).error


def _search(
    facts: Sequence[ClusterFacts],
    records: Sequence[Record],
    sought: Positions,
    now: datetime,
    aside: Collection[str],
    stood_for: Collection[str] = (),
) -> Found:
    """As `search_in_steps`, without the gangs `aside`; a plain gang stands for each queued one that is `stood_for`."""
    known, facts, held = _with_aside(facts, records, aside, stood_for)
    world = world_of(facts, known, (), now)
    if held:
        running = (replace(each, active=each.active and held.get(each.name)) for each in world.running)
        world = replace(world, running=tuple(running))
    if is_world_too_large(world):
        return Found({uid: {UNKNOWN: NOT_SEARCHED} for uid in sought.exact})
    by_uid = {each.uid: each for each in known}
    exact, first = (
        [f"{uid}{PLAIN}" if uid in stood_for else uid for uid in uids if uid not in aside]
        for uids in (sought.exact, sought.first)
    )
    estimates = estimated_starts(world, by_uid, exact)
    outlooks = {uid: shown_start(by_uid[uid], each, by_uid, now) for uid, each in estimates.starts.items()}
    plans = KnownSnapshots()
    for uid, advice in _advice(world, by_uid, first, rules_of(facts), plans).items():
        outlooks[uid] = {**outlooks.get(uid, {}), **advice}
    plans.note(estimates.failures)
    culprits = tuple(_culprits_of(each, by_uid) for each in plans.failures.values() if each.uid in by_uid)
    refused = {record.uid for each in culprits for record in each.records}.union(aside)
    outlooks |= {uid: _UNDECIDED for uid in (*sought.exact, *sought.first) if uid in refused}
    return Found(outlooks, estimates.until, culprits)


def _culprits_of(failure: Failure, records: Mapping[str, Record]) -> Culprits:
    return Culprits(tuple(alike_in(records[failure.uid], records.values())), failure)


def _with_aside(
    facts: Sequence[ClusterFacts],
    records: Sequence[Record],
    aside: Collection[str],
    stood_for: Collection[str],
) -> tuple[Sequence[Record], Sequence[ClusterFacts], Mapping[str, ActiveGang]]:
    """The records and facts with stand-ins; those for gangs that hold capacity are returned by their own uids, too.

    Growth: a look at each gang and each pod if there are such gangs.
    """
    if not aside and not stood_for:
        return records, facts, {}
    found: list[Record] = []
    held: dict[str, ActiveGang] = {}
    uids: dict[str, str] = {}
    for each in records:
        if each.uid not in aside and each.uid not in stood_for:
            found.append(each)
        elif (gang := set_aside(each)) is not None:
            found.append(gang.record)
            held[gang.record.uid], uids[each.uid] = gang, gang.record.uid
        elif each.uid in stood_for and each.phase is Phase.QUEUED:
            found.append(plain_of(each))
    if not held:
        return found, facts, held
    renamed = [
        replace(
            each,
            pods=tuple(pods._replace(owner=uids.get(pods.owner, pods.owner)) for pods in each.pods),
            surplus={uid: surplus for uid, surplus in each.surplus.items() if uid not in uids},
        )
        for each in facts
    ]
    return found, renamed, held


def _advice(
    world: World,
    records: Mapping[str, Record],
    uids: Collection[str],
    rules: SchedulingRules,
    known: KnownSnapshots,
) -> dict[str, Outlook]:
    """The holders, the least repair and the least priority that suffices, of each of these gangs."""
    outcomes = world.plan(known)
    found = advise_some(world, outcomes, uids, MOST_WORK, known)
    shown = {uid: shown_advice(records[uid], advice, records) for uid, advice in found.items()}
    if len({each.priority_slope for each in world.pending}) > 1:
        return shown  # a priority that suffices now would not a moment later, and each search would change statuses
    for outcome in outcomes:
        record = outcome.record
        if record.uid not in shown or isinstance(outcome, Placed | Preempting) or not has_position(outcome):
            continue
        ceiling = rules.ceiling_of(record.namespace)
        priority = least_priority(world, record, ceiling, MOST_WORK // MOST_ADVISED, known)
        if priority is not None:
            shown[record.uid] = {**shown[record.uid], LEAST_PRIORITY: priority}
    return shown


def shown_start(record: Record, estimate: Estimate, records: Mapping[str, Record], now: datetime) -> Outlook:
    """The estimated start of a gang as users of its namespace may see it; none if it is dispatched `now`."""
    if not isinstance(estimate, datetime):
        return {UNKNOWN: why_unknown(estimate, records, record.namespace)}
    return {START: timestamp(estimate)} if estimate > now else {}


def joined(position: Outlook, found: Outlook) -> Outlook:
    """The outlook by position with what a search found, which may be older than the position."""
    if UNKNOWN not in position:
        return {**position, **found}
    return {**{field: value for field, value in found.items() if field != START}, **position}


def steady(shown: Outlook, found: Outlook, now: datetime) -> Outlook:
    """The outlook `found`, with the start that the status shows if that has not passed and is still about right."""
    if START not in shown or START not in found:
        return found
    before, after = time_in(shown[START]), time_in(found[START])
    if before is None or after is None or before <= now:
        return found
    is_near = abs(after - before) <= max(LEAST_MOVE, (after - now) / 10)
    return {**found, START: shown[START]} if is_near else found


def shown_advice(record: Record, advice: Advice, records: Mapping[str, Record]) -> Outlook:
    """The advice for a gang as users of its namespace may see it; `records` has all named gangs."""
    beside = [each for uid in advice.holders if (each := records[uid]).namespace == record.namespace]
    named = beside[:MOST_HOLDERS]
    others = len(advice.holders) - len(named)
    return {
        **({"holders": [_holder(each) for each in named]} if named else {}),
        **({"otherHolders": others} if others else {}),
        **({"repair": _repair(record, advice.repairs[0], records)} if advice.repairs else {}),
    }


def _holder(record: Record) -> dict[str, str]:
    since = record.attempt.decided_at if record.attempt else None
    found = {
        "name": record.name,
        "namespace": record.namespace,
        "user": record.user,
        "since": timestamp(since) if since else "",
    }
    return {word: value for word, value in found.items() if value}


def _repair(record: Record, repair: Repair, records: Mapping[str, Record]) -> dict[str, Any]:
    """The repair in words and in the terms of a scenario file, without names of others."""
    match repair:
        case AddNodes(_, _, node):
            known = replace(repair, node=replace(node, labels=_asked_labels(record.gang, node)))
            return _written(in_words(known), known.as_document())
        case RemoveTaints(cluster, nodes):
            words = f"without the taints of {_count(len(nodes), 'node')} in {cluster}"
            return _written(words, {"untaint": {"cluster": cluster, "count": len(nodes)}})
        case RemoveGangs(gangs):
            beside = [records[uid].name for uid in gangs if records[uid].namespace == record.namespace]
            named = beside[:MOST_REMOVED]
            others = len(gangs) - len(named)
            parts = [", ".join(named)] if named else []
            parts += [f"{_count(others, 'gang')} not named here"] if others else []
            document = {
                **({"remove": named} if named else {}),
                **({"removeOthers": others} if others else {}),
            }
            return _written(f"without {' and '.join(parts)}", document)
        case AddQuota() | AddQuotas():
            return _written(in_words(repair), repair.as_document())


def _written(words: str, document: Mapping[str, Any]) -> dict[str, Any]:
    return {"message": f"{WOULD_BE_DISPATCHED}{words}", **document}


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number > 1)}"


def _asked_labels(gang: Gang, node: Node) -> dict[str, str]:
    """The labels of a node that pods of the gang ask for."""
    asked: set[str] = set()
    for each in gang.pod_sets:
        asked.update(key for key, _ in each.nodes.selector)
        asked.update(condition.key for term in each.nodes.terms for condition in term.labels)
        asked.update(each.apart, each.together, (spread.topology for spread in each.spread))
        asked.update(key for key, _ in (*each.away, *each.near))
    return {key: value for key, value in node.labels.items() if key in asked}


MOST_WRITES: Final = 100
"""Statuses of one kind that a round changes: 20 writes per second of both kinds, with a round in ten seconds."""
MOST_DISPATCHED: Final = 20
"""Dispatches in a round that is not busy: 2 per second, with a round in ten seconds."""
MOST_PASSED: Final = 5
"""Busy rounds in a row that are passed over: an outlook is a minute old, with a round in ten seconds."""
MOST_BUSY_WRITES: Final = 10
"""Statuses that a busy round changes beside those of the first gangs."""


class Round(Struct, frozen=True):
    """One round: the count of dispatches at its begin, and how many busy rounds in a row are passed over with it."""

    dispatches: int
    is_busy: bool = False
    passed: int = 0

    @property
    def is_passed_over(self) -> bool:
        """True if nothing is renewed in this round."""
        return self.passed > 0

    def next(self, dispatches: int) -> Round:
        """The round after this one, which begins at this count of dispatches."""
        is_busy = dispatches - self.dispatches > MOST_DISPATCHED
        is_passed_over = is_busy and self.passed < MOST_PASSED
        return Round(dispatches, is_busy, self.passed + 1 if is_passed_over else 0)


def to_write(behind: Mapping[str, Outlook], first: Collection[str], *, is_busy: bool) -> list[str]:
    """The uids of the gangs whose statuses a round writes, of those that are behind in the order in which they fell.

    In a busy round the `first` gangs count, in other rounds those with an exact position; then some others.
    """
    urgent = [uid for uid, each in behind.items() if (uid in first if is_busy else "queueLength" in each)]
    chosen = frozenset(urgent)
    others = [uid for uid in behind if uid not in chosen]
    return [*urgent[:MOST_WRITES], *others[: MOST_BUSY_WRITES if is_busy else MOST_WRITES]]

"""Why one was overtaken, for every reason there is to wait: a new one is explained, or this fails."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model import pending_reasons
from dispatcher.core.model.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.record import Pending, Phase
from dispatcher.core.model.requirements import Rejection
from dispatcher.store.queue import QueueStore
from tests.postgres.changes import LATER, NOW, make_submit, rows_of

ROOM = {
    pending_reasons.INSUFFICIENT,
    pending_reasons.RESERVED,
    pending_reasons.LARGER_THAN_CLUSTER,
    pending_reasons.AWAITING_RELEASE,
}
CLUSTERS = {
    pending_reasons.NO_CLUSTER,
    pending_reasons.NOT_SELECTED,
    pending_reasons.NOT_CONNECTED,
    pending_reasons.NOT_REPORTED,
    pending_reasons.UNREACHABLE,
    pending_reasons.CREDENTIALS_REFUSED,
    pending_reasons.ANSWERS_TOO_LARGE,
    pending_reasons.ANOTHER_CLUSTER,
    pending_reasons.CORDONED,
    pending_reasons.DRAINING,
    pending_reasons.KIND_MISSING,
    pending_reasons.NAMESPACE_MISSING,
    pending_reasons.NAMESPACE_NOT_ENABLED,
    pending_reasons.MEMBERS_UNKNOWN,
    pending_reasons.REMOVED,
    pending_reasons.NAME_TAKEN,
    pending_reasons.CLASS_MISSING,
    pending_reasons.PROVISIONING_FAILED,
    pending_reasons.REQUIRED_PODS_MISSING,
}
QUOTA = {
    pending_reasons.INSUFFICIENT_QUOTA,
    pending_reasons.OVER_NOMINAL_QUOTA,
    pending_reasons.LARGER_THAN_QUOTA,
    pending_reasons.PREEMPTED_TOO_OFTEN,
    pending_reasons.QUEUE_NOT_FOUND,
    pending_reasons.QUEUE_NOT_LEAF,
    pending_reasons.NAMESPACE_NOT_ALLOWED,
    pending_reasons.QUEUE_STOPPED,
}
NEITHER = {pending_reasons.NOT_EVALUATED, pending_reasons.CREATION_POSTPONED}


async def test_gang_that_lacks_room_is_backfilled_and_a_rejected_gang_fits_elsewhere(
    queue: QueueStore, database_url: str
) -> None:
    reasons = sorted(ROOM | CLUSTERS | QUOTA | NEITHER | {AWAITING_APPROVAL})
    waiting = (await queue.commit([make_submit(reason) for reason in reasons])).accepted
    told = (queue_changes.block(each, Pending(each.name, "it waits"), LATER) for each in waiting)
    await queue.commit([each for each in told if each])
    await overtake(queue)
    found = dict(rows_of(database_url, "SELECT name, why FROM history.overtakes"))
    assert found == (
        dict.fromkeys(ROOM, "backfill")
        | dict.fromkeys(CLUSTERS, "fits_elsewhere")
        | dict.fromkeys(QUOTA, "quota")
        | dict.fromkeys(NEITHER, "unexplained")
        | {AWAITING_APPROVAL: "not_eligible"}
    )


async def test_rejection_by_that_cluster_counts_before_the_nearest_rejection(
    queue: QueueStore, database_url: str
) -> None:
    (waiting,) = (await queue.commit([make_submit("told")])).accepted
    rejections = (
        Rejection("hub", pending_reasons.NOT_SELECTED, "its labels do not match"),
        Rejection("west", pending_reasons.INSUFFICIENT, "it is full"),
    )
    pending = Pending(pending_reasons.INSUFFICIENT, "it is full", "cpu", "west", rejections)
    blocked = queue_changes.block(waiting, pending, LATER)
    assert blocked is not None
    await queue.commit([blocked])
    await overtake(queue)
    assert rows_of(database_url, "SELECT cluster, why, waited_s FROM history.overtakes") == [
        ("hub", "fits_elsewhere", 3602.0)
    ]


async def overtake(queue: QueueStore) -> None:
    """Have one submitted later, and dispatched to the hub an hour after the others were told."""
    then = NOW + timedelta(seconds=1)
    late = make_submit("late", created_at=then, phase_since=then, last_event_at=then)
    late = replace(late, events=(replace(late.events[0], at=then),))
    (record,) = (await queue.commit([late])).accepted
    assert record.phase is Phase.QUEUED
    await queue.commit([queue_changes.dispatch(record, "hub", LATER + timedelta(hours=1))])

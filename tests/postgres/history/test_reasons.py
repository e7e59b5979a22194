"""Why one was overtaken, for every reason there is to wait: a new one is explained, or this fails."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from dispatcher.core.lifecycle import creation_steps, queue_steps
from dispatcher.core.model.record import AWAITING_APPROVAL, Pending, Phase
from dispatcher.core.model.requirements import Rejection
from dispatcher.core.scheduling import cluster_filters, explain
from dispatcher.core.scheduling.sharing import refusals
from dispatcher.store.queue import QueueStore
from tests.postgres.changes import LATER, NOW, make_submit, rows_of

ROOM = {
    explain.INSUFFICIENT,
    explain.RESERVED,
    explain.LARGER_THAN_CLUSTER,
    queue_steps.AWAITING_RELEASE,
}
CLUSTERS = {explain.NO_CLUSTER} | {
    value
    for name, value in vars(cluster_filters).items()
    if name.isupper() and isinstance(value, str) and not name.startswith("_")
}
QUOTA = {
    refusals.INSUFFICIENT_QUOTA,
    refusals.OVER_NOMINAL_QUOTA,
    refusals.LARGER_THAN_QUOTA,
    refusals.PREEMPTED_TOO_OFTEN,
    explain.QUEUE_NOT_FOUND,
    refusals.QUEUE_NOT_LEAF,
    refusals.NAMESPACE_NOT_ALLOWED,
    refusals.QUEUE_STOPPED,
}
NEITHER = {explain.NOT_EVALUATED, creation_steps.CREATION_POSTPONED}


async def test_gang_that_lacks_room_is_backfilled_and_a_rejected_gang_fits_elsewhere(
    queue: QueueStore, database_url: str
) -> None:
    reasons = sorted(ROOM | CLUSTERS | QUOTA | NEITHER | {AWAITING_APPROVAL})
    waiting = (await queue.commit([make_submit(reason) for reason in reasons])).accepted
    told = (queue_steps.block(each, Pending(each.name, "it waits"), LATER) for each in waiting)
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
        Rejection("hub", cluster_filters.NOT_SELECTED, "its labels do not match"),
        Rejection("west", explain.INSUFFICIENT, "it is full"),
    )
    pending = Pending(explain.INSUFFICIENT, "it is full", "cpu", "west", rejections)
    blocked = queue_steps.block(waiting, pending, LATER)
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
    await queue.commit([queue_steps.dispatch(record, "hub", LATER + timedelta(hours=1))])

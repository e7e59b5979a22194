"""A gang whose capacity is requested: every step of it is read back as it was written."""

from __future__ import annotations

from datetime import timedelta

from dispatcher.api.provisioning import ProvisioningClass, RetryRule
from dispatcher.core.lifecycle import provisioning, queue_changes, removal, run_changes
from dispatcher.core.model.gang import Assignment
from dispatcher.core.model.record import Record
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.store.queue import QueueStore
from tests.builders import at, attempt_of, make_ref
from tests.postgres.changes import make_submit, rows_of, take

ASKED = ProvisioningClass(
    "queued-provisioning.gke.io",
    frozenset({"cpu", "nvidia.com/gpu"}),
    (("maxRunDurationSeconds", "3600"), ("zone", "b")),
    RetryRule(1, timedelta(seconds=5), timedelta(seconds=9)),
)


WRAPS = ClusterRequirements(namespace="default", kinds=frozenset({("batch/v1", "Job")}))


async def request(queue: QueueStore, database_url: str, record: Record, seconds: float) -> Record:
    """Dispatch a queued gang, and note that its request exists."""
    assignment = Assignment(provisioning=ASKED)
    dispatch = queue_changes.dispatch(record, "hub", at(seconds), assignment=assignment)
    record = await take(queue, database_url, dispatch)
    noted = provisioning.note(record, "requested", at(seconds + 1), f"uid-{record.attempts}")
    return await take(queue, database_url, noted)


async def test_life_with_requests_for_capacity_is_stored_step_by_step(
    database_url: str, queue: QueueStore
) -> None:
    record = await take(queue, database_url, make_submit(requirements=WRAPS))
    record = await request(queue, database_url, record, 10)
    failed = provisioning.fail(record, "no nodes", has_other_cluster=True, now=at(20))
    record = await take(queue, database_url, failed)
    assert record.requirements.unprovisioned == {("hub", "no nodes")}
    record = await take(queue, database_url, removal.removed(record, at(21)))
    record = await request(queue, database_url, record, 30)
    failed = provisioning.fail(record, "none at all", has_other_cluster=False, now=at(40))
    record = await take(queue, database_url, failed)
    assert record.provisioning_failures == 1
    record = await take(queue, database_url, removal.removed(record, at(41)))
    record = await request(queue, database_url, record, 50)
    record = await take(queue, database_url, provisioning.provisioned(record, "there", at(60)))
    assert not attempt_of(record).awaits_capacity
    await take(queue, database_url, run_changes.created(record, (make_ref(),), at(61)))


async def test_history_has_each_request_with_its_answer(database_url: str, queue: QueueStore) -> None:
    record = await take(queue, database_url, make_submit(requirements=WRAPS))
    record = await request(queue, database_url, record, 90_010)
    failed = provisioning.fail(record, "no nodes", has_other_cluster=True, now=at(90_025))
    record = await take(queue, database_url, failed)
    record = await take(queue, database_url, removal.removed(record, at(90_026)))
    record = await request(queue, database_url, record, 90_030)
    requests = "SELECT attempt, cluster, class, answer, message, provisioned_at, wait_s FROM history.capacity_requests"
    refused = (1, "hub", ASKED.name, "not provisioned", "no nodes", None, 16.0)
    first, second = rows_of(database_url, f"{requests} ORDER BY attempt")
    assert first == refused
    assert second[:6] == (2, "hub", ASKED.name, "awaited", "requested", None)

    record = await take(queue, database_url, provisioning.provisioned(record, "there", at(90_060)))
    there = (2, "hub", ASKED.name, "provisioned", "there", at(90_060), 30.0)
    assert rows_of(database_url, f"{requests} ORDER BY attempt") == [refused, there]
    await take(queue, database_url, removal.delete(record, at(90_070)))

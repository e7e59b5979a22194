"""What the commands are asked about: a few AppWrappers that lived as the dispatcher has them live."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.records.record import Change, Pending, Record
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import GANG, committed, make_object

GONE: Final = "00000000-0000-0000-0000-000000000001"
FAILED: Final = "00000000-0000-0000-0000-000000000002"
WAITING: Final = "00000000-0000-0000-0000-000000000003"


@dataclass(frozen=True, slots=True)
class Lives:
    """When things happened: `start` is ten in the morning, ten days ago, `waiting_since` three days and a half ago."""

    start: datetime
    waiting_since: datetime

    def at(self, minutes: int) -> datetime:
        """So many minutes after the start."""
        return self.start + timedelta(minutes=minutes)

    def told(self, minutes: int) -> str:
        """The same, as a table has it."""
        return shown(self.at(minutes))


def shown(moment: datetime) -> str:
    """A time as a table has it."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


async def live(queue: QueueStore) -> Lives:
    """Commit it all, one step after the other."""
    now = datetime.now(UTC).replace(microsecond=0)
    lives = Lives(now.replace(hour=10, minute=0, second=0) - timedelta(days=10), now - timedelta(hours=84))
    train = await committed(queue, submitted(GONE, "team-a", "train", lives.start, user="alice"))
    train = await committed(queue, _blocked(train, lives.at(5)))
    train = await started(queue, train, "east", lives.at(60))
    train = await committed(queue, run_changes.complete(train, {0}, lives.at(180), lives.at(180)))
    await committed(queue, removal.delete(train, lives.at(240)))
    probe = await committed(queue, submitted(FAILED, "team-b", "probe", lives.at(10)))
    probe = await started(queue, probe, "hub", lives.at(15))
    probe = await committed(
        queue, run_changes.fail(probe, EvictionReason("FoundFailedPods", "2 pods failed"), lives.at(30))
    )
    await committed(queue, removal.removed(probe, lives.at(45)))
    fields = {"user": "alice", "queue": "night", "priority": 7}
    waiting = await committed(queue, submitted(WAITING, "team-a", "train", lives.waiting_since, **fields))
    await committed(queue, _blocked(waiting, lives.waiting_since))
    return lives


def submitted(uid: str, namespace: str, name: str, at: datetime, **fields: object) -> Change:
    submission = first_changes.Submission(
        uid=uid,
        group="workload.codeflare.dev",
        namespace=namespace,
        name=name,
        created_at=at,
        spec=b'{"resources": {}}',
        spec_hash="hash",
    )
    change = first_changes.submit(submission, GANG, at)
    return replace(change, after=replace(change.after, **fields))  # type: ignore[arg-type]  # Record's own fields


async def started(queue: QueueStore, record: Record, cluster: str, at: datetime) -> Record:
    """Dispatched at that time, created half a minute later, and running after another one."""
    record = await committed(queue, queue_changes.dispatch(record, cluster, at))
    record = await committed(queue, run_changes.created(record, (make_object(),), at + timedelta(seconds=30)))
    return await committed(queue, run_changes.mark_running(record, at + timedelta(minutes=1)))


def _blocked(record: Record, at: datetime) -> Change:
    change = queue_changes.block(record, Pending("InsufficientResources", "lacks 1 cpu", "cpu", "hub"), at)
    assert change is not None
    return change

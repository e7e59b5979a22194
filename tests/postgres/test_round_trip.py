"""Records, written to a real Postgres and loaded again, are the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.clusters.provisioning import ProvisioningClass, RetryRule
from dispatcher.core.lifecycle import first_changes, provisioning, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.growth import GrowthRequest, PodRef, Shrinking
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Borrower, Change, Pending, Phase, QuotaSummary, Record
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import QueueStore
from tests.builders import at, attempt_of, make_record, make_ref, make_submission
from tests.drawn import drawn
from tests.edges import EDGES, NASTY
from tests.postgres.changes import LATER, committed, forget_replay, make_submit, rows_of, take
from tests.unit.store.records import attempted_records, records, required


async def written_and_loaded(url: str, first: list[Record], second: list[Record]) -> list[Record]:
    """Insert the first, turn each into its namesake of the second, and load all."""
    database = Database(url)
    leadership = Leadership(database, "leader")
    assert await leadership.acquire()
    queue = QueueStore(database, lambda: leadership.lease)
    result = await queue.commit([Change(None, record, ()) for record in first])
    assert (result.stale, result.refused) == ((), ())
    changes = [Change(old, new, ()) for old, new in zip(first, second, strict=True)]
    result = await queue.commit(changes)
    assert (result.stale, result.refused) == ((), ())
    loaded = await queue.load_live()
    await leadership.release()
    await database.close()
    return loaded


@pytest.fixture
def empty_url(make_database: Callable[[], str]) -> str:
    url = make_database()
    forget_replay(url)  # what is drawn follows from nothing
    return url


@pytest.mark.parametrize(
    "count", [40, pytest.param(160, marks=[pytest.mark.exhaustive, pytest.mark.timeout(120)])]
)
def test_any_record_survives_insert_and_update(empty_url: str, count: int) -> None:
    pairs = [
        *drawn(st.tuples(records, attempted_records), count // 4),
        *drawn(st.tuples(attempted_records, records), count // 4),
        *drawn(st.tuples(attempted_records, attempted_records), count // 2),
    ]
    first = [as_a_first_record(each) for each, _ in pairs]
    second = [successor(each, of) for (_, each), of in zip(pairs, first, strict=True)]
    loaded = asyncio.run(written_and_loaded(empty_url, first, second))
    assert [replace(record, enqueue_seq=0) for record in loaded] == second
    begun = [new.attempt for old, new in zip(first, second, strict=True) if old.attempt and new.attempt]
    assert any(each.objects for each in begun)
    assert any(each.shrinking for each in begun)


def as_a_first_record(record: Record) -> Record:
    """`record` under a uid of its own, with no attempt that would have to be ended."""
    over = record.attempt and replace(record.attempt, ended_at=record.created_at)
    return replace(record, uid=str(uuid.uuid4()), version=1, attempt=over)


def successor(other: Record, of: Record) -> Record:
    """`other` as a later state of the same AppWrapper."""
    attempt = other.attempt
    if attempt is not None and of.attempt is not None and attempt.number == of.attempt.number:
        attempt = of.attempt
    later = replace(
        other,
        uid=of.uid,
        group=of.group,
        namespace=of.namespace,
        name=of.name,
        created_at=of.created_at,
        user=of.user,
        groups=of.groups,
        version=2,
        attempt=attempt,
        requirements=of.requirements,
    )
    return required(later, other.requirements)


# -----------------------------------------------------------------------------------------------------------
# What members, kubelets and users write can be committed, whatever it is: no batch is refused because it
# quotes it.


async def test_everything_that_was_kept_of_hostile_text_is_committed_in_one_batch(queue: QueueStore) -> None:
    kept = sorted({text for edge in EDGES.values() for nasty in NASTY for text in edge(nasty)})
    records = (await queue.commit([make_submit(f"aw-{n}") for n in range(len(kept))])).accepted
    changes = []
    for record, text in zip(records, kept, strict=True):
        rejected = (Rejection("east", "NotReported", text, text),)
        quota = QuotaSummary("1", "2", borrowers=(Borrower(text, "3"),))
        pending = Pending("NotReported", text, text, "east", rejected, text, quota, (text,))
        changes.append(queue_changes.block(record, pending, LATER))
    result = await queue.commit([change for change in changes if change])
    assert (result.refused, result.stale, len(result.accepted)) == ((), (), len(kept))
    found = {record.uid: record for record in await queue.load_live()}
    for record, text in zip(records, kept, strict=True):
        pending_now = found[record.uid].pending
        assert pending_now is not None
        assert pending_now.message == text


# --- Growth that waits for a grant is read back as it was written, and is lost in the revision before ------


ONE = Resources({"cpu": 500, "nvidia.com/gpu": 1})
WAITS = GrowthRequest(2, ONE * 2, at(40), "InsufficientQuota", "2 more pods wait: quota of team")


async def running(queue: QueueStore, database_url: str) -> Record:
    """A gang that runs."""
    record = await take(queue, database_url, make_submit())
    record = await take(queue, database_url, queue_changes.dispatch(record, "hub", at(10)))
    record = await take(queue, database_url, run_changes.created(record, (make_ref(),), at(20)))
    return await take(queue, database_url, run_changes.mark_running(record, at(30)))


async def test_life_with_growth_that_waits_is_stored_step_by_step(
    database_url: str, queue: QueueStore
) -> None:
    record = await running(queue, database_url)
    record = await take(queue, database_url, run_changes.note_growth_request(record, WAITS, at(40)))
    left = replace(WAITS, pods=1, amounts=ONE)
    granted = run_changes.grant(record, ONE, left, "1 more pod: 0.5 cpu, 1 gpu", at(50), (("0.a", 1),))
    record = await take(queue, database_url, granted)
    assert (record.growth_request, record.granted) == (left, (("0.a", 1),))
    record = await take(queue, database_url, run_changes.grant(record, ONE * 2, None, "1 more pod", at(60)))
    assert (record.growth_request, record.granted) == (None, None)
    record = await take(queue, database_url, run_changes.note_growth_request(record, WAITS, at(70)))
    await take(queue, database_url, removal.delete(record, at(80)))
    told = rows_of(
        database_url, "SELECT cause, reason, message FROM event WHERE cause ~ 'grant|growth' ORDER BY id"
    )
    assert told == [
        ("growth-waits", "InsufficientQuota", WAITS.message),
        ("granted", "InsufficientQuota", "1 more pod: 0.5 cpu, 1 gpu"),
        ("granted", "", "1 more pod"),
        ("growth-waits", "InsufficientQuota", WAITS.message),
    ]


# -----------------------------------------------------------------------------------------------------------
# The surplus pods that a gang gives up are read back as they were written, and are lost in the revision
# before.


PODS = (PodRef("team-a", "w-1", "uid-1"), PodRef("team-a", "w-2", "uid-2"))
WHY = "2 surplus pods preempted for team-b/other: its queue takes back its quota"
GIVES_UP = Shrinking(PODS, ONE, "uid-of-the-other")


async def shrinking(queue: QueueStore, database_url: str) -> Record:
    """A gang that runs, has grown, and gives up pods."""
    record = await take(queue, database_url, make_submit())
    record = await take(queue, database_url, queue_changes.dispatch(record, "hub", at(10)))
    record = await take(queue, database_url, run_changes.created(record, (make_ref(),), at(20)))
    record = await take(queue, database_url, run_changes.grant(record, ONE * 3, None, "3 more pods", at(30)))
    gives_up = run_changes.give_up(record, GIVES_UP, Reason.QUOTA_RECLAIMED, WHY, at(40))
    return await take(queue, database_url, gives_up)


async def test_life_with_pods_that_are_given_up_is_stored_step_by_step(
    database_url: str, queue: QueueStore
) -> None:
    record = await shrinking(queue, database_url)
    assert (record.allowed, record.grown) == (record.gang.demand + ONE, ONE * 3)
    record = await take(queue, database_url, run_changes.mark_running(record, at(50)))
    assert attempt_of(record).shrinking == GIVES_UP
    gone = run_changes.note_growth(record, record.gang.demand + ONE, at(60))
    record = await take(queue, database_url, gone)
    assert record.attempt is not None
    assert (attempt_of(record).shrinking, record.grown) == (None, ONE)
    told = rows_of(database_url, "SELECT reason, message FROM event WHERE cause = 'surplus-preempted'")
    assert told == [("QuotaReclaimed", WHY)]


async def test_removed_gang_gives_up_nothing_more(database_url: str, queue: QueueStore) -> None:
    record = await shrinking(queue, database_url)
    await take(queue, database_url, removal.delete(record, at(50)))
    assert rows_of(database_url, "SELECT shrinking, growth IS NULL FROM attempt") == [(None, False)]


# --- The places of an attempt: those of its dispatch, until its pods are made for others -------------------


PLANNED, MOVED = Assignment(((("n1", 1), ("n2", 1)),)), Assignment(((("n2", 2),),))


@pytest.mark.parametrize(
    ("made_for", "expected"),
    [pytest.param(None, PLANNED, id="as-planned"), pytest.param(MOVED, MOVED, id="moved")],
)
async def test_next_leader_knows_the_places_that_the_pods_were_made_for(
    queue: QueueStore, made_for: Assignment | None, expected: Assignment
) -> None:
    change = first_changes.submit(make_submission(), make_record(Phase.QUEUED).gang, at(0))
    (record,) = (await queue.commit([change])).accepted
    change = queue_changes.dispatch(record, "hub", at(1), assignment=PLANNED)
    (record,) = (await queue.commit([change])).accepted
    change = run_changes.created(record, (make_ref(0),), at(2), assignment=made_for)
    (record,) = (await queue.commit([change])).accepted
    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]
    assert attempt_of(loaded).assignment == expected


# -----------------------------------------------------------------------------------------------------------
# What an attempt has finished is the next one's, also for a leader that knows no more than the database.


async def test_next_attempt_in_the_same_cluster_begins_with_its_finished_objects(queue: QueueStore) -> None:
    submitted = first_changes.submit(make_submission(), make_record(Phase.QUEUED).gang, at(0))
    record = await committed(queue, submitted)
    record = await committed(queue, queue_changes.dispatch(record, "hub", at(1)))
    record = await committed(queue, run_changes.created(record, (make_ref(0), make_ref(1)), at(2)))
    record = await committed(queue, run_changes.complete_some(record, (0,), at(3)))
    taken = run_changes.evict(
        record, EvictionReason("InsufficientPodsReady", "1 of 2"), at(4), 60, at(4), (0,)
    )
    record = await committed(queue, taken)
    await committed(queue, removal.removed(record, at(5)))

    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]
    again = await committed(queue, queue_changes.dispatch(loaded, "hub", at(6)))
    (loaded,) = [each for each in await queue.load_live() if each.uid == record.uid]

    assert loaded.attempt == again.attempt
    assert [(ref.item, ref.done) for ref in attempt_of(again).objects] == [(0, True)]
    elsewhere = queue_changes.dispatch(await _back(queue, again), "east", at(9)).after
    assert attempt_of(elsewhere).objects == ()


async def _back(queue: QueueStore, record: Record) -> Record:
    """Held back while it is being created, and released: what is done stays done."""
    held = await committed(queue, queue_changes.suspend(record, at(7), (0,)))
    gone = await committed(queue, removal.removed(held, at(7)))
    return await committed(queue, queue_changes.resume(gone, at(8)))


# --- A gang whose capacity is requested: every step of it is read back as it was written -------------------


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

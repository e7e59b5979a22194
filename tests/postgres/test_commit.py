"""Batches: what is accepted, what is stale, what is refused, and that all of it is one transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from dispatcher.api.appwrapper import spec_hash
from dispatcher.controller.scheduling.committer import LARGEST_BATCH
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Change, Event, Pending, Phase, Record
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.store.leadership import Leadership
from dispatcher.store.state.queue import CommitResult, QueueStore
from tests.postgres.changes import (
    GANG,
    LATER,
    NOW,
    count_of,
    make_attempt,
    make_block,
    make_change,
    make_created,
    make_dispatch,
    make_object,
    make_submit,
    rows_of,
)


async def submitted(queue: QueueStore, name: str = "aw") -> Record:
    (record,) = (await queue.commit([make_submit(name)])).accepted
    return record


async def dispatched(queue: QueueStore, name: str = "aw") -> Record:
    (record,) = (await queue.commit([make_dispatch(await submitted(queue, name))])).accepted
    return record


async def test_an_empty_batch_touches_nothing(queue: QueueStore) -> None:
    assert await queue.commit([]) == CommitResult()


async def test_new_appwrappers_get_ascending_numbers_in_the_order_given(queue: QueueStore) -> None:
    first = await queue.commit([make_submit(f"a-{number:03}") for number in range(50)])
    second = await queue.commit([make_submit("b")])
    numbers = [record.enqueue_seq for record in (*first.accepted, *second.accepted)]
    assert [record.name for record in first.accepted] == [f"a-{number:03}" for number in range(50)]
    assert numbers == sorted(set(numbers))
    assert min(numbers) > 0


async def test_accepted_records_equal_the_loaded_ones(queue: QueueStore) -> None:
    changes = [make_submit(name) for name in "abc"]
    result = await queue.commit(changes)
    assert await queue.load_live() == list(result.accepted)
    assert [replace(record, enqueue_seq=0) for record in result.accepted] == [each.after for each in changes]


async def test_every_step_of_a_life_is_loaded_as_it_was_committed(queue: QueueStore) -> None:
    record = await submitted(queue)
    life = (
        make_block,
        make_dispatch,
        lambda record: make_created(record, count=3),
        lambda record: run_changes.mark_running(record, LATER),
        lambda record: removal.delete(record, LATER),
    )
    for step in life:
        change = step(record)
        result = await queue.commit([change])
        assert result == CommitResult(accepted=(change.after,))
        assert await queue.load_live() == [change.after]
        (record,) = result.accepted
    await queue.commit([removal.release(record, LATER)])
    assert await queue.load_live() == []


async def test_an_attempt_that_was_rolled_back_stays_with_the_record_until_the_next_one(
    queue: QueueStore, database_url: str
) -> None:
    record = await dispatched(queue)
    postponed = run_changes.postpone_creation(record, (make_object(),), "over quota", LATER, LATER)
    (record,) = (await queue.commit([postponed])).accepted
    assert rows_of(database_url, "SELECT item, intent FROM attempt_object") == [(0, "delete")]
    (record,) = (await queue.commit([removal.removed(record, LATER)])).accepted
    assert await queue.load_live() == [record]
    (record,) = (await queue.commit([make_dispatch(record)])).accepted
    assert await queue.load_live() == [record]
    assert rows_of(database_url, "SELECT number, outcome, ended_at IS NULL FROM attempt ORDER BY number") == [
        (1, "postponed", False),
        (2, "", True),
    ]


async def test_objects_of_an_attempt_are_to_be_created_until_it_is_to_be_undone(
    queue: QueueStore, database_url: str
) -> None:
    (record,) = (await queue.commit([make_created(await dispatched(queue))])).accepted
    assert rows_of(database_url, "SELECT kind, object_uid, intent FROM attempt_object") == [
        ("RayCluster", "uid-of-0", "create")
    ]
    await queue.commit([removal.delete(record, LATER)])
    assert rows_of(database_url, "SELECT kind, object_uid, intent FROM attempt_object") == [
        ("RayCluster", "uid-of-0", "delete")
    ]


async def test_a_change_made_from_an_older_version_is_stale_and_the_others_are_written(
    queue: QueueStore,
) -> None:
    moved, still = (await queue.commit([make_submit("moved"), make_submit("still")])).accepted
    (newer,) = (await queue.commit([make_block(moved)])).accepted
    result = await queue.commit([make_dispatch(moved), make_dispatch(still)])
    assert [record.uid for record in result.accepted] == [still.uid]
    assert result.stale == (moved.uid,)
    live = {record.uid: record for record in await queue.load_live()}
    assert live[moved.uid] == newer
    assert live[still.uid].phase is Phase.DISPATCHING


async def test_an_appwrapper_that_is_known_is_not_taken_in_again(queue: QueueStore) -> None:
    change = make_submit()
    (record,) = (await queue.commit([change])).accepted
    assert await queue.commit([change]) == CommitResult(stale=(record.uid,))
    assert await queue.load_live() == [record]


async def test_a_change_of_a_record_that_was_never_written_is_stale(queue: QueueStore) -> None:
    never = make_submit().after
    assert await queue.commit([make_block(never)]) == CommitResult(stale=(never.uid,))


async def test_a_stale_change_leaves_no_event_no_attempt_and_no_object(
    queue: QueueStore, database_url: str
) -> None:
    record = await submitted(queue)
    await queue.commit([make_block(record)])
    await queue.commit([make_dispatch(record)])
    assert count_of(database_url, "attempt") == 0
    assert [cause for (cause,) in rows_of(database_url, "SELECT cause FROM event ORDER BY id")] == [
        "submitted",
        "blocked",
    ]


async def test_changes_that_belong_together_are_written_together(queue: QueueStore) -> None:
    changes = [make_block(await submitted(queue, name)) for name in "ab"]
    result = await queue.commit_together(changes)
    assert [record.name for record in result.accepted] == ["a", "b"]
    assert await queue.load_live() == list(result.accepted)


async def test_if_one_row_has_changed_no_change_of_its_group_is_written(
    queue: QueueStore, database_url: str
) -> None:
    first, second = await submitted(queue, "a"), await submitted(queue, "b")
    (moved,) = (await queue.commit([make_block(second)])).accepted
    events = count_of(database_url, "event")
    result = await queue.commit_together([make_dispatch(first), make_dispatch(second)])
    assert result == CommitResult(stale=(first.uid, second.uid))
    assert await queue.load_live() == [first, moved]
    assert (count_of(database_url, "event"), count_of(database_url, "attempt")) == (events, 0)


async def test_if_the_database_cannot_hold_one_change_its_group_is_refused(queue: QueueStore) -> None:
    first, second = await submitted(queue, "a"), await submitted(queue, "b")
    bad = make_block(second)
    bad = replace(bad, after=replace(bad.after, priority_slope=1e13))
    result = await queue.commit_together([make_block(first), bad])
    assert [refusal.uid for refusal in result.refused] == [first.uid, second.uid]
    assert await queue.load_live() == [first, second]


async def running(queue: QueueStore, submitted: Change) -> Record:
    (record,) = (await queue.commit([submitted])).accepted
    (record,) = (await queue.commit([make_dispatch(record)])).accepted
    (record,) = (await queue.commit([make_created(record, count=2)])).accepted
    (record,) = (await queue.commit([run_changes.mark_running(record, LATER)])).accepted
    return record


async def test_preemption_is_one_transaction_and_is_loaded_as_it_was_committed(
    queue: QueueStore, database_url: str
) -> None:
    leaves: dict[str, Any] = {"queue": "b", "more_queues": ("gold/b",)}
    victims = [await running(queue, make_submit(name, **leaves)) for name in ("one", "two")]
    owner = await submitted(queue, "owner")
    pending = Pending(pending_reasons.AWAITING_RELEASE, "fits once default/one is gone", cluster="hub")
    why = "preempted for default/owner (queue default, priority 0): its queue uses too much"
    changes = [
        queue_changes.begin_preempting(owner, pending, LATER, is_head=True),
        *(run_changes.preempt(each, Reason.QUOTA_RECLAIMED, why, LATER, owner.uid, (1,)) for each in victims),
    ]

    result = await queue.commit_together(changes)

    assert result == CommitResult(accepted=tuple(change.after for change in changes))
    loaded = {record.uid: record for record in await queue.load_live()}
    assert loaded == {record.uid: record for record in result.accepted}
    written = rows_of(database_url, "SELECT DISTINCT xmin::text FROM appwrapper")
    assert len(written) == 1
    assert set(rows_of(database_url, "SELECT preempted_by, outcome, reason FROM attempt")) == {
        (owner.uid, "", "")
    }
    assert rows_of(database_url, "SELECT DISTINCT item, intent, done FROM attempt_object ORDER BY item") == [
        (0, "delete", False),
        (1, "delete", True),
    ]


async def test_preempted_attempt_ends_with_its_reason_and_its_preemptor(
    queue: QueueStore, database_url: str
) -> None:
    victim = await running(queue, make_submit("victim"))
    preempted = run_changes.preempt(victim, Reason.FAIR_SHARE, "preempted for a/b", LATER, "uid-of-other")
    (record,) = (await queue.commit([preempted])).accepted
    (record,) = (await queue.commit([removal.removed(record, LATER)])).accepted
    assert await queue.load_live() == [record]
    assert record.preempted_at == (LATER,)
    (record,) = (await queue.commit([make_dispatch(record)])).accepted
    assert await queue.load_live() == [record]
    told = "SELECT number, outcome, reason, preempted_by FROM attempt ORDER BY number"
    assert rows_of(database_url, told) == [(1, "preempted", "FairShare", "uid-of-other"), (2, "", "", "")]


async def test_no_changes_together_touch_nothing(queue: QueueStore) -> None:
    assert await queue.commit_together([]) == CommitResult()


async def test_two_changes_of_one_appwrapper_do_not_belong_together(queue: QueueStore) -> None:
    change = make_block(await submitted(queue))
    with pytest.raises(ValueError, match="at most one change"):
        await queue.commit_together([change, change])


async def test_groups_and_batches_at_once_wait_for_each_other(queue: QueueStore) -> None:
    records = [await submitted(queue, name) for name in "abcd"]
    results = await asyncio.gather(
        queue.commit_together([make_block(each) for each in records[:2]]),
        queue.commit([make_block(each) for each in reversed(records)]),
    )
    assert [len(each.accepted) for each in results] == [2, 2]
    assert set(results[1].stale) == {record.uid for record in records[:2]}


async def test_events_are_written_with_their_change_and_the_epoch_it_was_made_in(
    queue: QueueStore, leadership: Leadership, database_url: str
) -> None:
    change = make_submit()
    event = Event(LATER, "noted", Phase.QUEUED, Phase.QUEUED, "Reason", "message", "hub", 3)
    after = replace(change.after, last_event_at=LATER)
    await queue.commit([replace(change, after=after, events=(*change.events, event))])
    written = rows_of(
        database_url,
        "SELECT at, uid, namespace, name, queue, cause, from_phase, to_phase, reason, message, cluster, "
        "attempt, epoch FROM event ORDER BY id",
    )
    uid, epoch = change.after.uid, leadership.lease.epoch
    assert written == [
        (NOW, uid, "default", "aw", "default", "submitted", None, "Queued", "", "", "", 0, epoch),
        (
            *(
                LATER,
                uid,
                "default",
                "aw",
                "default",
                "noted",
                "Queued",
                "Queued",
                "Reason",
                "message",
                "hub",
            ),
            *(3, epoch),
        ),
    ]


async def test_equal_specs_are_kept_once_and_loaded_by_their_hash(
    queue: QueueStore, database_url: str
) -> None:
    bodies = [b"{}", b"{}", b'{"a": "\xc3\xa9"}', b"\x00\xff binary"]
    await queue.commit([make_submit(str(number), spec=body) for number, body in enumerate(bodies)])
    await queue.commit([make_submit(spec=b"{}")])
    assert count_of(database_url, "spec_blob") == 3
    wanted = {spec_hash(body): body for body in bodies}
    assert await queue.load_specs([*wanted, "unknown"]) == wanted
    assert await queue.load_specs([]) == {}


async def test_a_spec_without_content_is_kept_too(queue: QueueStore) -> None:
    await queue.commit([make_submit(spec=b""), make_submit(spec=b"x")])
    assert await queue.load_specs([spec_hash(b"")]) == {spec_hash(b""): b""}


async def test_the_largest_amounts_come_back_exact(queue: QueueStore, database_url: str) -> None:
    demand = Resources({"cpu": LARGEST_AMOUNT, "memory": LARGEST_AMOUNT - 1, "debt": -LARGEST_AMOUNT})
    (record,) = (await queue.commit([make_submit(gang=replace(GANG, demand=demand))])).accepted
    (loaded,) = await queue.load_live()
    assert loaded.gang.demand == demand
    assert all(type(amount) is int for amount in loaded.gang.demand.values())
    await queue.commit([make_dispatch(record)])
    assert rows_of(database_url, "SELECT (demand->>'cpu')::numeric FROM attempt") == [(LARGEST_AMOUNT,)]


async def test_failed_appwrappers_are_loaded_until_they_are_deleted(queue: QueueStore) -> None:
    submission = first_changes.Submission("u", "g", "default", "bad", NOW, b"{}", spec_hash(b"{}"))
    (record,) = (await queue.commit([first_changes.reject(submission, "no such kind", NOW)])).accepted
    assert await queue.load_live() == [record]
    await queue.commit([removal.delete(record, LATER)])
    assert await queue.load_live() == []


async def test_two_changes_of_one_appwrapper_in_a_batch_are_a_defect(queue: QueueStore) -> None:
    change = make_submit()
    with pytest.raises(ValueError, match="at most one change"):
        await queue.commit([change, change])


def unholdable() -> list[pytest.param]:  # type: ignore[valid-type]  # pytest has no public name for it
    return [
        pytest.param(make_submit(message="a\x00b"), id="nul-in-text"),
        pytest.param(make_submit(message="\ud800"), id="half-a-character"),
        pytest.param(make_submit(priority=2**31), id="priority-past-an-integer"),
        pytest.param(make_submit(priority=2**70), id="priority-past-64-bits"),
        pytest.param(make_submit(priority_slope=float("nan")), id="slope-not-a-number"),
        pytest.param(make_submit(priority_slope=float("inf")), id="slope-infinite"),
        pytest.param(make_submit(priority_slope=1e13), id="slope-that-would-overflow-in-time"),
        pytest.param(make_submit(gang=replace(GANG, demand=Resources({"a\x00": 1}))), id="nul-in-resource"),
        pytest.param(make_submit("n" * 4000 + "x\x00"), id="nul-in-name"),
    ]


@pytest.mark.parametrize("bad", unholdable())
async def test_data_the_database_cannot_hold_is_refused_alone(queue: QueueStore, bad: Change) -> None:
    waiting = await submitted(queue, "waiting")
    good = [make_submit(f"good-{number}") for number in range(5)]
    result = await queue.commit([*good[:3], bad, make_dispatch(waiting), *good[3:]])
    assert [refusal.uid for refusal in result.refused] == [bad.after.uid]
    assert result.refused[0].message
    assert result.stale == ()
    numbers = [record.enqueue_seq for record in result.accepted if record.name.startswith("good")]
    assert numbers == sorted(numbers)
    assert {record.uid for record in await queue.load_live()} == {
        waiting.uid,
        *(each.after.uid for each in good),
    }


async def test_a_second_live_attempt_is_refused_by_the_database_and_alone(
    queue: QueueStore, database_url: str
) -> None:
    record, other = await dispatched(queue, "busy"), await submitted(queue, "other")
    forgotten = replace(record, attempt=None)
    second = make_change(forgotten, attempts=2, attempt=make_attempt(2))
    result = await queue.commit([second, make_dispatch(other)])
    assert [refusal.uid for refusal in result.refused] == [record.uid]
    assert "uq_attempt_live" in result.refused[0].message
    assert [accepted.uid for accepted in result.accepted] == [other.uid]
    live = rows_of(database_url, "SELECT uid, count(*) FROM attempt WHERE ended_at IS NULL GROUP BY uid")
    assert sorted(live) == sorted([(record.uid, 1), (other.uid, 1)])


async def test_a_live_attempt_is_not_dropped_without_an_end(queue: QueueStore) -> None:
    record = await dispatched(queue)
    dropped = await queue.commit([make_change(record, phase=Phase.QUEUED, attempt=None)])
    replaced = await queue.commit([make_change(record, attempts=2, attempt=make_attempt(2))])
    assert len(dropped.refused) == len(replaced.refused) == 1
    assert await queue.load_live() == [record]


async def test_an_attempt_does_not_forget_objects_it_may_have_created(queue: QueueStore) -> None:
    (record,) = (await queue.commit([make_created(await dispatched(queue), count=2)])).accepted
    result = await queue.commit([make_change(record, attempt=make_attempt(cluster="hub"))])
    assert [refusal.uid for refusal in result.refused] == [record.uid]


async def test_the_hub_keeps_its_id(queue: QueueStore, database_url: str) -> None:
    assert rows_of(database_url, "SELECT id FROM hub") == [(await queue.hub_id(),)]


async def test_a_whole_batch_of_changes_is_one_transaction(queue: QueueStore, database_url: str) -> None:
    result = await queue.commit([make_submit(str(number)) for number in range(LARGEST_BATCH)])
    assert len(result.accepted) == LARGEST_BATCH
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT count(DISTINCT xmin::text) FROM appwrapper").fetchone()
    assert found == (1,)


async def test_only_deleted_appwrappers_are_known_as_deleted(
    queue: QueueStore,
) -> None:
    gone, waits = await submitted(queue, "gone"), await submitted(queue, "waits")
    await queue.commit([removal.delete(gone, LATER)])
    assert await queue.deleted_among([gone.uid, waits.uid, "never-seen"]) == {gone.uid}


async def test_a_record_that_cannot_be_made_a_row_is_refused_alone(queue: QueueStore) -> None:
    """Nothing was written by then, so nobody has to give up leading for it."""
    bad = make_submit("bad", gang=replace(GANG, smaller=(("hub", None),)))  # type: ignore[arg-type]  # no record of ours
    result = await queue.commit([make_submit("a"), bad, make_submit("b")])
    assert [record.name for record in result.accepted] == ["a", "b"]
    assert [refusal.uid for refusal in result.refused] == [bad.after.uid]

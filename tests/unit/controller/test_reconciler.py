"""One AppWrapper at a time: what is done about each step, and that doing it again does no harm."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.names import FINALIZER
from dispatcher.api.validation import MOST_CONTAINERS
from dispatcher.controller.reconcile.observer import Observer
from dispatcher.controller.reconcile.result import (
    LONGEST_POLL_SECONDS,
    Pacing,
    PollBackoff,
    Withdrawals,
    poll,
)
from dispatcher.core.kinds.manifest import anchor_name
from dispatcher.core.lifecycle import queue_changes, run_changes
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Phase, Record
from tests.builders import NOW, at, attempt_of, make_appwrapper, make_pod, make_record, make_template
from tests.fakes import FakeApiServer, Reply, answer, client_of, never, refusal
from tests.unit.controller.store import FakeStore
from tests.unit.controller.wire import ALL_PODS, APPWRAPPERS, MISSING, PODS, job, made, pods, true
from tests.unit.controller.world import AT_ONCE, World
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

Json = dict[str, Any]

UID = "uid-of-aw"
NEVER_SECONDS = 1e6
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
QUOTA = refusal(403, "Forbidden", "exceeded quota: team")
FIRST, SECOND = (make_template(name=name) for name in ("first", "second"))


def objects(world: World, *posts: Reply) -> None:
    """Script the creations in order; nothing is there when looked for."""
    world.server.on("POST", PODS, *posts)
    for name in ("first", "second"):
        world.server.on("GET", f"{PODS}/{name}", MISSING)
        world.server.on("DELETE", f"{PODS}/{name}", answer({}))


async def is_idle(world: World, seconds: float) -> bool:
    try:
        await asyncio.wait_for(world.queue.get(), seconds)
    except TimeoutError:
        return True
    return False


async def test_gang_is_created_in_order_and_reported_in_one_write(world: World) -> None:
    objects(world, answer(made(FIRST), 201), answer(made(SECOND, 1), 201))
    await world.dispatched(make_appwrapper("aw", FIRST, SECOND))

    await world.reconcile(UID, times=2)

    record = world.record(UID)
    assert record.phase is Phase.DISPATCHED
    assert [(ref.name, ref.uid) for ref in attempt_of(record).objects] == [
        ("first", "uid-of-first"),
        ("second", "uid-of-second"),
    ]
    assert [each.body["metadata"]["name"] for each in world.server.requests("POST")] == ["first", "second"]
    assert [status["queuejobstate"] for status in world.statuses()] == ["Dispatched"]


async def test_creation_is_repeated_after_a_crash_and_finds_the_objects_it_created(world: World) -> None:
    objects(world, refusal(409, "AlreadyExists"), answer(made(SECOND, 1), 201))
    world.server.on("GET", f"{PODS}/first", answer(made(FIRST)))
    await world.dispatched(make_appwrapper("aw", FIRST, SECOND))
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DISPATCHED


async def test_created_object_is_the_submitted_one_whatever_the_spec_says_now(world: World) -> None:
    objects(world, answer(made(FIRST), 201))
    await world.dispatched(make_appwrapper("aw", FIRST))
    world.show(make_appwrapper("aw", SECOND))
    await world.reconcile(UID)
    assert [each.body["metadata"]["name"] for each in world.server.requests("POST")] == ["first"]


async def test_gang_that_meets_a_quota_is_rolled_back_whole_and_queued_again(world: World) -> None:
    objects(world, answer(made(FIRST), 201), QUOTA)
    await world.dispatched(make_appwrapper("aw", FIRST, SECOND))
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.REQUEUEING

    world.server.on("GET", f"{PODS}/first", answer(made(FIRST)), MISSING)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.REQUEUEING
    assert world.ledger.free()["cpu"] == 6000
    await world.reconcile_until_answered(UID)

    record = world.record(UID)
    assert record.phase is Phase.QUEUED
    assert record.eligible_at is not None
    assert record.pending is not None
    assert (record.pending.reason, record.pending.message) == ("CreationPostponed", "exceeded quota: team")
    assert world.ledger.free()["cpu"] == 8000
    assert [each.path for each in world.server.requests("DELETE")] == [f"{PODS}/first"]
    assert world.dispatch_wakes == 1


async def test_priority_set_back_to_its_submitted_value_is_followed_like_any_change(
    world: World,
) -> None:
    await world.admit(make_appwrapper(spec={"priority": 5}))
    world.show(make_appwrapper(spec={"priority": 20}))
    await world.reconcile(UID)
    world.show(make_appwrapper(spec={"priority": 5}))
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    await world.reconcile(UID)
    assert world.record(UID).priority == 5


async def test_status_that_cannot_be_written_does_not_count_against_the_creation(world: World) -> None:
    objects(world, answer(made(FIRST), 201))
    await world.dispatched(make_appwrapper("aw", FIRST))
    world.server.on("PATCH", f"{APPWRAPPERS}/aw/status", refusal(403, "Forbidden"))
    await world.reconcile(UID, times=12)
    assert world.record(UID).phase is Phase.DISPATCHED
    assert world.queue.failures(UID) == 0


async def test_object_in_the_way_gives_the_capacity_back_for_a_while(world: World) -> None:
    going = made(FIRST)
    going["metadata"]["deletionTimestamp"] = "2026-11-20T09:00:00Z"
    going["metadata"]["ownerReferences"][0]["uid"] = "uid-of-a-predecessor"
    objects(world, refusal(409, "AlreadyExists"))
    world.server.on("GET", f"{PODS}/first", answer(going))
    await world.dispatched(make_appwrapper("aw", FIRST))
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DISPATCHING

    await asyncio.sleep(30)  # virtual
    await world.reconcile(UID)

    assert world.record(UID).phase is Phase.REQUEUEING
    assert world.record(UID).message == "Pod default/first is still being deleted"


async def test_gang_that_can_never_be_created_fails_once_all_of_it_is_gone(world: World) -> None:
    objects(world, answer(made(FIRST), 201), refusal(422, "Invalid", "spec: wrong"))
    await world.dispatched(make_appwrapper("aw", FIRST, SECOND))
    await world.reconcile(UID)
    await world.reconcile_until_answered(UID)

    record = world.record(UID)
    assert (record.phase, record.message) == (Phase.FAILED, "default/aw creation failure: spec: wrong")
    assert world.statuses()[-1]["state"] == "Failed"


async def test_capacity_is_held_while_a_pod_of_a_removed_object_lives(world: World) -> None:
    objects(world, refusal(422, "Invalid"))
    await world.dispatched(make_appwrapper("aw", FIRST))
    lives = pods(make_pod(of=UID, controller={"uid": "a-job"}))
    world.server.on("GET", ALL_PODS, answer(lives), answer(pods()))
    await world.reconcile(UID)
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.FAILING
    await world.reconcile_until_answered(UID)
    assert world.record(UID).phase is Phase.FAILED


async def test_creation_blocked_by_a_terminating_object_is_repeated_and_shown_if_it_takes_long(
    world: World,
) -> None:
    terminating = made(FIRST)
    terminating["metadata"]["deletionTimestamp"] = "2026-11-20T09:00:00Z"
    objects(world, refusal(409, "AlreadyExists"))
    world.server.on("GET", f"{PODS}/first", answer(terminating))
    await world.dispatched(make_appwrapper("aw", FIRST))
    for _ in range(4):
        await world.reconcile(UID)
        assert world.record(UID).phase is Phase.DISPATCHING
        assert await asyncio.wait_for(world.queue.get(), 1) == UID
        world.queue.done(UID)
    assert [status["queuejobstate"] for status in world.statuses()] == ["HeadOfLine"]


async def test_unanswered_creation_is_shown_in_the_status_if_it_takes_long(world: World) -> None:
    objects(world, never)
    world.server.on("GET", f"{PODS}/first", never)
    await world.dispatched(make_appwrapper("aw", FIRST))
    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            await world.reconcile(UID)
    assert [status["queuejobstate"] for status in world.statuses()] == ["HeadOfLine"]


# --- deletion ------------------------------------------------------------------------------------------


async def created(world: World) -> None:
    objects(world, answer(made(FIRST), 201))
    await world.dispatched(make_appwrapper("aw", FIRST))
    await world.reconcile(UID)


async def test_pending_appwrapper_is_forgotten_as_soon_as_it_is_gone(world: World) -> None:
    await world.admit(make_appwrapper())
    world.hide(UID)
    await world.reconcile(UID)
    assert world.cache.get(UID) is None


async def test_attempt_is_not_given_up_on_the_word_of_a_watch(world: World) -> None:
    await created(world)
    world.hide(UID)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DISPATCHED
    assert await asyncio.wait_for(world.queue.get(), 1) == UID


async def test_deleted_gang_is_released_when_objects_and_pods_are_confirmed_gone(world: World) -> None:
    await created(world)
    world.hide(UID)
    world.server.on("GET", f"{APPWRAPPERS}/aw", MISSING)
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DELETING

    world.server.on("GET", f"{PODS}/first", answer(made(FIRST)))
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.DELETING
    assert world.ledger.free()["cpu"] == 7000

    world.server.on("GET", f"{PODS}/first", MISSING)
    wakes = world.dispatch_wakes
    await world.reconcile_until_answered(UID)
    assert world.cache.get(UID) is None
    assert world.ledger.free()["cpu"] == 8000
    assert world.server.requests("DELETE") == []  # Kubernetes removes it by its owner reference
    assert world.dispatch_wakes == wakes + 1


async def test_nothing_is_forgotten_before_the_appwrappers_were_listed(world: World) -> None:
    await world.admit(make_appwrapper())
    world.hide(UID)
    world.hub.reflectors[0].synced.clear()
    await world.reconcile(UID)
    assert world.record(UID).phase is Phase.QUEUED


# --- the loop ------------------------------------------------------------------------------------------


async def test_new_priority_is_committed_and_wakes_the_planner(world: World) -> None:
    await world.admit(make_appwrapper())
    world.show(make_appwrapper(spec={"priority": 7}))
    await world.reconcile(UID, times=2)
    assert world.record(UID).priority == 7
    assert [cause for batch in world.store.batches for _, cause in batch] == ["submitted", "reprioritised"]
    assert world.dispatch_wakes == 1


async def test_new_appwrapper_is_handed_to_intake(world: World) -> None:
    view = world.show(make_appwrapper())
    await world.reconcile(view.uid)
    await world.intake.take_in_all()
    assert world.taken_in == ["aw"]


@pytest.mark.parametrize("verdict", ["stale", "it holds NUL"])
async def test_step_that_is_not_accepted_is_not_tried_again_in_a_rush(world: World, verdict: str) -> None:
    objects(world, answer(made(FIRST), 201))
    await world.dispatched(make_appwrapper("aw", FIRST))
    refusing = FakeStore(lambda _change: verdict)
    world.store.commit = refusing.commit  # type: ignore[method-assign]
    await world.reconcile(UID)
    assert await is_idle(world, 0.05)
    assert not await is_idle(world, 60)


async def test_new_appwrapper_that_cannot_be_read_is_not_tried_in_a_rush(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", refusal(503, "ServiceUnavailable"))
    world.queue.add(world.show(make_appwrapper(status={"canrun": True})).uid)
    loops = [asyncio.create_task(each.run()) for each in (world.reconciler, world.intake)]
    await asyncio.sleep(60)  # virtual
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    assert len(world.failed) < 15


async def test_loop_goes_on_after_failures_of_one_appwrapper(world: World) -> None:
    world.server.on("POST", PODS, refusal(429, "TooManyRequests"), answer(made(FIRST), 201))
    await world.dispatched(make_appwrapper("aw", FIRST))
    world.queue.add(UID)
    worker = asyncio.create_task(world.reconciler.run())
    try:
        await until(lambda: world.record(UID).phase is Phase.DISPATCHED)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert len(world.server.requests("POST")) == 2


async def test_creation_that_keeps_failing_gives_its_capacity_back_for_a_while(world: World) -> None:
    objects(world, refusal(500, "InternalError"))
    await world.dispatched(make_appwrapper("aw", FIRST))
    world.queue.add(UID)
    worker = asyncio.create_task(world.reconciler.run())

    await until(lambda: world.record(UID).phase is Phase.QUEUED)

    record = world.record(UID)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert record.message == "the API server kept failing to create it"
    assert record.eligible_at is not None
    assert record.eligible_at > world.now()
    assert len(world.server.requests("POST")) == 9


async def test_gangs_of_a_member_that_does_not_answer_hold_up_no_others(world: World) -> None:
    objects(world, answer(made(FIRST), 201))
    async with FakeApiServer() as silent, client_of(silent, write_timeout=NEVER_SECONDS) as client:
        silent.on("POST", CONFIG_MAPS, never)
        silent.on("GET", "/api/v1/configmaps", answer({"metadata": {}, "items": []}))
        world.clusters["west"] = world.make_cluster("west", client)
        for number in range(10 * AT_ONCE):
            held = make_appwrapper(f"west-{number}", FIRST, finalizers=[FINALIZER])
            record = await world.dispatched(held, "west")
            silent.on("GET", f"{CONFIG_MAPS}/{anchor_name(record.uid, 1)}", refusal(404, "NotFound"))
            world.queue.add(record.uid)
        worker = asyncio.create_task(world.reconciler.run())
        try:
            await until(lambda: len(silent.requests("POST")) == AT_ONCE)
            world.queue.add((await world.dispatched(make_appwrapper("aw", FIRST))).uid)
            await until(lambda: world.record(UID).phase is Phase.DISPATCHED)
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        assert len(silent.requests("POST")) == AT_ONCE


async def test_appwrappers_that_are_too_large_wait_for_each_other_and_hold_up_no_others(world: World) -> None:
    """The API server takes a second for each status of one, and one is written at a time."""
    lists: list[Json] = [{} for _ in range(MOST_CONTAINERS)]
    large = make_template("ConfigMap", name="c") | {"data": {"lists": lists}}

    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1)  # virtual
        return await answer({"metadata": {"resourceVersion": "2"}})(request)

    for number in range(15 * AT_ONCE):
        world.queue.add((await world.admit(make_appwrapper(f"large-{number}", large))).uid)
        world.server.on("PATCH", f"{APPWRAPPERS}/large-{number}/status", slowly)
    async with running(world.intake.run()), running(world.reconciler.run()):
        await until(lambda: world.server.requests("PATCH"))
        began = monotonic()
        world.queue.add(world.show(make_appwrapper()).uid)
        await until(lambda: UID in world.cache.uids())
        assert monotonic() - began < 1
        await until(lambda: len(world.statuses()) == 15 * AT_ONCE)
    assert {status["state"] for status in world.statuses()} == {"Failed"}


async def test_status_writes_that_fail_wait_for_each_other_and_hold_up_no_others(world: World) -> None:
    """The API server has too much to do with one tenant's: repeated at once, they would keep it as busy as it was."""
    open_ = most = 0

    async def late(request: web.Request) -> web.StreamResponse:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await asyncio.sleep(1)  # virtual
        open_ -= 1
        return await refusal(504, "Timeout")(request)

    for number in range(4 * AT_ONCE):
        view = world.show(make_appwrapper(f"late-{number}"))
        world.cache.put(make_record(Phase.FAILED, uid=view.uid, name=view.name))
        world.server.on("PATCH", f"{APPWRAPPERS}/late-{number}/status", late)
        world.queue.add(view.uid)
    async with running(world.reconciler.run()):
        await until(
            lambda: len(world.server.requests("PATCH")) == 5 * AT_ONCE
        )  # each was tried once, some again
        most = 0
        began = monotonic()
        world.cache.put(make_record(Phase.FAILED))
        world.queue.add(world.show(make_appwrapper()).uid)
        await until(lambda: world.server.requests("PATCH", f"{APPWRAPPERS}/aw/status"))
        assert monotonic() - began < 1
        await until(lambda: len(world.server.requests("PATCH")) > 6 * AT_ONCE)
    assert most == 1


async def test_appwrapper_in_doubt_is_looked_at_again_without_any_act(world: World) -> None:
    before = await world.dispatched(make_appwrapper())
    asked = len(world.server.asked)
    await world.compose(is_in_doubt=lambda uid: uid == UID).reconciler.reconcile(UID)
    assert (world.record(UID), len(world.server.asked)) == (before, asked)
    await world.forget_wakes()
    assert await world.is_woken_within(6)


# --- The pauses between polls, and between the requests of a user ------------------------------------------


RECORD = make_record(Phase.SUSPENDING)


def test_poll_pauses_grow_with_the_time_waited_up_to_a_limit() -> None:
    backoff, now, pauses = PollBackoff(), 0.0, []
    for _ in range(14):
        pauses.append(backoff.pause(RECORD, at(now)))
        now += pauses[-1]
    assert [round(pause, 1) for pause in pauses] == [
        *[0.5, 0.5, 0.5, 0.8, 1.1, 1.7, 2.5, 3.8, 5.7, 8.5, 12.8, 19.2, 28.8],
        LONGEST_POLL_SECONDS,
    ]


@pytest.mark.parametrize("looks", [1, 1000])
def test_pause_is_as_long_however_many_looks_came_before(looks: int) -> None:
    backoff = PollBackoff()
    for number in range(looks):
        backoff.pause(RECORD, at(10 * number / looks))
    assert backoff.pause(RECORD, at(10)) == 5


def test_each_appwrapper_and_each_step_of_it_begins_anew() -> None:
    backoff = PollBackoff()
    backoff.pause(RECORD, at(0))
    assert backoff.pause(RECORD, at(60)) == 30
    assert backoff.pause(replace(RECORD, version=RECORD.version + 1), at(60)) == 0.5
    assert backoff.pause(make_record(Phase.SUSPENDING, "another"), at(60)) == 0.5


def test_time_that_goes_back_is_no_long_pause() -> None:
    backoff = PollBackoff()
    backoff.pause(RECORD, at(3600))
    assert backoff.pause(RECORD, at(0)) == 0.5


async def test_next_step_is_looked_at_soon_again(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(), record)
    await asyncio.sleep(100)  # virtual
    record = await world.commit(queue_changes.suspend(record, world.now()))
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(), record)
    assert await world.is_woken_within(0.6)


async def test_look_comes_within_the_time_that_was_said(world: World) -> None:
    record = await world.running(make_appwrapper("aw", job()))
    await world.reconciling.results.apply(record.uid, poll(), record)
    await asyncio.sleep(100)  # virtual
    await world.forget_wakes()
    await world.reconciling.results.apply(record.uid, poll(within=7), record)
    before = monotonic()
    assert await world.is_woken_within(100)
    assert monotonic() - before == pytest.approx(7, abs=0.1)


def test_each_key_has_a_turn_once_in_a_while() -> None:
    pacing = Pacing(timedelta(seconds=1))
    waits = []
    for key, moment in [("a", 0), ("b", 0.5), ("a", 0.75), ("a", 1), ("b", 1)]:
        waits.append(pacing.wait(key, at(moment)))
        if not waits[-1]:
            pacing.note(key, at(moment))
    assert waits == [0, 0, 0.25, 0, 0.5]


def test_key_that_had_a_turn_is_known_until_the_next_is_due() -> None:
    pacing = Pacing(timedelta(seconds=1))
    pacing.note("a", at(0))
    asked = [("a", 0), ("a", 0.75), ("b", 0.75), ("a", 1)]
    assert [pacing.had_turn(key, at(moment)) for key, moment in asked] == [True, True, False, False]


def test_key_that_only_asked_has_had_no_turn() -> None:
    pacing = Pacing(timedelta(seconds=1))
    assert pacing.wait("a", at(0)) == 0
    assert not pacing.had_turn("a", at(0))


def test_turns_that_have_passed_are_forgotten() -> None:
    pacing = Pacing(timedelta(seconds=1))
    for number in range(1000):
        pacing.note(str(number), NOW + timedelta(seconds=number))
    assert len(pacing._turns) == 1  # noqa: SLF001  # nothing else shows it


def test_pause_grows_with_the_withdrawals_of_a_key_until_an_hour_after_the_last() -> None:
    withdrawals = Withdrawals()
    waits = []
    for moment in (0, 10, 20, 30):
        withdrawals.note("a", at(moment))
        waits.append(withdrawals.wait("a", at(moment + 0.5)))
    assert waits == [0, 0.5, 1.5, 3.5]
    assert withdrawals.wait("a", at(34)) == 0
    assert withdrawals.wait("b", at(30)) == 0
    withdrawals.note("a", at(30 + 3600))
    assert withdrawals.wait("a", at(30 + 3600)) == 0


# -----------------------------------------------------------------------------------------------------------
# A victim from the decision of a cycle until it is queued again: its objects go, its finished items stay.


WHY = "preempted for default/other (queue b, priority 3): its queue uses more than its fair share"
TRAIN, SERVE = job("train"), job("serve")


async def running_record(world: World) -> Record:
    """A gang of a Job that has succeeded, which the record does not say yet, and of a Job that runs."""
    world.jobs.has(made(TRAIN, 0, true("Complete")))
    world.jobs.has(made(SERVE, 1))
    record = await world.running(make_appwrapper("aw", TRAIN, SERVE))
    await world.sees(record)
    return record


def observer_of(world: World) -> Observer:
    return world.reconciling.observer


async def preempted(world: World) -> Record:
    record = await running_record(world)
    finished = await observer_of(world).finished_items(record)
    assert finished == {0}
    change = run_changes.preempt(record, Reason.FAIR_SHARE, WHY, world.now(), "uid-of-other", finished)
    (committed,) = await world.committer.commit_together([change])
    return committed


async def test_finished_items_are_the_finished_objects_in_the_watches(world: World) -> None:
    assert await observer_of(world).finished_items(await running_record(world)) == {0}


async def test_nothing_is_finished_in_a_cluster_that_is_not_there(world: World) -> None:
    record = await running_record(world)
    world.clusters.pop("hub")
    assert await observer_of(world).finished_items(record) == frozenset()


async def test_victim_is_removed_except_its_finished_objects_and_is_queued_again(world: World) -> None:
    await preempted(world)
    await world.reconcile(UID)
    assert world.jobs.deletions() == ["serve"]
    world.jobs.loses("serve")
    await world.reconcile_until_answered(UID)

    record = world.record(UID)
    assert (record.phase, attempt_of(record).outcome) == (Phase.QUEUED, "preempted")
    assert (record.requeuings, record.retries) == (0, 0)
    assert world.ledger.free()["cpu"] == 8000
    assert world.dispatch_wakes > 0
    again = queue_changes.dispatch(record, "hub", world.now()).after.attempt
    assert again is not None
    assert [(ref.name, ref.done) for ref in again.objects] == [("train", True)]
    assert world.jobs.deletions() == ["serve"]


async def test_victim_that_its_user_suspends_meanwhile_is_suspended_once_it_is_removed(world: World) -> None:
    await preempted(world)
    world.show(make_appwrapper("aw", TRAIN, SERVE, spec={"suspend": True}))
    await world.reconcile(UID)
    world.jobs.loses("serve")
    await world.reconcile_until_answered(UID)
    await world.reconcile(UID)
    phases = [change.after.phase for change in world.store.changes]
    assert phases[-3:] == [Phase.REQUEUEING, Phase.QUEUED, Phase.SUSPENDED]
    assert world.ledger.free()["cpu"] == 8000

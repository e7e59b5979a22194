"""No worker of a leader ends because of one key: it says so, counts it, and goes on with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from dispatcher import errors
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.controller.scheduling.scheduler import Lookups, Rules, Scheduler
from dispatcher.core.lifecycle import first_changes, queue_changes
from dispatcher.core.model.records.record import Change, Phase, Record
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.probes import Metrics
from tests.builders import at, make_appwrapper, make_gang, make_record, make_submission
from tests.unit.controller.store import FakeStore
from tests.unit.controller.test_housekeeping import Bench, Database, kept
from tests.unit.controller.test_scheduler import HubAlone
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

NOBODY_THOUGHT = RuntimeError("nobody thought of this")


async def test_change_that_cannot_be_announced_is_committed_all_the_same(
    counted: Callable[[str], int],
) -> None:
    def announce(change: Change, _record: Record) -> None:
        if change.after.name == "odd":
            raise NOBODY_THOUGHT

    cache = Cache({})
    committer = Committer(FakeStore(), cache, announce, lambda _uid: None)
    changes = [first_changes.submit(make_submission(name), make_gang(), at(0)) for name in ("odd", "fine")]
    async with running(committer.run()) as task:
        assert [record.name for record in await committer.commit_all(changes)] == ["odd", "fine"]
        assert not task.done()
    assert len(cache.uids()) == 2
    assert counted("committer") == 1


async def test_change_whose_choice_of_notifications_cannot_be_found_is_committed_without_it(
    counted: Callable[[str], int],
) -> None:
    def choices_of(uid: str) -> None:
        if uid == "uid-of-odd":
            raise NOBODY_THOUGHT

    committer = Committer(FakeStore(), Cache({}), lambda _change, _record: None, choices_of)
    changes = [queue_changes.dispatch(make_record(name=name), "hub", at(1)) for name in ("odd", "fine")]
    async with running(committer.run()) as task:
        assert [record.name for record in await committer.commit_all(changes)] == ["odd", "fine"]
        assert not task.done()
    assert counted("committer") == 1


class Clusters(HubAlone):
    """What is known of the clusters, unless nobody can say for a while."""

    failures = 0

    def snapshots(self, _wheres: object) -> dict[str, ClusterSnapshot]:
        if self.failures:
            self.failures -= 1
            raise NOBODY_THOUGHT
        return super().snapshots(())


def dispatch_of(world: World) -> tuple[Scheduler, Clusters]:
    for reflector in (world.cluster._nodes, world.cluster._pods):  # noqa: SLF001  # as if both were listed
        reflector.synced.set()
    known = Clusters(world.cluster)
    rules = Rules(least=0.05, most=10)
    decided = world.taken_in.append
    dispatch = Scheduler(
        world.cache,
        world.committer,
        known,
        Lookups(lambda _record: True),
        on_decided=decided,
        now=world.now,
        metrics=Metrics(),
        rules=rules,
    )
    return dispatch, known


async def test_cycle_that_fails_is_run_again_later_each_time(
    world: World, counted: Callable[[str], int]
) -> None:
    dispatch, known = dispatch_of(world)
    known.failures = 12
    world.cache.put(make_record(gang=make_gang(cpu=1000)))
    async with running(dispatch.run()):
        dispatch.wake()
        await until(lambda: world.record("uid-of-aw").phase is Phase.DISPATCHING)
    assert counted("scheduler") == 12
    assert 20 < monotonic() < 120


async def test_cycle_that_the_store_ends_is_not_run_again(world: World) -> None:
    dispatch, _ = dispatch_of(world)
    world.store.failure = errors.Fenced("another leads")
    world.cache.put(make_record(gang=make_gang(cpu=1000)))
    task = asyncio.create_task(dispatch.run())
    dispatch.wake()
    await asyncio.wait([task])
    assert task.cancelled()  # with whoever waited for the committer


async def test_sample_that_cannot_be_taken_is_missing_and_the_next_is_taken(
    counted: Callable[[str], int],
) -> None:
    bench = Bench()
    bench.store.failure = NOBODY_THOUGHT
    async with running(bench.sampler.run()) as task:
        await asyncio.sleep(310)  # virtual
        bench.store.failure = None
        await asyncio.sleep(300)  # virtual
        assert not task.done()
    assert [len(bench.store.samples), counted("sampler")] == [1, 1]


class Broken(Database):
    """Fails in a way nobody thought of, whatever it is asked for."""

    def _note(self, what: str, *how: object) -> None:
        super()._note(what, *how)
        raise NOBODY_THOUGHT


async def test_house_that_cannot_be_kept_is_left_to_the_next_hour(counted: Callable[[str], int]) -> None:
    assert [what for what, *_ in await kept(Broken())] == ["make", "read", "drop"]
    assert counted("housekeeping") == 3


async def test_new_appwrappers_of_a_batch_that_fails_come_back(
    world: World, counted: Callable[[str], int]
) -> None:
    def admitted(_record: Record) -> None:
        raise NOBODY_THOUGHT

    intake = world.make_intake()
    intake._on_taken_in = admitted  # noqa: SLF001  # whoever is told fails
    intake.add(world.show(make_appwrapper()).uid)
    async with running(intake.run()) as task:
        await until(lambda: world.failed)
        assert not task.done()
    assert (world.failed, counted("intake")) == (["uid-of-aw"], 1)


async def test_spec_that_can_no_longer_be_read_does_not_prevent_leading(
    world: World, counted: Callable[[str], int]
) -> None:
    """As after an upgrade that refuses what an earlier version took."""
    fine = await world.created(make_appwrapper("fine"))
    odd = replace(fine, uid="uid-of-odd", spec_hash="odd")
    world.store.specs["odd"] = b'{"resources": 5}'
    tolerance = world.hub.tolerance("nobody")
    await world.specs.prepare({fine.uid: tolerance, odd.uid: tolerance}, [odd, fine])
    assert counted("specs") == 1
    assert await world.specs.policy_of(fine, tolerance)

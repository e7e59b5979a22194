"""The hub does not take gangs in place of a member that is removed and put back: its absence has to last first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.api.selector import EVERYTHING
from dispatcher.controller.members.membership import MEMBER_REMOVED, MEMBERS_UNKNOWN, MembersUnknown
from dispatcher.controller.scheduling.absence import LASTS_SECONDS
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep.snapshot_keeper import facts_in_steps, states_of
from dispatcher.core.model import incremental
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.records.requirements import ANYWHERE
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Placed
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules, world_of
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.kube.client import ClusterClient
from dispatcher.store.snapshot.snapshot_document import document_of, facts_of
from tests.builders import at, make_gang, make_record
from tests.fakes import FakeApiServer, Reply, answer, refusal, watch
from tests.one_queue import plan
from tests.unit.controller.fleet import Bench, benching
from tests.unit.controller.members import declaration
from tests.unit.controller.test_queue_absence import deleted
from tests.unit.controller.wire import MISSING
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

FORBIDDEN = refusal(403, "Forbidden")


@pytest.fixture
async def idle(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    """A hub that is ready, and two members, without a running fleet."""
    async with benching(server, client) as bench:
        hub = asyncio.create_task(bench.itself.run())
        await bench.itself.wait_until_listed()
        yield bench
        hub.cancel()
        await asyncio.gather(hub, return_exceptions=True)


@pytest.fixture
async def bench(idle: Bench) -> AsyncIterator[Bench]:
    """The same with a running fleet."""
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        yield idle


def closed(bench: Bench) -> dict[str, Closed | None]:
    """Each cluster of a scheduling cycle, and why it takes no gang."""
    return {name: each.closed for name, each in bench.fleet.snapshots([ANYWHERE]).items()}


@pytest.mark.parametrize("name", ["east", "hub"])
async def test_hub_takes_no_gang_while_the_only_member_is_replaced(bench: Bench, name: str) -> None:
    await bench.connected(name, cordoned=True)
    await until(lambda: closed(bench).keys() == {name})
    bench.declared.loses(name)
    await until(lambda: closed(bench) == {name: MEMBER_REMOVED})
    await asyncio.sleep(LASTS_SECONDS - 10)  # virtual
    assert closed(bench) == {name: MEMBER_REMOVED}
    bench.has(name, cordoned=True)
    await until(lambda: closed(bench) == {name: Closed(pending_reasons.CORDONED, "it takes nothing new")})
    bench.declared.loses(name)
    await asyncio.sleep(LASTS_SECONDS - 10)  # virtual
    assert closed(bench) == {name: MEMBER_REMOVED}


async def decided_by_would(bench: Bench) -> tuple[str, ...]:
    """The clusters and reasons that `would` tells of a gang, from the snapshot that the leader writes now."""
    states = states_of(Cache({}), bench.fleet, SchedulingRules())
    written = [incremental.run(facts_in_steps(each, bench.fleet, at(0))) for each in states.values()]
    documents = [document_of(each) for each in written]
    proposal = make_record(gang=make_gang(cpu=1))
    world = world_of([facts_of(each, at(0)) for each in documents], [proposal], (), at(0))
    (outcome,) = world.plan()
    assert not isinstance(outcome, Placed)
    return outcome.pending.cluster, outcome.pending.reason


@pytest.mark.parametrize("name", ["east", "hub"])
async def test_would_says_that_the_hub_takes_no_gang_while_the_only_member_is_replaced(
    bench: Bench, name: str
) -> None:
    await bench.connected(name)
    bench.declared.loses(name)
    await until(lambda: closed(bench) == {name: MEMBER_REMOVED})
    assert await decided_by_would(bench) == (name, pending_reasons.REMOVED)


async def test_hub_takes_all_gangs_once_the_absence_of_its_last_member_has_lasted(bench: Bench) -> None:
    await bench.connected("east")
    bench.declared.loses("east")
    await until(lambda: not bench.fleet.clusters.keys() - {"hub"})
    begun = monotonic()
    await asyncio.sleep(LASTS_SECONDS - 20)  # virtual
    assert closed(bench) == {"east": MEMBER_REMOVED}
    changes = bench.capacity_changes
    await until(lambda: not bench.fleet.has_members)
    assert LASTS_SECONDS - 1 <= monotonic() - begun <= LASTS_SECONDS + 10
    assert (closed(bench), bench.fleet.is_complete()) == ({"hub": None}, True)
    await until(lambda: bench.records.seen[-1] == set())
    assert bench.capacity_changes > changes


async def test_hub_takes_gangs_at_once_when_it_is_declared_instead(bench: Bench) -> None:
    await bench.connected("east")
    bench.declared.loses("east")
    bench.has("hub")
    await until(lambda: closed(bench) == {"east": MEMBER_REMOVED, "hub": None})


async def test_hub_that_never_had_members_takes_gangs_at_once(idle: Bench) -> None:
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        assert closed(idle) == {"hub": None}
        assert monotonic() == pytest.approx(0, abs=1)
        await asyncio.sleep(60)  # virtual
        assert (idle.records.seen, idle.fleet.is_surely_complete()) == ([], True)


async def test_later_leader_waits_for_the_members_that_an_earlier_one_saw(idle: Bench) -> None:
    idle.fleet.load({}, seen={"east"})
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        assert closed(idle) == {"east": MEMBER_REMOVED}
        await asyncio.sleep(LASTS_SECONDS - 20)  # virtual
        assert (closed(idle), idle.records.seen) == ({"east": MEMBER_REMOVED}, [])
        await until(lambda: closed(idle) == {"hub": None})
        assert monotonic() >= LASTS_SECONDS


async def test_members_are_recorded_from_their_declaration_until_they_are_surely_gone(bench: Bench) -> None:
    bench.has("west", kubeconfigSecretRef=None)
    await bench.connected("east")
    await until(lambda: bench.records.seen and bench.records.seen[-1] == {"east", "west"})
    bench.declared.loses("west")
    await asyncio.sleep(LASTS_SECONDS - 20)  # virtual
    assert bench.records.seen[-1] == {"east", "west"}
    await until(lambda: bench.records.seen[-1] == {"east"})


@pytest.mark.parametrize("reply", [FORBIDDEN, MISSING], ids=["forbidden", "crd-gone"])
@pytest.mark.parametrize("name", ["east", "hub"])
async def test_refused_list_is_no_absence_of_a_member_that_was_seen(
    idle: Bench, reply: Reply, name: str
) -> None:
    idle.fleet.load({}, seen={name})
    idle.hub.on("GET", MEMBERS_PATH, reply)
    async with running(idle.fleet.run()) as fleet:
        await idle.fleet.wait_for_members()
        assert closed(idle) == {"hub": MEMBERS_UNKNOWN}
        await asyncio.wait([fleet], timeout=100)
        with pytest.raises(BaseExceptionGroup) as caught:
            await fleet
    assert caught.group_contains(MembersUnknown, match=f"the database knows {name}")


@pytest.mark.parametrize("reply", [FORBIDDEN, MISSING], ids=["forbidden", "crd-gone"])
async def test_leadership_is_given_up_when_the_list_is_refused_after_the_last_member_was_removed(
    idle: Bench, reply: Reply
) -> None:
    east = declaration("east")
    page = answer({"metadata": {"resourceVersion": "1"}, "items": [east]})
    idle.hub.on("GET", MEMBERS_PATH, page, watch(deleted(east)), reply)
    async with running(idle.fleet.run()) as fleet:
        await until(lambda: "any more" in idle.fleet.problem)
        assert closed(idle) == {"east": MEMBER_REMOVED}
        await asyncio.wait([fleet], timeout=100)
        with pytest.raises(BaseExceptionGroup) as caught:
            await fleet
    assert caught.group_contains(MembersUnknown)


async def test_gang_fails_for_no_member_that_may_be_put_back_or_corrected(bench: Bench) -> None:
    """A name that is taken in `west` leaves `east`, which is replaced, or cannot be read, at the moment."""
    west = replace(ANYWHERE, ruled_out=frozenset({("west", "its name is taken")}))
    await bench.connected("east")
    await bench.connected("west")
    bench.declared.loses("east")
    await until(lambda: "east" not in bench.fleet.clusters)
    assert (bench.fleet.has_no_cluster_left(west), bench.fleet.is_complete()) == (False, False)
    bench.has("east", kubeconfigSecretRef=None)
    await asyncio.sleep(1)  # virtual
    assert not bench.fleet.has_no_cluster_left(west)
    bench.declared.loses("east")
    await asyncio.sleep(LASTS_SECONDS + 10)  # virtual
    assert (bench.fleet.has_no_cluster_left(west), bench.fleet.is_complete()) == (True, True)


async def test_removed_member_neither_learns_of_gangs_nor_has_the_hub_learn_in_its_place(
    bench: Bench,
) -> None:
    await bench.connected("east")
    bench.declared.loses("east")
    await until(lambda: "east" not in bench.fleet.clusters)
    assert bench.fleet.accepting(ANYWHERE, EVERYTHING, None) == []


async def test_pending_reason_says_that_a_member_was_removed_and_how_to_open_the_hub(bench: Bench) -> None:
    await bench.connected("east")
    bench.declared.loses("east")
    await until(lambda: "east" not in bench.fleet.clusters)
    [outcome] = plan([make_record()], bench.fleet.snapshots([ANYWHERE]))
    assert isinstance(outcome, Impossible)
    assert outcome.pending.reason == pending_reasons.REMOVED
    assert "dispatcher clusters add hub" in outcome.pending.message

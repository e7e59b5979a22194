"""Unlisted MemberClusters are unknown if the database has members, and none if it never had any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.controller.members.membership import MEMBERS_UNKNOWN, MembersUnknown
from dispatcher.controller.scheduling.absence import LASTS_SECONDS, Absences
from dispatcher.core.model.records.pending_reasons import MEMBERS_UNKNOWN as REASON
from dispatcher.core.model.records.requirements import ANYWHERE
from dispatcher.core.scheduling.cycle.outcomes import Impossible
from dispatcher.kube.client import ClusterClient
from tests.builders import make_record
from tests.fakes import FakeApiServer, Reply, never, refusal
from tests.one_queue import plan
from tests.unit.controller.fleet import FAILS, Bench, benching
from tests.unit.controller.members import KUBE_SYSTEM, collection, declaration
from tests.unit.controller.wire import MISSING
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

FORBIDDEN = refusal(403, "Forbidden")
UNREADABLE = [
    pytest.param(FORBIDDEN, id="forbidden"),
    pytest.param(MISSING, id="no-such-kind"),
    pytest.param(FAILS, id="server-error"),
    pytest.param(never, id="no-answer"),
]


@pytest.fixture
async def idle(server: FakeApiServer, client: ClusterClient) -> AsyncIterator[Bench]:
    """A hub that is ready, and two members, without a running fleet."""
    async with benching(server, client) as bench:
        hub = asyncio.create_task(bench.itself.run())
        await bench.itself.wait_until_listed()
        yield bench
        hub.cancel()
        await asyncio.gather(hub, return_exceptions=True)


def is_in_doubt(bench: Bench, name: str = "east") -> bool:
    """True if a member has no state, no loss and no cluster, and nothing is dispatched."""
    fleet = bench.fleet
    assert [(each.name, each.closed) for each in fleet.snapshots([ANYWHERE]).values()] == [
        ("hub", MEMBERS_UNKNOWN)
    ]
    assert (
        fleet.is_complete(),
        fleet.has_no_cluster_left(replace(ANYWHERE, ruled_out=frozenset({("hub", "x")}))),
    ) == (
        False,
        False,
    )
    assert fleet.readings()[name] is None
    return fleet.is_connecting(name) and fleet.loss_of(name) is None


@pytest.mark.parametrize("reply", UNREADABLE)
async def test_unlisted_members_are_unknown_if_the_database_has_members(idle: Bench, reply: Reply) -> None:
    idle.fleet.load({}, {"east"})
    idle.hub.on("GET", MEMBERS_PATH, reply)
    async with running(idle.fleet.run()):
        begun = monotonic()
        await idle.fleet.wait_for_members()
        assert monotonic() - begun == pytest.approx(10, abs=0.5)
        assert is_in_doubt(idle)
        assert "the database knows east" in idle.fleet.problem
        assert idle.records.states == []

        idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
        await until(lambda: "east" in idle.fleet.clusters)
        assert (idle.fleet.problem, idle.fleet.is_connecting("east"), idle.fleet.is_complete()) == (
            "",
            False,
            True,
        )
        assert [snapshot.closed for snapshot in idle.fleet.snapshots([ANYWHERE]).values()] == [None]


async def test_members_with_gangs_count_as_recorded_without_a_declaration(idle: Bench) -> None:
    idle.fleet.load({}, (), {"hub", "east"})
    idle.hub.on("GET", MEMBERS_PATH, MISSING)
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        assert is_in_doubt(idle)


async def test_hub_with_gangs_only_of_its_own_has_no_members(idle: Bench) -> None:
    idle.fleet.load({}, (), {"hub"})
    idle.hub.on("GET", MEMBERS_PATH, MISSING)
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        await asyncio.sleep(300)  # virtual
        assert (idle.fleet.problem, idle.fleet.is_complete()) == ("", True)
        assert idle.fleet.snapshots([ANYWHERE])["hub"].closed is None


@pytest.mark.parametrize(
    ("reply", "is_certain"),
    [
        pytest.param(FORBIDDEN, False, id="forbidden"),
        pytest.param(MISSING, True, id="no-such-kind"),
        pytest.param(FAILS, False, id="server-error"),
    ],
)
async def test_refusal_does_not_make_the_members_certain(idle: Bench, reply: Reply, is_certain: bool) -> None:
    """The database may be new, or older than the first member."""
    idle.hub.on("GET", MEMBERS_PATH, reply)
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        assert (idle.fleet.is_certain(), idle.fleet.is_surely_complete()) == (is_certain, is_certain)
        idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
        await until(lambda: "east" in idle.fleet.clusters)
        assert (idle.fleet.is_certain(), idle.fleet.is_surely_complete()) == (True, True)


async def test_listed_members_are_certain_but_not_complete_while_one_is_unreachable(idle: Bench) -> None:
    idle.members["east"].on("GET", KUBE_SYSTEM, FAILS)
    idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        assert (idle.fleet.is_certain(), idle.fleet.is_surely_complete()) == (True, False)


async def test_hub_without_members_has_none_when_its_api_server_stops_to_answer(idle: Bench) -> None:
    idle.hub.on("GET", MEMBERS_PATH, FORBIDDEN, FORBIDDEN, FAILS)
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        await asyncio.sleep(300)  # virtual
        assert (idle.fleet.problem, idle.fleet.snapshots([ANYWHERE])["hub"].closed) == ("", None)


@pytest.mark.parametrize("reply", UNREADABLE)
async def test_leadership_is_given_up_when_members_stay_unknown(idle: Bench, reply: Reply) -> None:
    idle.fleet.load({}, {"east"})
    idle.hub.on("GET", MEMBERS_PATH, reply)
    async with running(idle.fleet.run()) as fleet:
        await asyncio.sleep(54)  # virtual
        assert not fleet.done()
        await asyncio.wait([fleet], timeout=12)
        with pytest.raises(BaseExceptionGroup) as caught:
            await fleet
    assert caught.group_contains(MembersUnknown, match="cannot be listed")


@pytest.mark.parametrize("reply", [FORBIDDEN, MISSING])
async def test_members_stay_known_after_a_later_failed_list(idle: Bench, reply: Reply) -> None:
    idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
    async with running(idle.fleet.run()) as fleet:
        await until(lambda: "east" in idle.fleet.clusters)
        await asyncio.sleep(1)  # virtual
        idle.hub.on("GET", MEMBERS_PATH, reply)
        await until(lambda: idle.fleet.problem)
        assert "any more" in idle.fleet.problem
        assert (
            "east" in idle.fleet.clusters,
            idle.fleet.loss_of("east"),
            idle.fleet.is_connecting("west"),
        ) == (
            True,
            None,
            False,
        )
        assert idle.fleet.snapshots([ANYWHERE])["east"].closed is None
        await asyncio.wait([fleet], timeout=72)
        with pytest.raises(BaseExceptionGroup) as caught:
            await fleet
    assert caught.group_contains(MembersUnknown)


async def test_server_error_after_a_list_is_no_reason_to_give_up(idle: Bench) -> None:
    idle.hub.on("GET", MEMBERS_PATH, collection(declaration("east")))
    async with running(idle.fleet.run()) as fleet:
        await until(lambda: "east" in idle.fleet.clusters)
        idle.hub.on("GET", MEMBERS_PATH, FAILS)
        await asyncio.sleep(250)  # virtual: the watch has ended by then
        assert (fleet.done(), idle.fleet.problem) == (False, "")


async def test_pending_reason_says_why_nothing_is_dispatched(idle: Bench) -> None:
    idle.fleet.load({}, {"east"})
    idle.hub.on("GET", MEMBERS_PATH, FORBIDDEN)
    record = make_record()
    async with running(idle.fleet.run()):
        await idle.fleet.wait_for_members()
        (outcome,) = plan([record], idle.fleet.snapshots([record.requirements]))
    assert isinstance(outcome, Impossible)
    assert (outcome.pending.reason, outcome.pending.cluster) == (REASON, "hub")


# --- A name that was there lingers until complete lists have lacked it for long enough ---------------------


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def absences(clock: Clock) -> Absences:
    return Absences(clock)


def listed(_name: str) -> bool:
    return True


def unknown(_name: str) -> bool:
    return False


def test_name_that_was_never_there_does_not_linger(absences: Absences) -> None:
    assert not absences.note([], listed)
    assert (absences.lingering, absences.seen) == (frozenset(), frozenset())


def test_name_lingers_until_its_absence_has_lasted(absences: Absences, clock: Clock) -> None:
    assert not absences.note(["a", "b"], listed)
    assert absences.note(["b"], listed)
    clock.seconds = LASTS_SECONDS - 1
    assert not absences.note(["b"], listed)
    assert (absences.lingering, absences.seen) == (frozenset({"a"}), frozenset({"a", "b"}))
    clock.seconds = LASTS_SECONDS
    assert absences.note(["b"], listed)
    assert (absences.lingering, absences.seen) == (frozenset(), frozenset({"b"}))


def test_name_that_is_put_back_is_there_at_once_and_its_next_absence_counts_from_then(
    absences: Absences, clock: Clock
) -> None:
    absences.note(["a"], listed)
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS - 1
    assert absences.note(["a"], listed)
    assert absences.lingering == frozenset()
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS + 1
    assert not absences.note([], listed)
    assert absences.lingering == {"a"}


def test_time_without_a_current_list_does_not_count(absences: Absences, clock: Clock) -> None:
    absences.note(["a"], listed)
    absences.note([], listed)
    clock.seconds = LASTS_SECONDS - 1
    absences.note([], unknown)
    clock.seconds = 10 * LASTS_SECONDS
    absences.note([], unknown)
    assert absences.lingering == {"a"}
    absences.note([], listed)
    clock.seconds += LASTS_SECONDS - 1
    absences.note([], listed)
    assert absences.lingering == {"a"}
    clock.seconds += 1
    absences.note([], listed)
    assert absences.lingering == frozenset()


def test_name_of_an_earlier_leader_lingers_from_the_beginning(absences: Absences, clock: Clock) -> None:
    absences.load(["a"])
    assert (absences.lingering, absences.seen) == (frozenset({"a"}), frozenset({"a"}))
    absences.note([], unknown)
    clock.seconds = 10 * LASTS_SECONDS
    assert not absences.note([], listed)
    assert absences.lingering == {"a"}

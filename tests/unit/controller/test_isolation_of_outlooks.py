"""An exception about one gang, at any function of the core that a search for outlooks calls for it, hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher import log
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.upkeep import outlook_keeper
from dispatcher.controller.upkeep.outlook_keeper import OutlookKeeper
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.records.failures import UNDECIDED_BY_ERROR
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.queues.queue import Preemption, Queue, Quota, Reclaim
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.isolation import BARRED_FOR
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.status import outlook
from dispatcher.core.status.outlook import UNKNOWN, Outlook
from tests.builders import WAITS, at, make_core_node, make_gang, make_record
from tests.unit.controller import injection
from tests.unit.controller.injection import injected, rooms_of
from tests.unit.controller.test_isolation import ROOMS
from tests.unit.virtual_time import monotonic

QUEUES = (
    Queue("org"),
    Queue("default", "org", {"cpu": Quota(9000)}, preemption=Preemption(reclaim=Reclaim.LOWER_PRIORITY)),
    Queue("other", "org", {"cpu": Quota(2000)}),
)
TOLD: Final = UNDECIDED_BY_ERROR.message
WAITING: Final = ("fits", "waits", "never", "starved")
HOLDING: Final = ("running", "leaving")
SHARES: Final = 3
"""In so many parts the functions are tried, because each of them is a search."""
CPUS: Final = {"fits": 501, "waits": 3501, "never": 90_001, "starved": 3501, "running": 1001, "leaving": 1001}


def tenant_of(case: str) -> Record:
    """A gang of two sets that waits, has waited past the starvation bound, runs, or is requeued."""
    sets = tuple(PodSet(1, Resources({"cpu": CPUS[case] + number}), path=f"{number}") for number in range(2))
    gang = Gang(sum_of(each.total for each in sets), 2, sets)
    alone = ClusterRequirements(namespace="tenant")  # which it shares with nobody
    phase = {"running": Phase.RUNNING, "leaving": Phase.REQUEUEING}.get(case, Phase.QUEUED)
    record = make_record(phase, name="tenant", gang=gang, requirements=alone, enqueue_seq=1, priority=5)
    record = replace(record, namespace="tenant")
    if phase is not Phase.QUEUED:
        return replace(record, expected_seconds=900)
    own = replace(WAITS)  # the object, too: a call with it is about this gang alone
    return replace(record, pending=own, blocked_since=at(-7200) if case == "starved" else None)


HONEST = [
    make_record(name=f"q{number}", gang=make_gang(cpu=3000), enqueue_seq=2 + number, pending=WAITS)
    for number in range(2)
]
"""Gangs of another namespace. The first may be about to be dispatched, and has no outlook but its position then."""
HOLDERS: Final = {"uid-of-tenant", "uid-of-holder", "uid-of-endless"}


class Bench:
    """Two nodes that gangs hold, one that ends and one that does not, and gangs that wait with a tenant's."""

    def __init__(self, tenant: Record, *, has_queues: bool) -> None:
        self.ledger = CapacityLedger(FitMode.AGGREGATE)
        for name in ("n1", "n2"):
            self.ledger.set_node(make_core_node(name, cpu=5000))
        self.ledgers = {"hub": self.ledger}
        self.cache = Cache(self.ledgers)
        holder = make_record(
            Phase.RUNNING, name="holder", gang=make_gang(cpu=2900), queue="other" if has_queues else "default"
        )
        self.cache.put(replace(holder, expected_seconds=3600))
        self.cache.put(make_record(Phase.RUNNING, name="endless", gang=make_gang(cpu=2100)))
        for each in (tenant, *HONEST):
            self.cache.put(each)
        rules = SchedulingRules(queues=QUEUES, has_default=False) if has_queues else SchedulingRules()
        nothing: Outlook = {}
        self.keeper = OutlookKeeper(
            self.cache,
            self,
            lambda: rules,
            lambda: at(monotonic()),
            lambda _: nothing,
            lambda _: None,
            timedelta(seconds=10),
            monotonic,
        )

    def snapshots(self, _requirements: Iterable[ClusterRequirements]) -> Mapping[str, ClusterSnapshot]:
        return {"hub": ClusterSnapshot("hub", self.ledger.snapshot())}

    def reserve_of(self, _cluster: str) -> Resources:
        return NOTHING

    def outlook_of(self, record: Record) -> Outlook:
        return self.keeper.outlook_of(record.uid) or {}


def is_sought(found: Outlook) -> bool:
    """True if a search has said something of a gang, and not that it raised."""
    return found.get(UNKNOWN) != TOLD and not found.keys() <= {"position", "queueLength"}


async def called_for(case: str, *, has_queues: bool) -> list[str]:
    """The functions that a round calls for the tenant's gang."""
    gang = injection.Gang(tenant_of(case), is_in_amounts=False)
    bench = Bench(gang.record, has_queues=has_queues)
    with injected(gang), capture_logs() as logs:
        await bench.keeper.renew()
    assert logs == []
    assert all(is_sought(bench.outlook_of(each)) for each in HONEST[1:])
    return sorted(gang.calls)


async def hidden_by(case: str, names: Sequence[str], *, has_queues: bool) -> list[str]:
    """The functions of these at which an exception hides the outlook of another gang, or is not told."""
    found = []
    for name in names:
        gang = injection.Gang(tenant_of(case), raising=name, is_in_amounts=False)
        before = sum(log.internal_errors().values())
        bench = Bench(gang.record, has_queues=has_queues)
        with injected(gang), capture_logs() as logs:
            await bench.keeper.renew()
        if not all(is_sought(bench.outlook_of(each)) for each in HONEST[1:]):
            found.append(f"{name}: another gang has no outlook")
        if gang.raised and sum(log.internal_errors().values()) == before:
            found.append(f"{name}: not counted")
        # Of gangs that hold capacity another one may be blamed, without which no search comes to the function.
        may_be_blamed = {gang.record.uid} if case in WAITING else HOLDERS
        if gang.raised and not {each.get("appwrapper") for each in logs} <= may_be_blamed:
            found.append(f"{name}: logged without its uid, or with another one")
        if gang.raised and case in WAITING and is_sought(bench.outlook_of(gang.record)):
            found.append(f"{name}: not told")
    return found


@pytest.mark.sweep
@pytest.mark.timeout(200)
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("has_queues", [False, True], ids=["one-queue", "queues"])
@pytest.mark.parametrize("case", [*WAITING, *HOLDING])
async def test_exception_about_one_gang_at_any_function_of_the_core_hides_no_other_outlook(
    case: str, has_queues: bool, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "MOST_WORK", 600)  # a few plans for each kind of repair
    names = await called_for(case, has_queues=has_queues)
    assert len(names) > (30 if case in WAITING else 10)
    assert rooms_of(names) >= ({*ROOMS, "status"} if case in WAITING else {"model", "scheduling"})
    assert await hidden_by(case, names[share::SHARES], has_queues=has_queues) == []


FIT = "dispatcher.core.scheduling.fit.fit.fit"
TAKE = "dispatcher.core.scheduling.capacity.capacity_snapshot.CapacitySnapshot.take"


@pytest.mark.parametrize("raising", [FIT, TAKE])
async def test_gang_whose_search_raised_is_logged_once_and_sought_again_after_a_while(
    raising: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook_keeper, "PAUSE_FACTOR", 0)
    tenant = tenant_of("fits")
    bench = Bench(tenant, has_queues=False)
    with capture_logs() as logs, injected(injection.Gang(tenant, raising=raising)):
        for number in range(3):
            bench.cache.put(make_record(name=f"new-{number}", gang=make_gang(cpu=9), enqueue_seq=50 + number))
            await bench.keeper.renew()
            assert bench.outlook_of(tenant)[UNKNOWN] == TOLD
    assert [each["appwrapper"] for each in logs] == [tenant.uid]
    await asyncio.sleep(BARRED_FOR.total_seconds())
    await bench.keeper.renew()
    assert UNKNOWN not in bench.outlook_of(tenant)

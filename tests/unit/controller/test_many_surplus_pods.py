"""Surplus of many gangs: found once for each change, and in steps of one gang."""

from __future__ import annotations

from msgspec.structs import replace

from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.incremental import Steps, run
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Gate, Pod, PodPhase
from dispatcher.core.model.record import Growth, Phase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.core.scheduling.sharing.surplus import Parts, by_gang, split
from tests.builders import at, make_record

CPU = Resources({"cpu": 1000})
GANGS, WORKERS = 8, 3


def pod(gang: int, number: int) -> Pod:
    return Pod(
        f"{gang}-{number}",
        CPU,
        "n",
        PodPhase.RUNNING,
        owner=f"uid-of-g{gang}",
        can_be_gated=True,
        template="0.w",
        base_pods=1,
        admitted_as=Gate("default", f"{gang}-{number}", f"2026-01-01T00:00:{number:02}Z"),
    )


def grown() -> tuple[CapacityLedger, Cache]:
    ledger = CapacityLedger(FitMode.NODE, "hub")
    ledger.set_node(Node("n", Resources({"cpu": 10**6})))
    cache = Cache({"hub": ledger})
    for gang in range(GANGS):
        record = make_record(Phase.RUNNING, f"g{gang}", gang=Gang(CPU, 1, (PodSet(1, CPU),)))
        assert record.attempt is not None
        assert record.uid == pod(gang, 0).owner
        growth = (Growth(at(1), CPU * WORKERS, pods=(("0.w", WORKERS),)),)
        cache.put(replace(record, attempt=replace(record.attempt, cluster="hub", growth=growth)))
        for number in range(WORKERS + 1):
            ledger.set_pod(pod(gang, number))
    return ledger, cache


def steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


def test_surplus_of_a_gang_is_found_again_only_once_its_pods_or_its_record_change() -> None:
    ledger, cache = grown()
    before = cache.surplus()
    assert {len(each.pods) for each in before.values()} == {WORKERS}
    ledger.remove_pod("0-3")
    after = cache.surplus()
    assert [uid for uid in after if after[uid] is not before[uid]] == ["uid-of-g0"]
    record = cache.get("uid-of-g1")
    assert record is not None
    cache.put(replace(record, priority=7))
    assert [uid for uid, each in cache.surplus().items() if each is not after[uid]] == ["uid-of-g1"]
    ledger.set_unwanted("ray", frozenset({("default", "2-1")}))
    assert cache.surplus()["uid-of-g2"].pods[0].name == "2-1"


def test_surplus_is_prepared_in_steps_of_one_gang_that_changed() -> None:
    ledger, cache = grown()
    assert steps_of(cache.prepare_surplus()) == GANGS
    assert steps_of(cache.prepare_surplus()) == 0
    ledger.remove_pod("5-2")
    assert steps_of(cache.prepare_surplus()) == 1


def test_gangs_are_parted_and_split_in_steps_of_one_gang_that_changed() -> None:
    ledger, cache = grown()
    found_gangs = (active_gang(each, is_unreachable=False) for each in cache.records())
    active = [each for each in found_gangs if each is not None]
    assert len(active) == GANGS
    parts = Parts()
    assert steps_of(parts.in_steps(active, cache.surplus())) == GANGS
    ledger.remove_pod("5-2")
    assert steps_of(parts.in_steps(active, cache.surplus())) == 1
    found = run(parts.in_steps(active, cache.surplus()))
    snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
    assert steps_of(split(by_gang(found), snapshots)) == 2 * GANGS

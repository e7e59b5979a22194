"""Backfill reservations where gangs are placed on nodes: when a gang fits, and the nodes that are kept for it."""

from __future__ import annotations

from datetime import timedelta

from dispatcher.core.model.gang import Assignment, Gang, PodSet
from dispatcher.core.model.nodes import Node
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.backfill_reservation import Reservation
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle import Placed, Waiting, plan
from dispatcher.core.scheduling.estimated_ends import LAST_RESORT, End, soonest_on
from tests.builders import NOW, make_record, make_snapshots

FOUR, EIGHT = Resources({"nvidia.com/gpu": 4}), Resources({"nvidia.com/gpu": 8})
HOUR = timedelta(hours=1)


def gang(count: int, requests: Resources) -> Gang:
    return Gang(requests * count, count, (PodSet(count, requests),))


def cluster(**running: str) -> CapacityLedger:
    """Two nodes of 8 GPUs; each running gang has a pod of 4 GPUs on its node."""
    ledger = CapacityLedger(FitMode.NODE)
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, EIGHT))
    for uid, node in running.items():
        ledger.set_pod(Pod(f"pod-of-{uid}", FOUR, node, PodPhase.RUNNING, owner=uid))
        ledger.reserve(uid, gang(1, FOUR))
    return ledger


def full() -> CapacitySnapshot:
    return cluster(a="n1", b="n1", c="n2", d="n2").snapshot()


ENDS = [End(NOW + HOUR * hours, FOUR, uid) for uid, hours in (("a", 1), ("c", 2), ("b", 3), ("d", 10))]


def test_gang_fits_when_a_node_is_free_and_not_when_the_sum_is() -> None:
    assert soonest_on(gang(1, EIGHT), full(), ENDS, NOW) == (NOW + 3 * HOUR, Assignment(((("n1", 1),),)))


def test_gang_of_small_pods_fits_when_the_sum_does() -> None:
    places = ((("n1", 1), ("n2", 1)),)
    assert soonest_on(gang(2, FOUR), full(), ENDS, NOW) == (NOW + 2 * HOUR, Assignment(places))


def test_gang_that_fits_now_fits_now() -> None:
    assert soonest_on(gang(1, EIGHT), cluster(c="n2").snapshot(), ENDS, NOW).at == NOW


def test_gang_that_fits_only_the_empty_cluster_is_a_last_resort_with_places() -> None:
    found = soonest_on(gang(2, EIGHT), full(), ENDS[:3], NOW)
    assert found == (LAST_RESORT, Assignment(((("n1", 1), ("n2", 1)),)))


def test_nodes_reserved_for_a_starved_gang_take_no_other_gang() -> None:
    large, small = (
        make_record(name="large", gang=gang(1, EIGHT)),
        make_record(name="small", gang=gang(1, FOUR)),
    )
    kept = Reservation("hub", NOW, NOW + HOUR, NOW, assignment=Assignment(((("n1", 1),),)))

    def outcomes(**running: str) -> list[object]:
        snapshots = make_snapshots(hub=cluster(**running).snapshot())
        return [*plan([large, small], snapshots, starved=[large.uid], reservations={large.uid: kept})]

    _, second = outcomes(a="n1", c="n2")
    assert isinstance(second, Placed)
    assert second.assignment == Assignment(((("n2", 1),),))
    _, second = outcomes(a="n1", c="n2", d="n2")
    assert isinstance(second, Waiting)
    assert second.pending.reason == "ReservedForAnother"

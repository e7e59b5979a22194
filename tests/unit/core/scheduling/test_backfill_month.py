"""A month of random arrivals: a gang that can fit is never passed by for longer than its bounds say."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.cycle.outcomes import Placed, Waiting
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds, Reservation
from dispatcher.core.scheduling.fit.estimated_ends import LAST_RESORT, End, soonest_on
from tests.builders import NOW, at, make_gang, make_record, make_snapshots
from tests.one_queue import plan
from tests.unit.core.scheduling.month import FOREVER, HOUR, MINUTE, STARVATION, World, make_cluster, stream

MONTH = at(30 * 86400)
SECOND = timedelta(seconds=1)


# --- what was found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", QueueingStrategy)
def test_gang_that_needs_capacity_of_daemonsets_leaves_the_cluster_to_others_all_month(
    policy: QueueingStrategy,
) -> None:
    """Three pods of 8 cpus, on three nodes of 8 with 100m of DaemonSets each: 23.7 of 24 cpus were kept, for ever."""
    world = World({"hub": make_cluster(3, 8, daemons=0.1)}, policy=policy)
    world.submit(at(0), "small-before", make_gang(cpu=1000), HOUR)
    world.submit(at(1), "large", make_gang(3, cpu=8000), HOUR)
    small = stream(world, 30, HOUR, 2 * HOUR)

    world.run_out(MONTH)

    assert "large" not in world.dispatched
    assert [name for name in small if name not in world.dispatched] == []
    assert world.told["large"] == [
        "cluster hub: cpu: needs 24, 23700m in all of it (of 24, 300m are taken by DaemonSets and static pods)"
    ]


def test_capacity_is_kept_where_no_permanent_job_holds_half_of_it() -> None:
    """The permanent job is on the first cluster by name; 13,745 younger jobs passed on the other in a month."""
    world = World({"a": make_cluster(1, 8), "b": make_cluster(1, 8)})
    world.submit(at(-10 * 86400), "permanent", make_gang(cpu=4000), FOREVER)
    small = stream(world, 7, 20 * MINUTE, 5 * HOUR)
    arrives = at(6 * 3600)
    world.submit(arrives, "large", make_gang(cpu=8000), HOUR)

    world.run_out(at(7 * 86400))

    assert (world.dispatched["permanent"][1], world.dispatched["large"][1]) == ("a", "b")
    assert world.wait_of("large") <= STARVATION + 5 * HOUR
    begun = sorted(world.dispatched[name][0] for name in small if name in world.dispatched)
    assert len([when for when in begun if arrives < when < world.dispatched["large"][0]]) < 20
    assert world.told["large"][-1].endswith(
        "; a backfill reservation keeps capacity for it on b until 2026-11-20 21:49:06 UTC"
    )


# --- a month of whatever comes -----------------------------------------------------------------------------------

SEEDS = (1, pytest.param(2, marks=pytest.mark.exhaustive))
LONGEST = 5 * HOUR
PERMANENT = 3


def random_month(seed: int, clusters: int, bounds: Bounds, policy: QueueingStrategy) -> World:
    """More small jobs than there is room for, a few that never end, and now and then a gang for a whole cluster."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    sizes = {f"c{number}": chance.choice((2, 3)) for number in range(clusters)}
    ledgers = {name: make_cluster(nodes, 8, daemons=0.1) for name, nodes in sizes.items()}
    world = World(ledgers, bounds, policy)
    for number in range(PERMANENT):
        when = at(chance.uniform(0, 2 * 86400))
        world.submit(when, f"permanent-{number}", make_gang(cpu=2000), FOREVER)
    largest = max(sizes.values()) * 7900 - PERMANENT * 2000
    moment = at(0)
    while moment < MONTH:
        moment += timedelta(seconds=chance.expovariate(clusters / 3600))
        run = timedelta(seconds=chance.uniform(60, LONGEST.total_seconds()))
        if chance.random() < 0.03:
            cpu = chance.randint(largest // 2, largest)
            world.submit(moment, f"large-{cpu}-{moment}", make_gang(cpu=cpu), run)
        else:
            world.submit(
                moment, f"small-{moment}", make_gang(cpu=chance.choice((1000, 2000, 4000, 6000))), run
            )
    return world


@pytest.mark.parametrize("clusters", [1, pytest.param(2, marks=pytest.mark.exhaustive), 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_gang_that_can_fit_goes_within_the_bounds_of_becoming_head(seed: int, clusters: int) -> None:
    bounds = Bounds(kept=LONGEST + HOUR, rest=STARVATION)
    world = random_month(seed, clusters, bounds, QueueingStrategy.BEST_EFFORT_FIFO)

    world.run_out(MONTH)

    waits = waits_of_heads(world)
    assert len(waits) > 10
    assert max(waits) > STARVATION
    # A wrong cluster costs its bound; on the right one the longest run is outlasted.
    assert max(waits) <= STARVATION + (clusters - 1) * bounds.kept + LONGEST


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_longer_than_the_bound_are_outlasted_because_the_bound_grows(seed: int) -> None:
    bounds = Bounds(kept=HOUR, rest=STARVATION)
    world = random_month(seed, 2, bounds, QueueingStrategy.BEST_EFFORT_FIFO)

    world.run_out(MONTH)

    # Rounds of 1, 2, 4 hours on each of two clusters, as long a rest after each, and the round that outlasts them.
    assert max(waits_of_heads(world)) <= STARVATION + 2 * (2 + 4 + 8) * HOUR + 8 * HOUR + LONGEST


@pytest.mark.parametrize("seed", SEEDS)
def test_strict_head_waits_for_the_longest_run_at_most(seed: int) -> None:
    world = random_month(seed, 2, Bounds(), QueueingStrategy.STRICT_FIFO)
    world.run_out(MONTH)
    assert max(waits_of_heads(world)) <= LONGEST


def waits_of_heads(world: World) -> list[timedelta]:
    """How long each waited that was ever the head; of those that wait still, until the end of the month."""
    return [
        world.wait_of(name) if name in world.dispatched else MONTH - since
        for name, since in world.headed.items()
    ]


def test_gang_blocked_by_a_permanent_job_reserves_half_of_the_time_and_notes_it() -> None:
    world = World({"hub": make_cluster(1, 8)})
    world.submit(at(0), "permanent", make_gang(cpu=1000), FOREVER)
    world.submit(at(1), "large", make_gang(cpu=8000), HOUR)
    small = stream(world, 30, HOUR, 30 * MINUTE)

    kept = kept_in_a_month(world)

    assert "large" not in world.dispatched
    assert kept <= 0.55 * (MONTH - at(0))
    assert len([name for name in small if name in world.dispatched]) > 0.9 * len(small)
    notes = [message.partition("; a backfill reservation ")[2] for message in world.told["large"]]
    assert [note for note in notes if note][:4] == [
        "keeps capacity for it on hub until 2026-11-20 15:08:07 UTC",
        "on hub was not complete within its bound and ended; the next begins after 2026-11-20 21:08:07 UTC",
        "keeps capacity for it on hub until 2026-11-21 09:08:07 UTC",
        "on hub was not complete within its bound and ended; the next begins after 2026-11-21 21:08:07 UTC",
    ]


DAY = timedelta(days=1)
BY_DAY = Bounds(DAY, STARVATION)


def kept_in_a_month(world: World) -> timedelta:
    """For how long capacity of some cluster is kept."""
    kept, is_kept, last = timedelta(0), False, at(0)
    for now in world.run(MONTH):
        kept += is_kept * (now - last)
        is_kept, last = (
            any(not each.is_resting for each in world.cache.backfills.room.reservations.values()),
            now,
        )
    return kept


def occupied_hub(foreign: bool) -> World:
    """One cpu of eight is taken for good: by a pod that is no AppWrapper's, or else by an AppWrapper."""
    world = World({"hub": make_cluster(1, 8, foreign=float(foreign))}, BY_DAY)
    if not foreign:
        world.submit(at(0), "permanent", make_gang(cpu=1000), FOREVER)
    return world


@pytest.mark.parametrize(
    ("foreign", "gangs", "share", "longest"),
    [
        # The bound of a gang doubles where an end is in sight: of one alone up to 8 days within the month.
        pytest.param(False, 1, 0.51, 8 * DAY, id="1-beside-a-permanent-job"),
        pytest.param(False, 5, 0.51, 2 * DAY, id="5-beside-a-permanent-job"),
        pytest.param(False, 20, 0.51, DAY, id="20-beside-a-permanent-job", marks=pytest.mark.exhaustive),
        pytest.param(True, 1, 0.2, DAY, id="1-beside-a-foreign-pod"),
        pytest.param(True, 5, 0.2, DAY, id="5-beside-a-foreign-pod"),
        pytest.param(True, 20, 0.2, DAY, id="20-beside-a-foreign-pod", marks=pytest.mark.exhaustive),
    ],
)
def test_gangs_that_never_fit_leave_the_cluster_to_others_half_of_the_time_however_many_they_are(
    foreign: bool, gangs: int, share: float, longest: timedelta
) -> None:
    """Five beside a permanent job kept it for all of the month: 8 of 720 small jobs ran."""
    world = occupied_hub(foreign)
    for number in range(gangs):
        world.submit(at(1 + number), f"large-{number}", make_gang(cpu=8000), HOUR)
    small = stream(world, 30, HOUR, 30 * MINUTE)

    kept = kept_in_a_month(world)

    assert not [name for name in world.dispatched if name.startswith("large")]
    assert 4 * DAY < kept <= share * (MONTH - at(0))
    assert len([name for name in small if name in world.dispatched]) > 0.9 * len(small)
    waits = [
        (world.dispatched[name][0] if name in world.dispatched else MONTH) - (at(60) + number * HOUR)
        for number, name in enumerate(small)
    ]
    assert max(waits) <= longest


@pytest.mark.parametrize("gangs", [1, 5])
def test_gang_that_can_fit_has_its_turn_after_each_that_cannot(gangs: int) -> None:
    """Older gangs that never fit are before it in the queue, for GPUs; small jobs leave it no gap, for cpus."""
    ledger = make_cluster(1, 8)
    ledger.set_node(Node("n0", Resources({"cpu": 8000, "nvidia.com/gpu": 8})))
    world = World({"hub": ledger}, BY_DAY)
    world.submit(at(0), "permanent", make_gang(cpu=0, gpu=1), FOREVER)
    for number in range(gangs):
        world.submit(at(1 + number), f"large-{number}", make_gang(cpu=0, gpu=8), HOUR)
    stream(world, 14, 20 * MINUTE, 2 * HOUR)
    arrives = at(4 * 3600)
    world.submit(arrives, "fits", make_gang(cpu=8000), HOUR)

    world.run_out(at(14 * 86400))

    assert "fits" in world.dispatched
    assert world.dispatched["fits"][0] - arrives > gangs * DAY
    assert world.wait_of("fits") <= STARVATION + gangs * 2 * DAY + 2 * HOUR
    assert len(world.told["fits"]) <= 2 * gangs + 4


# -----------------------------------------------------------------------------------------------------------
# Backfill reservations where gangs are placed on nodes: when a gang fits, and the nodes that are kept for
# it.


FOUR, EIGHT = Resources({"nvidia.com/gpu": 4}), Resources({"nvidia.com/gpu": 8})
HOUR_OF_TIME = timedelta(hours=1)


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


ENDS = [
    End(NOW + HOUR_OF_TIME * hours, FOUR, uid) for uid, hours in (("a", 1), ("c", 2), ("b", 3), ("d", 10))
]


def test_gang_fits_when_a_node_is_free_and_not_when_the_sum_is() -> None:
    assert soonest_on(gang(1, EIGHT), full(), ENDS, NOW) == (
        NOW + 3 * HOUR_OF_TIME,
        Assignment(((("n1", 1),),)),
    )


def test_gang_of_small_pods_fits_when_the_sum_does() -> None:
    places = ((("n1", 1), ("n2", 1)),)
    assert soonest_on(gang(2, FOUR), full(), ENDS, NOW) == (NOW + 2 * HOUR_OF_TIME, Assignment(places))


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
    kept = Reservation("hub", NOW, NOW + HOUR_OF_TIME, NOW, assignment=Assignment(((("n1", 1),),)))

    def outcomes(**running: str) -> list[object]:
        snapshots = make_snapshots(hub=cluster(**running).snapshot())
        return [*plan([large, small], snapshots, starved=[large.uid], reservations={large.uid: kept})]

    _, second = outcomes(a="n1", c="n2")
    assert isinstance(second, Placed)
    assert second.assignment == Assignment(((("n2", 1),),))
    _, second = outcomes(a="n1", c="n2", d="n2")
    assert isinstance(second, Waiting)
    assert second.pending.reason == "ReservedForAnother"

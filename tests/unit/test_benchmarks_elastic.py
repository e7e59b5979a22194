"""What the benchmark of elastic Ray clusters draws, how it plays growth, and what its table shows."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.elastic import BEYOND, Trial, as_table, figures_of, forest_of
from benchmarks.elastic_load import IDLE_SECONDS, LEAST, MOST, RayCluster, make_clusters, make_nodes
from benchmarks.elastic_trial import REMOVAL_SECONDS, Growths, Outcome, live

QUEUES = ("a", "b")
SECONDS = 1200


def ray(number: int = 0, queue: str = "a", *wants: tuple[int, int], arrives: int = 0) -> RayCluster:
    """A cluster that wants its fewest workers, but for `wants`."""
    return RayCluster(number, queue, arrives, 10_000, ((arrives, LEAST), *wants))


def lived(
    *rays: RayCluster, growths: Growths, nominal: int = 4, borrows: bool = False, seconds: int = 300
) -> Outcome:
    """Their life on two nodes, in queues with that nominal quota."""
    forest = forest_of(QUEUES, nominal, has_borrowing=borrows)
    return live(rays, forest, make_nodes(2), growths, seconds)


@cache
def crowd(growths: Growths, borrows: bool) -> Outcome:
    """The life of twelve clusters that want more than there is."""
    rays = make_clusters(12, QUEUES, SECONDS, 1)
    return live(rays, forest_of(QUEUES, 15, has_borrowing=borrows), make_nodes(6), growths, SECONDS)


def test_demand_depends_on_the_seed_alone_and_stays_within_its_bounds() -> None:
    rays = make_clusters(20, QUEUES, 7200, 1)
    assert rays == make_clusters(20, QUEUES, 7200, 1)
    assert rays != make_clusters(20, QUEUES, 7200, 2)
    assert [each.arrives for each in rays] == sorted(each.arrives for each in rays)
    for each in rays:
        assert each.wants[0] == (each.arrives, LEAST)
        assert {each.wanted(second) for second in range(each.arrives, each.ends)} <= set(
            range(LEAST, MOST + 1)
        )


def test_autoscaler_keeps_an_idle_worker_for_a_minute() -> None:
    grows = ray(0, "a", (100, 5), (200, 2), (300, 4))
    assert [grows.wanted(second) for second in (99, 100, 199, 200, 300)] == [2, 5, 5, 2, 4]
    assert [grows.kept(second) for second in (99, 100, 199 + IDLE_SECONDS, 200 + IDLE_SECONDS)] == [
        2,
        5,
        5,
        2,
    ]


def test_growth_within_the_quota_starts_at_once() -> None:
    outcome = lived(ray(0, "a", (10, 4), (100, 2)), growths=Growths.GRANT)
    assert (outcome.waits, outcome.beyond_quota, outcome.withdrawn) == ([0, 0], 0, 0)
    assert outcome.served == outcome.wanted == 2 * 300 + 2 * 90


def test_growth_beyond_the_quota_waits_for_a_grant_or_is_counted_as_beyond() -> None:
    grows = ray(0, "a", (10, 6), (100, 2))
    granted, charged = (lived(grows, growths=each) for each in Growths)
    assert (granted.waits, granted.withdrawn, granted.beyond_quota) == ([0, 0], 2, 0)
    assert (charged.waits, charged.withdrawn, charged.beyond_quota) == ([0] * 4, 0, 90 + IDLE_SECONDS)
    assert charged.served - granted.served == 2 * 90


def test_gang_that_grew_on_the_quota_of_another_queue_is_preempted_and_its_work_is_lost() -> None:
    grown, owner = ray(0, "a", (10, 8)), ray(1, "b", arrives=100)
    outcome = lived(grown, owner, growths=Growths.CHARGE, borrows=True)
    assert outcome.preempted == 1
    assert outcome.gang_waits == [0, REMOVAL_SECONDS]
    assert outcome.lost == 2 * 10 + 8 * (90 + REMOVAL_SECONDS)


@pytest.mark.parametrize("borrows", [False, True])
def test_granted_growth_never_exceeds_a_quota_where_charged_growth_does(borrows: bool) -> None:
    granted, charged = crowd(Growths.GRANT, borrows), crowd(Growths.CHARGE, borrows)
    assert granted.wanted == charged.wanted
    assert granted.beyond_quota == 0 < charged.beyond_quota
    assert len(granted.gang_waits) == 12


def test_granted_growth_within_nominal_quotas_costs_no_gang_its_work() -> None:
    granted, charged = crowd(Growths.GRANT, False), crowd(Growths.CHARGE, False)
    assert (granted.preempted, granted.lost) == (0, 0)
    assert charged.preempted > 0 < charged.lost


def test_table_has_a_column_for_each_way_with_averages() -> None:
    trials = [
        Trial(Growths.GRANT, False, 1, figures_of(Outcome(waits=[0, 4]))),
        Trial(Growths.GRANT, False, 2, figures_of(Outcome(waits=[2], gang_waits=[7]))),
        Trial(Growths.CHARGE, True, 1, figures_of(Outcome(beyond_quota=9, lost=7200))),
    ]
    lines = {line[:32].strip(): line[32:].split() for line in as_table(trials).splitlines()[1:]}
    assert as_table(trials).splitlines()[0].split() == [
        "averages",
        "of",
        "2",
        "seeds",
        "grant",
        "charge,",
        "borrowing",
    ]
    assert lines[BEYOND] == ["0.0", "9.0"]
    assert lines["GPU-hours lost to preemption"] == ["0.0", "2.0"]
    assert lines["wait of a worker, p99, s"] == ["3.0", "0.0"]
    assert lines["wait of a gang, longest, s"] == ["3.5", "0.0"]

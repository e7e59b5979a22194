"""The nodes of each cluster as the pods of a waiting gang meet them."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import pytest
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.record import Pending, Phase
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue, Quota, StopPolicy
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.explain.node_strips import Strip, strips
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation

GPU: Final = "nvidia.com/gpu"
NODE: Final = {"allocatable": {"cpu": 16, GPU: 8, "pods": 110}}
RUNNING: Final = [
    {"name": "train", "cluster": "east", "pods": [{"count": 2, "requests": {GPU: 3}, "nodes": ["a", "b"]}]},
    {"name": "eval", "cluster": "east", "pods": [{"count": 1, "requests": {GPU: 4}, "nodes": ["b"]}]},
]
PENDING: Final = {
    "name": "p",
    "pods": [{"count": 4, "requests": {GPU: 4}}, {"count": 1, "requests": {"cpu": 1}}],
}


def world(**pending: Any) -> World:  # noqa: ANN401
    nodes = [
        {**NODE, "name": "a"},
        {**NODE, "name": "b"},
        {**NODE, "name": "c", "taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]},
        {**NODE, "name": "d", "labels": {"zone": "z"}},
    ]
    return parse_scenario(
        {
            "clusters": [{"name": "east", "nodes": nodes}],
            "running": RUNNING,
            "pending": [PENDING | pending],
        }
    )


def strip_of(found: World) -> Strip:
    (strip,) = strips(found, found.pending[0])
    return strip


def test_nodes_that_take_most_pods_come_first_with_what_is_free_and_held() -> None:
    strip = strip_of(world())
    assert (strip.cluster, strip.resource, strip.requests, strip.pods) == ("east", GPU, 4, 4)
    assert [(each.name, each.free, each.fits, dict(each.holders)) for each in strip.nodes] == [
        ("d", 8, 2, {}),
        ("a", 5, 1, {"train": 3}),
        ("b", 1, 0, {"train": 3, "eval": 4}),
        ("c", 8, 0, {}),
    ]
    assert strip.fitting == 3


@pytest.mark.parametrize(
    ("pending", "why"),
    [
        ({}, {"c": "with taint team=b not tolerated"}),
        (
            {"pods": [{"count": 4, "requests": {GPU: 4}, "nodeSelector": {"zone": "z"}}]},
            {
                "a": "not selected by its pods",
                "b": "not selected by its pods",
                "c": "with taint team=b not tolerated",
            },
        ),
    ],
)
def test_excluded_node_says_why_in_the_words_that_the_refusal_counts(
    pending: dict[str, Any], why: dict[str, str]
) -> None:
    found = world(**pending)
    assert {each.name: each.why for each in strip_of(found).nodes if each.why} == why
    (snapshot,) = KnownSnapshots().of(found).values()
    assert snapshot.capacity.nodes is not None
    counted = snapshot.capacity.nodes.traits.exclusions(found.pending[0].gang.pod_sets)
    assert dict(counted.named) == Counter(why.values())


NOW: Final = world().now


def with_keeper(
    found: World,
    *,
    blocked: timedelta,
    rests: bool = False,
    **fields: Any,  # noqa: ANN401  # fields are Record's own
) -> World:
    """The world in which 8 GPUs of node d are kept for a gang that has been blocked for so long."""
    keeper = replace(
        found.pending[0],
        uid="uid-of-keeper",
        enqueue_seq=found.pending[0].enqueue_seq + 1,
        blocked_since=found.now - blocked,
        **fields,
    )
    places = Assignment(((("d", 2),),))
    kept = Reservation("" if rests else "east", found.now, found.now, found.now, assignment=places)
    return replace(found, pending=(*found.pending, keeper), reservations={keeper.uid: kept})


def test_places_that_are_kept_for_a_starved_gang_are_not_free() -> None:
    strip = strip_of(with_keeper(world(), blocked=timedelta(hours=1)))
    assert [(each.name, each.free, each.fits, dict(each.holders)) for each in strip.nodes] == [
        ("a", 5, 1, {"train": 3}),
        ("b", 1, 0, {"train": 3, "eval": 4}),
        ("d", 0, 0, {"uid-of-keeper": 8}),
        ("c", 8, 0, {}),
    ]
    assert strip.fitting == 1


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(with_keeper(world(), blocked=timedelta(minutes=1)), id="not-starved"),
        pytest.param(with_keeper(world(), blocked=timedelta(hours=1), rests=True), id="rests"),
        pytest.param(replace(with_keeper(world(), blocked=timedelta(hours=1)), reservations={}), id="none"),
    ],
)
def test_places_that_nobody_keeps_are_free(found: World) -> None:
    assert strip_of(found).fitting == 3


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"phase": Phase.SUSPENDED}, id="suspended"),
        pytest.param({"eligible_at": NOW + timedelta(hours=1)}, id="postponed"),
        pytest.param({"pending": Pending(AWAITING_APPROVAL, "lacks one")}, id="not-approved"),
        pytest.param({"queue": "held"}, id="queue-is-stopped"),
        pytest.param({"queue": "small"}, id="larger-than-quota"),
        pytest.param({"queue": "gone"}, id="no-such-queue"),
    ],
)
def test_places_of_a_starved_gang_for_which_no_cycle_keeps_capacity_are_free(fields: dict[str, Any]) -> None:
    queues = Queue("held", stop_policy=StopPolicy.HOLD), Queue("small", resources={GPU: Quota(nominal=8)})
    found = replace(with_keeper(world(), blocked=timedelta(hours=1), **fields), queues=queues)
    assert strip_of(found).fitting == 3


def test_places_of_a_starved_gang_that_is_dispatched_elsewhere_are_free() -> None:
    found = with_keeper(world(), blocked=timedelta(hours=1))
    (east,) = found.clusters
    node = replace(east.nodes[0], name="e", allocatable=Resources({"cpu": 16_000, GPU: 16, "pods": 110}))
    found = replace(found, clusters=(east, replace(east, name="west", nodes=(node,))))
    assert {each.cluster: each.fitting for each in strips(found, found.pending[0])} == {"east": 3, "west": 4}


def test_gang_that_goes_before_the_keeper_takes_its_places() -> None:
    found = with_keeper(world(), blocked=timedelta(hours=1))
    first, keeper = found.pending
    first = replace(first, blocked_since=keeper.blocked_since)
    assert strip_of(replace(found, pending=(first, keeper))).fitting == 3
    assert [each.fitting for each in strips(found, keeper)] == [3]


def test_other_pods_of_the_gang_are_said_and_not_counted() -> None:
    assert strip_of(world()).others == 1
    assert strip_of(world(pods=[{"count": 2, "requests": {"cpu": 12}}])).others == 0


def test_gang_without_gpus_is_drawn_by_cores() -> None:
    strip = strip_of(world(pods=[{"count": 2, "requests": {"cpu": 12}}]))
    assert (strip.resource, strip.requests) == ("cpu", 12_000)
    assert {each.name: each.fits for each in strip.nodes} == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_cluster_whose_gangs_fit_by_sums_is_not_drawn() -> None:
    found = replace(world(), fit=FitMode.AGGREGATE)
    assert strips(found, found.pending[0]) == ()

"""The nodes of each cluster as the pods of a waiting gang meet them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from msgspec.structs import replace

from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.explain.node_strips import Strip, strips
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World

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


def test_gang_without_gpus_is_drawn_by_cores() -> None:
    strip = strip_of(world(pods=[{"count": 2, "requests": {"cpu": 12}}]))
    assert (strip.resource, strip.requests) == ("cpu", 12_000)
    assert {each.name: each.fits for each in strip.nodes} == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_cluster_whose_gangs_fit_by_sums_is_not_drawn() -> None:
    found = replace(world(), fit=FitMode.AGGREGATE)
    assert strips(found, found.pending[0]) == ()

"""What the demo of the hub is sure of before it says that the story happened."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.api.appwrapper import parse_spec
from testbed import gangs
from testbed.demo_hub import EAST, GPUS, WEST, has_moved_on
from testbed.gangs import DONE, GANGS, LARGE, MOVED, PINNED, Gang
from testbed.hub_ending import (
    Found,
    Past,
    found_objects,
    wanted_objects,
    wrong_objects,
    wrong_pasts,
)
from testbed.hub_scene import HubScene, Refusal, Row
from tests.builders import gang_of

Json = dict[str, Any]

TRAIN = Gang("train", 3, ("west", "east"))
TUNE = Gang("tune", 2, ("west",))
NEEDS = "nvidia.com/gpu: needs 3, 1 free"
NO_ROOM = Refusal("east", "InsufficientResources", NEEDS)
AWAY = Refusal("west", "ClusterUnreachable", "its API server does not answer: no route to host")
NOT_WANTED = Refusal("east", "ClusterNotSelected", "its labels do not match gpu in (h100)")
RUNS = Row("train", 3, "Running", "east", route=("west", "east"))
WAITS = Row("train", 3, "Queued", refusals=(NO_ROOM, AWAY), route=("west",))


def make_made(name: str, attempt: int, **metadata: object) -> Json:
    """An object that the second RayCluster of a gang has, or it itself."""
    labels = {"ray.io/cluster": "train", "dispatcher.codeflare.dev/attempt": str(attempt)}
    return {"metadata": {"name": name, "labels": labels, **metadata}, "status": {"phase": "Running"}}


def make_anchor(attempt: int) -> Json:
    return {**make_made(f"appwrapper-uid-{attempt}", attempt), "data": {"appwrapper": "default/train"}}


ON_EAST = Found(
    configmaps=[{"metadata": {"name": "kube-root-ca.crt"}}, make_anchor(2)],
    pods=[make_made(f"train-{each}", 2) for each in range(3)],
    rayclusters=[make_made("train", 2)],
    services=[{"metadata": {"name": "kubernetes"}}, make_made("train-head-svc", 2)],
)


@pytest.mark.parametrize(
    ("row", "is_so"),
    [
        pytest.param(RUNS, True, id="runs-there"),
        pytest.param(replace(RUNS, cluster="west"), False, id="elsewhere"),
        pytest.param(replace(RUNS, state="Dispatched"), False, id="not-yet"),
        pytest.param(replace(RUNS, trouble="ClusterUnreachable"), False, id="not-well"),
    ],
)
def test_gang_runs_on_a_cluster_when_it_is_said_to_be_there_and_well(row: Row, is_so: bool) -> None:
    assert row.runs_on("east") is is_so


@pytest.mark.parametrize(
    ("row", "is_so"),
    [
        pytest.param(WAITS, True, id="both-say-so"),
        pytest.param(replace(WAITS, refusals=(NO_ROOM,)), False, id="one-says-nothing"),
        pytest.param(replace(WAITS, refusals=(NOT_WANTED, AWAY)), False, id="another-reason"),
        pytest.param(replace(WAITS, state="HeadOfLine"), False, id="it-does-not-wait"),
    ],
)
def test_gang_waits_for_what_each_cluster_says(row: Row, is_so: bool) -> None:
    assert row.waits_for({"east": "InsufficientResources", "west": "ClusterUnreachable"}) is is_so


FIRST, SECOND = MOVED
ON = Row(FIRST.name, 3, "Running", "east")
OFF = Row(SECOND.name, 3, "Queued", refusals=(NO_ROOM, AWAY))
PINNED_WAITS = Row(PINNED.name, 2, "Queued", refusals=(NOT_WANTED, AWAY))


@pytest.mark.parametrize(
    ("rows", "is_so"),
    [
        pytest.param((PINNED_WAITS, ON, OFF), True, id="the-first-goes-on"),
        pytest.param(
            (PINNED_WAITS, replace(OFF, gang=FIRST.name), replace(ON, gang=SECOND.name)),
            True,
            id="the-second",
        ),
        pytest.param((PINNED_WAITS, ON, replace(ON, gang=SECOND.name)), False, id="both"),
        pytest.param((PINNED_WAITS, replace(ON, state="Dispatched"), OFF), False, id="not-yet"),
        pytest.param((PINNED_WAITS, replace(OFF, gang=FIRST.name), OFF), False, id="neither"),
        pytest.param((PINNED_WAITS, ON, replace(OFF, refusals=())), False, id="the-other-does-not-know-why"),
        pytest.param((replace(PINNED_WAITS, refusals=(AWAY,)), ON, OFF), False, id="the-third-does-not"),
    ],
)
def test_gangs_of_a_lost_cluster_have_moved_on_when_one_runs_and_the_others_know_why_they_do_not(
    rows: tuple[Row, ...], is_so: bool
) -> None:
    assert has_moved_on(HubScene(rows)) is is_so


def test_gang_that_went_another_way_or_did_not_run_is_named() -> None:
    right = Past(("west",), ("west",))

    assert wrong_pasts([TUNE], {"tune": right}) == []
    assert wrong_pasts([TUNE], {"tune": Past(("west", "west"), ("west",))}) == [
        "tune had to be dispatched to ('west',) and to run there, but: "
        "Past(dispatched=('west', 'west'), ran=('west',))"
    ]
    assert wrong_pasts([TUNE], {"tune": replace(right, ran=())}) != []


@pytest.mark.parametrize(
    ("cluster", "found", "told"),
    [
        pytest.param(
            "east",
            replace(ON_EAST, pods=ON_EAST.pods[1:]),
            ["east: missing 1 of running Pod of train, attempt 2"],
            id="a-pod-is-missing",
        ),
        pytest.param(
            "east",
            replace(ON_EAST, pods=[*ON_EAST.pods[1:], make_made("train-0", 2, deletionTimestamp="now")]),
            [
                "east: missing 1 of running Pod of train, attempt 2",
                "east: too many 1 of ending Pod of train, attempt 2",
            ],
            id="a-pod-ends",
        ),
        pytest.param(
            "east",
            replace(ON_EAST, rayclusters=[make_made("train", 1)]),
            [
                "east: missing 1 of RayCluster train, attempt 2",
                "east: too many 1 of RayCluster train, attempt 1",
            ],
            id="of-an-earlier-attempt",
        ),
        pytest.param(
            "west",
            Found(configmaps=[make_anchor(1)]),
            ["west: too many 1 of anchor of default/train, attempt 1"],
            id="an-anchor-was-left",
        ),
        pytest.param(
            "west",
            Found(configmaps=[{"metadata": {"name": "appwrapper-like"}}]),
            ["west: too many 1 of anchor of appwrapper-like, attempt appwrapper-like"],
            id="what-looks-like-an-anchor",
        ),
        pytest.param(
            "west",
            Found(services=[make_made("train-head-svc", 1)]),
            ["west: too many 1 of Service of train"],
            id="a-service-was-left",
        ),
        pytest.param(
            "west",
            Found(pods=[{"metadata": {"name": "stray"}, "status": {"phase": "Running"}}]),
            ["west: too many 1 of running Pod of stray, attempt stray"],
            id="of-nobody",
        ),
        pytest.param("hub", Found(), ["hub: missing 1 of AppWrapper train"], id="its-appwrapper-is-gone"),
    ],
)
def test_differences_between_wanted_and_found_objects_are_named(
    cluster: str, found: Found, told: list[str]
) -> None:
    wanted = wanted_objects([TRAIN], ["east", "west"], "hub")

    assert wrong_objects(wanted, {**wanted, cluster: found_objects(found)}) == told


@pytest.mark.parametrize("gang", GANGS, ids=[each.name for each in GANGS])
def test_appwrapper_of_a_gang_asks_for_its_pods_and_its_raycluster_has_them(gang: Gang) -> None:
    written = gangs.appwrapper_of(gang)

    demand = gang_of(parse_spec(written["spec"], namespace="default"))
    ray = written["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    [workers] = ray["spec"]["workerGroupSpecs"]
    assert (demand.pods, demand.demand["nvidia.com/gpu"]) == (gang.pods, gang.pods)
    assert (ray["metadata"]["name"], workers["replicas"]) == (gang.name, gang.pods - 1)
    annotations = written["metadata"].get("annotations", {})
    assert annotations.get("dispatcher.codeflare.dev/cluster-selector", "") == gang.selector


def test_room_is_such_that_the_story_can_only_go_one_way() -> None:
    first, last = Counter[str](), Counter[str]()
    for gang in GANGS:
        if gang is not LARGE:
            first[gang.route[0]] += gang.pods
        if gang is not DONE:
            last[gang.route[-1]] += gang.pods

    left = GPUS[EAST] - first[EAST]
    assert first[WEST] == GPUS[WEST]
    assert MOVED[0].pods <= left < min(LARGE.pods, 2 * MOVED[0].pods)
    assert last == GPUS

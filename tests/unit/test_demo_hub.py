"""What the demo of the hub makes of what it reads: its table, its news, and whether the story ended as it has to."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.appwrapper import parse_spec
from testbed import gangs
from testbed.demo_hub import EAST, GPUS, WEST, has_moved_on
from testbed.gangs import DONE, GANGS, LARGE, MOVED, PINNED, STAYING, Gang
from testbed.hub_ending import (
    Found,
    Past,
    found_objects,
    summary_of,
    wanted_objects,
    wrong_objects,
    wrong_pasts,
)
from testbed.hub_scene import HubScene, Member, Refusal, Row, news_of, table_of
from testbed.screen import Screen
from tests.builders import gang_of
from tests.unit.test_demo import printed

Json = dict[str, Any]

TRAIN = Gang("train", 3, ("west", "east"))
TUNE = Gang("tune", 2, ("west",))
NEEDS = "nvidia.com/gpu: needs 3, 1 free"
NO_ROOM = Refusal("east", "InsufficientResources", NEEDS)
AWAY = Refusal("west", "ClusterUnreachable", "its API server does not answer: no route to host")
NOT_WANTED = Refusal("east", "ClusterNotSelected", "its labels do not match gpu in (h100)")
RUNS = Row("train", 3, "Running", "east", route=("west", "east"))
WAITS = Row("train", 3, "Queued", refusals=(NO_ROOM, AWAY), route=("west",))
EAST_NOW = Member("east", 1, 16, "")
WEST_AWAY = Member("west", 0, 0, "ClusterUnreachable")


def make_appwrapper(name: str, **status: object) -> Json:
    return {"metadata": {"name": name}, "status": status}


def make_member(name: str, free: Json, **status: object) -> Json:
    allocatable = {"cpu": "128", "nvidia.com/gpu": "16"}
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable, "free": free, **status}}


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


def test_scene_shows_each_gang_and_each_member_as_their_statuses_say() -> None:
    why: list[Json] = [
        {"cluster": each.cluster, "reason": each.reason, "message": each.message} for each in (NO_ROOM, AWAY)
    ]
    appwrappers = [
        make_appwrapper("train", lifecyclePhase="Queued", waiting={**why[0], "clusters": why}),
        make_appwrapper(
            "tune", lifecyclePhase="Running", cluster="west", unhealthy={"reason": "ClusterUnreachable"}
        ),
    ]
    members = [
        make_member("east", {"cpu": "80", "nvidia.com/gpu": "1"}),
        {"metadata": {"name": "west"}, "status": {"reason": "ClusterUnreachable"}},
    ]

    scene = HubScene.of([TRAIN, TUNE], appwrappers, members, {"train": ("west",)})

    tune = Row("tune", 2, "Running", "west", trouble="ClusterUnreachable")
    assert scene == HubScene((WAITS, tune), (EAST_NOW, WEST_AWAY))


def test_gang_that_is_not_listed_is_deleted_and_one_without_status_is_there() -> None:
    scene = HubScene.of([TRAIN, TUNE], [{"metadata": {"name": "tune"}}], [], {"train": ("west", "east")})

    assert scene.rows == (Row("train", 3, "deleted", route=("west", "east")), Row("tune", 2, "-"))


def test_gang_without_rejections_shows_its_pending_reason() -> None:
    waiting = {"cluster": "west", "reason": "ClusterLost", "message": "it has not answered since noon"}
    appwrapper = make_appwrapper("train", lifecyclePhase="Queued", waiting=waiting)

    [row] = HubScene.of([TRAIN], [appwrapper], [], {}).rows

    assert row.why == ("west: ClusterLost",)


def test_member_that_the_hub_has_not_looked_at_yet_says_nothing() -> None:
    assert HubScene.of([], [], [{"metadata": {"name": "east"}}], {}).members == (Member("east", 0, 0, "-"),)


def test_member_is_connected_when_all_that_it_has_is_free_and_nothing_keeps_gangs_away() -> None:
    scene = HubScene(members=(Member("east", 16, 16, ""), Member("west", 8, 8, "ClusterCordoned")))

    assert scene.is_connected("east", 16)
    assert not scene.is_connected("east", 8)
    assert not scene.is_connected("west", 8)


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


def test_table_has_a_line_for_each_reason_and_the_members_below() -> None:
    table = table_of(HubScene((RUNS, replace(WAITS, gang="tune")), (EAST_NOW, WEST_AWAY)))

    assert printed(table) == [
        ["gang", "GPUs", "state", "cluster", "dispatched to", "why"],
        ["train", "3", "Running", "east", "west, east", ""],
        ["tune", "3", "Queued", "", "west", f"east: {NEEDS}"],
        ["", "", "", "", "", "west: ClusterUnreachable"],
    ]
    assert table.caption == "east: 1 of 16 GPUs free   west: ClusterUnreachable"


def test_news_are_what_became_of_gangs_and_members_and_not_amounts_or_routes() -> None:
    tune = replace(WAITS, gang="tune")
    before = HubScene((replace(RUNS, route=()), tune), (Member("east", 9, 16, ""), Member("west", 8, 8, "")))
    amounts_and_routes = HubScene((RUNS, tune), (EAST_NOW, Member("west", 7, 8, "")))
    now = HubScene((RUNS, replace(RUNS, gang="tune")), (EAST_NOW, WEST_AWAY))

    assert news_of(before, amounts_and_routes) == []
    assert news_of(before, now) == ["west: ClusterUnreachable", "tune       Running      east"]


def test_all_is_news_at_first() -> None:
    assert news_of(None, HubScene((WAITS,), (EAST_NOW,))) == [
        "east: 1 of 16 GPUs free",
        f"train      Queued             east: {NEEDS}; west: ClusterUnreachable",
    ]
    assert news_of(None, HubScene((Row("tune", 2, "-"),))) == []


def test_pipe_gets_what_is_new_in_lines_and_nothing_when_nothing_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen: Screen[HubScene] = Screen(table_of, news_of)
    with screen:
        screen.show(HubScene(members=(EAST_NOW,)))
        screen.show(HubScene(members=(EAST_NOW,)))
        screen.show(HubScene(members=(WEST_AWAY,)))

    said = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said == ["east: 1 of 16 GPUs free", "west: ClusterUnreachable"]


def test_pipe_gets_the_table_again_when_it_changed_if_there_is_no_other_way_to_tell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen: Screen[HubScene] = Screen(table_of)
    for row in (WAITS, WAITS, RUNS):
        screen.show(HubScene((row,)))

    states = [
        line.split("│")[3].strip() for line in capsys.readouterr().out.splitlines() if "│ train" in line
    ]
    assert states == ["Queued", "Running"]


def test_past_is_where_it_was_dispatched_to_and_where_it_ran() -> None:
    events = [
        ("train", "dispatched", "west"),
        ("tune", "dispatched", "east"),
        ("train", "pods-running", "west"),
        ("train", "dispatched", "east"),
    ]

    assert Past.of("train", events) == Past(("west", "east"), ("west",))
    assert Past.of("other", events) == Past()


def test_gang_that_went_another_way_or_did_not_run_is_named() -> None:
    right = Past(("west",), ("west",))

    assert wrong_pasts([TUNE], {"tune": right}) == []
    assert wrong_pasts([TUNE], {"tune": Past(("west", "west"), ("west",))}) == [
        "tune had to be dispatched to ('west',) and to run there, but: "
        "Past(dispatched=('west', 'west'), ran=('west',))"
    ]
    assert wrong_pasts([TUNE], {"tune": replace(right, ran=())}) != []


def test_cluster_that_holds_one_gang_whole_and_nothing_else_is_as_it_should_be() -> None:
    wanted = wanted_objects([TRAIN], ["east", "west"], "hub")
    hub = Found(appwrappers=[make_appwrapper("train")])
    found = {"hub": found_objects(hub), "east": found_objects(ON_EAST), "west": found_objects(Found())}

    assert found == wanted
    assert wrong_objects(wanted, found) == []


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


def test_summary_has_a_line_for_each_gang() -> None:
    pasts = {"train": Past(TRAIN.route, TRAIN.route), "tune": Past(TUNE.route, TUNE.route)}

    assert printed(summary_of([TRAIN, TUNE], pasts, {"train": "east", "tune": ""})) == [
        ["gang", "GPUs", "ran on", "dispatches", "runs now on"],
        ["train", "3", "west, then east", "2", "east"],
        ["tune", "2", "west", "1", "-"],
    ]


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


def test_gangs_are_written_for_kubectl_in_the_order_of_the_story(tmp_path: Path) -> None:
    path = tmp_path / "gangs" / "some.yaml"
    gangs.write(path, STAYING)

    names = [each["metadata"]["name"] for each in yaml.safe_load_all(path.read_text())]
    assert names == [each.name for each in STAYING]


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

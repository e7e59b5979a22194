"""What the demo makes of what it reads: the scene it shows, and when it says that the story happened."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.demo import (
    FIRST,
    SECOND,
    Event,
    gap,
    history_of,
    is_gone,
    runs_whole,
    table_of,
    waits_first,
)
from testbed.scene import Lists, Row, Scene
from testbed.story import StoryFailed

CHECKOUT = Path(__file__).resolve().parents[2]
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
WHY = "cluster hub: nvidia.com/gpu: needs 2, 1 free"
RUNS = Row(FIRST, None, "Running", "PodsRunning", "2 running", (f"RayCluster {FIRST}",))
WAITS = Row(SECOND, 1, "Queued", WHY, "none")


def make_appwrapper(name: str, **status: object) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, "status": status}


def make_thing(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def make_pod(name: str, of: str, phase: str = "Running", node: str = "node-0") -> dict[str, Any]:
    container = {"resources": {"requests": {"cpu": "3", "nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": name, "labels": {"ray.io/cluster": of}},
        "spec": {"nodeName": node, "containers": [container, {}]},
        "status": {"phase": phase},
    }


def make_node(gpus: str) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": gpus}}}


def make_event(name: str, to_phase: str, seconds: float) -> Event:
    return Event(name, NOON + timedelta(seconds=seconds), "cause", None, to_phase, "message", None)


def test_scene_shows_running_and_pending_gangs_with_their_reasons() -> None:
    lists = Lists(
        appwrappers=[
            make_appwrapper(
                FIRST,
                lifecyclePhase="Running",
                queuejobstate="Running",
                conditions=[{"type": "Running", "reason": "PodsRunning"}],
            ),
            make_appwrapper(SECOND, lifecyclePhase="Queued", waiting={"message": WHY}),
        ],
        nodes=[make_node("1"), make_node("1"), make_node("1")],
        pods=[make_pod("head", FIRST), make_pod("worker", FIRST)],
        rayclusters=[make_thing(FIRST)],
        services=[make_thing("kubernetes"), make_thing("head-svc", **{"ray.io/cluster": FIRST})],
    )

    scene = Scene.of([FIRST, SECOND], lists, {SECOND: 1})

    exists = (f"RayCluster {FIRST}", "Pod head", "Pod worker", "Service head-svc")
    assert scene == Scene((replace(RUNS, exists=exists), WAITS), free_gpus=1, gpus=3)


def test_appwrapper_without_status_is_there_and_one_that_is_not_listed_is_deleted() -> None:
    lists = Lists(appwrappers=[{"metadata": {"name": FIRST, "uid": "1"}}])

    scene = Scene.of([FIRST, SECOND], lists, {})

    assert scene.rows == (Row(FIRST, None, "-", "", "none"), Row(SECOND, None, "deleted", "", "none"))


def test_object_with_the_uid_of_an_appwrapper_belongs_to_it_under_any_name() -> None:
    stray = make_thing("other", **{"dispatcher.codeflare.dev/appwrapper-uid": f"uid-of-{SECOND}"})
    lists = Lists(appwrappers=[make_appwrapper(SECOND)], services=[stray])

    assert Scene.of([SECOND], lists, {}).row(SECOND).exists == ("Service other",)


@pytest.mark.parametrize(
    ("pod", "free", "shown"),
    [
        pytest.param(make_pod("p", FIRST), 1, "1 running", id="runs"),
        pytest.param(make_pod("p", FIRST, "Pending"), 1, "1 pending", id="starts"),
        pytest.param(make_pod("p", FIRST, "Pending", node=""), 2, "1 pending", id="on-no-node"),
        pytest.param(make_pod("p", FIRST, "Succeeded"), 2, "1 succeeded", id="finished"),
        pytest.param(
            {**make_pod("p", FIRST), "metadata": {"name": FIRST, "deletionTimestamp": "now"}},
            1,
            "1 ending",
            id="being-deleted",
        ),
        pytest.param(make_pod("p", "another"), 1, "none", id="of-another"),
    ],
)
def test_gpus_are_held_until_a_pod_has_finished_or_is_gone(
    pod: dict[str, Any], free: int, shown: str
) -> None:
    scene = Scene.of([FIRST], Lists(nodes=[make_node("2")], pods=[pod]), {})

    assert (scene.free_gpus, scene.row(FIRST).pods) == (free, shown)


@pytest.mark.parametrize(
    ("row", "is_so"),
    [
        pytest.param(RUNS, True, id="both"),
        pytest.param(replace(RUNS, pods="1 running"), False, id="half"),
        pytest.param(replace(RUNS, pods="1 pending, 1 running"), False, id="one-starts"),
        pytest.param(replace(RUNS, state="Dispatched"), False, id="not-said"),
        pytest.param(replace(RUNS, position=1), False, id="still-queued"),
    ],
)
def test_gang_runs_whole_when_it_is_said_and_so(row: Row, is_so: bool) -> None:
    assert runs_whole(Scene((row,), 1, 3), FIRST) is is_so


@pytest.mark.parametrize(
    ("row", "is_so"),
    [
        pytest.param(WAITS, True, id="nothing-made"),
        pytest.param(replace(WAITS, exists=("Pod one",)), False, id="a-pod"),
        pytest.param(replace(WAITS, state="HeadOfLine"), False, id="not-said"),
        pytest.param(replace(WAITS, position=2), False, id="not-first"),
    ],
)
def test_gang_waits_when_nothing_of_it_exists(row: Row, is_so: bool) -> None:
    assert waits_first(Scene((row,), 1, 3), SECOND) is is_so


def test_gang_is_gone_when_neither_it_nor_its_pods_are_there() -> None:
    ending = replace(RUNS, state="deleted")

    assert not is_gone(Scene((ending,), 1, 3), FIRST)
    assert is_gone(Scene((replace(ending, exists=()),), 3, 3), FIRST)


def test_gap_is_from_free_gpus_to_dispatch() -> None:
    events = [make_event(FIRST, "Deleted", 2.0), make_event(SECOND, "Dispatching", 2.5)]

    assert gap(events) == timedelta(seconds=0.5)


def test_history_without_a_release_is_another_story() -> None:
    with pytest.raises(StoryFailed, match="Deleted"):
        gap([make_event(SECOND, "Dispatching", 2.5)])


def test_table_has_a_line_for_each_and_the_free_gpus_once() -> None:
    assert printed(table_of(Scene((RUNS, WAITS), 1, 3))) == [
        ["AppWrapper", "position", "state", "reason", "pods", "free GPUs"],
        [FIRST, "", "Running", "PodsRunning", "2 running", "1 of 3"],
        [SECOND, "1", "Queued", WHY, "none", ""],
    ]


def test_history_has_a_line_for_each_event() -> None:
    event = Event(FIRST, NOON, "released", "Deleting", "Deleted", "", 0.0364)

    assert printed(history_of([event], FIRST)) == [
        ["at", "after", "cause", "from", "to", "message"],
        ["12:00:00.000", "0.036 s", "released", "Deleting", "Deleted", ""],
    ]


def printed(table: object) -> list[list[str]]:
    """Return the cells of a table as it is printed."""
    console = Console(width=200, file=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.replace("┃", "│").strip("│") for line in captured.get().splitlines() if line[:1] in "┃│"]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/try-it.md", "CONTRIBUTING.md", "testbed/demo.py", ".ci/run"]
)
def test_pages_name_targets_that_the_makefile_has(page: str) -> None:
    has = set(re.findall(r"^([a-z-]+):.*## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))

    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (CHECKOUT / page).read_text(), re.MULTILINE))

    assert named
    assert named <= has

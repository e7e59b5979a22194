"""What demos are sure of before they say that the story happened, and what their pages say of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.appwrapper import parse_spec
from testbed.demo import FIRST, SECOND, Event, gap, runs_whole, waits_first
from testbed.demo_provisioning import QUEUE, TRAIN_FILE, check, tune_file
from testbed.scene import Lists, Row, Scene
from testbed.story import StoryFailed
from tests.builders import gang_of

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


def test_gap_is_from_free_gpus_to_dispatch() -> None:
    events = [make_event(FIRST, "Deleted", 2.0), make_event(SECOND, "Dispatching", 2.5)]

    assert gap(events) == timedelta(seconds=0.5)


def test_history_without_a_release_is_another_story() -> None:
    with pytest.raises(StoryFailed, match="Deleted"):
        gap([make_event(SECOND, "Dispatching", 2.5)])


@pytest.mark.parametrize(
    "page", ["README.md", "docs/try-it.md", "CONTRIBUTING.md", "testbed/demo.py", ".ci/run"]
)
def test_pages_name_targets_that_the_makefile_has(page: str) -> None:
    has = set(re.findall(r"^([a-z-]+):.*## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))

    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (CHECKOUT / page).read_text(), re.MULTILINE))

    assert named
    assert named <= has


# --- The demo of requested capacity ------------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "provisioning.md"


def make_events(gang: str, causes: Sequence[str]) -> list[Event]:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    return [Event(gang, now, each, None, "Queued", "", None) for each in causes]


def test_second_gang_is_the_first_with_another_name_and_a_request_that_fails(tmp_path: Path) -> None:
    first, second = (yaml.safe_load(path.read_text()) for path in (TRAIN_FILE, tune_file(tmp_path)))

    assert second["metadata"]["annotations"] == {"provreq.kueue.x-k8s.io/testbed-fail-first": "1"}
    assert second["metadata"]["labels"] == first["metadata"]["labels"]
    demands = [gang_of(parse_spec(each["spec"], namespace="default")).demand for each in (first, second)]
    assert demands[0] == demands[1]
    assert demands[0]["nvidia.com/gpu"] == 2


@pytest.mark.parametrize(
    ("train", "tune", "is_right"),
    [
        pytest.param(
            ["submitted", "provisioned", "created"],
            ["provisioning-failed", "removed", "provisioned", "created"],
            True,
            id="as-told",
        ),
        pytest.param(["created", "provisioned"], [], False, id="created-too-early"),
        pytest.param(["provisioned", "created"], ["provisioned", "created"], False, id="none-failed"),
    ],
)
def test_history_with_another_order_is_another_story(
    train: list[str], tune: list[str], is_right: bool
) -> None:
    events = [*make_events("train", train), *make_events("tune", tune)]
    if is_right:
        check(events)
    else:
        with pytest.raises(StoryFailed, match="is another one"):
            check(events)


def test_page_shows_the_files_of_the_demo() -> None:
    section = PAGE.read_text().split("## Try it\n")[1].split("\n## ")[0]

    shown = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)]
    assert shown == [yaml.safe_load(path.read_text()) for path in (QUEUE, TRAIN_FILE)]

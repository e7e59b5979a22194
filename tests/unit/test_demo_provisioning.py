"""What the demo of requested capacity makes of what it reads: its table, its news, and its check of the history."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.appwrapper import parse_spec
from testbed.demo import Event
from testbed.demo_provisioning import QUEUE, TRAIN_FILE, check, tune_file
from testbed.provisioning_scene import ProvisioningScene, Row, news_of, row_of, table_of
from testbed.story import StoryFailed
from tests.builders import gang_of
from tests.unit.test_demo import printed

Json = dict[str, Any]

PAGE = Path(__file__).parents[2] / "docs" / "provisioning.md"

SAID = "the request for capacity is accepted in cluster hub: 2 nodes in gpu-pool, ETA: 2026-11-23T12:00:05Z"
WAITS = Row("train", "Dispatching", "AwaitingProvisioning", SAID)
RUNS = Row("train", "Running", pods="2 running")
WAITING = ProvisioningScene((WAITS,), {"train-provisioning-1": "Accepted"}, 0)
RUNNING = ProvisioningScene((RUNS,), {"train-provisioning-1": "Provisioned"}, 2)


def make_appwrapper(**status: object) -> Json:
    return {"metadata": {"name": "train"}, "status": status}


def make_pods(count: int) -> list[Json]:
    return [{"metadata": {"name": f"train-{at}"}, "status": {"phase": "Running"}} for at in range(count)]


def make_events(gang: str, causes: Sequence[str]) -> list[Event]:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    return [Event(gang, now, each, None, "Queued", "", None) for each in causes]


@pytest.mark.parametrize(
    ("found", "pods", "row"),
    [
        pytest.param(
            make_appwrapper(
                lifecyclePhase="Dispatching", waiting={"reason": "AwaitingProvisioning", "message": SAID}
            ),
            0,
            WAITS,
            id="waits",
        ),
        pytest.param(make_appwrapper(lifecyclePhase="Running"), 2, RUNS, id="runs"),
        pytest.param(make_appwrapper(), 0, Row("train", "-"), id="new"),
        pytest.param(None, 0, Row("train", "deleted"), id="deleted"),
    ],
)
def test_row_has_what_the_status_says(found: Json | None, pods: int, row: Row) -> None:
    assert row_of("train", found, make_pods(pods)) == row


def test_scene_counts_the_nodes_of_the_pool_and_has_the_last_answer_to_each_request() -> None:
    labels = {"cloud.google.com/gke-nodepool": "gpu-pool"}
    nodes: list[Json] = [
        {"metadata": {"name": "a", "labels": labels}},
        {"metadata": {"name": "node-0", "labels": {}}},
    ]
    conditions = [{"type": each, "status": "True"} for each in ("Accepted", "Failed")]
    requests: list[Json] = [
        {"metadata": {"name": "one"}, "status": {"conditions": conditions}},
        {"metadata": {"name": "two"}},
    ]

    scene = ProvisioningScene.of(
        ["train"], [make_appwrapper(lifecyclePhase="Running")], make_pods(2), requests, nodes
    )

    assert scene == ProvisioningScene((RUNS,), {"one": "Failed", "two": "no answer yet"}, 1)


def test_table_has_a_line_for_each_gang_and_the_pool_below() -> None:
    table = table_of(WAITING)

    assert printed(table) == [
        ["gang", "state", "pods", "what the dispatcher says"],
        ["train", "Dispatching", "", SAID],
    ]
    assert table.caption == "gpu-pool: 0 nodes   train-provisioning-1: Accepted"


def test_news_is_what_differs() -> None:
    assert news_of(None, WAITING) == [
        "request train-provisioning-1: Accepted",
        "gpu-pool: 0 nodes",
        f"train  Dispatching  {SAID}",
    ]
    assert news_of(WAITING, RUNNING) == [
        "request train-provisioning-1: Provisioned",
        "gpu-pool: 2 nodes",
        "train  Running      2 running",
    ]
    assert news_of(RUNNING, replace(RUNNING, requests={}, nodes=1)) == [
        "request train-provisioning-1: deleted",
        "gpu-pool: 1 node",
    ]
    assert news_of(RUNNING, RUNNING) == []


def test_second_gang_is_the_first_with_another_name_and_a_request_that_fails(tmp_path: Path) -> None:
    first, second = (yaml.safe_load(path.read_text()) for path in (TRAIN_FILE, tune_file(tmp_path)))

    assert second["metadata"]["annotations"] == {"provreq.kueue.x-k8s.io/testbed-fail-first": "1"}
    assert second["metadata"]["labels"] == first["metadata"]["labels"]
    demands = [gang_of(parse_spec(each["spec"], namespace="default")).demand for each in (first, second)]
    assert demands[0] == demands[1]
    assert demands[0]["nvidia.com/gpu"] == 2


def test_both_gangs_are_in_the_queue_of_the_file() -> None:
    queue = yaml.safe_load(QUEUE.read_text())

    labels = yaml.safe_load(TRAIN_FILE.read_text())["metadata"]["labels"]
    assert labels == {"dispatcher.codeflare.dev/queue": queue["metadata"]["name"]}


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

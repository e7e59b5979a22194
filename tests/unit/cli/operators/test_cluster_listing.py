"""`dispatcher clusters list`: what it shows, and what it says where there is nothing to show."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import pytest
import yaml

from dispatcher.cli.operators.cluster_listing import as_table, as_wide_table
from dispatcher.cli.options import as_typed
from tests.commands import Ran, Run
from tests.fakes import FakeApiServer, hang_up, refusal, text
from tests.unit.cli.wire import MEMBERS, member, members, writes

NOW = datetime(2026, 11, 23, 8, 58, 6, tzinfo=UTC)
STATUS = {
    "conditions": [{"type": "Reachable", "status": "True"}, {"type": "Authenticated", "status": "True"}],
    "free": {"cpu": "22500m", "memory": "180Gi", "nvidia.com/gpu": "1"},
    "running": 2,
    "reason": "Cordoned",
    "message": "it takes nothing new: rack 3 moves",
}
EAST = member(cordoned=True, status=STATUS, labels={"gpu": "a100", "area": "eu"})


def test_table_has_the_columns_of_kubectl() -> None:
    assert as_table([EAST, member("hub")], NOW, None).splitlines() == [
        "NAME  REACHABLE  CORDONED  CPU FREE  GPU FREE  MEMORY FREE  RUNNING  REASON    AGE",
        "east  True       true      22500m    1         180Gi        2        Cordoned  3d",
        "hub   -          false     -         -         -            -        -         3d",
    ]


def test_table_fits_a_terminal_of_80_columns() -> None:
    assert as_table([EAST], NOW, 80).splitlines() == [
        "In all rows: AGE 3d",
        "NAME  REACHABLE  CORDONED  CPU FREE  GPU FREE  MEMORY FREE  RUNNING  REASON",
        "east  True       true      22500m    1         180Gi        2        Cordoned",
    ]


def test_wide_table_has_all_that_people_write_and_read() -> None:
    heading, east = as_wide_table([EAST], NOW).splitlines()

    assert heading.split("  AGE  ")[1] == "DRAINING  LABELS            MESSAGE"
    assert east.split("  3d   ")[1] == "false     area=eu,gpu=a100  it takes nothing new: rack 3 moves"


async def test_list_shows_the_member_clusters_of_the_hub(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, members(EAST, member("hub")))

    ran = await run("list")

    assert [ran.code, [line.split()[:2] for line in ran.out.splitlines()], ran.err] == [
        0,
        [["NAME", "REACHABLE"], ["east", "True"], ["hub", "-"]],
        "",
    ]
    assert writes(hub) == []


async def test_list_as_json_equals_the_objects_of_the_hub(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, members({**EAST, "metadata": {**EAST["metadata"], "managedFields": [{}]}}))

    ran = await run("list", "-o", "json")

    listed = json.loads(ran.out)
    assert (listed["kind"], listed["items"]) == ("MemberClusterList", [EAST])


async def test_list_as_yaml_has_the_same_content(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, members(EAST))

    written, as_json = await run("list", "-o", "yaml"), await run("list", "-o", "json")

    assert yaml.safe_load(written.out) == json.loads(as_json.out)


async def test_no_members_means_that_the_hub_runs_everything(run: Run) -> None:
    assert await run("list") == Ran(
        0,
        "No member clusters: every gang goes to the hub itself, ten minutes after the last one was removed. "
        "Declare one with: dispatcher clusters add NAME --member-kubeconfig FILE\n",
    )


async def test_list_on_a_hub_without_memberclusters_names_the_file_to_apply(
    run: Run, hub: FakeApiServer
) -> None:
    hub.on("GET", MEMBERS, text("404 page not found\n", 404))

    assert await run("list") == Ran(
        1,
        "",
        "dispatcher: the hub does not know MemberClusters yet: kubectl apply -f "
        "crds/dispatcher.codeflare.dev_memberclusters.yaml. Without them, all AppWrappers run on the hub itself\n",
    )


async def test_hub_that_says_no_is_quoted(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, refusal(403, "Forbidden", "memberclusters is forbidden: User me"))

    assert await run("list") == Ran(
        1, "", "dispatcher: the hub does not allow it: memberclusters is forbidden: User me\n"
    )


async def test_hub_that_is_not_there_may_be_another(run: Run, hub: FakeApiServer) -> None:
    hub.on("GET", MEMBERS, hang_up)

    ran = await run("list")

    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"dispatcher: the hub does not answer: {hub.url} closed the connection")
    assert ran.err.endswith(". Is --kubeconfig, or KUBECONFIG, the hub's?\n")


async def test_hub_is_named_by_the_flag_rather_than_the_environment(run: Run) -> None:
    ran = await run("list", "--kubeconfig", "/nowhere/kubeconfig")

    assert ran.code == 1
    assert "/nowhere/kubeconfig" in ran.err


@pytest.mark.parametrize(
    ("path", "advised"),
    [
        pytest.param("/usr/bin/dispatcher", "dispatcher clusters list", id="dispatcher"),
        pytest.param("/home/ada/.krew/bin/kubectl-aw", "kubectl aw clusters list", id="kubectl"),
    ],
)
def test_advice_names_the_program_that_was_typed(
    monkeypatch: pytest.MonkeyPatch, path: str, advised: str
) -> None:
    monkeypatch.setattr(sys, "argv", [path, "clusters", "drain", "nobody"])
    assert as_typed("clusters list") == advised

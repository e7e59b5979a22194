"""`dispatcher clusters` on a real API server; the hub is its own member here.

docs/clusters.md is followed to the letter: what it says to run at a member is run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.api.names import MEMBERS_PATH
from dispatcher.cli.hub import Hub
from dispatcher.cli.operators import members
from dispatcher.cli.options import HubOptions
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from dispatcher.kube.discovery import cluster_uid
from testbed.plane import Plane
from tests.commands import Ran, Run, runner

Json = dict[str, Any]

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "clusters.md").read_text(encoding="utf-8")


@pytest.fixture
def name(hub: Hub) -> Iterator[str]:
    """The name of a cluster that is no member, and will be none."""
    name = f"east-{uuid.uuid4().hex[:8]}"
    yield name
    if found := hub.member(name):
        members.remove(hub, found)


@pytest.fixture
def run(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher clusters …` on the plane."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    monkeypatch.setenv("DISPATCHER_NAMESPACE", namespace)
    return runner(monkeypatch, capsys, "clusters")


@pytest.fixture
def hub(plane: Plane) -> Iterator[Hub]:
    """The hub as the commands see it."""
    with Hub(HubOptions(str(plane.kubeconfig))) as hub:
        yield hub


@pytest.fixture
async def added(run: Run, plane: Plane, name: str) -> str:
    """A member that was added."""
    ran = await run("add", name, "--member-kubeconfig", str(plane.kubeconfig), "--yes")
    assert (ran.code, ran.err) == (0, "")
    return name


async def test_cluster_becomes_a_member(
    run: Run, plane: Plane, client: ClusterClient, hub: Hub, namespace: str, name: str
) -> None:
    version, uid = (await client.get("/version"))["gitVersion"], await cluster_uid(client)
    arguments = ("add", name, "--member-kubeconfig", str(plane.kubeconfig))
    twice = (
        "the kubeconfig leads to the hub itself, which would be counted twice; the hub is declared with: "
        "dispatcher clusters add hub"
    )
    answers = f"{plane.url} answers: Kubernetes {version}, cluster {uid}"
    secret = f"Secret {namespace}/cluster-{name}"

    refused = await run(*arguments)
    first = await run(*arguments, "--yes", "--reserve", "cpu=2", "--label", "gpu=a100")
    again = await run(*arguments, "--yes")

    assert refused == Ran(
        1, f"{answers}\n", f"dispatcher: {twice}. Nothing was written; --yes does it all the same\n"
    )
    assert (first.code, first.out.splitlines()[:4], first.err) == (
        0,
        [answers, f"in spite of this: {twice}", f"{secret} created", f"member cluster {name} created"],
        "",
    )
    assert again.out.splitlines()[2:] == [f"{secret} unchanged", f"member cluster {name} unchanged"]
    declared = members.find(hub, name)
    assert (declared["metadata"]["generation"], declared["metadata"]["labels"], declared["spec"]) == (
        1,
        {"gpu": "a100"},
        {
            "kubeconfigSecretRef": {"name": f"cluster-{name}", "key": "kubeconfig"},
            "cordoned": False,
            "drain": False,
            "namespacePolicy": "Require",
            "acceptedNamespaces": "Labelled",
            "reserve": {"cpu": "2"},
            "potential": [],
            "onPotential": "Dispatch",
            "bindWithinSeconds": 900,
            "onClusterLost": {"policy": "wait", "graceSeconds": 600},
        },
    )


async def test_member_is_closed_emptied_and_opened(run: Run, hub: Hub, added: str) -> None:
    async def after(*arguments: str) -> tuple[bool, bool, str]:
        ran = await run(*arguments)
        assert (ran.code, ran.err) == (0, "")
        spec = members.find(hub, added)["spec"]
        return spec["cordoned"], spec["drain"], spec.get("cordonReason", "")

    assert [
        await after("cordon", added, "--reason", "rack 3 moves"),
        await after("drain", added),
        await after("uncordon", added),
    ] == [(True, False, "rack 3 moves"), (True, True, "rack 3 moves"), (False, False, "")]


async def test_members_are_listed(run: Run, client: ClusterClient, added: str) -> None:
    status = {
        "conditions": [{"type": "Reachable", "status": "True"}],
        "free": {"cpu": "22500m"},
        "running": 2,
    }
    await client.patch(f"{MEMBERS_PATH}/{added}/status", {"status": status}, MERGE_PATCH)

    heading, *lines = (await run("list")).out.splitlines()
    listed = json.loads((await run("list", "-o", "json")).out)

    shown = next(line.split() for line in lines if line.startswith(added))
    assert heading.split("  ")[0] == "NAME"
    assert shown[:-1] == [added, "True", "false", "22500m", "-", "-", "2", "-"]
    assert added in [each["metadata"]["name"] for each in listed["items"]]


async def test_member_is_removed_once_nothing_runs_there(
    run: Run, client: ClusterClient, hub: Hub, namespace: str, added: str
) -> None:
    await client.patch(f"{MEMBERS_PATH}/{added}/status", {"status": {"running": 1}}, MERGE_PATCH)
    busy = await run("remove", added)
    await client.patch(f"{MEMBERS_PATH}/{added}/status", {"status": {"running": 0}}, MERGE_PATCH)
    idle = await run("remove", added)
    gone = await run("remove", added)

    assert [busy.code, idle.code, gone.code] == [1, 0, 1]
    assert idle.out.splitlines()[:2] == [
        f"member cluster {added} removed",
        f"Secret {namespace}/cluster-{added} removed",
    ]
    secrets = await client.get(f"/api/v1/namespaces/{namespace}/secrets")
    assert (hub.member(added), secrets["items"]) == (None, [])


async def test_successor_of_the_same_name_is_not_changed(hub: Hub, added: str) -> None:
    before = members.find(hub, added)
    predecessor = {**before, "metadata": {**before["metadata"], "uid": str(uuid.uuid4())}}

    with pytest.raises(errors.Conflict):
        members.change(hub, predecessor, {"cordoned": True})
    with pytest.raises(errors.Conflict):
        members.remove(hub, predecessor)

    assert hub.member(added) == before


def script() -> str:
    """The one block of the page that is a script."""
    [found] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
async def at_member(plane: Plane, tmp_path: Path) -> AsyncIterator[Path]:
    """A folder in which the page's steps at the member were done."""

    async def shell(commands: str) -> None:
        environment = {"PATH": f"{plane.folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        command = ["sh", "-eu", "-c", commands]
        await asyncio.to_thread(subprocess.run, command, env=environment, cwd=tmp_path, check=True)

    (tmp_path / "manifests").symlink_to(CHECKOUT / "manifests")
    await shell(script())
    yield tmp_path
    await shell("kubectl delete --ignore-not-found --wait=false -f manifests/overlays/member/member.yaml")


async def test_identity_that_the_page_makes_is_enough_to_be_added(
    run: Run, plane: Plane, name: str, at_member: Path
) -> None:
    ran = await run("add", name, "--member-kubeconfig", str(at_member / "east.kubeconfig"), "--yes")

    assert (ran.code, ran.err) == (0, "")
    assert f"member cluster {name} created" in ran.out.splitlines()
    assert plane.admin_token not in (at_member / "east.kubeconfig").read_text()

"""Namespaces of a member take gangs if they opted in, and those that are made for gangs are as strict as the hub's."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

import pytest
import yaml

from dispatcher.api.names import CLUSTER_SELECTOR
from dispatcher.kube.client import MERGE_PATCH, ClusterClient
from dispatcher.store.snapshot.snapshot_reader import read_snapshot
from tests.cluster.manifests import appwrapper, bent, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_obstacles import told
from tests.cluster.outcomes import rows
from tests.cluster.world import World
from tests.commands import Run, runner

SECURITY: Final = {
    "pod-security.kubernetes.io/enforce": "baseline",
    "pod-security.kubernetes.io/warn": "baseline",
}
OPEN: Final = {"dispatcher.codeflare.dev/dispatch": "enabled"}


async def label(client: ClusterClient, namespace: str, labels: dict[str, str]) -> None:
    await client.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}}, MERGE_PATCH)


async def test_gang_waits_for_its_namespace_in_the_member_to_opt_in(fleet: Fleet) -> None:
    await fleet.declare("west", acceptedNamespaces="Labelled")
    await fleet.start_dispatcher()
    await fleet.hub.create(gang("two", 2))

    said = await told(fleet, "two", "NamespaceNotEnabled")
    assert "dispatcher.codeflare.dev/dispatch=enabled" in said["west"][1]

    await label(fleet.members["west"].client, fleet.hub.namespace, OPEN)
    assert (await fleet.hub.until_state("two", "Running"))["cluster"] == "west"


async def test_namespace_that_is_made_in_a_member_takes_gangs_and_has_the_hubs_pod_security(
    fleet: Fleet, elsewhere: World
) -> None:
    await label(fleet.hub.client, elsewhere.namespace, {**SECURITY, "team": "vision"})
    await fleet.declare("west", namespacePolicy="Create", acceptedNamespaces="Labelled")
    await fleet.start_dispatcher()
    for name in ("one", "another"):
        await elsewhere.create(gang(name, 1))
        assert (await elsewhere.until_state(name, "Running"))["cluster"] == "west"

    made = await fleet.members["west"].client.get(f"/api/v1/namespaces/{elsewhere.namespace}")
    own = {"kubernetes.io/metadata.name": elsewhere.namespace}
    assert made["metadata"]["labels"] == {**SECURITY, **OPEN, **own}


# -----------------------------------------------------------------------------------------------------------
# A gang is charged for what the clusters that it may go to add to its pods, each by its own LimitRanges.


Json = dict[str, Any]


@pytest.fixture
def run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …` on the queue of this hub."""
    monkeypatch.setenv("DISPATCHER_DATABASE_URL", fleet.hub.database_url)
    return runner(monkeypatch, capsys)


def without_requests(name: str, annotations: dict[str, str], *, suspend: bool = False) -> Json:
    """Two pods that request nothing."""
    plain = job(name, 2)
    plain["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    return bent(appwrapper(name, item(plain), suspend=suspend), annotations)


async def requests_by_default(world: World, cpu: str) -> None:
    limits = [{"type": "Container", "defaultRequest": {"cpu": cpu}}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "defaults"}}
    await world.client.create(
        f"/api/v1/namespaces/{world.namespace}/limitranges", {**body, "spec": {"limits": limits}}
    )


async def test_gang_is_charged_for_the_largest_defaults_of_the_members_that_it_selects(fleet: Fleet) -> None:
    await requests_by_default(fleet.hub, "7")  # no gang goes there
    for name, cpu in (("east", "1"), ("west", "1500m")):
        await requests_by_default(fleet.members[name], cpu)
        await fleet.declare(name, labels={"at": name})
    await fleet.start_dispatcher()

    await fleet.hub.create_until("Running", without_requests("anywhere", {}))
    await fleet.hub.create_until(
        "Suspended", without_requests("east", {CLUSTER_SELECTOR: "at=east"}, suspend=True)
    )

    found = await rows(fleet.hub, "SELECT name, demand FROM appwrapper ORDER BY name")
    assert [(row["name"], row["demand"]) for row in found] == [
        ("anywhere", {"cpu": 3000}),
        ("east", {"cpu": 2000}),
    ]
    (attempt,) = await rows(fleet.hub, "SELECT cluster, demand FROM attempt")
    assert attempt["demand"] == {"cpu": {"east": 2000, "west": 3000}[attempt["cluster"]]}


async def test_would_counts_the_defaults_of_each_member_as_the_leader_does(fleet: Fleet, run: Run) -> None:
    """Two pods that request nothing fit in west alone, where the LimitRange adds less."""
    for name, cpu in (("east", "7"), ("west", "1")):
        await requests_by_default(fleet.members[name], cpu)
        await fleet.declare(name, labels={"at": name})
    await fleet.start_dispatcher(snapshot_seconds="0.1")
    await until_surveyed(fleet.hub)

    manifest = without_requests("two", {})
    asked = ["would", "-f", "-", "-n", fleet.hub.namespace, "-o", "json"]
    ran = await run(*asked, "--kubeconfig", str(fleet.hub.plane.kubeconfig), stdin=yaml.safe_dump(manifest))
    assert (ran.code, ran.err) == (0, "")
    (said,) = json.loads(ran.out)

    assert (said["verdict"], said["cluster"]) == ("Dispatch", "west")
    west = {"requests": {"cpu": "1"}, "overheads": {}}
    assert said["podDefaults"] == {"requests": {"cpu": "7"}, "overheads": {}, "clusters": {"west": west}}
    await fleet.hub.create(manifest)
    assert (await fleet.hub.until_state("two", "Running"))["cluster"] == "west"
    (record,) = await rows(fleet.hub, "SELECT demand FROM attempt")
    assert record["demand"] == {"cpu": 2000}


async def until_surveyed(hub: World) -> None:
    """Wait until the leader's snapshot has the defaults of pods in both members."""

    async def look() -> bool:
        surveys = (await read_snapshot(hub.database_url, timedelta(seconds=10))).surveys
        return [survey is not None for survey in surveys.values()] == [True, True]

    await hub.until(look, "the snapshot has the defaults of pods")

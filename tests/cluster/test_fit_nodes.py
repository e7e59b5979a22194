"""Gangs on nodes: free amounts that are scattered do not count, and a tight gang is bound as it was planned."""

from __future__ import annotations

from typing import Any

from dispatcher.core.model.clusters.nodes import HOSTNAME
from testbed import nodes
from testbed.nodes import Shape
from tests.cluster import manifests
from tests.cluster.manifests import appwrapper, item, job
from tests.cluster.outcomes import delete_all
from tests.cluster.world import World

Json = dict[str, Any]

LARGE_NODE = 91


JOB_NAME = "batch.kubernetes.io/job-name"


async def nodes_by_pod(world: World) -> dict[str, str]:
    """The nodes of the pods of Jobs, by the name of the Job and of the pod."""
    named = ((each["metadata"], each["spec"].get("nodeName", "")) for each in await world.every("Pod"))
    return {
        f"{metadata['labels'][JOB_NAME]}/{metadata['name']}": node
        for metadata, node in named
        if JOB_NAME in metadata["labels"]
    }


async def test_gang_with_pods_that_no_node_takes_waits_with_the_reason_until_a_node_joins(
    world: World,
) -> None:
    await world.start_dispatcher()
    for name in ("one", "two", "three"):
        await world.create_until("Running", appwrapper(name, item(job(name, cpu="5"))))
    await world.create(appwrapper("large", item(job("large", cpu="8"))))
    waiting = (await world.until_state("large", "Backoff"))["waiting"]
    assert waiting["reason"] == "InsufficientResources"
    assert waiting["resource"] == "cpu"
    assert waiting["message"] == "cluster hub: cpu: 9 free, at most 3 on one node, and the pod requests 8"
    assert await world.names("Job") == {"one", "two", "three"}

    await nodes.add(world.plane.client, Shape(cpu="8", memory="61Gi"), [LARGE_NODE])
    try:
        await world.until_state("large", "Running")
        placed = {pod.partition("/")[0]: node for pod, node in (await nodes_by_pod(world)).items()}
        assert placed["large"] == nodes.name_of(LARGE_NODE)
    finally:
        await delete_all(world)
        await nodes.remove(world.plane.client, nodes.name_of(LARGE_NODE))


async def test_gang_that_fills_every_node_is_bound_where_it_was_planned(world: World) -> None:
    await world.start_dispatcher()
    small, large = job("small", 16, cpu="1"), job("large", cpu="8")
    await world.create_until("Running", appwrapper("tight", item(small), item(large)))

    by_node: dict[str, list[str]] = {}
    for pod, node in (await nodes_by_pod(world)).items():
        by_node.setdefault(node, []).append(pod.partition("/")[0])
    assert sorted(map(sorted, by_node.values())) == [["large"], ["small"] * 8, ["small"] * 8]


async def test_gang_that_repels_a_foreign_pod_on_every_node_waits_with_the_reason_and_goes_once_one_ends(
    world: World,
) -> None:
    """No amount is short: without the foreign pods' labels the gang would be dispatched, and stay pending."""
    await world.start_dispatcher()
    hosts = [node["metadata"]["name"] for node in (await world.client.get("/api/v1/nodes"))["items"]]
    for host in hosts:
        foreign = manifests.pod(f"web-{host}", {"cpu": "10m"}, nodeName=host)
        foreign["metadata"]["labels"] = {"app": "web"}
        await world.create(foreign)
    repelling = job("apart", 2)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "web"}}}
    repelling["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": {required: [term]}}

    await world.create(appwrapper("apart", item(repelling)))
    waiting = (await world.until_state("apart", "Backoff"))["waiting"]
    assert waiting["reason"] == "InsufficientResources"
    closed = f"{len(hosts)} of {len(hosts)} nodes excluded: {len(hosts)} by its anti-affinity to other pods"
    assert waiting["message"].endswith(closed)
    assert await world.names("Job") == set()

    await world.delete(f"web-{hosts[0]}", "Pod")
    await world.until_state("apart", "Running")
    placed = {pod.partition("/")[0]: node for pod, node in (await nodes_by_pod(world)).items()}
    assert placed == {"apart": hosts[0]}


async def test_gang_whose_jobs_are_spread_together_goes_once_each_pod_has_a_node_of_its_own(
    world: World,
) -> None:
    """On the two open nodes the head takes a place that one of the two workers could have, alone."""
    await world.start_dispatcher()
    found = (await world.client.get("/api/v1/nodes"))["items"]
    closed, *others = (node["metadata"]["name"] for node in found)
    assert len(others) == 2
    head, workers = (spread_by_app(job(name, pods)) for name, pods in (("head", 1), ("workers", 2)))

    async with nodes.cordoned(world.plane.client, closed):
        await world.create(appwrapper("spread", item(head), item(workers)))
        waiting = (await world.until_state("spread", "Backoff"))["waiting"]
        assert waiting["reason"] == "LargerThanCluster"
        assert await world.names("Job") == set()
    await world.until_state("spread", "Running")
    assert set((await nodes_by_pod(world)).values()) == {closed, *others}


def spread_by_app(template: Json) -> Json:
    """A Job with pods that are spread over hosts with all pods of the application."""
    template["spec"]["template"]["metadata"].setdefault("labels", {})["app"] = "web"
    template["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
    return template


async def test_spread_gang_counts_the_foreign_pods_of_its_selector_and_goes_once_one_ends(
    world: World,
) -> None:
    """The scheduler counts them: dispatched without them, the gang would stay pending.

    The cordoned node has none of them and takes no pod, so a pod on any other node would make the skew 2.
    """
    await world.start_dispatcher()
    hosts = [node["metadata"]["name"] for node in (await world.client.get("/api/v1/nodes"))["items"]]
    closed, *others = hosts
    for host in others:
        foreign = manifests.pod(f"web-{host}", {"cpu": "10m"}, nodeName=host)
        foreign["metadata"]["labels"] = {"app": "web"}
        await world.create(foreign)
    spread = spread_by_app(job("spread", 1))

    async with nodes.cordoned(world.plane.client, closed):
        await world.create(appwrapper("spread", item(spread)))
        waiting = (await world.until_state("spread", "Backoff"))["waiting"]
        assert waiting["reason"] == "InsufficientResources"
        assert f"counting pods of others that are there: {len(others)}; " in waiting["message"]
        assert await world.names("Job") == set()

        await world.delete(f"web-{others[0]}", "Pod")
        await world.until_state("spread", "Running")
        placed = {pod.partition("/")[0]: node for pod, node in (await nodes_by_pod(world)).items()}
        assert placed == {"spread": others[0]}

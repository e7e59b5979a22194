"""One hub, two members: each gang goes to one of them, whole, or waits and says why of each."""

from __future__ import annotations

from typing import Any

from dispatcher.api.names import ANCHOR_PREFIX, CLUSTER_SELECTOR, FINALIZER
from tests.cluster.manifests import appwrapper, bent, deployment, item, job
from tests.cluster.members.fleet import Fleet
from tests.cluster.world import World

Json = dict[str, Any]


def gang(name: str, pods: int, cpu: str = "1") -> Json:
    """So many pods of a Job that runs until it is deleted."""
    return appwrapper(name, item(job(name, parallelism=pods, cpu=cpu)))


async def anchors(fleet: Fleet) -> dict[str, set[str]]:
    found = await fleet.objects("ConfigMap")
    ours = {name: {each for each in names if each.startswith(ANCHOR_PREFIX)} for name, names in found.items()}
    return {name: names for name, names in ours.items() if names}


async def test_gang_that_is_too_big_for_one_member_goes_to_the_other(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()

    status = await fleet.hub.create_until("Running", gang("six", 6))

    assert (status["cluster"], status["running"]) == ("west", 6)
    assert await fleet.objects("Job") == {"west": {"six"}}
    assert await fleet.hub.names("Job") == set()


async def test_gang_too_large_for_all_clusters_waits_with_a_rejection_for_each(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    await fleet.start_dispatcher()

    status = await fleet.hub.create_until("Backoff", gang("ten", 10))

    backoff = next(each for each in status["conditions"] if each["type"] == "Backoff")
    assert backoff["message"] == "Cannot find a cluster with enough resources to dispatch AppWrapper."
    told = {each["cluster"]: (each["reason"], each["message"]) for each in status["waiting"]["clusters"]}
    assert told == {
        "east": ("LargerThanCluster", "cpu: needs 10, 4 in all of it"),
        "west": ("LargerThanCluster", "cpu: needs 10, 8 in all of it"),
    }
    assert await fleet.objects("Job") == {}


async def test_user_pins_and_excludes_members_by_their_labels(fleet: Fleet) -> None:
    await fleet.declare("east", labels={"zone": "e"})
    await fleet.declare("west", labels={"zone": "w"})
    await fleet.start_dispatcher()

    await fleet.hub.create(bent(gang("pinned", 1), {CLUSTER_SELECTOR: "zone=w"}))
    await fleet.hub.create(bent(gang("excludes", 1), {CLUSTER_SELECTOR: "zone!=w"}))
    await fleet.hub.create(bent(gang("nowhere", 1), {CLUSTER_SELECTOR: "zone=n"}))

    assert (await fleet.hub.until_state("pinned", "Running"))["cluster"] == "west"
    assert (await fleet.hub.until_state("excludes", "Running"))["cluster"] == "east"
    waiting = (await fleet.hub.until_state("nowhere", "Backoff"))["waiting"]
    assert waiting["reason"] == "ClusterNotSelected"


async def test_cordoned_member_takes_nothing_new_until_it_is_uncordoned(fleet: Fleet) -> None:
    await fleet.declare("west", cordoned=True, cordonReason="new switches")
    await fleet.start_dispatcher()

    await fleet.hub.create(gang("waits", 1))
    waiting = (await fleet.hub.until_state("waits", "Backoff"))["waiting"]
    assert waiting["clusters"] == [
        {"cluster": "west", "reason": "ClusterCordoned", "message": "it takes nothing new: new switches"}
    ]

    await fleet.change("west", cordoned=False)
    assert (await fleet.hub.until_state("waits", "Running"))["cluster"] == "west"


async def test_deleted_gang_goes_from_its_member_before_it_goes_from_the_hub(fleet: Fleet) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher()
    wrapped = appwrapper("both", item(job("both")), item(deployment("serve")))
    await fleet.hub.create(wrapped)
    await fleet.hub.until_state("both", "Running")
    found = await fleet.hub.get("AppWrapper", "both") or {}
    assert found["metadata"]["finalizers"] == [FINALIZER]
    uid = found["metadata"]["uid"]
    assert await anchors(fleet) == {"west": {f"{ANCHOR_PREFIX}{uid}-1"}}

    await fleet.hub.delete("both")
    await fleet.hub.until_gone("AppWrapper", "both")

    assert await fleet.objects("Job") == {}
    assert await fleet.objects("Deployment") == {}
    assert await fleet.objects("Pod") == {}
    assert await anchors(fleet) == {}


async def test_restarted_dispatcher_finds_its_gangs_where_they_are(fleet: Fleet) -> None:
    await fleet.declare("east", "west")
    process = await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("six", 6))
    await fleet.hub.stop_dispatcher(process)

    await fleet.start_dispatcher()
    status = await fleet.hub.create_until("Running", gang("four", 4))

    assert status["cluster"] == "east"
    assert await fleet.objects("Job") == {"east": {"four"}, "west": {"six"}}
    assert (await fleet.hub.causes("six")).count("dispatched") == 1
    assert "unhealthy" not in await fleet.hub.causes("six")


async def test_gangs_of_a_member_that_is_drained_go_to_another_and_that_counts_for_nothing(
    fleet: Fleet,
) -> None:
    await fleet.declare("east", cordoned=True)
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("two", 2))

    await fleet.change("east", cordoned=False)
    await fleet.change("west", drain=True, cordonReason="new racks")
    await fleet.hub.until_history("two", "created", times=2)
    status = await fleet.hub.until_state("two", "Running")

    assert (status["cluster"], status.get("numberOfRequeueings", 0)) == ("east", 0)
    assert await fleet.objects("Job") == {"east": {"two"}}
    assert await fleet.hub.reasons("two") == ["", "", "", "", "ClusterDraining", "", "", "", ""]


async def test_namespace_that_a_member_lacks_rules_it_out_or_is_made_as_declared(
    fleet: Fleet, elsewhere: World
) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await elsewhere.create(gang("two", 2))
    waiting = (await elsewhere.until_state("two", "Backoff"))["waiting"]
    lacks = f"it has no namespace {elsewhere.namespace}"
    assert waiting["clusters"] == [{"cluster": "west", "reason": "NamespaceMissing", "message": lacks}]

    await fleet.change("west", namespacePolicy="Create")
    assert (await elsewhere.until_state("two", "Running"))["cluster"] == "west"

"""What users and operators change while gangs wait and run: wishes, declarations, and the database itself."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR, MEMBERS_PATH
from testbed.stack import crash, recover
from tests.cluster.manifests import appwrapper, bent, item
from tests.cluster.members.fleet import Fleet
from tests.cluster.members.test_members_choice import anchors, gang
from tests.cluster.members.test_members_loss import until_told


async def wishes(fleet: Fleet, name: str, **annotations: str | None) -> None:
    """Change what an AppWrapper's annotations say of clusters."""
    keys = {"selector": CLUSTER_SELECTOR, "preference": CLUSTER_PREFERENCE}
    changed = {keys[key]: value for key, value in annotations.items()}
    await fleet.hub.merge("AppWrapper", name, {"metadata": {"annotations": changed}})


async def test_changed_selector_of_a_pending_gang_is_followed(fleet: Fleet) -> None:
    for name in ("east", "west"):
        await fleet.declare(name, labels={"zone": name})
    await fleet.start_dispatcher()
    await fleet.hub.create(bent(gang("one", 1), {CLUSTER_SELECTOR: "zone=north"}))
    assert (await fleet.hub.until_state("one", "Backoff"))["waiting"]["reason"] == "ClusterNotSelected"

    await wishes(fleet, "one", selector="zone=")
    await wishes(fleet, "one", selector="zone=west")
    assert (await fleet.hub.until_state("one", "Running"))["cluster"] == "west"
    assert "redirected" in await fleet.hub.causes("one")

    await wishes(fleet, "one", selector="zone=east")
    await fleet.hub.create_until("Running", gang("next", 1))
    assert (await fleet.hub.causes("one")).count("dispatched") == 1


async def test_deleted_gang_does_not_wait_for_an_undeclared_member_and_is_removed_there_later(
    fleet: Fleet,
) -> None:
    await fleet.declare("west")
    await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("two", 2))
    await fleet.remove("west")

    async def says_so() -> bool:
        status = (await fleet.hub.get("AppWrapper", "two") or {}).get("status") or {}
        return "not declared any more" in (status.get("unhealthy") or {}).get("message", "")

    await fleet.hub.until(says_so, "it is told that its cluster is not declared")
    await fleet.hub.delete("two")
    await fleet.hub.until_gone("AppWrapper", "two")
    assert (await fleet.hub.causes("two"))[-1] == "abandoned"
    assert await fleet.objects("Job") == {"west": {"two"}}

    await fleet.declare_again("west")

    async def none() -> bool:
        return not await anchors(fleet) and not await fleet.objects("Job")

    await fleet.hub.until(none, "what was left there is removed")


async def test_since_when_a_member_is_silent_outlives_the_dispatcher_that_noticed(fleet: Fleet) -> None:
    await fleet.declare("west")
    process = await fleet.start_dispatcher()
    await until_told(fleet, "west", None)
    west = fleet.members["west"].plane
    await crash(west)
    try:
        since = (await until_told(fleet, "west", "ClusterUnreachable"))["unreachableSince"]
        await fleet.hub.stop_dispatcher(process)
        await fleet.hub.client.patch(
            f"{MEMBERS_PATH}/west/status", [{"op": "replace", "path": "/status", "value": {}}]
        )
        await fleet.start_dispatcher()
        assert (await until_told(fleet, "west", "ClusterUnreachable"))["unreachableSince"] == since
    finally:
        await recover(west)
    assert "unreachableSince" not in await until_told(fleet, "west", None)


async def test_gangs_that_run_in_members_are_adopted_by_an_empty_database(
    fleet: Fleet, make_database: Callable[[], str]
) -> None:
    await fleet.declare("east", "west")
    process = await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("six", 6))
    before = await fleet.members["west"].get("Job", "six") or {}
    await fleet.hub.stop_dispatcher(process)

    fleet.hub.database_url = make_database()
    await fleet.start_dispatcher()
    await fleet.hub.until_history("six", "pods-running")

    after = await fleet.members["west"].get("Job", "six") or {}
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await fleet.hub.causes("six"))[0] == "adopted"
    await fleet.hub.create(gang("three", 3))
    assert (await fleet.hub.until_state("three", "Running"))["cluster"] == "east"
    await fleet.hub.delete("six")
    await fleet.hub.until_gone("AppWrapper", "six")
    assert await fleet.objects("Job") == {"east": {"three"}}


async def test_gang_of_an_unreachable_member_waits_with_an_empty_database_and_never_runs_twice(
    fleet: Fleet, make_database: Callable[[], str]
) -> None:
    await fleet.declare("east", "west")
    process = await fleet.start_dispatcher()
    await fleet.hub.create_until("Running", gang("six", 6))
    await fleet.hub.create_until("Running", gang("three", 3))
    await fleet.hub.stop_dispatcher(process)
    west = fleet.members["west"].plane
    await crash(west)
    try:
        fleet.hub.database_url = make_database()
        await fleet.start_dispatcher()
        await until_told(fleet, "west", "ClusterUnreachable")
        await fleet.hub.until_history("three", "adopted")
        assert await fleet.hub.causes("six") == []
    finally:
        await recover(west)

    await fleet.hub.until_history("six", "pods-running")
    assert (await fleet.hub.causes("six"))[0] == "adopted"
    assert await fleet.objects("Job") == {"east": {"three"}, "west": {"six"}}


async def test_hub_that_was_declared_takes_gangs_and_is_emptied_like_any_other(fleet: Fleet) -> None:
    await fleet.declare_hub()
    await fleet.start_dispatcher()
    status = await fleet.hub.create_until(
        "Running",
        appwrapper("nothing", item({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}})),
    )
    assert status["cluster"] == "hub"
    await fleet.declare("east")
    await fleet.change("hub", drain=True)
    await fleet.hub.until_history("nothing", "created", times=2)
    assert (await fleet.hub.until_state("nothing", "Running"))["cluster"] == "east"
    assert "n" not in await fleet.hub.names("ConfigMap")

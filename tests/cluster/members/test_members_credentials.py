"""Credentials that are revoked and rotated, on real API servers: what runs is left alone, and nothing runs twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from dispatcher import errors
from testbed.client import ApiError, Client
from testbed.proxy import DROPPED, ApiProxy, Exchange, Fault, Gate, refused
from tests.cluster.manifests import appwrapper, deployment, item, job
from tests.cluster.members import identities
from tests.cluster.members.guarded import Guarded, at
from tests.cluster.members.test_members_choice import anchors, gang
from tests.cluster.members.test_members_loss import until_healthy, until_told
from tests.cluster.world import World

Json = dict[str, Any]

GIVEN_UP_SOON = {"policy": "requeue", "graceSeconds": 1}
TOKEN = f"{identities.SECRETS}/hub"


@pytest.mark.parametrize(
    "revoked",
    [
        pytest.param(TOKEN, id="token"),
        pytest.param(f"{identities.ACCOUNTS}/hub", id="account", marks=pytest.mark.sweep),
    ],
)
async def test_member_that_refuses_us_is_not_lost_and_goes_on_with_a_new_token(
    guarded: Guarded, revoked: str
) -> None:
    """A member that is lost is given up after a second, and this one is not."""
    hub, fleet, east = guarded.hub, guarded.fleet, guarded.fleet.members["east"]
    await guarded.declare("east", onClusterLost=GIVEN_UP_SOON)
    await guarded.declare("west", onClusterLost=GIVEN_UP_SOON)
    await guarded.start_dispatcher()
    await hub.create(at("east", gang("stays", 1)))
    await hub.create(at("west", gang("goes", 1)))
    await hub.until_state("stays", "Running")
    await hub.until_state("goes", "Running")
    pods = await uids(guarded, "east", "Pod")

    await identities.revoke(east, revoked)
    status = await until_told(fleet, "east", "ClusterCredentialsRefused")
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "Reachable": "True",
        "Authenticated": "False",
    }
    assert "unreachableSince" not in status
    shown = await until_healthy(fleet, "stays", healthy=False)
    assert (shown["unhealthy"]["reason"], shown["state"]) == ("ClusterUnreachable", "Running")
    await hub.create(gang("new", 1))
    assert (await hub.until_state("new", "Running"))["cluster"] == "west"
    # One that is lost later than this was refused is given up: so would this have been by now, if it counted as lost.
    guarded.proxies["west"].rules.on(lambda _: True, DROPPED, times=10**9)
    guarded.proxies["west"].cut_watches()
    await hub.until_history("goes", "abandoned")
    await hub.merge("AppWrapper", "stays", {"metadata": {"annotations": {"looked-at": "again"}}})
    guarded.proxies["west"].rules.clear()
    await hub.until_history("goes", "created", times=2)

    await until_no_token(guarded)
    await identities.apply(east.plane, identities.MEMBER)
    await fleet.rotate("east", guarded.kubeconfig("east", await identities.token_in(east)))
    await until_told(fleet, "east", None)
    await until_healthy(fleet, "stays", healthy=True)
    causes = await hub.causes("stays")
    assert (causes.count("dispatched"), "abandoned" in causes) == (1, False)
    assert await uids(guarded, "east", "Pod") == pods


@pytest.mark.parametrize(
    ("is_late", "renew"),
    [
        pytest.param(False, identities.short_lived_token, id="before-it-is-revoked-to-one-that-expires"),
        pytest.param(True, identities.another_token, id="after-it-was-revoked-to-one-of-a-secret"),
    ],
)
async def test_token_is_rotated_under_running_gangs_and_a_gang_that_is_being_created(
    guarded: Guarded, is_late: bool, renew: Callable[[World], Awaitable[str]]
) -> None:
    """A write that was begun with the old token arrives when the member is spoken to with the new one already."""
    hub, fleet, east = guarded.hub, guarded.fleet, guarded.fleet.members["east"]
    await guarded.declare("east")
    await guarded.start_dispatcher()
    await hub.create_until("Running", gang("runs", 1))
    old, new = await identities.token_in(east), await renew(east)
    async with ApiProxy.of(east.plane) as another_way:
        guarded.proxies["east, anew"] = another_way
        gate = Gate()
        guarded.proxies["east"].rules.on(makes_a_job, Fault(before=gate))
        await hub.create(gang("between", 1))
        await gate.reached.wait()

        await fleet.rotate("east", guarded.kubeconfig("east", new, another_way))
        await until_served(guarded, another_way)
        if not is_late:
            gate.open()
        await identities.revoke(east, TOKEN)
        await until_refused(guarded, old)
        gate.open()
        await hub.until_state("between", "Running")
        await hub.create_until("Running", gang("afterwards", 1))
        await until_healthy(fleet, "runs", healthy=True)

        names = {"runs", "between", "afterwards"}
        assert made(guarded) == dict.fromkeys(names, 1)
        assert await fleet.objects("Job") == {"east": names}
        assert len((await anchors(fleet))["east"]) == len(names)
        assert {name: (await hub.causes(name)).count("dispatched") for name in names} == dict.fromkeys(
            names, 1
        )
        assert [each.path for each in another_way.rules.seen if each.status in {401, 403}] == []
        await hub.kill_dispatchers()


RESTARTED = 'forbidden: RBAC: clusterrole.rbac.authorization.k8s.io "appwrapper-dispatcher-hub" not found'
"""What an API server says that was just started, and has not read its roles yet."""


@pytest.mark.parametrize(
    ("asks", "wrapped"),
    [
        pytest.param(lambda each: makes_a_job(each), job("work"), id="creates"),
        pytest.param(lambda each: "/replicasets/" in each.path, deployment("work"), id="asks-whose-a-pod-is"),
    ],
)
async def test_refusal_of_a_member_that_just_restarted_is_not_final(
    guarded: Guarded, asks: Callable[[Exchange], bool], wrapped: Json
) -> None:
    await guarded.declare("east")
    await guarded.start_dispatcher()
    rule = guarded.proxies["east"].rules.on(asks, refused(403, "Forbidden", RESTARTED))

    await guarded.hub.create_until("Running", appwrapper("runs", item(wrapped)))
    assert rule.struck.is_set()
    assert (await guarded.hub.causes("runs")).count("dispatched") == 1


async def test_member_that_does_not_let_us_list_refuses_us_and_is_not_lost(
    guarded: Guarded, tmp_path: Path
) -> None:
    west = guarded.fleet.members["west"]
    rule = '- {apiGroups: [""], resources: [nodes, namespaces], verbs: [list, watch]}'
    written = identities.MEMBER.read_text()
    assert written.count(rule) == 1
    manifest = tmp_path / "member.yaml"
    manifest.write_text(written.replace(rule, ""))
    await identities.apply(west.plane, manifest)
    await guarded.declare("west", onClusterLost=GIVEN_UP_SOON)
    await guarded.start_dispatcher()
    status = await until_told(guarded.fleet, "west", "ClusterCredentialsRefused")
    assert "unreachableSince" not in status

    await identities.apply(west.plane, identities.MEMBER)
    await until_told(guarded.fleet, "west", None)


# --- what is to be seen ------------------------------------------------------------------------------


async def uids(guarded: Guarded, member: str, kind: str) -> set[str]:
    return {each["metadata"]["uid"] for each in await guarded.fleet.members[member].every(kind)}


def makes_a_job(exchange: Exchange) -> bool:
    return exchange.is_write and exchange.method == "POST" and exchange.path.endswith("/jobs")


def made(guarded: Guarded) -> Counter[str]:
    """How often each Job was created, as the API servers answered."""
    exchanges = (each for proxy in guarded.proxies.values() for each in proxy.rules.seen)
    return Counter(
        each.document["metadata"]["name"] for each in exchanges if makes_a_job(each) and each.status == 201
    )


async def until_served(guarded: Guarded, proxy: ApiProxy) -> None:
    """Return once gangs are looked after this way: their Jobs are watched."""

    async def look() -> bool:
        return any(each.is_watch and each.path.endswith("/jobs") for each in proxy.rules.seen)

    await guarded.hub.until(look, "east is looked after the other way")


async def until_refused(guarded: Guarded, token: str) -> None:
    """Return once east does not take the token any more; it remembers for ten seconds whom it let in."""
    plane = guarded.fleet.members["east"].plane
    client = Client(plane.url, token, plane.certificate_authority)

    async def look() -> bool:
        try:
            await asyncio.to_thread(client.get, "/api/v1/namespaces/kube-system")
        except ApiError as error:
            return error.status == HTTPStatus.UNAUTHORIZED
        return False

    await guarded.hub.until(look, "the token is refused")


async def until_no_token(guarded: Guarded) -> None:
    """Return once nothing is left of it: with its account it goes a little later."""
    east = guarded.fleet.members["east"]

    async def look() -> bool:
        try:
            await east.client.get(TOKEN)
        except errors.NotFound:
            return True
        return False

    await east.until(look, "the Secret is gone")

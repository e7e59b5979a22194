"""A kind that a member serves, and that the dispatcher has no right to create there: its gangs wait for the right."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from dispatcher.kube.questions import SELF_PATH
from testbed.plane import RBAC
from tests.cluster.manifests import appwrapper, config_map, item
from tests.cluster.members.guarded import Guarded, at
from tests.cluster.members.test_members_choice import gang
from tests.cluster.members.test_members_obstacles import Definition, told, widgets
from tests.cluster.world import World

__all__ = ["widgets"]

pytestmark = pytest.mark.timeout(60)
"""A pause of five seconds after the refusal, and ten until the right is asked about again."""

Json = dict[str, Any]

ROLE = f"{RBAC}/clusterroles/appwrapper-dispatcher-hub"
WIDGET: Json = {"apiVersion": "test.example.com/v1", "kind": "Widget", "metadata": {"name": "first"}}
RIGHT: Json = {
    "apiGroups": ["test.example.com"],
    "resources": ["widgets"],
    "verbs": ["create", "get", "list", "watch", "patch", "delete"],
}


async def test_gang_of_a_kind_that_the_dispatcher_may_not_create_waits_and_runs_once_it_may(
    guarded: Guarded, widgets: Definition
) -> None:
    """The rights that docs/kinds.md names were not given. An object that a quota forbids is no such kind."""
    hub, east = guarded.hub, guarded.fleet.members["east"]
    await widgets.install("east")
    await guarded.declare("east")
    await guarded.start_dispatcher()
    await hub.create(
        at("east", appwrapper("first", item(config_map("half")), item(WIDGET, custompodresources=[])))
    )
    assert (await told(guarded.fleet, "first", "KindNotInstalled"))["east"] == (
        "KindNotInstalled",
        f"it does not let the dispatcher create Widget of test.example.com/v1 in namespace {hub.namespace}: "
        "give the dispatcher's account the right to create it there",
    )
    assert await east.get("ConfigMap", "half") is None
    await hub.create_until("Running", at("east", gang("other", 1)))
    causes = await hub.causes("first")
    assert (causes.count("dispatched"), causes.count("creation-postponed")) == (1, 1)

    await give_right(east)
    await hub.until_state("first", "Running")
    assert await east.get("ConfigMap", "half") is not None
    assert {each.status for each in guarded.proxies["east"].rules.seen if each.path == SELF_PATH} == {
        HTTPStatus.CREATED
    }
    await hub.delete("first")
    await hub.until_gone("AppWrapper", "first")


async def give_right(member: World) -> None:
    """Add the rule to the role that `guarded` made; the next test applies the manifest again."""
    await member.client.patch(ROLE, [{"op": "add", "path": "/rules/-", "value": RIGHT}])

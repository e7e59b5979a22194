"""The parts that all stand-ins share, and the stand-in for an autoscaler."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from testbed.autoscaler import (
    OUT_OF_STOCK,
    Answer,
    NoRoom,
    Pool,
    Turn,
    conditions_with,
    is_empty,
    make_nodes,
    next_turn,
    nodes_needed,
    request_of_node,
)
from testbed.nodes import Shape
from testbed.stand_in import DirtyKeys, View

NOW = "2026-11-20T09:00:00Z"

Json = dict[str, Any]


def owned(uid: str, owner: str = "u1") -> Json:
    references = [{"uid": owner, "controller": True}]
    return {"metadata": {"uid": uid, "name": uid, "creationTimestamp": NOW, "ownerReferences": references}}


def seen(view: View) -> list[str]:
    return [one["metadata"]["uid"] for one in view.controlled_by("u1")]


def test_own_creation_is_seen_at_once_and_survives_a_list_that_began_before_it() -> None:
    view = View()
    view.expect(owned("p1"), now=2.0)
    view.replace([owned("p2")], listed_from=1.0)

    assert seen(view) == ["p1", "p2"]


def test_list_that_began_after_a_creation_has_the_last_word() -> None:
    view = View()
    view.expect(owned("p1"), now=1.0)
    view.replace([owned("p2")], listed_from=2.0)

    assert seen(view) == ["p2"]


def test_reply_that_comes_after_the_deletion_changes_nothing() -> None:
    view = View()
    view.apply("ADDED", owned("p1"))
    view.apply("DELETED", owned("p1"))
    view.expect(owned("p1"), now=1.0)

    assert seen(view) == []


async def test_key_is_handed_out_once_and_again_if_asked_for_meanwhile() -> None:
    keys = DirtyKeys()
    keys.add("a")
    keys.add("a")

    async with keys.next() as key:
        keys.add("a")
        assert key == "a"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), keys.next():
                pass

    async with keys.next() as again:
        assert again == "a"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), keys.next():
            pass


# -----------------------------------------------------------------------------------------------------------
# The stand-in for an autoscaler, as functions of values: how many nodes a request needs, and what it says
# next.


CREATED = datetime(2026, 11, 23, 12, tzinfo=UTC)
NODE = Shape(cpu="8", memory="32Gi", gpu=2)
POOL = Pool(shape=NODE, accept_after=timedelta(seconds=1), provide_after=timedelta(seconds=9))
ACCEPTED = CREATED + timedelta(seconds=1)
EXPECTED = CREATED + timedelta(seconds=10)


def make_request(*conditions: str, name: str = "train-provisioning-1", **parameters: str) -> Json:
    return {
        "metadata": {"name": name, "uid": "12345678-9", "creationTimestamp": "2026-11-23T12:00:00Z"},
        "spec": {"parameters": {key.replace("_", "-"): value for key, value in parameters.items()}},
        "status": {"conditions": [{"type": each, "status": "True"} for each in conditions]},
    }


def pending_pod(**requests: str) -> Json:
    amounts = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in requests.items()}
    return {"containers": [{"name": "main", "resources": {"requests": amounts}}]}


@pytest.mark.parametrize(
    ("crews", "needed"),
    [
        pytest.param([(pending_pod(gpu="2"), 3)], 3, id="a-node-each"),
        pytest.param([(pending_pod(gpu="1"), 3)], 2, id="two-on-a-node"),
        pytest.param([(pending_pod(gpu="1", cpu="5"), 2)], 2, id="cpu-is-what-lacks"),
        pytest.param(
            [(pending_pod(gpu="2", cpu="4"), 1), (pending_pod(cpu="4"), 1)], 1, id="two-crews-on-a-node"
        ),
        pytest.param(
            [(pending_pod(cpu="5"), 1), (pending_pod(gpu="2", cpu="4"), 1)], 2, id="two-crews-apart"
        ),
        pytest.param([(pending_pod(), 111)], 2, id="places-for-pods"),
        pytest.param([], 0, id="nothing"),
    ],
)
def test_request_needs_the_nodes_on_which_its_pods_fit(crews: list[tuple[Json, int]], needed: int) -> None:
    assert nodes_needed(crews, POOL) == needed


def test_pod_that_is_larger_than_a_node_is_named_with_what_lacks() -> None:
    with pytest.raises(NoRoom) as raised:
        nodes_needed([(pending_pod(gpu="3", cpu="1"), 1)], POOL)

    assert str(raised.value) == "a pod is larger than a node of gpu-pool: nvidia.com/gpu: needs 3, 2 there"


@pytest.mark.parametrize(
    ("request_", "turn"),
    [
        pytest.param(
            make_request(), Turn(Answer.ACCEPTED, ACCEPTED, "ETA: 2026-11-23T12:00:10Z"), id="accepted-first"
        ),
        pytest.param(
            make_request("Accepted"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="then-provisioned",
        ),
        pytest.param(make_request("Accepted", "Provisioned"), None, id="and-that-is-all"),
        pytest.param(
            make_request("Accepted", testbed_fail_first="1"),
            Turn(Answer.FAILED, EXPECTED, OUT_OF_STOCK),
            id="fails-on-demand",
        ),
        pytest.param(
            make_request("Accepted", name="train-provisioning-2", testbed_fail_first="1"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="and-not-the-second-time",
        ),
        pytest.param(
            make_request("Accepted", testbed_fail_first="often"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="no-number",
        ),
        pytest.param(make_request("Accepted", "Failed", testbed_fail_first="1"), None, id="failed"),
        pytest.param(make_request("Accepted", "Provisioned", "CapacityRevoked"), None, id="revoked"),
    ],
)
def test_next_condition_follows_from_those_that_are_set(request_: Json, turn: Turn | None) -> None:
    assert next_turn(request_, POOL) == turn


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [(("Accepted", "Provisioned"), Answer.REVOKED), (("Accepted",), Answer.PROVISIONED)],
    ids=["provisioned", "not-yet"],
)
def test_annotation_revokes_what_is_provisioned(conditions: tuple[str, ...], answer: Answer) -> None:
    request = make_request(*conditions)
    request["metadata"]["annotations"] = {"testbed.dispatcher.codeflare.dev/revoke": "maintenance"}

    turn = next_turn(request, POOL)

    assert turn is not None
    assert turn.answer == answer
    assert (turn.message == "maintenance") == (answer == Answer.REVOKED)


def test_condition_is_added_to_those_that_are_set() -> None:
    turn = Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready")

    accepted, provisioned = conditions_with(make_request("Accepted"), turn, EXPECTED)

    assert accepted == {"type": "Accepted", "status": "True"}
    assert provisioned == {
        "type": "Provisioned",
        "status": "True",
        "reason": "Provisioned",
        "message": "the nodes are ready",
        "lastTransitionTime": "2026-11-23T12:00:10Z",
    }


def test_nodes_know_their_request_and_have_the_same_names_each_time() -> None:
    nodes = make_nodes(make_request(), 2, POOL, CREATED)

    assert [each["metadata"]["name"] for each in nodes] == ["gpu-pool-12345678-0", "gpu-pool-12345678-1"]
    assert {request_of_node(each) for each in nodes} == {"12345678-9"}
    assert nodes[0]["metadata"]["labels"]["cloud.google.com/gke-nodepool"] == "gpu-pool"


@pytest.mark.parametrize(
    ("place", "phase", "empty"),
    [
        pytest.param("gpu-pool-12345678-0", "Running", False, id="runs-there"),
        pytest.param("gpu-pool-12345678-0", "Pending", False, id="starts-there"),
        pytest.param("gpu-pool-12345678-0", "Succeeded", True, id="done"),
        pytest.param("elsewhere", "Running", True, id="elsewhere"),
        pytest.param(None, "Pending", True, id="nowhere"),
    ],
)
def test_node_is_empty_without_pods_that_have_yet_to_finish(
    place: str | None, phase: str, empty: bool
) -> None:
    [node] = make_nodes(make_request(), 1, POOL, CREATED)
    pod = {"spec": {"nodeName": place}, "status": {"phase": phase}}

    assert is_empty(node, [pod]) is empty

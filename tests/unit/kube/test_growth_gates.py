"""The dispatcher's gate is removed by its name, from the pod that was meant."""

from __future__ import annotations

import pytest

from dispatcher import errors
from dispatcher.api.names import GROWTH_GATE
from dispatcher.core.model.gangs.growth import GatedPod, PodRef
from dispatcher.core.model.resources import NOTHING
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.pod_changes import AT_ONCE, GrowthGates, SurplusPods
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal

PODS = "/api/v1/namespaces/team-a/pods"


def gated(name: str) -> GatedPod:
    return GatedPod("team-a", name, f"uid-of-{name}", NOTHING, "")


async def test_gate_is_removed_by_name_and_only_from_the_pod_with_that_uid(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("PATCH", f"{PODS}/w", answer({"metadata": {}}))

    removed: list[str] = []
    await GrowthGates(client, removed.append).remove_from([gated("w")])

    assert removed == ["uid-of-w"]
    (asked,) = server.requests("PATCH")
    assert asked.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert asked.body == {
        "metadata": {"uid": "uid-of-w"},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GROWTH_GATE}]},
    }


@pytest.mark.parametrize(
    ("status", "reason"), [(404, "NotFound"), (409, "Conflict"), (422, "Invalid")], ids=str
)
async def test_pod_that_is_gone_or_another_one_by_now_is_left_out(
    status: int, reason: str, server: FakeApiServer, client: ClusterClient
) -> None:
    names = [f"w{at}" for at in range(AT_ONCE + 1)]
    for name in names:
        server.on("PATCH", f"{PODS}/{name}", answer({"metadata": {}}))
    server.on("PATCH", f"{PODS}/w0", refusal(status, reason))

    removed: list[str] = []
    await GrowthGates(client, removed.append).remove_from([gated(name) for name in names])

    assert removed == [f"uid-of-{name}" for name in names[1:]]
    assert len(server.requests("PATCH")) == len(names)


@pytest.mark.parametrize(
    ("reply", "error"),
    [(refusal(403, "Forbidden"), errors.Forbidden), (hang_up, errors.Unavailable)],
    ids=["forbidden", "no-answer"],
)
async def test_refusal_is_raised_once_all_pods_were_tried(
    reply: Reply, error: type[Exception], server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("PATCH", f"{PODS}/a", reply)
    server.on("PATCH", f"{PODS}/b", answer({"metadata": {}}))

    removed: list[str] = []
    with pytest.raises(error):
        await GrowthGates(client, removed.append).remove_from([gated("a"), gated("b")])

    assert removed == ["uid-of-b"]
    assert server.requests("PATCH", f"{PODS}/b")


# --- Surplus pods are deleted with their own grace, and no other pods with their names ---------------------


def ref(name: str) -> PodRef:
    return PodRef("team-a", name, f"uid-of-{name}")


async def test_pod_with_that_uid_is_deleted_with_its_own_grace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("DELETE", f"{PODS}/w", answer({"metadata": {}}))

    await SurplusPods(client).delete([ref("w")])

    (asked,) = server.requests("DELETE")
    assert asked.body["preconditions"] == {"uid": "uid-of-w"}
    assert "gracePeriodSeconds" not in asked.body


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")], ids=str)
async def test_surplus_pod_that_is_gone_or_another_one_by_now_is_left_out(
    status: int, reason: str, server: FakeApiServer, client: ClusterClient
) -> None:
    names = [f"w{at}" for at in range(AT_ONCE + 1)]
    for name in names:
        server.on("DELETE", f"{PODS}/{name}", answer({"metadata": {}}))
    server.on("DELETE", f"{PODS}/w0", refusal(status, reason))

    await SurplusPods(client).delete(list(map(ref, names)))

    assert len(server.requests("DELETE")) == len(names)


@pytest.mark.parametrize(
    ("reply", "error"),
    [(refusal(403, "Forbidden"), errors.Forbidden), (hang_up, errors.Unavailable)],
    ids=["forbidden", "no-answer"],
)
async def test_refusal_is_raised_once_all_surplus_pods_were_tried(
    reply: Reply, error: type[Exception], server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("DELETE", f"{PODS}/a", reply)
    server.on("DELETE", f"{PODS}/b", answer({"metadata": {}}))

    with pytest.raises(error):
        await SurplusPods(client).delete([ref("a"), ref("b")])

    assert server.requests("DELETE", f"{PODS}/b")

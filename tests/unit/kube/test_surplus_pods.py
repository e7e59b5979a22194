"""Surplus pods are deleted with their own grace, and no other pods with their names."""

from __future__ import annotations

import pytest

from dispatcher import errors
from dispatcher.core.model.growth import PodRef
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.pod_changes import AT_ONCE, SurplusPods
from tests.fakes import FakeApiServer, Reply, answer, hang_up, refusal

PODS = "/api/v1/namespaces/team-a/pods"


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
async def test_pod_that_is_gone_or_another_one_by_now_is_left_out(
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
async def test_refusal_is_raised_once_all_pods_were_tried(
    reply: Reply, error: type[Exception], server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("DELETE", f"{PODS}/a", reply)
    server.on("DELETE", f"{PODS}/b", answer({"metadata": {}}))

    with pytest.raises(error):
        await SurplusPods(client).delete([ref("a"), ref("b")])

    assert server.requests("DELETE", f"{PODS}/b")

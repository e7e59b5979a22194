"""How the pods of an AppWrapper failed is read from pods that are its own, and a refusal only costs the words."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from dispatcher.core.model.pods import PodFailure
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.owner_resolver import OwnerResolver
from dispatcher.kube.objects.pod_failures import MOST_PODS, PodFailureReader
from tests.builders import make_metadata, make_pod
from tests.fakes import FakeApiServer, Reply, answer, refusal

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
KNOWN: Json = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "train", "uid": "uid-of-train"}
"""A wrapped object of the AppWrapper."""
SUBMITTER: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-submitter"}
FOREIGN: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": "other", "uid": "uid-of-other"}


def failed(
    name: str, controller: Json | None, code: int = 1, *, phase: str = "Failed", labelled: bool = True
) -> Json:
    raw = make_pod(name, phase=phase, of="aw" if labelled else "", controller=controller)
    state = "state" if phase == "Failed" else "lastState"
    raw["status"]["containerStatuses"] = [{"name": "main", state: {"terminated": {"exitCode": code}}}]
    return raw


def selected(*pods: Json) -> Reply:
    """A list of pods that follows the selectors which the reader uses."""

    async def reply(request: web.Request) -> web.StreamResponse:
        wants_label = not request.query["labelSelector"].startswith("!")
        wants_failed = "fieldSelector" in request.query
        assert int(request.query["limit"]) == MOST_PODS
        found = [
            raw
            for raw in pods
            if bool(raw["metadata"]["labels"]) is wants_label
            and (not wants_failed or raw["status"]["phase"] == "Failed")
        ]
        return await answer({"metadata": {}, "items": found})(request)

    return reply


@pytest.fixture
def reader(client: ClusterClient, server: FakeApiServer) -> PodFailureReader:
    """Knows the object that the AppWrapper wraps; the submitter's Job leads to it, the other Job to nobody."""
    owners = OwnerResolver(client, Discovery(client), lambda _uid: None, {"aw": "default"}.get)
    owners.learn("uid-of-train", "aw")
    kinds = [{"name": "jobs", "kind": "Job", "namespaced": True, "verbs": ["create", "get", "list"]}]
    server.on("GET", "/apis/batch/v1", answer({"groupVersion": "batch/v1", "resources": kinds}))
    for job, above in ((SUBMITTER, [{**KNOWN, "controller": True}]), (FOREIGN, [])):
        metadata = make_metadata(job["name"], uid=job["uid"], ownerReferences=above)
        server.on("GET", f"{JOBS}/{job['name']}", answer({**job, "metadata": metadata}))
    return PodFailureReader(client, owners)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([failed("worker", KNOWN, 2)], PodFailure("worker", "main", 2), id="a-pod-of-the-gang"),
        pytest.param([failed("forged", FOREIGN)], None, id="a-label-alone-is-a-claim"),
        pytest.param([failed("bare", None)], None, id="a-pod-without-a-controller"),
        pytest.param(
            [failed("submitter", SUBMITTER, 3, labelled=False)],
            PodFailure("submitter", "main", 3),
            id="the-submitter-without-labels",
        ),
        pytest.param([failed("foreign", FOREIGN, labelled=False)], None, id="a-pod-of-somebody-else"),
        pytest.param(
            [failed("crashes", KNOWN, 4, phase="Running")],
            PodFailure("crashes", "main", 4, has_restarted=True),
            id="a-container-that-restarts",
        ),
        pytest.param(
            [failed("crashes", KNOWN, 4, phase="Running"), failed("submitter", SUBMITTER, 3, labelled=False)],
            PodFailure("submitter", "main", 3),
            id="failed-pods-first",
        ),
        pytest.param([], None, id="none"),
    ],
)  # fmt: skip
async def test_first_failure_is_that_of_a_pod_of_the_appwrapper(
    reader: PodFailureReader, server: FakeApiServer, pods: list[Json], expected: PodFailure | None
) -> None:
    server.on("GET", PODS, selected(*pods))
    assert await reader.first("default", "aw") == expected


@pytest.mark.parametrize("reply", [refusal(403, "Forbidden"), refusal(503, "ServiceUnavailable")])
async def test_gang_ends_without_the_words_where_they_cannot_be_read(
    reader: PodFailureReader, server: FakeApiServer, reply: Reply
) -> None:
    server.on("GET", PODS, reply)
    assert await reader.first("default", "aw") is None

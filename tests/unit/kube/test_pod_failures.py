"""How the pods of an AppWrapper failed is read from pods that are its own, and a refusal only costs the words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.kube.bounds import LARGEST_HINT
from dispatcher.kube.client import HINT_SECONDS, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.owner_resolver import OwnerResolver
from dispatcher.kube.objects.pod_failures import FEW_PODS, MOST_PODS, MOST_READS, PodFailureReader
from tests.builders import make_metadata, make_pod
from tests.fakes import FakeApiServer, Reply, answer, never, refusal
from tests.unit.virtual_time import monotonic

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
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


# --- Pods of strangers in the namespace --------------------------------------------------------------------

STRANGER = failed("a-stranger", FOREIGN, labelled=False)
FORGED = failed("a-forged", FOREIGN)
WORKER, CRASHES = failed("worker", KNOWN, 2), failed("crashes", KNOWN, 4, phase="Running")


@pytest.mark.parametrize("reply", [refusal(503, "ServiceUnavailable"), refusal(403, "Forbidden"), never])
@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([FORGED, WORKER], PodFailure("worker", "main", 2), id="with-its-label"),
        pytest.param(
            [STRANGER, CRASHES], PodFailure("crashes", "main", 4, has_restarted=True), id="without-a-label"
        ),
    ],
)
async def test_controller_of_a_stranger_that_cannot_be_read_hides_no_pod_of_the_appwrapper(
    reader: PodFailureReader, server: FakeApiServer, pods: list[Json], expected: PodFailure, reply: Reply
) -> None:
    server.on("GET", PODS, selected(*pods))
    server.on("GET", f"{JOBS}/other", reply)
    begun = monotonic()
    assert await reader.first("default", "aw") == expected
    assert monotonic() - begun <= HINT_SECONDS + 0.1


async def test_reference_with_another_name_does_not_hide_the_pods_of_the_controller_with_its_uid(
    reader: PodFailureReader, server: FakeApiServer
) -> None:
    forged = failed("a-forged", {**SUBMITTER, "name": "gone"}, labelled=False)
    server.on("GET", PODS, selected(forged, failed("submitter", SUBMITTER, 3, labelled=False)))
    assert await reader.first("default", "aw") == PodFailure("submitter", "main", 3)


def beside_pods(server: FakeApiServer) -> list[str]:
    """The paths of all other requests."""
    return [each.path for each in server.asked if each.path != PODS]


def serve_config_maps(server: FakeApiServer, *chains: list[str]) -> None:
    """Have each ConfigMap of a chain be controlled by the next one."""
    kind = {"name": "configmaps", "kind": "ConfigMap", "namespaced": True}
    server.on("GET", "/api/v1", answer({"resources": [kind]}))
    for chain in chains:
        for name, above in zip(chain, [*chain[1:], None], strict=True):
            owners = [{**config_map(above), "controller": True}] if above else []
            found = {"metadata": make_metadata(name, ownerReferences=owners)}
            server.on("GET", f"{CONFIG_MAPS}/{name}", answer(found))


def config_map(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"uid-of-{name}"}


@pytest.mark.parametrize("own", [WORKER, CRASHES])
async def test_long_chains_of_strangers_cost_a_bounded_number_of_reads_and_hide_no_own_pod(
    reader: PodFailureReader, server: FakeApiServer, own: Json
) -> None:
    chains = [[f"c{pod}-{number}" for number in range(8)] for pod in range(10)]
    serve_config_maps(server, *chains)
    strangers = [
        failed(f"a{chain[0]}", config_map(chain[0]), labelled=labelled)
        for chain in chains
        for labelled in (True, False)
    ]
    server.on("GET", PODS, selected(*strangers, own))
    found = await reader.first("default", "aw")
    assert found is not None
    assert found.pod == own["metadata"]["name"]
    assert len(beside_pods(server)) == MOST_READS


async def test_chains_that_led_nowhere_are_read_once(reader: PodFailureReader, server: FakeApiServer) -> None:
    chains = [[f"c{number}", "shared", "top"] for number in range(4)]
    serve_config_maps(server, *chains)
    strangers = [failed(f"a{chain[0]}", config_map(chain[0]), labelled=False) for chain in chains]
    server.on("GET", PODS, selected(*strangers, failed("submitter", SUBMITTER, 3, labelled=False)))
    assert await reader.first("default", "aw") == PodFailure("submitter", "main", 3)
    for name in ("shared", "top"):
        assert beside_pods(server).count(f"{CONFIG_MAPS}/{name}") == 1


# --- Large and slow answers --------------------------------------------------------------------------------


def too_large_beyond(pods: int, *found: Json) -> Reply:
    """Lists of more than that many pods with the label are too large for a hint; others have `found`."""

    async def reply(request: web.Request) -> web.StreamResponse:
        wants_label = not request.query["labelSelector"].startswith("!")
        is_too_large = wants_label and int(request.query["limit"]) > pods
        items = [{"metadata": {"name": "x" * LARGEST_HINT}}] if is_too_large else list(found)
        return await answer({"metadata": {}, "items": items})(request)

    return reply


async def test_fewer_pods_are_read_where_a_page_is_too_large(
    reader: PodFailureReader, server: FakeApiServer
) -> None:
    server.on("GET", PODS, too_large_beyond(FEW_PODS, WORKER))
    assert await reader.first("default", "aw") == PodFailure("worker", "main", 2)


async def test_pages_that_are_too_large_end_no_other_question(
    reader: PodFailureReader, server: FakeApiServer
) -> None:
    server.on("GET", PODS, too_large_beyond(0, failed("submitter", SUBMITTER, 3, labelled=False)))
    assert await reader.first("default", "aw") == PodFailure("submitter", "main", 3)


async def test_api_server_without_an_answer_in_time_is_not_asked_again_at_once(
    reader: PodFailureReader, server: FakeApiServer
) -> None:
    server.on("GET", PODS, never)
    begun = monotonic()
    assert [await reader.first("default", "aw") for _ in range(2)] == [None, None]
    assert monotonic() - begun <= HINT_SECONDS + 0.1
    assert len(server.requests("GET", PODS)) == 1


async def test_all_questions_have_the_time_of_one_hint(
    reader: PodFailureReader, server: FakeApiServer
) -> None:
    pages = selected(CRASHES, failed("submitter", SUBMITTER, 3, labelled=False))

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.4 * HINT_SECONDS)  # virtual
        return await pages(request)

    server.on("GET", PODS, slow)
    begun = monotonic()
    assert await reader.first("default", "aw") == PodFailure("crashes", "main", 4, has_restarted=True)
    assert monotonic() - begun <= HINT_SECONDS + 0.1

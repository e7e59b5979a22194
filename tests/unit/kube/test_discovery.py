"""Where kinds are served: asked once, and never a hasty no."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.api.syntax import MOST_COMPARED, most_similar
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.client import JSON, METADATA, METADATA_LIST, ClusterClient
from dispatcher.kube.discovery import Discovery, Kind, cluster_uid
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text
from tests.unit.kube.test_object_informers import made, page, running, script, wants_too_many
from tests.unit.virtual_time import until

RAY = "/apis/ray.io/v1"
RAYCLUSTERS = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}


def serves(*resources: object) -> object:
    return {"kind": "APIResourceList", "resources": list(resources)}


async def test_kind_is_found_with_its_path(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", RAY, answer(serves(RAYCLUSTERS, {**RAYCLUSTERS, "name": "rayclusters/status"})))

    found = await Discovery(client).find("ray.io/v1", "RayCluster")

    assert found == Kind("ray.io/v1", "RayCluster", "rayclusters", namespaced=True)
    assert found.path("default") == "/apis/ray.io/v1/namespaces/default/rayclusters"
    assert found.path("default", "x") == "/apis/ray.io/v1/namespaces/default/rayclusters/x"
    assert found.everywhere() == "/apis/ray.io/v1/rayclusters"


async def test_core_kinds_have_their_own_root_and_cluster_scoped_ones_no_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    nodes = {"name": "nodes", "kind": "Node", "namespaced": False}
    server.on("GET", "/api/v1", answer(serves(nodes)))

    found = await Discovery(client).find("v1", "Node")

    assert (found.path("default", "n1"), found.everywhere()) == ("/api/v1/nodes/n1", "/api/v1/nodes")


async def test_group_version_is_asked_once_for_all_its_kinds(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on(
        "GET", RAY, answer(serves(RAYCLUSTERS, {"name": "rayjobs", "kind": "RayJob", "namespaced": True}))
    )
    discovery = Discovery(client)
    for kind in ("RayCluster", "RayJob", "RayCluster"):
        await discovery.find("ray.io/v1", kind)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(text("404 page not found", 404), id="group-unknown"),
        pytest.param(answer(serves()), id="group-without-the-kind"),
        pytest.param(answer({"kind": "APIResourceList", "resources": None}), id="group-without-kinds"),
    ],
)
async def test_error_about_a_missing_kind_gives_the_remedy(
    server: FakeApiServer, client: ClusterClient, reply: object
) -> None:
    server.on("GET", RAY, reply)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFound) as caught:
        await Discovery(client).find("ray.io/v1", "RayCluster")
    assert str(caught.value) == (
        'no matches for kind "RayCluster" in version "ray.io/v1": '
        "install its CustomResourceDefinition, or correct apiVersion and kind"
    )
    assert caught.value.reason == ""


@pytest.mark.parametrize(
    ("kind", "similar"),
    [
        pytest.param("RayCluser", "RayCluster", id="letter-missing"),
        pytest.param("RayClutser", "RayCluster", id="letters-swapped"),
        pytest.param("raycluster", "RayCluster", id="lower-case"),
        pytest.param("rayclusters", "RayCluster", id="resource"),
        pytest.param("RayJobs", "RayJob", id="the-most-similar"),
        pytest.param("RayService", "", id="another-kind"),
        pytest.param("Widget", "", id="nothing-like-it"),
        pytest.param("RayCluster" * 1000, "", id="long"),
    ],
)
async def test_misspelt_kind_is_said_with_the_similar_kind_of_its_group_and_version(
    server: FakeApiServer, client: ClusterClient, kind: str, similar: str
) -> None:
    jobs = {"name": "rayjobs", "kind": "RayJob", "namespaced": True}
    server.on("GET", RAY, answer(serves(RAYCLUSTERS, jobs)))
    server.on("GET", "/api/v1", answer(serves({"name": "services", "kind": "Service", "namespaced": True})))
    discovery = Discovery(client)
    await discovery.load("v1")
    with pytest.raises(errors.NotFound) as caught:
        await discovery.find("ray.io/v1", kind)
    said = re.search(r"; did you mean (.*)\?$", str(caught.value))
    assert (said[1] if said else "") == similar


def test_similar_kinds_of_an_unbounded_list_are_compared_to_a_bound() -> None:
    many = [f"Ray{number:07}" for number in range(MOST_COMPARED)]
    assert most_similar("RayCluser", [*many[1:], "RayCluster"]) == "RayCluster"
    assert most_similar("RayCluser", [*many, "RayCluster"]) == ""


async def test_missing_kind_means_nothing_while_the_server_is_not_ready(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/readyz", text("[-]poststarthook/crd-informer-synced", 500))
    with pytest.raises(errors.Unavailable, match="not ready"):
        await Discovery(client).find("ray.io/v1", "RayCluster")


@pytest.mark.parametrize(
    "reply", [pytest.param(never, id="silence"), pytest.param(refusal(503, ""), id="failure")]
)
async def test_no_answer_is_no_missing_kind(
    server: FakeApiServer, client: ClusterClient, reply: object
) -> None:
    server.on("GET", RAY, reply)  # type: ignore[arg-type]
    with pytest.raises(errors.Unavailable):
        await Discovery(client).find("ray.io/v1", "RayCluster")


@pytest.mark.parametrize(
    ("verbs", "kept"),
    [
        pytest.param(["create", "delete", "get", "list", "watch"], True, id="an-object"),
        pytest.param(["create"], False, id="a-review"),
        pytest.param(["get", "list"], False, id="a-report"),
        pytest.param(None, True, id="not-said"),
    ],
)
async def test_kind_says_whether_its_objects_are_kept(
    server: FakeApiServer, client: ClusterClient, verbs: list[str] | None, kept: bool
) -> None:
    server.on("GET", RAY, answer(serves({**RAYCLUSTERS, **({"verbs": verbs} if verbs else {})})))
    assert (await Discovery(client).find("ray.io/v1", "RayCluster")).kept is kept


async def test_kind_installed_later_is_found_at_once(server: FakeApiServer, client: ClusterClient) -> None:
    discovery = Discovery(client)
    with pytest.raises(errors.NotFound):
        await discovery.find("ray.io/v1", "RayCluster")
    server.on("GET", RAY, answer(serves(RAYCLUSTERS)))
    assert (await discovery.find("ray.io/v1", "RayCluster")).plural == "rayclusters"


async def test_kind_found_to_be_gone_is_asked_for_anew(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", RAY, answer(serves(RAYCLUSTERS)), text("404 page not found", 404))
    discovery = Discovery(client)
    found = await discovery.find("ray.io/v1", "RayCluster")
    discovery.forget(found)
    with pytest.raises(errors.NotFound):
        await discovery.find("ray.io/v1", "RayCluster")


async def test_cluster_is_identified_by_its_kube_system_namespace(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/api/v1/namespaces/kube-system", answer({"metadata": {"uid": "the-cluster"}}))
    assert await cluster_uid(client) == "the-cluster"


SERVED = answer(serves(RAYCLUSTERS))
KEY = ("ray.io/v1", "RayCluster")


@pytest.mark.parametrize(
    ("then", "readyz", "is_served"),
    [
        pytest.param(text("404 page not found", 404), text("ok", 200), False, id="version-gone"),
        pytest.param(answer(serves()), text("ok", 200), False, id="kind-gone"),
        pytest.param(text("404 page not found", 404), text("no", 500), True, id="not-ready"),
        pytest.param(text("service unavailable", 503), text("ok", 200), True, id="no-answer"),
        pytest.param(answer({"resources": "?"}), text("ok", 200), True, id="nonsense"),
    ],
)
async def test_known_kind_is_forgotten_only_if_a_ready_server_lists_its_version_without_it(
    server: FakeApiServer, client: ClusterClient, then: Reply, readyz: Reply, is_served: bool
) -> None:
    server.on("GET", RAY, SERVED, then)
    discovery = Discovery(client)
    await discovery.find(*KEY)
    server.on("GET", "/readyz", readyz)
    with contextlib.suppress(errors.Unavailable):
        await discovery.load("ray.io/v1")
    assert discovery.serves(KEY) is is_served


async def test_hint_about_a_kind_says_that_its_api_does_not_answer(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", RAY, text("service unavailable", 503), SERVED)
    discovery = Discovery(client)
    with pytest.raises(errors.Unavailable):
        await discovery.load("ray.io/v1")
    assert discovery.hint(KEY).startswith("the API server does not say which kinds ray.io/v1 has: ")
    assert not discovery.serves(KEY)
    await discovery.load("ray.io/v1")
    assert (discovery.hint(KEY), discovery.serves(KEY)) == ("", True)
    assert discovery.hint(("ray.io/v1alpha1", "RayCluster")) == "it is served as ray.io/v1"


async def test_objects_are_found_in_another_version_once_their_own_is_not_served(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", "/apis/ray.io", answer({"versions": [{"groupVersion": "ray.io/v1"}]}))
    server.on("GET", RAY, SERVED)
    discovery = Discovery(client)
    found = await discovery.find_stored("ray.io/v1alpha1", "RayCluster")
    assert found.everywhere() == "/apis/ray.io/v1/rayclusters"
    with pytest.raises(errors.NotFound):
        await discovery.find_stored("ray.io/v1alpha1", "RayJob")
    with pytest.raises(errors.NotFound):
        await discovery.find("ray.io/v1alpha1", "RayCluster")


# --- Wrapped objects of declared kinds, as their watches and the object client have them -------------------


Json = dict[str, Any]

OWN = "platform.example.com/v1"
GROUP = f"/apis/{OWN}"
DECLARED = Kinds(
    (
        KindDeclaration(
            "platform.example.com",
            "Training",
            (PodSetDeclaration("spec.template", "spec.replicas"),),
            succeeded=("Trained",),
        ),
        KindDeclaration("platform.example.com", "Dataset"),
        KindDeclaration("platform.example.com", "Import", phase="status.phase", succeeded=("Done",)),
    )
)
TRAINED: Json = {"conditions": [{"type": "Trained", "status": "True"}]}


def serve(server: FakeApiServer, **listed: Json) -> None:
    """Serve one object of each of these kinds."""
    resources = [{"name": f"{each.lower()}s", "kind": each, "namespaced": True} for each in listed]
    server.on("GET", GROUP, answer({"resources": resources}))
    for kind, status in listed.items():
        script(server, f"{GROUP}/{kind.lower()}s", page(made(status=status)))


def ref(kind: str) -> ObjectRef:
    return ObjectRef(0, OWN, kind, "default", "x", "uid-of-x")


async def test_end_of_an_object_is_read_as_its_kind_declares(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, Training=TRAINED, Import={"phase": "Done"})
    async with running(server, client, DECLARED) as it:
        for kind in ("Training", "Import"):
            it.watches.want(OWN, kind)
        trained = ObjectState(End.SUCCEEDED, frozenset({"Trained"}))
        await until(lambda: it.watches.state(ref("Training")) == trained)
        await until(lambda: it.watches.state(ref("Import")) == ObjectState(End.SUCCEEDED))


async def test_same_object_is_open_where_its_kind_is_not_declared(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, Training=TRAINED)
    async with running(server, client) as it:
        it.watches.want(OWN, "Training")
        await until(
            lambda: it.watches.state(ref("Training")) == ObjectState(conditions=frozenset({"Trained"}))
        )


async def test_metadata_suffices_of_a_declared_kind_without_pods_and_without_an_end(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, Dataset={}, Import={})
    async with running(server, client, DECLARED) as it:
        for kind in ("Dataset", "Import"):
            it.watches.want(OWN, kind)
        await until(lambda: all(it.watches.state(ref(kind)) for kind in ("Dataset", "Import")))
        await until(lambda: len(server.asked) >= 5)
    accepted = {
        kind: [each.headers["Accept"] for each in server.requests(path=f"{GROUP}/{kind}s")]
        for kind in ("dataset", "import")
    }
    assert accepted == {"dataset": [METADATA_LIST, METADATA], "import": [JSON, JSON]}


async def test_declared_kind_is_watched_however_many_unknown_kinds_are_wrapped(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, Training=TRAINED)
    async with running(server, client, DECLARED) as it:
        wants_too_many(it.watches)
        it.watches.want(OWN, "Training")
        await until(lambda: it.watches.state(ref("Training")) is not None)

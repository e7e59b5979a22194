"""What somebody has changed of a wrapped object, as the API server has it now and as it was when we made it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.core.kinds.manifest import build
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects import object_client as module
from dispatcher.kube.objects.object_client import Created, ObjectClient
from tests.builders import make_owner, make_ref, make_template, make_wrapped
from tests.fakes import FakeApiServer, Reply, answer, refusal

Json = dict[str, Any]

OWNER = make_owner()
RAY = make_wrapped(make_template("RayCluster", "ray.io/v1", name="ray"))
SECRET = make_wrapped(
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}, "data": {"a": "b"}}
)
REF = make_ref(name="ray", uid="uid-of-ray")
COLLECTION = "/apis/ray.io/v1/namespaces/default/rayclusters"
OBJECT = f"{COLLECTION}/ray"
IMAGE = "spec.containers[0].image"
CPU = "spec.containers[0].resources.requests.cpu"


def raycluster(
    image: str = "busybox", cpu: str | None = "1", uid: str = "uid-of-ray", **metadata: object
) -> Json:
    """The RayCluster as the API server has it, of that image and asking for so much cpu, or for none."""
    raw = copy.deepcopy(build(RAY, OWNER))
    raw["metadata"] |= {"uid": uid, "resourceVersion": "7", **metadata}
    (container,) = raw["spec"]["containers"]
    container["image"] = image
    container["resources"] = {"requests": {"cpu": cpu}} if cpu else {}
    return raw


@pytest.fixture
def wrapped(server: FakeApiServer, client: ClusterClient) -> ObjectClient:
    """The wrapped objects of a cluster that serves RayClusters and Secrets."""
    kinds = {"/apis/ray.io/v1": ("rayclusters", "RayCluster"), "/api/v1": ("secrets", "Secret")}
    for path, (name, kind) in kinds.items():
        server.on("GET", path, answer({"resources": [{"name": name, "kind": kind, "namespaced": True}]}))
    return ObjectClient(client, Discovery(client))


async def created(wrapped: ObjectClient, server: FakeApiServer, raw: Json) -> None:
    """Have it created by us, and come out like that."""
    server.on("POST", COLLECTION, answer(raw, 201))
    assert await wrapped.create(RAY, OWNER) == Created(make_ref(name="ray", uid=raw["metadata"]["uid"]))


@pytest.mark.parametrize(
    ("now", "edits"),
    [
        pytest.param(answer(raycluster()), (), id="as-it-was-written"),
        pytest.param(answer(raycluster("other")), (IMAGE,), id="changed"),
        pytest.param(
            answer(raycluster(cpu=None)), ("spec.containers[0].resources.requests",), id="taken-away"
        ),
        pytest.param(refusal(404, "NotFound"), (), id="gone"),
        pytest.param(answer(raycluster("other", uid="a-successor")), (), id="another-of-that-name"),
        pytest.param(
            answer(raycluster("other", deletionTimestamp="2026-11-20T09:00:00Z")), (), id="on-its-way-out"
        ),
    ],
)
async def test_edits_are_the_present_differences(
    wrapped: ObjectClient, server: FakeApiServer, now: Reply, edits: tuple[str, ...]
) -> None:
    await created(wrapped, server, raycluster())
    server.on("GET", OBJECT, now)
    assert await wrapped.edits(RAY, REF, OWNER) == edits


async def test_change_by_a_webhook_at_creation_is_no_edit_until_the_field_changes_again(
    wrapped: ObjectClient, server: FakeApiServer
) -> None:
    await created(wrapped, server, raycluster("mirror/busybox"))
    versions = (raycluster("mirror/busybox"), raycluster("mirror/busybox", "2"), raycluster("other", "2"))
    server.on("GET", OBJECT, *map(answer, versions))
    assert [await wrapped.edits(RAY, REF, OWNER) for _ in versions] == [(), (CPU,), (IMAGE, CPU)]


async def test_missing_fields_of_an_object_created_by_another_process_are_no_edits(
    wrapped: ObjectClient, server: FakeApiServer
) -> None:
    server.on("GET", OBJECT, answer(raycluster("other", cpu=None)))
    assert await wrapped.edits(RAY, REF, OWNER) == (IMAGE,)


@pytest.mark.usefixtures("wrapped")
async def test_how_the_first_of_very_many_objects_were_made_is_forgotten(
    client: ClusterClient, server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2)
    wrapped = ObjectClient(client, Discovery(client))
    for uid in ("a", "b", "c"):
        await created(wrapped, server, raycluster(uid=uid))
    assert [wrapped.version_made(uid) for uid in ("a", "b", "c", "never")] == [None, "7", "7", None]


async def test_nothing_is_remembered_of_a_secret(wrapped: ObjectClient, server: FakeApiServer) -> None:
    raw = {"metadata": {"name": "token", "uid": "uid-of-token", "resourceVersion": "7"}, "data": {"a": "c"}}
    server.on("POST", "/api/v1/namespaces/default/secrets", answer(raw, 201))
    assert isinstance(await wrapped.create(SECRET, OWNER), Created)
    assert wrapped.version_made("uid-of-token") is None


async def test_object_that_may_not_be_read_is_an_error(wrapped: ObjectClient, server: FakeApiServer) -> None:
    server.on("GET", OBJECT, refusal(403, "Forbidden"))
    with pytest.raises(errors.Forbidden):
        await wrapped.edits(RAY, REF, OWNER)

"""Wrapped objects of declared kinds, as their watches and the object client have them."""

from __future__ import annotations

from typing import Any

from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.record import ObjectRef
from dispatcher.kube.client import JSON, METADATA, METADATA_LIST, ClusterClient
from tests.fakes import FakeApiServer, answer
from tests.unit.kube.test_object_informers import made, page, running, script, wants_too_many
from tests.unit.virtual_time import until

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

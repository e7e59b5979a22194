"""AppWrappers on the hub: read slimly, and written to only if they are the ones that are meant."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest

from dispatcher import errors
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.asked import Asked
from dispatcher.kube.appwrappers import AppWrappers, AppWrapperView, decode
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from tests.builders import make_appwrapper
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text

GROUP = "/apis/mcad.ibm.com/v1beta1"
OBJECT = f"{GROUP}/namespaces/default/mcadappwrappers/aw"


@pytest.fixture
def appwrappers(server: FakeApiServer, client: ClusterClient) -> AppWrappers:
    resource = {"name": "mcadappwrappers", "kind": "AppWrapper", "namespaced": True}
    server.on("GET", GROUP, answer({"resources": [resource]}))
    return AppWrappers(client, Discovery(client), "mcad.ibm.com")


def test_view_keeps_what_we_need_of_an_appwrapper() -> None:
    raw = make_appwrapper(
        spec={"priority": 9}, status={"state": "Pending"}, group="mcad.ibm.com", generation=3
    )
    view = decode(raw)
    assert view == AppWrapperView(
        uid="uid-of-aw",
        group="mcad.ibm.com",
        namespace="default",
        name="aw",
        created_at=datetime(2026, 11, 20, 8, 58, 6, tzinfo=UTC),
        resource_version="1",
        generation=3,
        deleting=False,
        spec=orjson.dumps(raw["spec"]),
        status={"state": "Pending"},
        asked=Asked(priority=9),
    )


def test_view_reads_what_is_asked_of_us_as_it_is_now() -> None:
    grace = {"workload.codeflare.dev.appwrapper/retryLimit": "5", "another": "note"}
    spec: dict[str, object] = {"resources": None, "components": [{"template": {}}], "suspend": True}
    view = decode(make_appwrapper(spec=spec, annotations=grace))
    assert (view.asked, view.tolerance, view.has_components, view.is_ours) == (
        Asked(suspend=True),
        FaultTolerance(retry_limit=5),
        True,
        True,
    )


@pytest.mark.parametrize(
    ("manager", "is_ours"),
    [
        (None, True),
        ("workload.codeflare.dev/appwrapper-controller", True),
        ("kueue.x-k8s.io/multikueue", False),
    ],
)
def test_appwrapper_that_another_controller_manages_is_not_ours(manager: str | None, is_ours: bool) -> None:
    assert decode(make_appwrapper(spec={"managedBy": manager})).is_ours is is_ours


def test_appwrapper_on_its_way_out_is_deleting() -> None:
    assert decode(make_appwrapper(deletionTimestamp="2026-11-20T09:00:00Z")).deleting


def test_equal_specs_have_one_hash_and_others_another() -> None:
    first, second = decode(make_appwrapper("a")), decode(make_appwrapper("b"))
    other = decode(make_appwrapper("a", spec={"priority": 9}))
    assert first.spec_hash == second.spec_hash != other.spec_hash
    assert replace(first, status={"state": "Running"}).spec_hash == first.spec_hash


async def test_collection_is_found_under_whatever_plural_the_cluster_has(appwrappers: AppWrappers) -> None:
    assert await appwrappers.collection() == f"{GROUP}/mcadappwrappers"


async def test_plural_of_mcads_own_definition_is_found_where_that_is_installed(
    server: FakeApiServer, client: ClusterClient
) -> None:
    resource = {"name": "appwrappers", "kind": "AppWrapper", "namespaced": True}
    server.on("GET", GROUP, answer({"resources": [resource, {**resource, "name": "appwrappers/status"}]}))
    assert await AppWrappers(client, Discovery(client), "mcad.ibm.com").collection() == f"{GROUP}/appwrappers"


@pytest.mark.parametrize(
    ("reply", "exists"),
    [
        pytest.param(answer(make_appwrapper()), True, id="there"),
        pytest.param(answer(make_appwrapper(uid="a-successor")), False, id="a-successor-of-that-name"),
        pytest.param(refusal(404, "NotFound"), False, id="not-there"),
    ],
)
async def test_appwrapper_exists_if_the_server_has_that_very_one(
    server: FakeApiServer, appwrappers: AppWrappers, reply: Reply, exists: bool
) -> None:
    server.on("GET", OBJECT, reply)
    assert await appwrappers.exists("default", "aw", "uid-of-aw") is exists


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(text("404 page not found", 404), id="its-kind-is-not-served-now"),
        pytest.param(never, id="silence"),
        pytest.param(refusal(500, "InternalError"), id="failure"),
    ],
)
async def test_no_clear_answer_is_no_absence(
    server: FakeApiServer, appwrappers: AppWrappers, reply: Reply
) -> None:
    server.on("GET", OBJECT, reply)
    with pytest.raises(errors.Unavailable):
        await appwrappers.exists("default", "aw", "uid-of-aw")


async def test_missing_kind_is_no_absence(client: ClusterClient) -> None:
    with pytest.raises(errors.Unavailable, match=r"^mcad\.ibm\.com is not served: no matches for kind"):
        await AppWrappers(client, Discovery(client), "mcad.ibm.com").exists("default", "aw", "uid")


async def test_status_is_written_to_that_uid_only(server: FakeApiServer, appwrappers: AppWrappers) -> None:
    written = make_appwrapper(resourceVersion="17")
    server.on("PATCH", f"{OBJECT}/status", answer(written))
    view = decode(make_appwrapper(group="mcad.ibm.com"))

    assert await appwrappers.write_status(view, {"state": "Running"}) == "17"

    (patch,) = server.requests("PATCH")
    assert patch.headers["Content-Type"] == "application/json-patch+json"
    assert patch.body == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-of-aw"},
        {"op": "add", "path": "/status", "value": {"state": "Running"}},
    ]

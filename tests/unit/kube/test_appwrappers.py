"""AppWrappers on the hub: read slimly, and written to only if they are the ones that are meant."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.annotations import FaultTolerance, Submitter
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.appwrappers import AppWrappers, AppWrapperView, decode
from tests.builders import make_appwrapper
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text
from tests.unit.virtual_time import monotonic

GROUP = "/apis/mcad.ibm.com/v1beta1"
OBJECT = f"{GROUP}/namespaces/default/mcadappwrappers/aw"


@pytest.fixture
def appwrappers(server: FakeApiServer, client: ClusterClient) -> AppWrappers:
    resource = {"name": "mcadappwrappers", "kind": "AppWrapper", "namespaced": True}
    server.on("GET", GROUP, answer({"resources": [resource]}))
    return AppWrappers(client, Discovery(client), "mcad.ibm.com")


def test_view_keeps_the_needed_fields_of_an_appwrapper() -> None:
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
        status_json=b'{"state":"Pending"}',
        mutable_spec=MutableSpec(priority=9),
    )


def test_view_reads_the_present_mutable_spec_and_annotations() -> None:
    grace = {"workload.codeflare.dev.appwrapper/retryLimit": "5", "another": "note"}
    spec: dict[str, object] = {"resources": None, "components": [{"template": {}}], "suspend": True}
    view = decode(make_appwrapper(spec=spec, annotations=grace))
    assert (view.mutable_spec, view.tolerance, view.has_components, view.is_ours) == (
        MutableSpec(suspend=True),
        FaultTolerance(retry_limit=5),
        True,
        True,
    )


def test_view_keeps_the_labels_that_may_name_a_queue() -> None:
    labels = {"kai.scheduler/queue": "team", "context": "gold", "app.kubernetes.io/name": "x"}
    assert decode(make_appwrapper(labels=labels)).labels == {"kai.scheduler/queue": "team", "context": "gold"}


def test_view_has_the_submitter_from_the_annotations() -> None:
    written = {"dispatcher.codeflare.dev/user": "alice", "dispatcher.codeflare.dev/groups": "vision\nllm"}
    view = decode(make_appwrapper(annotations={**written, "another": "note"}))
    assert view.submitter == Submitter("alice", ("vision", "llm"))


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
    assert replace(first, status_json=b"{}").spec_hash == first.spec_hash


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


UNCLEAR = [
    pytest.param(text("404 page not found", 404), id="its-kind-is-not-served-now"),
    pytest.param(never, id="silence"),
    pytest.param(refusal(500, "InternalError"), id="failure"),
]


@pytest.mark.parametrize("reply", UNCLEAR)
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

    assert await appwrappers.write_status(view, b'{"state":"Running"}') == "17"

    (patch,) = server.requests("PATCH")
    assert patch.headers["Content-Type"] == "application/json-patch+json"
    assert patch.body == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-of-aw"},
        {"op": "add", "path": "/status", "value": {"state": "Running"}},
    ]


async def test_status_is_written_at_one_resource_version_if_asked(
    server: FakeApiServer, appwrappers: AppWrappers
) -> None:
    server.on("PATCH", f"{OBJECT}/status", refusal(409, "Conflict"))
    with pytest.raises(errors.Conflict):
        await appwrappers.write_status(decode(make_appwrapper(group="mcad.ibm.com")), b"{}", only_at="16")
    (patch,) = server.requests("PATCH")
    assert patch.body[-1] == {"op": "add", "path": "/metadata/resourceVersion", "value": "16"}


@pytest.mark.parametrize(
    ("spec", "only_at", "seconds"),
    [
        pytest.param({"a": "x" * 300_000}, "16", 30, id="too-large"),
        pytest.param({"a": "x" * 300_000}, None, 5, id="too-large-at-any-version"),
        pytest.param({}, "16", 5, id="small"),
    ],
)
async def test_status_may_take_long_if_it_is_large_and_replaces_nothing_later(
    server: FakeApiServer,
    appwrappers: AppWrappers,
    spec: dict[str, object],
    only_at: str | None,
    seconds: float,
) -> None:
    server.on("PATCH", f"{OBJECT}/status", never)
    asked_at = monotonic()
    with pytest.raises(errors.Unavailable):
        await appwrappers.write_status(
            decode(make_appwrapper(spec=spec, group="mcad.ibm.com")), b"{}", only_at
        )
    assert monotonic() - asked_at == pytest.approx(seconds, abs=0.1)


# --- held while a member cluster may have objects of it ------------------------------------------------------

FINALIZER = "dispatcher.codeflare.dev/member-cluster"
GOING = {"deletionTimestamp": "2026-11-20T09:00:00Z"}


def test_view_reads_the_wanted_clusters_and_our_finalizer() -> None:
    selector = {"dispatcher.codeflare.dev/cluster-selector": "zone in (east, west)"}
    views = [
        decode(make_appwrapper(annotations=selector, finalizers=["example.com/keep", FINALIZER])),
        decode(make_appwrapper(annotations={"note": "mine"}, finalizers=["example.com/keep"])),
        decode(make_appwrapper(annotations=None, finalizers=None)),
    ]
    assert [(view.cluster_annotations, view.has_finalizer) for view in views] == [
        (selector, True),
        ({}, False),
        ({}, False),
    ]


def seen(**metadata: Any) -> AppWrapperView:  # noqa: ANN401
    """It as the watch has it, which may be older than what the server has."""
    return decode(make_appwrapper(group="mcad.ibm.com", **metadata))


def there(*finalizers: str, **metadata: Any) -> Reply:  # noqa: ANN401
    return answer(make_appwrapper(finalizers=list(finalizers), resourceVersion="17", **metadata))


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([], id="it-has-no-finalizer"),
        pytest.param(["example.com/keep", "example.com/audit"], id="it-has-those-of-others"),
    ],
)
async def test_finalizer_is_added_beside_others(
    server: FakeApiServer, appwrappers: AppWrappers, others: list[str]
) -> None:
    server.on("GET", OBJECT, there(*others))
    server.on("PATCH", OBJECT, answer({}))

    assert await appwrappers.add_finalizer(seen())

    (patch,) = server.requests("PATCH")
    assert patch.headers["Content-Type"] == "application/merge-patch+json"
    assert patch.body == {
        "metadata": {"uid": "uid-of-aw", "resourceVersion": "17", "finalizers": [*others, FINALIZER]}
    }


async def test_finalizer_is_added_where_there_is_no_list_of_finalizers(
    server: FakeApiServer, appwrappers: AppWrappers
) -> None:
    server.on("GET", OBJECT, answer(make_appwrapper()))
    server.on("PATCH", OBJECT, answer({}))
    assert await appwrappers.add_finalizer(seen())
    (patch,) = server.requests("PATCH")
    assert patch.body["metadata"]["finalizers"] == [FINALIZER]


async def test_finalizer_that_the_view_has_needs_no_request(
    server: FakeApiServer, appwrappers: AppWrappers
) -> None:
    assert await appwrappers.add_finalizer(seen(finalizers=[FINALIZER]))
    assert not server.requests()


async def test_finalizer_that_the_server_has_is_not_added_twice(
    server: FakeApiServer, appwrappers: AppWrappers
) -> None:
    server.on("GET", OBJECT, there(FINALIZER, "example.com/keep"))
    assert await appwrappers.add_finalizer(seen())
    assert not server.requests("PATCH")


TOO_LATE = [
    pytest.param(there("example.com/keep", **GOING), id="being-deleted"),
    pytest.param(there(uid="a-successor"), id="a-successor-of-that-name"),
    pytest.param(refusal(404, "NotFound"), id="gone"),
]


@pytest.mark.parametrize(
    "reply", [*TOO_LATE, pytest.param(there(FINALIZER, **GOING), id="has-our-finalizer-and-is-deleted")]
)
async def test_finalizer_is_not_added_to_an_appwrapper_that_is_deleted_or_gone(
    server: FakeApiServer, appwrappers: AppWrappers, reply: Reply
) -> None:
    server.on("GET", OBJECT, reply)
    assert not await appwrappers.add_finalizer(seen())
    assert not server.requests("PATCH")


@pytest.mark.parametrize("going", [pytest.param({}, id="it-stays"), pytest.param(GOING, id="it-is-deleted")])
async def test_finalizer_is_removed_and_others_stay(
    server: FakeApiServer, appwrappers: AppWrappers, going: dict[str, str]
) -> None:
    server.on("GET", OBJECT, there("example.com/keep", FINALIZER, "example.com/audit", **going))
    server.on("PATCH", OBJECT, answer({}))

    await appwrappers.remove_finalizer(seen(finalizers=[FINALIZER]))

    (patch,) = server.requests("PATCH")
    assert patch.body == {
        "metadata": {
            "uid": "uid-of-aw",
            "resourceVersion": "17",
            "finalizers": ["example.com/keep", "example.com/audit"],
        }
    }


@pytest.mark.parametrize(
    "reply",
    [
        *TOO_LATE,
        pytest.param(there(FINALIZER, uid="a-successor"), id="a-successor-with-our-finalizer"),
        pytest.param(there("example.com/keep"), id="removed-already"),
    ],
)
async def test_nothing_is_written_where_our_finalizer_is_not(
    server: FakeApiServer, appwrappers: AppWrappers, reply: Reply
) -> None:
    server.on("GET", OBJECT, reply)
    await appwrappers.remove_finalizer(seen(finalizers=[FINALIZER]))
    assert not server.requests("PATCH")


async def test_finalizers_changed_meanwhile_by_another_client_are_not_overwritten(
    server: FakeApiServer, appwrappers: AppWrappers
) -> None:
    server.on("GET", OBJECT, there())
    server.on("PATCH", OBJECT, refusal(409, "Conflict"))
    with pytest.raises(errors.Conflict):
        await appwrappers.add_finalizer(seen())


@pytest.mark.parametrize("reply", UNCLEAR)
async def test_no_clear_answer_about_finalizers_raises(
    server: FakeApiServer, appwrappers: AppWrappers, reply: Reply
) -> None:
    server.on("GET", OBJECT, reply)
    with pytest.raises(errors.Unavailable):
        await appwrappers.add_finalizer(seen())
    with pytest.raises(errors.Unavailable):
        await appwrappers.remove_finalizer(seen())

"""Creating and deleting wrapped objects: what follows from each answer, and from no answer."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api import names
from dispatcher.core.kinds.asked import NOT_KNOWN, Asked
from dispatcher.core.kinds.manifest import Anchor, adoption, build, reference
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.kinds.template_fields import fields_alone
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.client import MERGE_PATCH, METADATA_LIST, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.object_client import (
    Created,
    Creation,
    InTheWay,
    Mark,
    NameTaken,
    NotServed,
    ObjectClient,
    Postponed,
    RefusedForGood,
)
from dispatcher.kube.paging import FIRST_PAGE, PAGE
from dispatcher.kube.questions import SELF_PATH
from tests.builders import make_appwrapper, make_owner, make_ref, make_template, make_wrapped
from tests.fakes import FakeApiServer, Reply, answer, hang_up, never, refusal, text

Json = dict[str, Any]

OWNER = make_owner(attempt=2)
RAY = make_wrapped(make_template("RayCluster", "ray.io/v1", name="ray"))
COLLECTION = "/apis/ray.io/v1/namespaces/default/rayclusters"
OBJECT = f"{COLLECTION}/ray"
APPWRAPPERS = "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers"
WANTED = ObjectRef(0, "ray.io/v1", "RayCluster", "default", "ray")
TAKEN = refusal(409, "AlreadyExists")
MISSING = refusal(404, "NotFound", 'rayclusters.ray.io "ray" not found')
NOT_SERVED = text("404 page not found\n", 404)


def reviewed(allowed: bool) -> Reply:
    """The API server's answer about a right of the dispatcher."""
    return answer({"status": {"allowed": allowed}}, 201)


def existing(owner: object = OWNER, uid: str = "uid-of-ray", **metadata: object) -> Json:
    """The RayCluster as the API server has it, created for `owner`."""
    built = build(RAY, owner)  # type: ignore[arg-type]
    return {**built, "metadata": {**built["metadata"], "uid": uid, **metadata}}


def foreign(**metadata: object) -> Json:
    return {"metadata": {"name": "ray", "namespace": "default", "uid": "uid-of-ray", **metadata}}


@pytest.fixture
def wrapped(server: FakeApiServer, client: ClusterClient) -> ObjectClient:
    """The wrapped objects of a cluster that serves RayClusters, AppWrappers, and ClusterRoles."""
    kinds = {
        "/api/v1": ("configmaps", "ConfigMap", True),
        "/apis/ray.io/v1": ("rayclusters", "RayCluster", True),
        "/apis/workload.codeflare.dev/v1beta1": ("appwrappers", "AppWrapper", True),
        "/apis/rbac.authorization.k8s.io/v1": ("clusterroles", "ClusterRole", False),
    }
    for path, (name, kind, namespaced) in kinds.items():
        resource = {"name": name, "kind": kind, "namespaced": namespaced}
        server.on("GET", path, answer({"resources": [resource]}))
    return ObjectClient(client, Discovery(client))


def script(
    server: FakeApiServer,
    *,
    post: Reply,
    get: Reply = MISSING,
    owner: Reply = MISSING,
    anchor: Reply = MISSING,
    review: Reply = NOT_SERVED,
) -> None:
    server.on("POST", SELF_PATH, review)
    server.on("POST", COLLECTION, post)
    server.on("GET", OBJECT, get)
    server.on("DELETE", OBJECT, answer({}))
    server.on("GET", f"{APPWRAPPERS}/other", owner)
    server.on("GET", "/api/v1/namespaces/default/configmaps/appwrapper-uid-of-other-7", anchor)


OTHER = make_owner("other")
ANCHORED = replace(OTHER, attempt=7, anchor=Anchor("appwrapper-uid-of-other-7", "a"))

CREATIONS = [
    pytest.param(
        {"post": answer(existing(), 201)}, Created(make_ref(name="ray", uid="uid-of-ray")), id="created"
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing())},
        Created(make_ref(name="ray", uid="uid-of-ray")),
        id="created-before-by-this-attempt",
    ),
    pytest.param(
        {"post": never, "get": answer(existing())},
        Created(make_ref(name="ray", uid="uid-of-ray")),
        id="answer-lost-but-created",
    ),
    pytest.param(
        {"post": refusal(500, "InternalError"), "get": answer(existing())},
        Created(make_ref(name="ray", uid="uid-of-ray")),
        id="failure-of-the-server-but-created",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(deletionTimestamp="2026-11-20T09:00:00Z"))},
        InTheWay("RayCluster default/ray is still being deleted"),
        id="terminating",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(make_owner(attempt=1)))},
        InTheWay("RayCluster default/ray of an earlier attempt is being deleted"),
        id="of-an-earlier-attempt",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(make_owner(attempt=3)))},
        InTheWay("RayCluster default/ray of a later attempt exists: was the database restored?"),
        id="of-a-later-attempt",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(foreign())},
        NameTaken(
            "RayCluster default/ray exists already and is not this AppWrapper's; "
            "delete it or choose another name"
        ),
        id="foreign",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(OTHER)), "owner": answer(make_appwrapper("other"))},
        NameTaken(
            "RayCluster default/ray exists already and is not this AppWrapper's; "
            "delete it or choose another name"
        ),
        id="of-another-appwrapper",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(ANCHORED)), "anchor": answer({"metadata": {"uid": "a"}})},
        NameTaken(
            "RayCluster default/ray exists already and is not this AppWrapper's; "
            "delete it or choose another name",
            Mark("uid-of-other", 7),
            "RayCluster default/ray of an attempt that is over is to be removed",
        ),
        id="under-an-anchor-of-this-hub",
    ),
    pytest.param(
        {
            "post": TAKEN,
            "get": answer(existing(replace(ANCHORED, hub_id="b"))),
            "anchor": answer({"metadata": {"uid": "a"}}),
        },
        NameTaken(
            "RayCluster default/ray exists already and is not this AppWrapper's; "
            "delete it or choose another name"
        ),
        id="under-an-anchor-of-another-hub",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(ANCHORED))},
        InTheWay("RayCluster default/ray of a deleted AppWrapper is going"),
        id="whose-anchor-is-gone",
    ),
    pytest.param(
        {"post": TAKEN, "get": answer(existing(OTHER))},
        InTheWay("RayCluster default/ray of a deleted AppWrapper is going"),
        id="of-an-appwrapper-that-is-gone",
    ),
    pytest.param(
        {
            "post": TAKEN,
            "get": answer(existing(OTHER)),
            "owner": answer(make_appwrapper("other", uid="a-successor")),
        },
        InTheWay("RayCluster default/ray of a deleted AppWrapper is going"),
        id="of-an-appwrapper-deleted-and-applied-again",
    ),
    pytest.param(
        {
            "post": TAKEN,
            "get": answer(existing(OTHER)),
            "owner": answer(make_appwrapper("other", deletionTimestamp="2026-11-20T09:00:00Z")),
        },
        InTheWay("RayCluster default/ray of a deleted AppWrapper is going"),
        id="of-an-appwrapper-on-its-way-out",
    ),
    pytest.param(
        {"post": TAKEN},
        InTheWay("RayCluster default/ray is not there yet; trying again"),
        id="taken-and-gone-when-looked-at",
    ),
    pytest.param(
        {"post": refusal(403, "Forbidden", 'forbidden: exceeded quota: "team", requested: pods=2')},
        Postponed('forbidden: exceeded quota: "team", requested: pods=2'),
        id="over-a-quota",
    ),
    pytest.param(
        {"post": refusal(403, "Forbidden", "User cannot create rayclusters")},
        RefusedForGood("User cannot create rayclusters"),
        id="not-allowed",
    ),
    pytest.param(
        {"post": refusal(403, "Forbidden", "User cannot create rayclusters"), "review": reviewed(False)},
        Postponed("User cannot create rayclusters"),
        id="a-kind-that-the-dispatcher-may-not-create",
    ),
    pytest.param(
        {"post": refusal(403, "Forbidden", "cannot create: not signed"), "review": reviewed(True)},
        RefusedForGood("cannot create: not signed"),
        id="an-object-that-a-policy-refuses",
    ),
    pytest.param(
        {"post": refusal(403, "Forbidden", "may not"), "review": refusal(403, "Forbidden", "may not ask")},
        RefusedForGood("may not"),
        id="not-allowed-to-ask-for-the-right",
    ),
    pytest.param(
        {"post": refusal(422, "Invalid", "spec.headGroupSpec: Required value")},
        RefusedForGood("spec.headGroupSpec: Required value"),
        id="invalid",
    ),
    pytest.param(
        {"post": refusal(404, "NotFound", 'namespaces "default" not found')},
        RefusedForGood('namespaces "default" not found'),
        id="no-such-namespace",
    ),
    pytest.param(
        {"post": refusal(409, "Conflict", "Operation cannot be fulfilled on resourcequotas: modified")},
        InTheWay("RayCluster default/ray is not there yet; trying again"),
        id="a-quota-was-written-to-at-the-same-moment",
    ),
]


async def test_refusal_by_a_server_that_just_started_is_tried_again_when_it_is_ready(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    """It has not read its roles yet."""
    server.on("POST", COLLECTION, refusal(403, "Forbidden"), answer(existing(), 201))

    assert await wrapped.create(RAY, OWNER) == Created(make_ref(name="ray", uid="uid-of-ray"))


async def test_creation_that_a_quota_forbids_is_not_tried_again_at_once(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    said = "forbidden: exceeded quota: tight"
    server.on("POST", COLLECTION, refusal(403, "Forbidden", said), answer(existing(), 201))
    assert await wrapped.create(RAY, OWNER) == Postponed(said)


async def test_refusal_by_a_server_that_is_not_ready_is_no_answer(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    script(server, post=refusal(403, "Forbidden"))
    server.on("GET", "/readyz", text("[-]informer-sync failed", 500))

    with pytest.raises(errors.Unavailable):
        await wrapped.create(RAY, OWNER)


async def test_refusal_without_an_answer_about_the_right_is_no_answer(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    script(server, post=refusal(403, "Forbidden"), review=hang_up)

    with pytest.raises(errors.Unavailable):
        await wrapped.create(RAY, OWNER)


async def test_creation_with_a_lost_answer_and_no_object_raises_unavailable(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    server.on("POST", COLLECTION, hang_up)

    with pytest.raises(errors.Unavailable):
        await wrapped.create(RAY, make_owner(attempt=2))


@pytest.mark.parametrize(("replies", "expected"), CREATIONS)
async def test_outcome_of_a_creation(
    server: FakeApiServer, wrapped: ObjectClient, replies: dict[str, Reply], expected: Creation
) -> None:
    script(server, **replies)
    assert await wrapped.create(RAY, OWNER) == expected


async def test_created_object_is_sent_as_it_was_built_and_only_once(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    script(server, post=answer(existing(), 201))
    await wrapped.create(RAY, OWNER)
    assert [each.body for each in server.requests("POST")] == [build(RAY, OWNER)]


@pytest.mark.parametrize("validation", ["Strict", "Warn", "Ignore"])
async def test_creation_sends_the_field_validation_setting_to_the_api_server(
    server: FakeApiServer, client: ClusterClient, wrapped: ObjectClient, validation: str
) -> None:
    script(server, post=answer(existing(), 201))
    await ObjectClient(client, Discovery(client), field_validation=validation).create(RAY, OWNER)
    assert [each.query["fieldValidation"] for each in server.requests("POST")] == [validation]


@pytest.mark.parametrize(
    ("post", "dry_runs", "warnings"),
    [
        pytest.param([answer(existing(), 201, "unknown")], 0, ("unknown",), id="created"),
        pytest.param([answer(existing(), 201)], 0, (), id="created-without"),
        pytest.param(
            [refusal(409, "AlreadyExists", warning="unknown")], 0, ("unknown",), id="created-before-a-crash"
        ),
        pytest.param(
            [hang_up, refusal(409, "AlreadyExists", warning="unknown")], 1, ("unknown",), id="answer-lost"
        ),
        pytest.param([hang_up, hang_up], 1, (), id="both-answers-lost"),
        pytest.param(
            [refusal(403, "Forbidden", warning="old"), answer(existing(), 201, "new")],
            0,
            ("new",),
            id="retried",
        ),
    ],
)
async def test_warnings_of_a_creation_come_from_its_last_answer_or_are_found_again(
    server: FakeApiServer, wrapped: ObjectClient, post: list[Reply], dry_runs: int, warnings: tuple[str, ...]
) -> None:
    server.on("GET", OBJECT, answer(existing()))
    server.on("POST", COLLECTION, *post)
    made = make_ref(name="ray", uid="uid-of-ray")
    assert await wrapped.create(RAY, OWNER) == Created(made, warnings)
    assert [each.query.get("dryRun") for each in server.requests("POST")].count("All") == dry_runs


@pytest.mark.parametrize(
    ("post", "warnings"),
    [
        pytest.param(answer(existing(), 201), (), id="none"),
        pytest.param(answer(existing(), 201, "unknown field spec.a"), ("unknown field spec.a",), id="one"),
        pytest.param(answer(existing(), 201, "v1 is deprecated"), (), id="another-warning"),
        pytest.param(
            refusal(409, "AlreadyExists", warning="unknown field a"), ("unknown field a",), id="name-taken"
        ),
        pytest.param(
            refusal(400, "BadRequest", warning="unknown field a"), ("unknown field a",), id="refused"
        ),
        pytest.param(
            refusal(403, "Forbidden", warning="unknown field a"),
            ("unknown field a",),
            id="refused-by-a-webhook",
        ),
    ],
)
async def test_unknown_fields_are_found_without_a_creation(
    server: FakeApiServer, wrapped: ObjectClient, post: Reply, warnings: tuple[str, ...]
) -> None:
    server.on("POST", COLLECTION, post)
    assert await wrapped.unknown_fields(RAY, OWNER.namespace) == warnings
    (sent,) = server.requests("POST")
    fields = fields_alone(RAY.template, OWNER.namespace)
    assert (sent.query, sent.body) == ({"dryRun": "All", "fieldValidation": "Warn"}, fields)


@pytest.mark.parametrize(
    ("post", "error"),
    [
        pytest.param(refusal(503, "ServiceUnavailable"), errors.Unavailable, id="no-answer"),
        pytest.param(refusal(429, "TooManyRequests"), errors.Throttled, id="throttled"),
        pytest.param(refusal(403, "Forbidden"), errors.Forbidden, id="forbidden-perhaps-by-a-missing-role"),
    ],
)
async def test_unknown_fields_are_not_known_without_an_answer(
    server: FakeApiServer, wrapped: ObjectClient, post: Reply, error: type[Exception]
) -> None:
    server.on("POST", COLLECTION, post)
    with pytest.raises(error):
        await wrapped.unknown_fields(RAY, OWNER.namespace)


async def test_object_of_an_earlier_attempt_is_deleted_by_its_uid(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    script(server, post=TAKEN, get=answer(existing(make_owner(attempt=1))))
    await wrapped.create(RAY, OWNER)
    (deletion,) = server.requests("DELETE")
    assert (deletion.path, deletion.body["preconditions"]) == (OBJECT, {"uid": "uid-of-ray"})


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(foreign(), id="foreign"),
        pytest.param(existing(OTHER), id="of-another-appwrapper"),
        pytest.param(existing(make_owner(attempt=3)), id="of-a-later-attempt"),
    ],
)
async def test_object_that_is_not_ours_is_never_touched(
    server: FakeApiServer, wrapped: ObjectClient, found: Json
) -> None:
    script(server, post=TAKEN, get=answer(found), owner=answer(make_appwrapper("other")))
    await wrapped.create(RAY, OWNER)
    await wrapped.remove(reference(RAY, OWNER), OWNER)
    assert {each.method for each in server.asked} == {"GET", "POST"}


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        pytest.param({"post": NOT_SERVED, "get": NOT_SERVED}, errors.Unavailable, id="path-not-served-now"),
        pytest.param({"post": never, "get": never}, errors.Unavailable, id="nobody-can-say"),
        pytest.param({"post": refusal(429, "TooManyRequests")}, errors.Throttled, id="throttled"),
        pytest.param({"post": refusal(401, "Unauthorized")}, errors.Unauthorized, id="bad-credentials"),
        pytest.param({"post": never, "get": refusal(403, "Forbidden")}, errors.Forbidden, id="may-not-look"),
    ],
)
async def test_creation_with_an_unknown_result_must_be_repeated(
    server: FakeApiServer,
    wrapped: ObjectClient,
    replies: dict[str, Reply],
    error: type[errors.ClusterError],
) -> None:
    script(server, **replies)
    with pytest.raises(error):
        await wrapped.create(RAY, OWNER)


async def test_creation_must_be_repeated_while_discovery_of_the_kind_fails(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    server.on("GET", "/apis/ray.io/v1", refusal(503, "ServiceUnavailable"))
    with pytest.raises(errors.Unavailable):
        await wrapped.create(RAY, OWNER)
    assert server.requests("POST") == []


async def test_kind_that_is_not_installed_is_to_be_waited_for(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    widget = make_wrapped(make_template("Widget", "example.com/v1", name="w"))
    outcome = await wrapped.create(widget, OWNER)
    assert isinstance(outcome, NotServed)
    assert outcome.message.startswith('no matches for kind "Widget" in version "example.com/v1": install')


@pytest.mark.parametrize(
    ("post", "then"),
    [
        pytest.param(NOT_SERVED, NOT_SERVED, id="removed"),
        pytest.param(
            refusal(
                405,
                "MethodNotAllowed",
                "create not allowed while custom resource definition is terminating",
            ),
            NOT_SERVED,
            id="being-removed",
        ),
    ],
)
async def test_kind_with_a_removed_definition_is_to_be_waited_for_and_looked_up_again(
    server: FakeApiServer, client: ClusterClient, post: Reply, then: Reply
) -> None:
    served = answer({"resources": [{"name": "rayclusters", "kind": "RayCluster", "namespaced": True}]})
    server.on("GET", "/apis/ray.io/v1", served, then)
    server.on("POST", COLLECTION, post)
    discovery = Discovery(client)
    outcome = await ObjectClient(client, discovery).create(RAY, OWNER)
    assert isinstance(outcome, NotServed)
    assert not discovery.serves(("ray.io/v1", "RayCluster"))


async def test_kind_that_loses_the_verb_create_is_to_be_waited_for(
    server: FakeApiServer, client: ClusterClient
) -> None:
    verbs = ["delete", "deletecollection", "get", "list", "watch"]
    resource = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True, "verbs": verbs}
    server.on("GET", "/apis/ray.io/v1", answer({"resources": [resource]}))
    outcome = await ObjectClient(client, Discovery(client)).create(RAY, OWNER)
    assert outcome == NotServed("RayCluster of ray.io/v1 is not served: its definition is being removed")
    assert server.requests("POST") == []


async def test_object_in_a_version_that_is_not_served_any_more_is_not_taken_for_gone(
    server: FakeApiServer, client: ClusterClient
) -> None:
    old = make_wrapped(make_template("RayCluster", "ray.io/v1alpha1", name="ray"))
    raw = build(old, OWNER)
    found = {**raw, "metadata": {**raw["metadata"], "uid": "uid-of-ray", "resourceVersion": "1"}}
    server.on("GET", "/apis/ray.io", answer({"versions": [{"groupVersion": "ray.io/v1"}]}))
    resource = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}
    server.on("GET", "/apis/ray.io/v1", answer({"resources": [resource]}))
    server.on("GET", f"{COLLECTION}/ray", answer(found))
    wrapped = ObjectClient(client, Discovery(client))
    assert not await wrapped.is_gone(reference(old, OWNER), OWNER.uid)
    server.on("GET", f"{COLLECTION}/ray", MISSING)
    assert await wrapped.is_gone(reference(old, OWNER), OWNER.uid)


async def test_kind_with_objects_that_are_not_stored_is_refused_and_nothing_is_sent(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    resource = {"name": "bindings", "kind": "Binding", "namespaced": True, "verbs": ["create"]}
    server.on("GET", "/api/v1", answer({"resources": [resource]}))
    assert await wrapped.create(make_wrapped(make_template("Binding", name="x")), OWNER) == RefusedForGood(
        "Binding cannot be wrapped: the API server keeps no such objects"
    )
    assert server.requests("POST") == []


async def test_cluster_scoped_kind_is_refused_and_nothing_is_sent(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    role = make_wrapped(make_template("ClusterRole", "rbac.authorization.k8s.io/v1", name="admin"))
    assert await wrapped.create(role, OWNER) == RefusedForGood(
        "ClusterRole is cluster-scoped: an AppWrapper creates objects in its namespace only"
    )
    assert server.requests("POST") == []


# --- removal -------------------------------------------------------------------------------------------

LOOKS = [
    pytest.param("", existing(), False, id="there"),
    pytest.param("uid-of-ray", existing(), False, id="there-with-the-uid-we-know"),
    pytest.param("uid-of-ray", existing(deletionTimestamp="2026-11-20T09:00:00Z"), False, id="terminating"),
    pytest.param("uid-of-ray", None, True, id="not-there"),
    pytest.param("uid-of-ray", existing(uid="a-successor"), True, id="replaced-by-another-object"),
    pytest.param("uid-of-ray", foreign(), True, id="orphaned"),
    pytest.param("", foreign(), True, id="a-foreign-object-in-its-place"),
    pytest.param("", existing(make_owner("other")), True, id="of-another-appwrapper"),
]


@pytest.mark.parametrize(("uid", "found", "gone"), LOOKS)
async def test_object_is_gone_when_the_server_has_no_object_of_the_appwrapper(
    server: FakeApiServer, wrapped: ObjectClient, uid: str, found: Json | None, gone: bool
) -> None:
    server.on("GET", OBJECT, answer(found) if found else MISSING)
    server.on("DELETE", OBJECT, answer({}))
    ref = make_ref(name="ray", uid=uid)

    assert await wrapped.is_gone(ref, OWNER.uid) is gone
    assert await wrapped.remove(ref, OWNER) is gone

    terminating = found is not None and "deletionTimestamp" in found["metadata"]
    deleted = [each.body["preconditions"] for each in server.requests("DELETE")]
    assert deleted == ([] if gone or terminating else [{"uid": "uid-of-ray"}])


@pytest.mark.parametrize("code", [404, 409])
async def test_object_that_changes_under_our_hands_is_looked_at_again(
    server: FakeApiServer, wrapped: ObjectClient, code: int
) -> None:
    server.on("GET", OBJECT, answer(existing()))
    server.on("DELETE", OBJECT, refusal(code, "NotFound" if code == 404 else "Conflict"))
    assert await wrapped.remove(WANTED, OWNER) is False


@pytest.mark.parametrize(
    "get", [pytest.param(never, id="silence"), pytest.param(NOT_SERVED, id="not-served-now")]
)
async def test_no_answer_is_no_proof_that_it_is_gone(
    server: FakeApiServer, wrapped: ObjectClient, get: Reply
) -> None:
    server.on("GET", OBJECT, get)
    with pytest.raises(errors.Unavailable):
        await wrapped.is_gone(WANTED, OWNER.uid)


async def test_object_is_gone_with_its_kind(server: FakeApiServer, wrapped: ObjectClient) -> None:
    """Whoever uninstalls a CRD deletes its objects; an AppWrapper must not hold its capacity for ever then."""
    server.on("GET", OBJECT, answer(existing()))
    assert await wrapped.is_gone(WANTED, OWNER.uid) is False
    server.on("GET", OBJECT, NOT_SERVED)
    server.on("GET", "/apis/ray.io/v1", NOT_SERVED)

    with pytest.raises(errors.Unavailable):
        await wrapped.is_gone(WANTED, OWNER.uid)
    assert await wrapped.is_gone(WANTED, OWNER.uid) is True


async def test_object_of_a_kind_we_may_not_read_cannot_be_one_we_created(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    """Else an AppWrapper whose creation was forbidden could never be rolled back, and never fail."""
    server.on("GET", OBJECT, refusal(403, "Forbidden"))
    assert await wrapped.remove(WANTED, OWNER) is True
    with pytest.raises(errors.Forbidden):
        await wrapped.remove(make_ref(name="ray", uid="uid-of-ray"), OWNER)


# --- adoption ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "attempt"),
    [
        pytest.param(existing(), 2, id="ours"),
        pytest.param(existing(labels={}), 1, id="made-by-mcad"),
        pytest.param(existing(labels={"dispatcher.codeflare.dev/attempt": "x"}), 1, id="number-spoilt"),
        pytest.param(existing(make_owner("other")), None, id="of-another-appwrapper"),
        pytest.param(foreign(), None, id="foreign"),
        pytest.param(None, None, id="not-there"),
    ],
)
async def test_attempt_that_made_an_object_is_read_from_it(
    server: FakeApiServer, wrapped: ObjectClient, found: Json | None, attempt: int | None
) -> None:
    server.on("GET", OBJECT, answer(found) if found else MISSING)
    mark = await wrapped.mark_of(RAY, OWNER)
    assert (mark.attempt if mark else None) == attempt


UNMARKED = existing(labels={"app": "mine"}, annotations={})


async def test_object_of_ours_that_mcad_made_is_given_our_marks(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    script(server, post=TAKEN, get=answer(UNMARKED))
    server.on("PATCH", OBJECT, answer(existing()))

    assert await wrapped.create(RAY, OWNER) == Created(make_ref(name="ray", uid="uid-of-ray"))

    (patch,) = server.requests("PATCH")
    assert (patch.path, patch.headers["Content-Type"]) == (OBJECT, MERGE_PATCH)
    assert patch.body == adoption(UNMARKED, RAY, OWNER)


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(refusal(403, "Forbidden"), id="forbidden"),
        pytest.param(refusal(409, "Conflict"), id="replaced-meanwhile"),
        pytest.param(refusal(500, "InternalError"), id="failure-of-the-server"),
        pytest.param(never, id="silence"),
    ],
)
async def test_object_of_ours_that_cannot_be_marked_is_ours_all_the_same(
    server: FakeApiServer, wrapped: ObjectClient, refused: Reply
) -> None:
    script(server, post=TAKEN, get=answer(UNMARKED))
    server.on("PATCH", OBJECT, refused)
    assert await wrapped.create(RAY, OWNER) == Created(make_ref(name="ray", uid="uid-of-ray"))


@pytest.mark.parametrize("has_marks", [True, False])
async def test_object_that_no_watch_shows_is_given_the_marks_that_it_lost(
    server: FakeApiServer, wrapped: ObjectClient, has_marks: bool
) -> None:
    ready = {"status": {"state": "ready"}}
    server.on("GET", OBJECT, answer((existing() if has_marks else UNMARKED) | ready))
    server.on("PATCH", OBJECT, answer(existing()))
    found = await wrapped.reclaim(RAY, make_ref(name="ray", uid="uid-of-ray"), OWNER)
    assert found == BUILT_IN.state_of("ray.io", "RayCluster", existing() | ready)
    patches = [each.body for each in server.requests("PATCH")]
    assert patches == ([] if has_marks else [adoption(UNMARKED, RAY, OWNER)])


@pytest.mark.parametrize(("uid", "found", "gone"), LOOKS)
async def test_nothing_but_an_object_of_ours_is_given_marks(
    server: FakeApiServer, wrapped: ObjectClient, uid: str, found: Json | None, gone: bool
) -> None:
    server.on("GET", OBJECT, answer(found) if found else MISSING)
    server.on("PATCH", OBJECT, answer({}))
    state = await wrapped.reclaim(RAY, make_ref(name="ray", uid=uid), OWNER)
    assert (state is None) is gone
    assert server.requests("PATCH") == []


async def test_object_that_cannot_be_marked_still_has_a_state(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    server.on("GET", OBJECT, answer(UNMARKED))
    server.on("PATCH", OBJECT, refusal(403, "Forbidden"))
    assert await wrapped.reclaim(RAY, make_ref(name="ray", uid="uid-of-ray"), OWNER) == ObjectState()


SUSPENDED = existing()
SUSPENDED["spec"] = {**SUSPENDED["spec"], "suspend": True}


@pytest.mark.parametrize(
    ("reply", "asked"),
    [
        pytest.param(answer(existing()), Asked(1), id="as-its-template"),
        pytest.param(answer(SUSPENDED), Asked(0, is_suspended=True), id="suspended"),
        pytest.param(answer(existing(uid="another")), NOT_KNOWN, id="another-object-of-its-name"),
        pytest.param(answer(foreign()), NOT_KNOWN, id="not-of-the-appwrapper"),
        pytest.param(MISSING, NOT_KNOWN, id="gone"),
        pytest.param(refusal(403, "Forbidden"), None, id="not-permitted"),
        pytest.param(refusal(500, "InternalError"), None, id="cannot-be-converted"),
        pytest.param(never, None, id="no-answer"),
        pytest.param(answer({"items": []}), None, id="an-answer-of-another-form"),
    ],
)
async def test_what_an_object_asks_for_is_not_known_without_an_answer_about_it(
    server: FakeApiServer, wrapped: ObjectClient, reply: Reply, asked: Asked | None
) -> None:
    server.on("GET", OBJECT, reply)
    assert await wrapped.asked(make_ref(name="ray", uid="uid-of-ray"), OWNER.uid) == asked


@pytest.mark.parametrize(
    ("readiness", "asked"),
    [(text("ok", 200), NOT_KNOWN), (text("[-]poststarthook/crd-informer-synced failed", 500), None)],
)
async def test_object_of_a_kind_that_is_not_served_is_gone_once_the_api_server_is_ready(
    server: FakeApiServer, wrapped: ObjectClient, readiness: Reply, asked: Asked | None
) -> None:
    server.on("GET", "/apis/ray.io/v1", NOT_SERVED)
    server.on("GET", "/readyz", readiness)
    assert await wrapped.asked(make_ref(name="ray", uid="uid-of-ray"), OWNER.uid) == asked


# --- complaints ----------------------------------------------------------------------------------------

EVENTS = "/api/v1/namespaces/default/events"


def warning(reason: str | None, message: str | None = None, **times: object) -> Json:
    return {"reason": reason, "message": message, "type": "Warning", **times}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], "", id="none"),
        pytest.param([warning("Unhealthy", "no\nreply")], "Unhealthy: no\\nreply", id="in-one-line"),
        pytest.param([warning("Unhealthy")], "Unhealthy", id="without-a-message"),
        pytest.param([warning(None, "no reply")], "no reply", id="without-a-reason"),
        pytest.param(
            [
                warning("Newest", lastTimestamp="2026-11-20T09:00:02Z", eventTime=None),
                warning("Oldest", lastTimestamp="2026-11-20T09:00:00Z"),
                warning("Undated"),
            ],
            "Newest",
            id="newest-by-the-time-of-old-clients",
        ),
        pytest.param(
            [
                warning("Oldest", lastTimestamp="2026-11-20T09:00:00Z"),
                warning("Newest", lastTimestamp=None, eventTime="2026-11-20T09:00:02.000001Z"),
            ],
            "Newest",
            id="newest-by-the-time-of-new-clients",
        ),
        pytest.param(
            [
                warning("Oldest", eventTime="2026-11-20T09:00:01.000001Z", series=None),
                warning(
                    "Newest",
                    eventTime="2026-11-20T09:00:00.000001Z",
                    series={"lastObservedTime": "2026-11-20T09:00:02.000001Z"},
                ),
            ],
            "Newest",
            id="newest-by-the-last-of-a-series",
        ),
    ],
)
async def test_newest_warning_about_an_object_is_its_complaint(
    server: FakeApiServer, wrapped: ObjectClient, events: list[Json], expected: str
) -> None:
    server.on("GET", EVENTS, answer({"items": events}))
    assert await wrapped.newest_warning(make_ref(uid="the-uid")) == expected
    assert [dict(each.query) for each in server.asked] == [
        {"fieldSelector": "involvedObject.uid=the-uid,type=Warning", "limit": "500"}
    ]


@pytest.mark.parametrize(
    "refused", [pytest.param(refusal(403, "Forbidden"), id="forbidden"), pytest.param(never, id="silence")]
)
async def test_warning_events_that_may_not_be_read_give_no_complaint(
    server: FakeApiServer, wrapped: ObjectClient, refused: Reply
) -> None:
    server.on("GET", EVENTS, refused)
    assert await wrapped.newest_warning(make_ref()) == ""


async def test_object_that_was_never_seen_has_no_complaint(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    assert await wrapped.newest_warning(make_ref(uid="")) == ""
    assert server.asked == []


# --- what there is of attempts that nobody knows of ------------------------------------------------------------

EVERYWHERE = "/apis/ray.io/v1/rayclusters"


def listed(*items: Json, token: str = "") -> Reply:
    return answer({"metadata": {"continue": token} if token else {}, "items": list(items)})


async def marks(wrapped: ObjectClient, kind: str = "RayCluster") -> list[Mark]:
    return [mark async for mark in wrapped.marks("ray.io/v1", kind)]


async def test_marks_of_every_object_that_an_appwrapper_owns_are_read_page_by_page(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    of_another = existing(make_owner(uid="uid-of-b", attempt=7))
    only_labelled = existing(ownerReferences=[])
    of_a_third = existing(labels={names.UID_LABEL: "uid-of-c"})
    server.on(
        "GET", EVERYWHERE, listed(existing(), only_labelled, token="more"), listed(of_another, of_a_third)
    )

    assert await marks(wrapped) == [Mark("uid-of-aw", 2, "default"), Mark("uid-of-b", 7, "default")]
    asked = server.requests("GET", EVERYWHERE)
    assert [each.query for each in asked] == [
        {"labelSelector": names.UID_LABEL, "limit": str(FIRST_PAGE)},
        {"labelSelector": names.UID_LABEL, "limit": str(PAGE), "continue": "more"},
    ]
    assert {each.headers["Accept"] for each in asked} == {METADATA_LIST}


async def test_kind_that_is_not_served_has_no_marks(server: FakeApiServer, wrapped: ObjectClient) -> None:
    server.on("GET", "/readyz", text("ok", 200))
    assert await marks(wrapped, "RayJob") == []


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param(refusal(403, "Forbidden"), errors.Forbidden, id="forbidden"),
        pytest.param(refusal(500, "InternalError"), errors.Unavailable, id="fails"),
    ],
)
async def test_marks_that_cannot_be_listed_to_the_end_are_an_error(
    server: FakeApiServer, wrapped: ObjectClient, reply: Reply, error: type[Exception]
) -> None:
    server.on("GET", EVERYWHERE, listed(existing(), token="more"), reply)
    with pytest.raises(error):
        await marks(wrapped)


async def test_refusal_of_a_search_by_a_server_that_just_started_is_no_answer(
    server: FakeApiServer, wrapped: ObjectClient
) -> None:
    """Searches take a refusal for "there is none of ours", and gangs that run would be dispatched anew."""
    forbidden = refusal(403, "Forbidden")
    server.on("GET", EVERYWHERE, forbidden, listed(existing(), token="more"), forbidden, listed())
    assert await marks(wrapped) == [Mark("uid-of-aw", 2, "default")]
    server.on("GET", OBJECT, forbidden, answer(existing()))
    assert await wrapped.mark_of(RAY, OWNER) == Mark("uid-of-aw", 2, "default")
    server.on("GET", "/readyz", text("[-]informer-sync failed", 500))
    server.on("GET", EVERYWHERE, forbidden)
    with pytest.raises(errors.Unavailable):
        await marks(wrapped)

"""Anchors in a member cluster: made once, found again, and never taken from whoever else has the name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.core.kinds.manifest import Anchor, anchor_of
from dispatcher.kube.client import METADATA_LIST, ClusterClient
from dispatcher.kube.objects.anchors import Anchors, Found
from dispatcher.kube.paging import FIRST_PAGE, PAGE
from tests.builders import make_metadata, make_owner
from tests.fakes import FakeApiServer, Reply, answer, hang_up, never, refusal, text

Json = dict[str, Any]

UID = "dispatcher.codeflare.dev/appwrapper-uid"
NAME = "appwrapper-uid-of-aw-1"
NAMESPACE = "/api/v1/namespaces/default"
COLLECTION = f"{NAMESPACE}/configmaps"
PATH = f"{COLLECTION}/{NAME}"
EVERYWHERE = "/api/v1/configmaps"
GOING = {"deletionTimestamp": "2026-11-20T09:00:00Z"}
OURS = {"annotations": {"dispatcher.codeflare.dev/hub": "the-hub"}}
ANOTHERS = {"annotations": {"dispatcher.codeflare.dev/hub": "another-hub"}}
TAKEN = refusal(409, "AlreadyExists")
MADE = datetime(2026, 11, 20, 8, 58, 6, tzinfo=UTC)


@pytest.fixture
def anchors(client: ClusterClient) -> Anchors:
    return Anchors(client, lambda _uid, _appwrapper: None)


def there(name: str = NAME, **metadata: object) -> Json:
    """A ConfigMap as a member has it; an anchor of ours unless told otherwise."""
    labels = {UID: "uid-of-aw"}
    return {"metadata": make_metadata(name, **{"labels": labels, **OURS, **metadata})}


def listed(*items: Json, token: str = "") -> Reply:
    return answer({"metadata": {"continue": token} if token else {}, "items": list(items)})


# --- namespaces --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply", [pytest.param(answer({}), id="new"), pytest.param(TAKEN, id="there-already")]
)
async def test_namespace_is_made_unless_it_exists(
    server: FakeApiServer, anchors: Anchors, reply: Reply
) -> None:
    server.on("POST", "/api/v1/namespaces", reply)
    await anchors.make_namespace("default", {"a": "b"})
    (asked,) = server.requests()
    assert asked.body == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "default", "labels": {"a": "b"}},
    }


async def test_namespace_we_may_not_make_is_an_error(server: FakeApiServer, anchors: Anchors) -> None:
    server.on("POST", "/api/v1/namespaces", refusal(403, "Forbidden"))
    with pytest.raises(errors.Forbidden):
        await anchors.make_namespace("default", {"a": "b"})


# --- the anchor of an attempt --------------------------------------------------------------------------------


async def test_anchor_is_made_in_one_request_and_known_by_the_uid_it_was_given(
    server: FakeApiServer, anchors: Anchors
) -> None:
    server.on("POST", COLLECTION, answer(there(uid="of-the-anchor")))
    assert await anchors.ensure(make_owner()) == Anchor(NAME, "of-the-anchor")
    (asked,) = server.requests()
    assert asked.body == anchor_of(make_owner())


async def test_anchor_that_was_made_before_is_found_again(server: FakeApiServer, anchors: Anchors) -> None:
    server.on("POST", COLLECTION, answer(there(uid="of-the-anchor")), TAKEN)
    server.on("GET", PATH, answer(there(uid="of-the-anchor")))
    first = await anchors.ensure(make_owner())
    assert await anchors.ensure(make_owner()) == first == Anchor(NAME, "of-the-anchor")


async def test_each_attempt_has_an_anchor_of_its_own(server: FakeApiServer, anchors: Anchors) -> None:
    server.on("POST", COLLECTION, answer(there("appwrapper-uid-of-aw-2", uid="of-the-second")))
    second = await anchors.ensure(make_owner(attempt=2))
    assert second == Anchor("appwrapper-uid-of-aw-2", "of-the-second")


async def test_anchor_on_its_way_out_is_waited_for(server: FakeApiServer, anchors: Anchors) -> None:
    server.on("POST", COLLECTION, TAKEN)
    server.on("GET", PATH, answer(there(**GOING)))
    with pytest.raises(errors.Unavailable, match=f"^the anchor default/{NAME} is being deleted$"):
        await anchors.ensure(make_owner())


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": {UID: "uid-of-another"}}, id="another-appwrappers"),
        pytest.param({"labels": {"note": "mine"}}, id="no-appwrappers"),
        pytest.param({"labels": None}, id="null"),
    ],
)
async def test_configmap_of_that_name_is_no_anchor_without_our_label(
    server: FakeApiServer, anchors: Anchors, metadata: Json
) -> None:
    server.on("POST", COLLECTION, TAKEN)
    server.on("GET", PATH, answer(there(**metadata)))
    with pytest.raises(errors.Invalid, match=f"^ConfigMap default/{NAME} exists already and is not ours$"):
        await anchors.ensure(make_owner())


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param(refusal(404, "NotFound"), errors.NotFound, id="no-namespace"),
        pytest.param(refusal(403, "Forbidden"), errors.Forbidden, id="over-quota"),
        pytest.param(hang_up, errors.Unavailable, id="cut-off"),
        pytest.param(never, errors.Unavailable, id="silence"),
    ],
)
async def test_anchor_that_cannot_be_had_is_an_error_and_nothing_is_asked_again(
    server: FakeApiServer, anchors: Anchors, reply: Reply, error: type[Exception]
) -> None:
    server.on("POST", COLLECTION, reply)
    with pytest.raises(error):
        await anchors.ensure(make_owner())
    assert len(server.requests()) == 1


# --- removing it -----------------------------------------------------------------------------------------------


async def test_anchor_is_deleted_by_its_uid_and_gone_once_the_server_says_so(
    server: FakeApiServer, anchors: Anchors
) -> None:
    server.on(
        "GET",
        PATH,
        answer(there(uid="of-the-anchor")),
        answer(there(uid="of-the-anchor", **GOING)),
        refusal(404, "NotFound"),
    )
    server.on("DELETE", PATH, answer({}))

    looks = [await anchors.remove("default", NAME, "uid-of-aw") for _ in range(4)]

    assert looks == [False, False, True, True]
    (deletion,) = server.requests("DELETE")
    assert deletion.body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "of-the-anchor"},
        "propagationPolicy": "Background",
    }


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": {UID: "uid-of-another"}}, id="another-appwrappers"),
        pytest.param({"labels": None}, id="no-appwrappers"),
        pytest.param({"labels": None, **GOING}, id="no-appwrappers-on-its-way-out"),
    ],
)
async def test_configmap_of_another_owner_is_left_alone_and_not_waited_for(
    server: FakeApiServer, anchors: Anchors, metadata: Json
) -> None:
    server.on("GET", PATH, answer(there(**metadata)))
    assert await anchors.remove("default", NAME, "uid-of-aw")
    assert not server.requests("DELETE")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(refusal(404, "NotFound"), id="it-went-meanwhile"),
        pytest.param(refusal(409, "Conflict"), id="another-took-its-place"),
    ],
)
async def test_anchor_that_changed_before_its_deletion_is_read_again(
    server: FakeApiServer, anchors: Anchors, reply: Reply
) -> None:
    server.on("GET", PATH, answer(there()))
    server.on("DELETE", PATH, reply)
    assert not await anchors.remove("default", NAME, "uid-of-aw")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(never, id="silence"),
        pytest.param(refusal(500, "InternalError"), id="failure"),
        pytest.param(refusal(403, "Forbidden"), id="not-allowed"),
        pytest.param(text("404 page not found", 404), id="a-proxys-page"),
    ],
)
async def test_no_clear_answer_is_no_absence(server: FakeApiServer, anchors: Anchors, reply: Reply) -> None:
    server.on("GET", PATH, reply)
    with pytest.raises(errors.ClusterError):
        await anchors.remove("default", NAME, "uid-of-aw")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(answer({}), id="there"),
        pytest.param(refusal(404, "NotFound"), id="gone"),
        pytest.param(refusal(409, "Conflict"), id="another-took-its-place"),
    ],
)
async def test_found_anchor_is_deleted_only_with_the_same_uid(
    server: FakeApiServer, anchors: Anchors, reply: Reply
) -> None:
    server.on("DELETE", PATH, reply)
    found = Found(
        "default", NAME, "of-the-anchor", "uid-of-aw", 1, "the-hub", deleting=False, created_at=MADE
    )
    await anchors.delete(found)
    (asked,) = server.requests()
    assert asked.body["preconditions"] == {"uid": "of-the-anchor"}


# --- all of them -----------------------------------------------------------------------------------------------


async def everything(anchors: Anchors) -> list[Found]:
    return [found async for found in anchors.all()]


async def test_anchors_of_all_appwrappers_are_found_page_by_page(
    server: FakeApiServer, anchors: Anchors
) -> None:
    second = there("appwrapper-uid-of-aw-12", namespace="other", **ANOTHERS, **GOING)
    server.on("GET", EVERYWHERE, listed(there(), token="more"), listed(second))

    assert await everything(anchors) == [
        Found("default", NAME, f"uid-of-{NAME}", "uid-of-aw", 1, "the-hub", deleting=False, created_at=MADE),
        Found(
            "other",
            "appwrapper-uid-of-aw-12",
            "uid-of-appwrapper-uid-of-aw-12",
            "uid-of-aw",
            12,
            "another-hub",
            deleting=True,
            created_at=MADE,
        ),
    ]

    query = {"labelSelector": "dispatcher.codeflare.dev/appwrapper-uid"}
    assert [asked.query for asked in server.requests()] == [
        {**query, "limit": str(FIRST_PAGE)},
        {**query, "limit": str(PAGE), "continue": "more"},
    ]
    assert {asked.headers["Accept"] for asked in server.requests()} == {METADATA_LIST}


@pytest.mark.parametrize(
    "configmap",
    [
        pytest.param(there("settings"), id="another-name"),
        pytest.param(there("appwrapper-settings"), id="no-number"),
        pytest.param(there("appwrapper-of-another-1"), id="the-name-means-another-appwrapper"),
        pytest.param(there("my-appwrapper-uid-of-aw-1"), id="the-name-begins-otherwise"),
        pytest.param(there("appwrapper-uid-of-aw-1-2"), id="the-name-goes-on"),
    ],
)
async def test_configmap_that_only_bears_our_label_is_no_anchor(
    server: FakeApiServer, anchors: Anchors, configmap: Json
) -> None:
    server.on("GET", EVERYWHERE, listed(configmap, there()))
    assert [found.name for found in await everything(anchors)] == [NAME]


async def test_there_may_be_none(server: FakeApiServer, anchors: Anchors) -> None:
    server.on("GET", EVERYWHERE, answer({"metadata": {}, "items": None}))
    assert await everything(anchors) == []


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param(refusal(410, "Expired"), errors.Expired, id="it-took-too-long"),
        pytest.param(refusal(500, "InternalError"), errors.Unavailable, id="failure"),
        pytest.param(never, errors.Unavailable, id="silence"),
    ],
)
async def test_list_that_breaks_off_is_an_error_and_no_shorter_list(
    server: FakeApiServer, anchors: Anchors, reply: Reply, error: type[Exception]
) -> None:
    server.on("GET", EVERYWHERE, listed(there(), token="more"), reply)
    with pytest.raises(error):
        await everything(anchors)


# --- who has the name ------------------------------------------------------------------------------------------


async def test_configmap_that_took_the_place_of_an_anchor_is_foreign_whatever_marks_it_bears(
    server: FakeApiServer, anchors: Anchors
) -> None:
    forged = there(uid="made-by-another")
    server.on("POST", COLLECTION, answer(there(uid="of-the-anchor")), TAKEN)
    server.on("GET", PATH, answer(forged))
    server.on("GET", EVERYWHERE, listed(forged))
    await anchors.ensure(make_owner())
    with pytest.raises(errors.Invalid, match="exists already and is not ours"):
        await anchors.ensure(make_owner())
    assert await anchors.remove("default", NAME, "uid-of-aw")
    assert anchors.root_of(forged["metadata"]) is None
    assert await everything(anchors) == []
    assert not server.requests("DELETE")


async def test_anchor_whose_marks_were_taken_off_is_still_ours(
    server: FakeApiServer, anchors: Anchors
) -> None:
    """Else what it owns would seem to be gone, and its capacity be given away."""
    server.on("POST", COLLECTION, answer(there(uid="of-the-anchor")))
    server.on("GET", PATH, answer(there(uid="of-the-anchor", labels=None)), refusal(404, "NotFound"))
    server.on("DELETE", PATH, answer({}))
    await anchors.ensure(make_owner())
    assert [await anchors.remove("default", NAME, "uid-of-aw") for _ in range(2)] == [False, True]


async def test_uid_of_each_anchor_is_reported_once(server: FakeApiServer, client: ClusterClient) -> None:
    told: list[tuple[str, str]] = []
    anchors = Anchors(client, lambda uid, appwrapper: told.append((uid, appwrapper)))
    server.on("POST", COLLECTION, TAKEN)
    server.on("GET", PATH, answer(there(uid="of-the-anchor")))
    for _ in range(2):
        await anchors.ensure(make_owner())
    assert told == [("of-the-anchor", "uid-of-aw")]


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"name": 5},
        {"name": NAME},
        {"name": NAME, "labels": []},
        {**there()["metadata"], "creationTimestamp": 5},
    ],
)
def test_metadata_that_makes_no_sense_is_of_no_anchor(anchors: Anchors, metadata: Json) -> None:
    assert anchors.root_of(metadata) is None

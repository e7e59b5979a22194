"""What an API server is asked about a user's rights, and which of its answers count."""

from __future__ import annotations

import pytest

from dispatcher import errors
from dispatcher.api.annotations import Submitter
from dispatcher.core.intake.authorization import Access
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.questions import (
    BINDING,
    PATH,
    SELF_PATH,
    am_i_allowed,
    is_allowed,
    is_author_policy_bound,
)
from tests.fakes import FakeApiServer, answer, refusal

ACCESS = Access(Submitter("alice", ("vision",)), "team", "ray.io", "rayclusters", "create")


@pytest.mark.parametrize("allowed", [True, False])
async def test_api_server_says_what_a_user_may_do(
    server: FakeApiServer, client: ClusterClient, allowed: bool
) -> None:
    server.on("POST", PATH, answer({"status": {"allowed": allowed}}, status=201))
    assert await is_allowed(client, ACCESS) is allowed
    (asked,) = server.requests("POST")
    assert asked.body["spec"] == {
        "user": "alice",
        "groups": ["vision", "system:authenticated"],
        "resourceAttributes": {
            "namespace": "team",
            "group": "ray.io",
            "resource": "rayclusters",
            "verb": "create",
        },
    }


@pytest.mark.parametrize("allowed", [True, False])
async def test_api_server_says_what_its_client_may_do(
    server: FakeApiServer, client: ClusterClient, allowed: bool
) -> None:
    server.on("POST", SELF_PATH, answer({"status": {"allowed": allowed}}, status=201))
    assert await am_i_allowed(client, ACCESS) is allowed
    (asked,) = server.requests("POST")
    assert asked.body["kind"] == "SelfSubjectAccessReview"
    assert asked.body["spec"].keys() == {"resourceAttributes"}
    assert asked.body["spec"]["resourceAttributes"]["resource"] == "rayclusters"


@pytest.mark.parametrize(
    "nonsense", [{}, {"status": None}, {"status": {}}, {"status": {"allowed": "true"}}, []]
)
async def test_answer_that_makes_no_sense_allows_nothing(
    server: FakeApiServer, client: ClusterClient, nonsense: object
) -> None:
    server.on("POST", PATH, answer(nonsense))
    with pytest.raises(errors.Unavailable):
        await is_allowed(client, ACCESS)


async def test_dispatcher_that_may_not_ask_allows_nothing(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("POST", PATH, refusal(403, "Forbidden"))
    with pytest.raises(errors.Forbidden):
        await is_allowed(client, ACCESS)


@pytest.mark.parametrize(
    ("reply", "is_bound"),
    [
        pytest.param(answer({"spec": {"validationActions": ["Deny"]}}), True, id="refuses"),
        pytest.param(answer({"spec": {"validationActions": ["Warn", "Audit"]}}), False, id="only-warns"),
        pytest.param(answer({"spec": None}), False, id="says-nothing"),
        pytest.param(refusal(404, "NotFound"), False, id="not-installed"),
    ],
)
async def test_policy_is_bound_if_it_is_to_refuse(
    server: FakeApiServer, client: ClusterClient, reply: object, is_bound: bool
) -> None:
    server.on("GET", BINDING, reply)  # type: ignore[arg-type]
    assert await is_author_policy_bound(client) is is_bound

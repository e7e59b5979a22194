"""Facts of the hub about an AppWrapper before its submission: rights of its author, and defaults of its pods."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from dispatcher import errors
from dispatcher.cli.people.author import AuthorClient, AuthorFacts, HubFacts
from dispatcher.core.intake.proposal import Proposal, propose
from dispatcher.core.kinds.pods.pod_defaults import PodDefaults
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.questions import SELF_PATH
from tests.builders import NOW, make_appwrapper, make_template
from tests.fakes import FakeApiServer, answer, refusal

Json = dict[str, Any]

PODS = {"resources": [{"name": "pods", "kind": "Pod", "namespaced": True}]}
LIMIT_RANGES = "/api/v1/namespaces/default/limitranges"
KATA = "/apis/node.k8s.io/v1/runtimeclasses/kata"
LIMIT_RANGE = {"spec": {"limits": [{"type": "Container", "defaultRequest": {"memory": "1Gi"}}]}}


def proposal(*templates: Json) -> Proposal:
    items = [{"generictemplate": each} for each in templates or (make_template(),)]
    raw = make_appwrapper(spec={"resources": {"GenericItems": items}})
    return propose(raw, "default", SchedulingRules(), NOW)


@pytest.fixture
def hub(server: FakeApiServer, client: ClusterClient) -> AuthorClient:
    """A hub that serves pods, where the user may do everything and nothing is added to pods."""
    server.on("GET", "/api/v1", answer(PODS))
    server.on("GET", LIMIT_RANGES, answer({"items": []}))
    allow(server, "pods", "appwrappers")
    return AuthorClient(client, Discovery(client))


def allow(server: FakeApiServer, *resources: str) -> None:
    """Allow the user to create these resources, and no others."""

    async def review(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["spec"]["resourceAttributes"]["resource"]
        return await answer({"status": {"allowed": asked in resources}}, status=201)(request)

    server.on("POST", SELF_PATH, review)


async def test_author_who_may_do_everything_has_no_facts(hub: AuthorClient, server: FakeApiServer) -> None:
    assert await hub.facts_of(proposal()) == HubFacts()
    assert {each.path for each in server.requests("POST")} == {SELF_PATH}  # which stores nothing


@pytest.mark.parametrize(
    ("allowed", "denied"),
    [
        (["appwrappers"], ["you may not create pods in namespace default"]),
        (["pods"], ["you may not create appwrappers.workload.codeflare.dev in namespace default"]),
    ],
)
async def test_missing_rights_are_named(
    hub: AuthorClient, server: FakeApiServer, allowed: list[str], denied: list[str]
) -> None:
    allow(server, *allowed)
    facts = await hub.facts_of(proposal())
    assert list(facts.denied) == denied
    assert [*AuthorFacts(facts.denied).lines()] == [
        f"{denied[0]}: where the rights of authors are checked, the AppWrapper is refused"
    ]


async def test_each_right_is_asked_for_once(hub: AuthorClient, server: FakeApiServer) -> None:
    for _ in range(2):
        await hub.facts_of(proposal(make_template(), make_template(name="other")))
    assert len(server.requests("POST")) == 2


async def test_kind_that_the_hub_does_not_serve_is_unknown(hub: AuthorClient, server: FakeApiServer) -> None:
    server.on("GET", "/api/v1", answer({"resources": []}))
    server.on("GET", "/readyz", answer("ok"))
    facts = await hub.facts_of(proposal())
    assert (facts.denied, facts.unknown) == ((), ("the hub does not serve Pod in version v1",))


async def test_defaults_of_the_namespace_and_of_a_runtime_class_are_read(
    hub: AuthorClient, server: FakeApiServer
) -> None:
    server.on("GET", LIMIT_RANGES, answer({"items": [LIMIT_RANGE]}))
    server.on("GET", KATA, answer({"overhead": {"podFixed": {"cpu": "250m"}}}))
    heavy = make_template()
    heavy["spec"]["runtimeClassName"] = "kata"
    facts = await hub.facts_of(proposal(heavy))
    assert facts == HubFacts(defaults=PodDefaults({"memory": "1Gi"}, {"kata": {"cpu": "250m"}}))


def test_defaults_are_shown_with_those_of_clusters_that_add_less() -> None:
    largest = PodDefaults({"memory": "1Gi"}, {"kata": {"cpu": "250m"}, "runc": {"cpu": "1m"}})
    smaller = {
        "east": PodDefaults({"memory": "1Mi"}, {"kata": {"cpu": "50m"}, "runc": {"cpu": "1m"}}),
        "west": PodDefaults({}, {"kata": {"cpu": "250m"}}),
    }
    facts = AuthorFacts((), largest, smaller)
    assert [*facts.lines()] == [
        "with the LimitRange of its namespace, containers request memory 1Gi",
        "with RuntimeClass kata, each pod requests cpu 250m more",
        "with RuntimeClass runc, each pod requests cpu 1m more",
        "in cluster east, containers request memory 1Mi and RuntimeClass kata adds cpu 50m",
        "in cluster west, containers request nothing and RuntimeClass runc adds nothing",
    ]
    assert facts.as_value() == {
        "denied": [],
        "podDefaults": {
            "requests": {"memory": "1Gi"},
            "overheads": {"kata": {"cpu": "250m"}, "runc": {"cpu": "1m"}},
            "clusters": {
                "east": {
                    "requests": {"memory": "1Mi"},
                    "overheads": {"kata": {"cpu": "50m"}, "runc": {"cpu": "1m"}},
                },
                "west": {"requests": {}, "overheads": {"kata": {"cpu": "250m"}}},
            },
        },
    }


def test_facts_without_the_hub_do_not_say_what_is_denied() -> None:
    assert set(AuthorFacts().as_value()) == {"podDefaults"}


async def test_defaults_that_the_author_may_not_read_are_named(
    hub: AuthorClient, server: FakeApiServer
) -> None:
    server.on("GET", LIMIT_RANGES, refusal(403, "Forbidden"))
    server.on("GET", KATA, refusal(403, "Forbidden"))
    heavy = make_template()
    heavy["spec"]["runtimeClassName"] = "kata"
    facts = await hub.facts_of(proposal(heavy))
    assert facts.defaults is None
    assert facts.unread == (
        "you may not read the LimitRanges of namespace default",
        "you may not read RuntimeClass kata",
    )


async def test_hub_that_fails_gives_no_facts(hub: AuthorClient, server: FakeApiServer) -> None:
    server.on("POST", SELF_PATH, refusal(500, "InternalError"))
    with pytest.raises(errors.Unavailable):
        await hub.facts_of(proposal())

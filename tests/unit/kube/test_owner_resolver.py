"""From a pod to its AppWrapper: a claim is worth what the chain of owners confirms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher import log
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.client import JSON, METADATA, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.owner_resolver import (
    AGAIN_SECONDS,
    LONGEST_AGAIN_SECONDS,
    LONGEST_CHAIN,
    MOST_AGAIN,
    NOBODY,
    SWEEP_SECONDS,
    HintReads,
    OwnerResolver,
)
from tests.builders import make_metadata
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]

APPS = "/apis/apps/v1"
AW = "the-appwrapper"


def ref(kind: str, name: str, api_version: str = "apps/v1") -> ObjectRef:
    return ObjectRef(-1, api_version, kind, "default", name, f"uid-of-{name}")


def owned(name: str, by: ObjectRef | None = None) -> Json:
    owners = (
        [{"apiVersion": by.api_version, "kind": by.kind, "name": by.name, "uid": by.uid, "controller": True}]
        if by
        else []
    )
    return {"metadata": make_metadata(name, ownerReferences=owners)}


APPWRAPPER = ObjectRef(-1, "workload.codeflare.dev/v1beta1", "AppWrapper", "default", "aw", AW)
DEPLOYMENT = ref("Deployment", "web")
REPLICASET = ref("ReplicaSet", "web-1")
AWAY = refusal(503, "ServiceUnavailable")


def serve(server: FakeApiServer, *, deployment: Json | None = None) -> None:
    """A cluster with a ReplicaSet of a Deployment of an AppWrapper."""
    kinds = [("deployments", "Deployment"), ("replicasets", "ReplicaSet")]
    resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds]
    server.on("GET", APPS, answer({"resources": resources}))
    appwrappers = {"name": "appwrappers", "kind": "AppWrapper", "namespaced": True}
    server.on("GET", "/apis/workload.codeflare.dev/v1beta1", answer({"resources": [appwrappers]}))
    server.on("GET", path("replicasets", "web-1"), answer(owned("web-1", DEPLOYMENT)))
    server.on("GET", path("deployments", "web"), answer(deployment or owned("web", APPWRAPPER)))


def path(plural: str, name: str) -> str:
    return f"{APPS}/namespaces/default/{plural}/{name}"


HOMES = {AW: "default", "another-appwrapper": "default"}


@asynccontextmanager
async def owners_of(
    client: ClusterClient,
    homes: dict[str, str] = HOMES,
    anchor_root: Callable[[Json], str | None] | None = None,
    has_pods: Callable[[str], bool] = lambda _uid: True,
) -> AsyncIterator[tuple[OwnerResolver, list[str]]]:
    resolved: list[str] = []
    owners = OwnerResolver(
        client, Discovery(client), resolved.append, homes.get, anchor_root, has_pods=has_pods
    )
    async with workers.running(owners.run()):
        yield owners, resolved


async def test_chain_from_replicaset_over_deployment_to_the_appwrapper_confirms_the_claim(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server)
    async with owners_of(client) as (owners, resolved):
        assert owners.confirm(AW, REPLICASET) is None
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW
    assert resolved == [REPLICASET.uid]


async def test_forged_label_is_not_confirmed(server: FakeApiServer, client: ClusterClient) -> None:
    serve(server)
    async with owners_of(client) as (owners, resolved):
        owners.confirm("another-appwrapper", REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm("another-appwrapper", REPLICASET) is None


async def test_pod_that_an_appwrapper_controls_itself_is_confirmed_at_once(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with owners_of(client) as (owners, _):
        assert owners.confirm(AW, APPWRAPPER) == AW
    assert server.asked == []


async def test_object_we_created_is_known_without_asking(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with owners_of(client) as (owners, _):
        owners.learn(REPLICASET.uid, AW)
        assert owners.confirm(AW, REPLICASET) == AW
        assert owners.confirm("another-appwrapper", REPLICASET) is None
    assert server.asked == []


async def test_climbing_ends_at_an_object_we_created(server: FakeApiServer, client: ClusterClient) -> None:
    serve(server)
    async with owners_of(client) as (owners, resolved):
        owners.learn(DEPLOYMENT.uid, AW)
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW
    assert server.requests(path=path("deployments", "web")) == []


async def test_owner_is_asked_for_once_however_many_pods_it_has(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server)
    async with owners_of(client) as (owners, resolved):
        for _ in range(100):
            owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        for _ in range(100):
            owners.confirm(AW, REPLICASET)
        await asyncio.sleep(10)  # virtual
    assert len(server.requests(path=path("replicasets", "web-1"))) == 1


async def test_chain_ends_at_the_appwrapper_even_if_something_controls_that(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """An operator or a workflow that makes AppWrappers must not hide whose their pods are."""
    serve(server)
    workflow = ObjectRef(-1, "argoproj.io/v1alpha1", "Workflow", "default", "flow", "uid-of-flow")
    appwrapper = owned("aw", workflow)
    appwrapper["metadata"]["uid"] = AW
    server.on(
        "GET", "/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers/aw", answer(appwrapper)
    )
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW


async def test_owner_that_is_gone_or_replaced_confirms_nothing(
    server: FakeApiServer, client: ClusterClient
) -> None:
    replaced = owned("web", APPWRAPPER)
    replaced["metadata"]["uid"] = "a-successor"
    serve(server, deployment=replaced)
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        owners.confirm(AW, ref("ReplicaSet", "gone"))
        await until(lambda: len(resolved) == 2)
        assert owners.confirm(AW, REPLICASET) is None
        assert owners.confirm(AW, ref("ReplicaSet", "gone")) is None


async def test_owner_refused_by_a_server_that_just_started_is_asked_about_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """It has not read its roles yet; an owner that is nobody is asked about again only after a minute."""
    serve(server)
    forbidden = refusal(403, "Forbidden")
    server.on("GET", path("deployments", "web"), forbidden, answer(owned("web", APPWRAPPER)))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW


async def test_question_that_failed_is_asked_again_later_each_time(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server)
    server.on("GET", path("deployments", "web"), *[AWAY] * 8, answer(owned("web", APPWRAPPER)))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW
    assert monotonic() == pytest.approx(1 + 2 + 4 + 8 + 16 + 32 + 60 + 60, abs=1)


@pytest.mark.parametrize("reply", [pytest.param(AWAY, id="refuses"), pytest.param(never, id="is-silent")])
async def test_owner_that_cannot_be_read_delays_no_other(
    server: FakeApiServer, client: ClusterClient, reply: Reply
) -> None:
    """As those of a kind whose API server is down."""
    serve(server)
    lost = [ref("ReplicaSet", f"lost-{number}") for number in range(3)]
    for each in lost:
        server.on("GET", path("replicasets", each.name), reply)
    async with owners_of(client) as (owners, resolved):
        for each in (*lost, REPLICASET):
            owners.confirm(AW, each)
        await until(lambda: resolved)
        assert monotonic() < 1
        assert owners.confirm(AW, REPLICASET) == AW


@pytest.mark.parametrize("claim", [AW, None])
@pytest.mark.parametrize("controller", [APPWRAPPER, DEPLOYMENT, REPLICASET])
async def test_pod_of_another_namespace_belongs_to_no_appwrapper_whatever_its_owner(
    server: FakeApiServer, client: ClusterClient, claim: str | None, controller: ObjectRef
) -> None:
    """Owner references do not reach over namespaces: this one was forged, with an owner of its own in between."""
    serve(server)
    forged = replace(controller, namespace="evil")
    in_between = path("replicasets", "web-1").replace("default", "evil")
    server.on("GET", in_between, answer(owned("web-1", APPWRAPPER)))
    async with owners_of(client) as (owners, _):
        owners.learn(DEPLOYMENT.uid, AW)
        assert owners.confirm(claim, forged, names_appwrapper=True) is None
        await asyncio.sleep(1)  # virtual
        assert owners.confirm(claim, forged, names_appwrapper=True) is None
        assert owners.confirm(claim, APPWRAPPER) == AW
        assert owners.confirm(claim, DEPLOYMENT) == AW


async def test_claim_without_an_owner_and_owner_without_a_claim_belong_to_no_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with owners_of(client) as (owners, _):
        assert owners.confirm(AW, None) is None
        assert owners.confirm(None, REPLICASET) is None
        await asyncio.sleep(1)  # virtual
    assert server.asked == []


async def test_pod_without_a_claim_is_of_the_appwrapper_whose_known_object_made_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """So it is with gangs that MCAD dispatched: their pods bear none of our labels."""
    async with owners_of(client) as (owners, _):
        owners.learn(REPLICASET.uid, AW)
        assert owners.confirm(None, REPLICASET) == AW
    assert server.asked == []


async def test_pod_without_a_claim_that_names_an_appwrapper_is_of_the_one_its_owners_lead_to(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """So it is with the pods of a Deployment that MCAD made: a ReplicaSet is between them."""
    serve(server)
    async with owners_of(client) as (owners, resolved):
        assert owners.confirm(None, REPLICASET, names_appwrapper=True) is None
        await until(lambda: resolved)
        assert owners.confirm(None, REPLICASET, names_appwrapper=True) == AW


async def test_pod_that_names_an_appwrapper_but_leads_to_none_belongs_to_none(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, deployment=owned("web"))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(None, REPLICASET, names_appwrapper=True)
        await until(lambda: resolved)
        assert owners.confirm(None, REPLICASET, names_appwrapper=True) is None
        await asyncio.sleep(10)  # virtual
    assert len(server.requests(path=path("replicasets", "web-1"))) == 1


async def test_pod_without_a_claim_that_an_appwrapper_controls_is_of_that_one(
    server: FakeApiServer, client: ClusterClient
) -> None:
    namesake = ObjectRef(-1, "example.org/v1", "AppWrapper", "default", "aw", "uid-of-another-kind")
    async with owners_of(client) as (owners, _):
        assert owners.confirm(None, APPWRAPPER) == AW
        assert owners.confirm("another-appwrapper", APPWRAPPER) is None
        assert owners.confirm(None, namesake) is None
    assert server.asked == []


async def test_owners_in_a_circle_end(server: FakeApiServer, client: ClusterClient) -> None:
    serve(server, deployment=owned("web", REPLICASET))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) is None


# --- no refusal is an answer for ever ----------------------------------------------------------------------------

FORBIDDEN = refusal(403, "Forbidden")
GONE = refusal(404, "NotFound")


@pytest.mark.parametrize(
    "replies",
    [
        pytest.param([FORBIDDEN, FORBIDDEN], id="forbidden-until-a-role-is-applied"),
        pytest.param([GONE], id="not-found"),
        pytest.param([answer(owned("web"))], id="without-a-controller-until-it-is-adopted"),
        pytest.param([text("404 page not found", 404)], id="path-of-the-kind-not-found"),
    ],
)
async def test_owner_that_led_to_no_appwrapper_is_asked_about_again(
    server: FakeApiServer, client: ClusterClient, replies: list[Reply]
) -> None:
    serve(server)
    server.on("GET", path("deployments", "web"), *replies, answer(owned("web", APPWRAPPER)))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: owners.confirm(AW, REPLICASET) == AW)
        assert monotonic() <= AGAIN_SECONDS + SWEEP_SECONDS + 1
        assert resolved[-1] == REPLICASET.uid


async def test_owner_that_is_asked_about_again_belongs_to_no_appwrapper_meanwhile(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Else the requests of a pod with a forged owner would reduce what its AppWrapper is charged, again and again."""
    serve(server)
    server.on("GET", path("deployments", "web"), FORBIDDEN, FORBIDDEN, never)
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        assert owners.is_being_resolved(REPLICASET)
        await until(lambda: len(server.requests(path=path("deployments", "web"))) == 3)
        assert not owners.is_being_resolved(REPLICASET)
        assert owners.named_by(None, REPLICASET) is None
        assert resolved == [REPLICASET.uid]


async def test_owner_that_leads_to_no_appwrapper_is_asked_about_in_growing_pauses(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, deployment=owned("web"))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await asyncio.sleep(7200)  # virtual
        assert owners.confirm(AW, REPLICASET) is None
        assert resolved == [REPLICASET.uid]
    asked = len(server.requests(path=path("replicasets", "web-1")))
    slowest, fastest = 7200 / (LONGEST_AGAIN_SECONDS + SWEEP_SECONDS), 7200 / LONGEST_AGAIN_SECONDS
    assert slowest <= asked <= fastest + 5


async def test_owner_whose_pods_are_gone_is_asked_about_no_more(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server, deployment=owned("web"))
    server.on("GET", path("replicasets", "away"), AWAY)
    pods = {REPLICASET.uid, "uid-of-away"}
    async with owners_of(client, has_pods=pods.__contains__) as (owners, _):
        owners.confirm(AW, REPLICASET)
        owners.confirm(AW, ref("ReplicaSet", "away"))
        await asyncio.sleep(1)  # virtual
        pods.clear()
        await asyncio.sleep(LONGEST_AGAIN_SECONDS)  # virtual
        before = len(server.asked)
        await asyncio.sleep(3600)  # virtual
        assert len(server.asked) == before


async def test_owners_by_the_thousand_that_lead_to_no_appwrapper_cost_a_bounded_number_of_questions(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Any user can write them."""
    serve(server)
    invented = 2 * MOST_AGAIN
    async with owners_of(client) as (owners, resolved):
        for number in range(invented):
            owners.confirm(AW, ref("ReplicaSet", f"gone-{number}"))
        await until(lambda: len(resolved) == invented)
        begun = monotonic()
        before = len(server.requests("GET"))
        await asyncio.sleep(10 * SWEEP_SECONDS)  # virtual
        sweeps = (monotonic() - begun) / SWEEP_SECONDS + 1
        assert 0 < len(server.requests("GET")) - before <= MOST_AGAIN * sweeps


async def test_owner_is_found_in_another_served_version_of_its_kind(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """A controller writes the version that it was built for, which an upgrade of the operator may end."""
    serve(server)
    group = "/apis/ray.io"
    listed = [{"groupVersion": "ray.io/v1"}]
    server.on("GET", group, answer({"versions": listed}))
    rayclusters = {"name": "rayclusters", "kind": "RayCluster", "namespaced": True}
    server.on("GET", f"{group}/v1", answer({"resources": [rayclusters]}))
    server.on("GET", f"{group}/v1/namespaces/default/rayclusters/ray", answer(owned("ray", APPWRAPPER)))
    server.on("GET", "/readyz", answer({}))
    async with owners_of(client) as (owners, resolved):
        raycluster = ref("RayCluster", "ray", "ray.io/v1alpha1")
        owners.confirm(AW, raycluster)
        await until(lambda: resolved)
        assert owners.confirm(AW, raycluster) == AW


# --- what nobody checks ----------------------------------------------------------------------------------------

HOSTILE = ["?", "", ".", "..", "../../secrets", "a/b", "%2e%2e", "#", "\0", "a\u202eb", "x" * 300]


@pytest.mark.parametrize("name", HOSTILE)
async def test_owner_with_an_invalid_name_belongs_to_no_appwrapper_and_ends_nothing(
    server: FakeApiServer, client: ClusterClient, name: str
) -> None:
    """A GET of a collection would answer with a list, in which no object is."""
    serve(server)
    server.on("GET", path("replicasets", ""), answer({"metadata": {}, "items": []}))
    server.on("GET", path("replicasets", "").rstrip("/"), answer({"metadata": {}, "items": []}))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, replace(REPLICASET, name=name, uid="uid-of-odd"))
        owners.confirm(AW, REPLICASET)
        await until(lambda: len(resolved) == 2)
        assert owners.confirm(AW, replace(REPLICASET, name=name, uid="uid-of-odd")) is None
        assert owners.confirm(AW, REPLICASET) == AW
    namespace = path("replicasets", "x").removesuffix("/x")
    assert all(
        asked.path.startswith((f"{namespace}/", f"{APPS}/namespaces/default/deployments/"))
        or asked.path == APPS
        for asked in server.requests("GET")
    )


@pytest.mark.parametrize("api_version", ["v1?", "?", "apps/v1?watch=true", "../v1", "apps/v1/x", "", "v\0"])
async def test_owner_with_an_invalid_version_belongs_to_no_appwrapper_and_ends_nothing(
    server: FakeApiServer, client: ClusterClient, api_version: str
) -> None:
    serve(server)
    server.on("GET", "/readyz", answer({}))
    async with owners_of(client) as (owners, resolved):
        odd = replace(REPLICASET, api_version=api_version, uid="uid-of-odd")
        owners.confirm(AW, odd)
        owners.confirm(AW, REPLICASET)
        await until(lambda: len(resolved) == 2)
        assert (owners.confirm(AW, odd), owners.confirm(AW, REPLICASET)) == (None, AW)


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(
            {"kind": "ReplicaSetList", "metadata": {"resourceVersion": "1"}, "items": []}, id="list"
        ),
        pytest.param({}, id="empty"),
        pytest.param({"metadata": None}, id="null"),
        pytest.param({"metadata": {"uid": 5}}, id="a-number"),
        pytest.param({"metadata": {"uid": "a\0b"}}, id="a-nul"),
        pytest.param([], id="no-object"),
    ],
)
async def test_answer_that_is_no_object_is_no_answer(
    server: FakeApiServer, client: ClusterClient, nonsense: object
) -> None:
    serve(server)
    server.on("GET", path("replicasets", "web-1"), answer(nonsense), answer(owned("web-1", DEPLOYMENT)))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) == AW


@pytest.mark.parametrize(
    "references",
    [
        pytest.param("yes", id="text"),
        pytest.param([None], id="null"),
        pytest.param([{"controller": True}], id="nothing-in-it"),
        pytest.param(
            [{"controller": True, "apiVersion": 1, "kind": [], "name": {}, "uid": None}], id="no-text"
        ),
    ],
)
async def test_chain_ends_at_an_owner_reference_that_cannot_be_read(
    server: FakeApiServer, client: ClusterClient, references: object
) -> None:
    serve(server, deployment={"metadata": {"uid": DEPLOYMENT.uid, "ownerReferences": references}})
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
        assert owners.confirm(AW, REPLICASET) is None


async def test_whatever_one_question_raises_is_counted_and_asked_again_and_the_others_are_answered(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve(server)
    raised: list[str] = []

    def listens(uid: str) -> None:
        if not raised:
            raised.append(uid)
            raise RuntimeError("nobody thought of this")

    before = log.internal_errors().get("owner_resolver", 0)
    owners = OwnerResolver(client, Discovery(client), listens, HOMES.get)
    async with workers.running(owners.run()) as task:
        owners.confirm(AW, REPLICASET)
        await until(lambda: raised)
        owners.confirm(AW, ref("ReplicaSet", "gone"))
        await asyncio.sleep(2)  # virtual
        assert not task.done()
        assert owners.confirm(AW, REPLICASET) == AW
        assert log.internal_errors()["owner_resolver"] == before + 1


async def test_reference_by_a_wrong_name_does_not_take_an_object_from_its_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Else one forged pod would take away from the gang whose ReplicaSet it names."""
    serve(server)
    forged = replace(REPLICASET, name="another")
    server.on("GET", path("replicasets", "another"), answer(owned("another")))
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, forged)
        await until(lambda: resolved)
        assert owners.confirm(AW, forged) is None
        owners.confirm(AW, REPLICASET)
        await until(lambda: len(resolved) == 2)
        assert owners.confirm(AW, REPLICASET) == AW


# --- where an AppWrapper is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [AW, None])
async def test_claim_of_an_unknown_appwrapper_is_not_confirmed_and_makes_no_request(
    server: FakeApiServer, client: ClusterClient, claim: str | None
) -> None:
    serve(server)
    homes: dict[str, str] = {}
    async with owners_of(client, homes) as (owners, _):
        owners.learn(DEPLOYMENT.uid, AW)
        assert owners.confirm(claim, APPWRAPPER) is None
        assert owners.confirm(claim, DEPLOYMENT) is None
        owners.confirm(claim, REPLICASET)
        await asyncio.sleep(1)  # virtual
        assert server.asked == []
        homes[AW] = "default"
        assert owners.confirm(claim, APPWRAPPER) == AW
        assert owners.confirm(claim, DEPLOYMENT) == AW


ANCHOR = ObjectRef(-1, "v1", "ConfigMap", "default", f"appwrapper-{AW}-1", "uid-of-the-anchor")
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize(
    ("uid", "root"),
    [
        pytest.param(ANCHOR.uid, AW, id="the-anchor"),
        pytest.param("made-up", None, id="an-anchor-by-its-name-alone"),
    ],
)
async def test_in_a_member_an_anchor_is_believed_by_its_uid_and_a_reference_to_an_appwrapper_is_not(
    server: FakeApiServer, client: ClusterClient, uid: str, root: str | None
) -> None:
    configmaps = {"name": "configmaps", "kind": "ConfigMap", "namespaced": True}
    server.on("GET", "/api/v1", answer({"resources": [configmaps]}))
    there = {"metadata": make_metadata(ANCHOR.name, uid=ANCHOR.uid)}
    server.on("GET", f"{CONFIGMAPS}/{ANCHOR.name}", answer(there))
    async with owners_of(client, anchor_root=lambda _metadata: AW) as (owners, resolved):
        assert owners.confirm(AW, replace(ANCHOR, uid=uid)) is None
        await until(lambda: resolved)
        assert owners.confirm(AW, replace(ANCHOR, uid=uid)) == root
        assert owners.confirm(AW, APPWRAPPER) is None


async def test_on_the_hub_a_configmap_is_no_anchor(server: FakeApiServer, client: ClusterClient) -> None:
    async with owners_of(client) as (owners, _):
        assert owners.confirm(AW, ANCHOR) is None


async def test_only_the_metadata_of_an_owner_is_asked_for(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """The whole of one may be too large to be read, and then nobody would ever know whose its pods are."""
    serve(server)
    async with owners_of(client) as (owners, resolved):
        owners.confirm(AW, REPLICASET)
        await until(lambda: resolved)
    asked = server.requests(path=path("replicasets", "web-1")) + server.requests(
        path=path("deployments", "web")
    )
    assert [each.headers["Accept"] for each in asked] == [f"{METADATA},{JSON}"] * 2


async def test_object_in_a_chain_that_is_too_long_is_read_for_itself(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Anybody may put a controller of others at the end of a chain that is not read to its end."""
    serve(server)
    chain = [*(ref("ReplicaSet", f"forged-{number}") for number in range(LONGEST_CHAIN - 1)), REPLICASET]
    for each, above in pairwise(chain):
        server.on("GET", path("replicasets", each.name), answer(owned(each.name, above)))
    reads = HintReads(100)
    async with owners_of(client) as (owners, _):
        assert await owners.root_of(chain[0], reads) == NOBODY
        assert await owners.root_of(REPLICASET, reads) == AW

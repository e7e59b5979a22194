"""Who may wrap what: an author wraps what the author may create, and only the dispatcher has a say over its finalizer.

Requests are tried without being stored, but where one builds on the other.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import yaml

from dispatcher.api.names import FINALIZER
from dispatcher.cli.operators.own_namespace import BINDING
from testbed.client import ApiError, Client
from testbed.plane import Plane, write_private
from testbed.stand_in import Api, RefusedError
from tests.cluster.definitions import DOORS, appwrapper, collection, wait_for
from tests.cluster.members import identities
from tests.cluster.test_immutability import DRY_RUN, POD, answer, renamed
from tests.cluster.test_submitter import REGISTRATION, UNAVAILABLE, until
from tests.cluster.world import CHECKOUT, World

Json = dict[str, Any]

DOCUMENTS: list[Json] = [
    *yaml.safe_load_all((CHECKOUT / "manifests" / "policies" / "author-policy.yaml").read_text())
]
OWN_NAMESPACE = "appwrapper-dispatcher"
CONFIG_MAPS = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ConfigMap": CONFIG_MAPS,
    "ValidatingAdmissionPolicy": f"{REGISTRATION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{REGISTRATION}/validatingadmissionpolicybindings",
}
LISTED: Mapping[str, str] = next(each["data"] for each in DOCUMENTS if each["kind"] == "ConfigMap")
"""The plural of each kind that may be wrapped, by `Kind.group`."""
RBAC_GROUP = ".rbac.authorization.k8s.io"
AUTHOR, FINALIZERS = (f"{each}.dispatcher.codeflare.dev" for each in ("author", "finalizer"))
TAKEN = "taken"
SUBMIT: Json = {
    "apiGroups": ["workload.codeflare.dev", "mcad.ibm.com"],
    "resources": ["appwrappers", "mcadappwrappers", "appwrappers/status"],
    "verbs": ["create", "get", "patch", "update", "delete"],
}
UNLISTED: Json = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}


def right(*kinds: str, verb: str = "create") -> list[Json]:
    """Rules that give a verb on the resources of these kinds, each `Kind.group`."""
    return [
        {"apiGroups": [kind.partition(".")[2]], "resources": [LISTED[kind]], "verbs": [verb]}
        for kind in kinds
    ]


@pytest.fixture(scope="module", autouse=True)
def policies(plane: Plane) -> Iterator[None]:
    """The operators' policies, from when they are enforced; they are no longer when the last test has ended."""
    documents = [(f"{PATHS[each['kind']]}/{each['metadata']['name']}", each) for each in DOCUMENTS]
    for path, document in documents:
        plane.client.apply(path, document)
    until(lambda: are_refused(plane) == {True})
    yield
    for path, document in reversed(documents):
        if document["kind"] not in ("Namespace", "ConfigMap"):
            plane.client.request("DELETE", path)
    until(lambda: are_refused(plane) == {False})


def are_refused(plane: Plane) -> set[bool]:
    """Whether each policy refuses what only it refuses, by door: it comes to know by and by what is behind each."""
    a_stranger = plane.service_account_kubeconfig("default", "stranger", [SUBMIT])
    token = yaml.safe_load(a_stranger.read_text())["users"][0]["user"]["token"]
    stranger = Client(plane.url, token, plane.certificate_authority)
    bodies = (of_items(UNLISTED), with_finalizer(of_items()))
    return {is_refused(stranger, door, body) for door in DOORS for body in bodies}


def is_refused(client: Client, door: str, body: Json) -> bool:
    try:
        client.request("POST", f"{collection('default', door)}?dryRun=All", {**body, "apiVersion": door})
    except ApiError as error:
        return error.status != UNAVAILABLE and "denied request" in str(error)
    return False


@pytest.fixture
async def admin(plane: Plane) -> AsyncIterator[Api]:
    async with Api.connect(plane.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def capable(plane: Plane, namespace: str) -> AsyncIterator[Api]:
    """An author who may create every kind that is listed."""
    rules = [SUBMIT, *right(*LISTED)]
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "capable", rules)
    async with Api.connect(kubeconfig) as connected:
        yield connected


@pytest.fixture
async def tenant(plane: Plane, namespace: str) -> AsyncIterator[Api]:
    """An author who may create RayClusters, and nothing else."""
    rules = [SUBMIT, *right("RayCluster.ray.io")]
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "tenant", rules)
    async with Api.connect(kubeconfig) as connected:
        yield connected


def wrapped(kind: str, **metadata: str | None) -> Json:
    """An object of a kind, `Kind.group`, of which nothing is known but the kind."""
    name, _, group = kind.partition(".")
    return {
        "apiVersion": f"{group}/v1" if group else "v1",
        "kind": name,
        "metadata": {"name": "x", **metadata},
    }


def of_items(*objects: Json) -> Json:
    return appwrapper({"resources": {"GenericItems": [{"generictemplate": each} for each in objects]}})


def of_components(*objects: Json) -> Json:
    return appwrapper({"components": [{"template": each} for each in objects]})


SPELLINGS = {"items": of_items, "components": of_components}


def with_finalizer(body: Json) -> Json:
    return {**body, "metadata": {**body["metadata"], "finalizers": [FINALIZER]}}


async def said(api: Api, namespace: str, body: Json, door: str = DOORS[0]) -> str:
    """What an author is told about an AppWrapper: `TAKEN`, or why it is refused."""
    text = await answer(api, "POST", collection(namespace, door), {**body, "apiVersion": door})
    return reason(text)


def reason(text: str) -> str:
    """The reason that one of the policies gives."""
    return text.partition(" denied request: ")[2] or text


def denial(user: str, resource: str, kind: str, namespace: str, verb: str = "create") -> str:
    return (
        f"spec: system:serviceaccount:{namespace}:{user} may not {verb} {resource} in namespace {namespace}, "
        f"and so may not wrap a {kind}: ask an administrator for that right"
    )


def test_expressions_are_well_typed(plane: Plane) -> None:
    for name in (AUTHOR, FINALIZERS):
        found = plane.client.get(f"{PATHS['ValidatingAdmissionPolicy']}/{name}")
        assert found["status"]["typeChecking"] == {}


async def test_plurals_equal_the_plurals_of_the_api_server(admin: Api) -> None:
    served = {}
    groups = (await admin.request("GET", "/apis"))["groups"]
    roots = [
        "/api/v1",
        *(f"/apis/{version['groupVersion']}" for group in groups for version in group["versions"]),
    ]
    for root in roots:
        group = root.split("/")[2] if root.startswith("/apis") else ""
        for resource in (await admin.request("GET", root))["resources"]:
            if "/" not in resource["name"]:
                served[f"{resource['kind']}.{group}".rstrip(".")] = resource["name"]

    known = {kind: plural for kind, plural in LISTED.items() if kind in served}
    assert known == {kind: served[kind] for kind in known}
    assert {"Pod", "Job.batch", "RayCluster.ray.io", f"RoleBinding{RBAC_GROUP}"} <= known.keys()


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_author_wraps_only_objects_that_the_author_may_create(
    capable: Api, tenant: Api, namespace: str, spelling: str
) -> None:
    of = SPELLINGS[spelling]
    kinds = [kind for kind in LISTED if not kind.endswith(RBAC_GROUP)]

    by_capable = {kind: await said(capable, namespace, of(wrapped(kind))) for kind in kinds}
    by_tenant = {kind: await said(tenant, namespace, of(wrapped(kind))) for kind in kinds}

    assert by_capable == dict.fromkeys(kinds, TAKEN)
    assert by_tenant == {
        kind: denial("tenant", f"{LISTED[kind]}.{kind.partition('.')[2]}".rstrip("."), kind, namespace)
        for kind in kinds
    } | {"RayCluster.ray.io": TAKEN}


@pytest.mark.parametrize("door", DOORS)
async def test_every_door_is_guarded(tenant: Api, namespace: str, door: str) -> None:
    both = of_items(wrapped("RayCluster.ray.io"), wrapped("Pod"))

    assert await said(tenant, namespace, both, door) == denial("tenant", "pods", "Pod", namespace)
    assert await said(tenant, namespace, of_items(wrapped("RayCluster.ray.io")), door) == TAKEN


async def test_kinds_that_grant_rights_need_every_verb(plane: Plane, capable: Api, namespace: str) -> None:
    kind = f"RoleBinding{RBAC_GROUP}"
    rules = [SUBMIT, *right(kind, verb="*")]
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "owner", rules)

    resource, verb = f"rolebindings{RBAC_GROUP}", "do everything with"
    assert await said(capable, namespace, of_items(wrapped(kind))) == denial(
        "capable", resource, kind, namespace, verb
    )
    async with Api.connect(kubeconfig) as owner:
        assert await said(owner, namespace, of_items(wrapped(kind))) == TAKEN


async def test_rights_in_another_namespace_do_not_count(plane: Plane, admin: Api, namespace: str) -> None:
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "guest", [SUBMIT])
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    await admin.request("POST", f"{rbac}/roles", {"metadata": {"name": "pods"}, "rules": right("Pod")})
    role = {"apiGroup": RBAC_GROUP[1:], "kind": "Role", "name": "pods"}
    subject = {"kind": "ServiceAccount", "name": "guest", "namespace": namespace}
    binding = {"metadata": {"name": "pods"}, "roleRef": role, "subjects": [subject]}
    await admin.request("POST", f"{rbac}/rolebindings", binding)

    async with Api.connect(kubeconfig) as guest:

        async def may_here() -> bool:
            return await said(guest, namespace, of_items(POD)) == TAKEN

        await wait_for(may_here)
        assert "may not create pods in namespace default" in await said(guest, "default", of_items(POD))


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_kind_that_is_not_listed_is_refused_to_everybody(
    admin: Api, namespace: str, spelling: str
) -> None:
    assert await said(admin, namespace, SPELLINGS[spelling](POD, UNLISTED)) == (
        "spec: wraps a Widget.example.com, which is no kind that AppWrappers may wrap here: an administrator can add "
        "it to ConfigMap appwrapper-dispatcher/appwrapper-kinds"
    )


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        pytest.param("RayCluser.ray.io", "RayCluster.ray.io", id="letter-missing"),
        pytest.param("RayyCluster.ray.io", "RayCluster.ray.io", id="letter-too-many"),
        pytest.param("RayClutser.ray.io", "RayCluster.ray.io", id="letters-swapped"),
        pytest.param("raycluster.ray.io", "RayCluster.ray.io", id="other-case"),
        pytest.param("Pos", "Pod", id="short"),
        pytest.param("Job.batc", "Job.batch", id="in-its-group"),
    ],
)
async def test_kind_with_a_typing_error_is_answered_with_the_similar_one(
    admin: Api, namespace: str, kind: str, meant: str
) -> None:
    assert await said(admin, namespace, of_items(wrapped(kind))) == (
        f"spec: wraps a {kind}, which is no kind that AppWrappers may wrap here; did you mean {meant}? Else an "
        "administrator can add it to ConfigMap appwrapper-dispatcher/appwrapper-kinds"
    )


@pytest.mark.parametrize("kind", ["Namespace", f"ClusterRole{RBAC_GROUP}"])
async def test_refusal_says_that_a_kind_is_cluster_scoped(admin: Api, namespace: str, kind: str) -> None:
    assert await said(admin, namespace, of_items(wrapped(kind))) == (
        f"spec: wraps a {kind}, which is cluster-scoped: an AppWrapper creates objects in its namespace only. Create "
        "it yourself"
    )


async def test_entry_without_an_object_is_refused(admin: Api, namespace: str) -> None:
    body = appwrapper({"resources": {"GenericItems": [{}]}})

    assert await said(admin, namespace, body) == (
        "spec: wraps an object without a kind: give it apiVersion and kind"
    )


async def test_kind_is_known_once_it_is_listed(admin: Api, namespace: str) -> None:
    path = f"{CONFIG_MAPS}/appwrapper-kinds"
    body = of_items(UNLISTED)

    async def is_taken() -> bool:
        return await said(admin, namespace, body) == TAKEN

    await admin.request("PATCH", path, {"data": {"Widget.example.com": "widgets"}})
    await wait_for(is_taken)
    await admin.request("PATCH", path, {"data": {"Widget.example.com": None}})

    async def is_refused_again() -> bool:
        return not await is_taken()

    await wait_for(is_refused_again)


async def test_twelve_kinds_are_each_asked_about(plane: Plane, namespace: str) -> None:
    kinds = [kind for kind in LISTED if not kind.endswith(RBAC_GROUP)][:13]
    twelve, others = kinds[:12], kinds[12:]
    found = {}
    for lacking in twelve:
        rules = [SUBMIT, *right(*(kind for kind in kinds if kind != lacking))]
        kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "almost", rules)
        async with Api.connect(kubeconfig) as almost:

            async def wants_it(api: Api = almost, kind: str = lacking) -> bool:
                return await said(api, namespace, of_items(wrapped(kind))) != TAKEN

            await wait_for(wants_it)
            found[lacking] = await said(almost, namespace, of_items(*map(wrapped, twelve)))
            thirteen = await said(almost, namespace, of_items(*map(wrapped, [*twelve, *others])))

    assert found == {
        kind: denial("almost", f"{LISTED[kind]}.{kind.partition('.')[2]}".rstrip("."), kind, namespace)
        for kind in twelve
    }
    assert (
        thirteen
        == "spec: wraps 13 kinds, and at most 12 can be checked: spread them over several AppWrappers"
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_largest_appwrapper_can_be_checked(capable: Api, namespace: str, spelling: str) -> None:
    kinds = [kind for kind in LISTED if not kind.endswith(RBAC_GROUP)][:12]
    objects = [{**wrapped(kinds[number % 12]), "data": {"numbers": [0] * 1200}} for number in range(256)]

    assert await said(capable, namespace, SPELLINGS[spelling](*objects)) == TAKEN


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_object_for_another_namespace_is_refused(admin: Api, namespace: str, spelling: str) -> None:
    of = SPELLINGS[spelling]

    assert await said(admin, namespace, of(POD, wrapped("Pod", namespace="other"))) == (
        "spec: wraps an object for namespace other: leave metadata.namespace of wrapped objects out, they are created "
        "beside their AppWrapper"
    )
    for same in (namespace, "", None):
        assert await said(admin, namespace, of(wrapped("Pod", namespace=same))) == TAKEN


@pytest.mark.parametrize("where", ["kube-system", "kube-public", "kube-node-lease", OWN_NAMESPACE])
async def test_nothing_is_submitted_in_the_systems_and_the_dispatchers_own_namespaces(
    admin: Api, where: str
) -> None:
    assert await said(admin, where, of_items(POD)) == (
        f"metadata.namespace: nothing is dispatched in {where}: submit the AppWrapper in another namespace"
    )


async def test_list_of_kinds_that_is_gone_refuses_all(admin: Api, namespace: str) -> None:
    path = f"{CONFIG_MAPS}/appwrapper-kinds"
    await admin.request("DELETE", path)

    async def is_refused_now() -> bool:
        return await said(admin, namespace, of_items(POD)) != TAKEN

    await wait_for(is_refused_now)
    await admin.request("POST", CONFIG_MAPS, next(each for each in DOCUMENTS if each["kind"] == "ConfigMap"))

    async def is_taken() -> bool:
        return not await is_refused_now()

    await wait_for(is_taken)


async def test_user_without_rights_on_the_kind_may_change_the_priority_but_add_no_object(
    admin: Api, tenant: Api, namespace: str
) -> None:
    """The definition's own rules do not see a key that is renamed."""
    stored = await admin.request("POST", collection(namespace), of_items(POD))
    path = f"{collection(namespace)}/t"

    assert await answer(tenant, "PATCH", path, {"spec": {"priority": 7}}) == TAKEN
    assert await answer(tenant, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == TAKEN
    change = renamed(stored, "spec", "specification")
    assert reason(await answer(tenant, "PUT", path, change)) == denial("tenant", "pods", "Pod", namespace)


# --- the finalizer -----------------------------------------------------------------------------------

KEPT = (
    "metadata.finalizers: dispatcher.codeflare.dev/member-cluster is the dispatcher's, and nobody else adds or removes "
    "it: leave it as it is"
)


@pytest.fixture
async def dispatcher(plane: Plane, world: World) -> AsyncIterator[Api]:
    """Who has the rights of `manifests/base/hub.yaml`; afterwards no account has them.

    `clusters add` finds the dispatcher by the binding of these rights, in the tests that follow on this cluster, too.
    """
    await identities.apply(plane, identities.HUB)
    token = await identities.dispatchers_token(world)
    content = identities.kubeconfig(plane, token).decode()
    async with Api.connect(write_private(plane.folder / "dispatcher.kubeconfig", content)) as connected:
        yield connected
    await identities.revoke(world, BINDING)


@pytest.mark.parametrize("door", DOORS)
async def test_finalizer_is_refused_at_creation(capable: Api, namespace: str, door: str) -> None:
    theirs = copy.deepcopy(of_items(POD))
    theirs["metadata"]["finalizers"] = ["example.com/theirs"]

    assert await said(capable, namespace, with_finalizer(of_items(POD)), door) == KEPT
    assert await said(capable, namespace, theirs, door) == TAKEN


async def test_only_the_dispatcher_and_administrators_add_or_remove_the_finalizer(
    admin: Api, capable: Api, dispatcher: Api, namespace: str
) -> None:
    path = f"{collection(namespace)}/t"
    added: Json = {"metadata": {"finalizers": [FINALIZER]}}
    removed: Json = {"metadata": {"finalizers": None}}
    await capable.request("POST", collection(namespace), of_items(POD))

    assert reason(await answer(capable, "PATCH", path, added)) == KEPT
    assert await answer(dispatcher, "PATCH", path, added) == TAKEN
    stored = await dispatcher.request("PATCH", path, added)

    assert reason(await answer(capable, "PATCH", path, removed)) == KEPT
    without = {key: value for key, value in stored["metadata"].items() if key != "finalizers"}
    assert reason(await answer(capable, "PUT", path, {**stored, "metadata": without})) == KEPT
    assert await answer(capable, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}) == TAKEN
    assert await answer(capable, "PATCH", path, {"spec": {"priority": 1}}) == TAKEN
    assert await answer(admin, "PATCH", path, removed) == TAKEN

    await capable.request("DELETE", path)
    assert reason(await answer(capable, "PATCH", path, removed)) == KEPT
    await dispatcher.request("PATCH", path, removed)
    with pytest.raises(RefusedError, match="404"):
        await admin.request("GET", path, query=DRY_RUN)


async def test_status_can_always_be_written(admin: Api, tenant: Api, namespace: str) -> None:
    stored = await admin.request("POST", collection(namespace), of_items(POD))
    body = renamed(with_finalizer(stored), "spec", "specification") | {"status": {"state": "Pending"}}

    written = await tenant.request("PUT", f"{collection(namespace)}/t/status", body)

    assert written["status"] == {"state": "Pending"}

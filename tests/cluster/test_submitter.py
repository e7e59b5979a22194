"""Who submitted an AppWrapper is written on it by the API server, whatever its user writes, and stays.

People type kubectl, which impersonates them; programs have a token of their own.
"""

from __future__ import annotations

import asyncio
import json
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml

from dispatcher.api.names import GROUPS_ANNOTATION, USER_ANNOTATION
from testbed.client import MERGE_PATCH, ApiError
from testbed.plane import Plane
from testbed.stand_in import Api
from tests.cluster.definitions import DOORS, WORKLOAD_V1BETA1, appwrapper, collection
from tests.cluster.manifests import bent, config_map, item, small_job
from tests.cluster.outcomes import rows
from tests.cluster.test_immutability import COMPONENT, ITEM, MAY_CHANGE, POD, TAKEN, answer, answers
from tests.cluster.world import CHECKOUT, LONGEST_POLL_SECONDS, World

Json = dict[str, Any]
Way = tuple[str, ...]
"""A command of kubectl that writes a file."""

POLICIES = CHECKOUT / "manifests" / "submitter-policy.yaml"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
OLDER = f"{collection('default')}/older"
"""An AppWrapper, of another manager, that was created before there were policies."""
UNSTAMPED = f"{collection('default')}/unstamped"
"""Another, ours."""
OWN_NAMESPACE = "appwrapper-dispatcher"
FORGED = {USER_ANNOTATION: "root", GROUPS_ANNOTATION: "system:masters"}
ALICES = {USER_ANNOTATION: "alice", GROUPS_ANNOTATION: "vision\nllm"}
ADMINS = {USER_ANNOTATION: "admin", GROUPS_ANNOTATION: "system:masters"}
ENFORCEMENT_SECONDS = 60.0
UNAVAILABLE = 503
"""How an AppWrapper is refused while the policy does not know its definition yet."""


@pytest.fixture(scope="module", autouse=True)
def policies(plane: Plane) -> Iterator[None]:
    """The operators' policies, from when they are enforced; they are no longer when the last test has ended."""
    older = appwrapper({"resources": {"GenericItems": [item(config_map("a"))]}, "managedBy": "example.com/a"})
    plane.client.request("POST", collection("default"), older | {"metadata": {"name": "older"}})
    ours = appwrapper({"resources": {"GenericItems": [item(config_map("a"))]}, "suspend": True})
    plane.client.request("POST", collection("default"), ours | {"metadata": {"name": "unstamped"}})
    documents = [
        (f"{REGISTRATION}/{PLURALS[each['kind']]}/{each['metadata']['name']}", each)
        for each in yaml.safe_load_all(POLICIES.read_text())
    ]
    for path, document in documents:
        plane.client.apply(path, document)
    until(lambda: written(plane) == {True} and is_kept(plane))
    yield
    for path, _ in reversed(documents):
        plane.client.request("DELETE", path)
    until(lambda: written(plane) == {False} and not is_kept(plane))
    plane.client.request("DELETE", OLDER)
    plane.client.request("DELETE", UNSTAMPED)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENFORCEMENT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "the policies were not taken up in time"
        time.sleep(LONGEST_POLL_SECONDS)


def written(plane: Plane) -> set[bool]:
    """Whether one policy is enforced, by door: it comes to know by and by of what kind the objects behind each are."""
    return {is_written(plane, door) for door in DOORS}


def is_written(plane: Plane, door: str) -> bool:
    body = appwrapper({"resources": {"GenericItems": [ITEM]}}, door)
    try:
        made = plane.client.request("POST", f"{collection('default', door)}?dryRun=All", body)
    except ApiError as error:
        if error.status != UNAVAILABLE:
            raise
        return False
    return USER_ANNOTATION in made["metadata"].get("annotations", {})


def is_kept(plane: Plane) -> bool:
    """Whether the other is."""
    try:
        plane.client.request(
            "PATCH", f"{OLDER}?dryRun=All", {"metadata": {"annotations": FORGED}}, MERGE_PATCH
        )
    except ApiError:
        return True
    return False


@dataclass(frozen=True)
class Person:
    """Somebody who types kubectl in one namespace."""

    plane: Plane
    namespace: str
    name: str
    groups: tuple[str, ...]

    async def kubectl(self, *arguments: str, manifest: Json | None = None) -> str:
        """What it says, `manifest` being its standard input; of what it does not do, only why."""
        identity = [f"--as={self.name}", *(f"--as-group={each}" for each in self.groups)]
        command = [str(self.plane.kubectl), *identity, f"--namespace={self.namespace}", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        output, complaint = await process.communicate(json.dumps(manifest).encode() if manifest else None)
        return (complaint if process.returncode else output).decode()

    async def apply(self, manifest: Json, *flags: str) -> str:
        return await self.write(manifest, ("apply", *flags))

    async def write(self, manifest: Json, way: Way) -> str:
        """Write the manifest by this command of kubectl."""
        return await self.kubectl(*way, "-f", "-", manifest=manifest)


@pytest.fixture
async def alice(plane: Plane, api: Api, namespace: str) -> Person:
    """May do what an owner of the namespace may."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    await api.request(
        "POST",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        {"metadata": {"name": "alice"}, "roleRef": role, "subjects": [subject]},
    )
    return Person(plane, namespace, "alice", ("vision", "llm"))


async def written_on(api: Api, namespace: str, name: str = "t", door: str = WORKLOAD_V1BETA1) -> Json:
    """Those of an AppWrapper, less what kubectl remembers of an apply."""
    metadata = (await api.request("GET", f"{collection(namespace, door)}/{name}"))["metadata"]
    found: Json = metadata.get("annotations", {})
    return {key: value for key, value in found.items() if not key.startswith("kubectl.kubernetes.io/")}


def named(name: str, door: str = WORKLOAD_V1BETA1, written: Json | None = None) -> Json:
    """An AppWrapper with these annotations."""
    return bent(appwrapper({"resources": {"GenericItems": [ITEM]}}, door, name), written or {})


def with_priority(priority: int, written: Json | None = None) -> Json:
    """An AppWrapper that is written again with another priority; it has the key `annotations` only if it has some.

    A tool that owns all annotations, because it wrote the first one, removes those of others with its last one.
    """
    manifest = appwrapper({"resources": {"GenericItems": [ITEM]}, "priority": priority}, name="t")
    return bent(manifest, written) if written else manifest


def refusal(annotation: str, name: str, door: str = WORKLOAD_V1BETA1) -> str:
    """What is said of a change of what says who submitted it."""
    resource = collection("", door).rpartition("/")[2]
    return f'{resource}.{door.partition("/")[0]} "{name}" is forbidden: {denial(annotation)}'


def denial(annotation: str) -> str:
    policy = "submitter.dispatcher.codeflare.dev"
    return (
        f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: "
        f"metadata.annotations[{annotation}]: says who submitted the AppWrapper and cannot be added, changed or "
        "removed: leave it as it is"
    )


@pytest.mark.parametrize("written", [{}, FORGED], ids=["unwritten", "forged"])
async def test_submitter_is_the_user_of_the_request_whatever_its_annotations_say(
    alice: Person, api: Api, written: Json
) -> None:
    found = {}
    for number, door in enumerate(DOORS):
        body = named(f"t{number}", door, {**written, "example.com/note": "mine"})
        await alice.kubectl("create", "-f", "-", manifest=body)
        found[door] = await written_on(api, alice.namespace, f"t{number}", door)

    assert found == {door: {**ALICES, "example.com/note": "mine"} for door in DOORS}


async def test_service_account_is_the_submitter_of_appwrappers_it_creates(
    plane: Plane, api: Api, namespace: str
) -> None:
    rules = [{"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["create"]}]
    kubeconfig = await asyncio.to_thread(plane.service_account_kubeconfig, namespace, "pipeline", rules)
    async with Api.connect(kubeconfig) as pipeline:
        await pipeline.request("POST", collection(namespace), named("t"))

    assert await written_on(api, namespace) == {
        USER_ANNOTATION: f"system:serviceaccount:{namespace}:pipeline",
        GROUPS_ANNOTATION: f"system:serviceaccounts\nsystem:serviceaccounts:{namespace}",
    }


async def test_user_in_many_groups_can_submit(alice: Person, api: Api) -> None:
    """As many as there is room for in the headers of a request; what is not a line, or too long, is left out."""
    groups = [f"group-{number}-{'x' * 490}" for number in range(200)]
    of_many = Person(alice.plane, alice.namespace, "alice", ("y" * 513, *groups))

    said = await of_many.kubectl("create", "-f", "-", manifest=named("t"))

    assert said == "appwrapper.workload.codeflare.dev/t created\n"
    assert await written_on(api, alice.namespace) == {
        USER_ANNOTATION: "alice",
        GROUPS_ANNOTATION: "\n".join(groups[:64]),
    }


@pytest.mark.parametrize("flags", [(), ("--server-side",)], ids=["by-the-client", "by-the-server"])
async def test_unchanged_manifest_can_be_applied_again(
    alice: Person, api: Api, flags: tuple[str, ...]
) -> None:
    manifest = named("t")
    said = [await alice.apply(manifest, *flags), await alice.apply(manifest, *flags)]
    manifest["spec"]["priority"] = 7
    said.append(await alice.apply(manifest, *flags))

    name, done = "appwrapper.workload.codeflare.dev/t", "serverside-applied"
    words = [done, done, done] if flags else ["created", "unchanged", "configured"]
    assert said == [f"{name} {word}\n" for word in words]
    assert await written_on(api, alice.namespace) == ALICES


CLIENT_SIDE: Final[Way] = ("apply",)
SERVER_SIDE: Final[Way] = ("apply", "--server-side")
ARGO_CD: Final[Way] = ("apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller")
FLUX: Final[Way] = ("apply", "--server-side", "--force-conflicts", "--field-manager=kustomize-controller")
REPLACE: Final[Way] = ("replace",)


def creating(way: Way) -> Way:
    """The first write of a tool that writes in this way."""
    return CLIENT_SIDE if way == REPLACE else way


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param([CLIENT_SIDE] * 3, id="client-side"),
        pytest.param([SERVER_SIDE] * 3, id="server-side"),
        pytest.param([CLIENT_SIDE, *[SERVER_SIDE] * 4], id="server-side-after-client-side"),
        pytest.param([CLIENT_SIDE, *[ARGO_CD] * 4], id="argo-cd-after-client-side"),
        pytest.param([ARGO_CD, CLIENT_SIDE, *[ARGO_CD] * 3], id="client-side-between-those-of-argo-cd"),
        pytest.param([CLIENT_SIDE, SERVER_SIDE, *[FLUX] * 3], id="flux-after-both"),
        pytest.param([CLIENT_SIDE, *[REPLACE] * 3], id="argo-cd-that-replaces"),
        pytest.param([ARGO_CD, REPLACE, CLIENT_SIDE, SERVER_SIDE, FLUX, ARGO_CD], id="all-in-turn"),
    ],
)
async def test_file_is_applied_again_and_again_in_every_way(alice: Person, api: Api, ways: list[Way]) -> None:
    """A tool that once came to own the annotations, which its file lacks, removes them with its next write."""
    await alice.write(with_priority(1), creating(ways[0]))
    found = []
    for priority, way in enumerate(ways[1:], start=2):
        said = await alice.write(with_priority(priority), way)
        stored = await api.request("GET", f"{collection(alice.namespace)}/t")
        found.append(
            (said.splitlines()[-1], stored["spec"]["priority"], await written_on(api, alice.namespace))
        )

    name = "appwrapper.workload.codeflare.dev/t"
    done = {CLIENT_SIDE: "configured", REPLACE: "replaced"}
    assert found == [
        (f"{name} {done.get(way, 'serverside-applied')}", priority, ALICES)
        for priority, way in enumerate(ways[1:], start=2)
    ]


async def test_tool_that_takes_over_the_fields_of_kubectl_can_apply(alice: Person, api: Api) -> None:
    """Flux renames kubectl's field manager to its own before its first apply, and then owns the annotations."""
    path = f"{collection(alice.namespace)}/t"
    await alice.write(with_priority(1), CLIENT_SIDE)
    await alice.write(with_priority(2), CLIENT_SIDE)
    managed = (await api.request("GET", path))["metadata"]["managedFields"]
    fields: Json = {"f:metadata": {"f:annotations": {f"f:{each}": {} for each in ALICES}}}
    taken_over = {**managed[0], "manager": "kustomize-controller", "operation": "Apply", "fieldsV1": fields}
    await api.request("PATCH", path, {"metadata": {"managedFields": [*managed, taken_over]}})

    for priority in (3, 4):
        said = await alice.write(with_priority(priority), FLUX)
        assert said == "appwrapper.workload.codeflare.dev/t serverside-applied\n"
        assert await written_on(api, alice.namespace) == ALICES


@pytest.mark.parametrize("way", [CLIENT_SIDE, SERVER_SIDE, ARGO_CD, REPLACE], ids="-".join)
@pytest.mark.parametrize("forged", [FORGED, {USER_ANNOTATION: "root"}, {GROUPS_ANNOTATION: ""}], ids=len)
async def test_file_that_names_another_submitter_is_applied_and_never_believed(
    alice: Person, bob: Person, api: Api, way: Way, forged: Json
) -> None:
    """Also if the first write has it, and if bob writes it, who has not submitted the AppWrapper."""
    await alice.write(with_priority(1, forged), creating(way))
    for priority, person in ((2, alice), (3, bob), (4, alice)):
        said = await person.write(with_priority(priority, forged), way)
        stored = await api.request("GET", f"{collection(alice.namespace)}/t")
        assert (stored["spec"]["priority"], await written_on(api, alice.namespace)) == (priority, ALICES), (
            said
        )


@pytest.mark.parametrize("annotation", [USER_ANNOTATION, GROUPS_ANNOTATION])
@pytest.mark.parametrize("value", ["bob", "", None], ids=["changed", "emptied", "removed"])
async def test_submitter_annotations_stay_whatever_is_written(
    api: Api, namespace: str, annotation: str, value: str | None
) -> None:
    found = {}
    for number, door in enumerate(DOORS):
        await api.request("POST", collection(namespace, door), named(f"t{number}", door))
        change = {"metadata": {"annotations": {annotation: value, "example.com/note": "mine"}}}
        await api.request("PATCH", f"{collection(namespace, door)}/t{number}", change)
        found[door] = await written_on(api, namespace, f"t{number}", door)

    assert found == {door: {**ADMINS, "example.com/note": "mine"} for door in DOORS}


@pytest.mark.parametrize("annotation", [USER_ANNOTATION, GROUPS_ANNOTATION])
async def test_submitter_annotations_cannot_be_added_to_an_older_appwrapper(
    api: Api, annotation: str
) -> None:
    change = {"metadata": {"annotations": {annotation: "bob"}}}

    assert await answer(api, "PATCH", OLDER, change) == f"422: {refusal(annotation, 'older')}"
    assert await answer(api, "PATCH", OLDER, {"metadata": {"annotations": {"a": "b"}}}) == "taken"


async def test_submitter_stays_if_all_annotations_are_removed_at_once(api: Api, namespace: str) -> None:
    await api.request("POST", collection(namespace), named("t"))
    path = f"{collection(namespace)}/t"

    assert await answer(api, "PATCH", path, {"metadata": {"annotations": None}}) == "taken"
    assert await written_on(api, namespace) == ADMINS


@pytest.mark.parametrize("change", MAY_CHANGE.values(), ids=MAY_CHANGE)
async def test_all_else_may_change(api: Api, namespace: str, change: Json) -> None:
    assert await answers(api, namespace, change) == TAKEN


async def test_status_can_always_be_written(api: Api, namespace: str) -> None:
    """Whatever comes with it: of what a status is written in, only the status is taken."""
    said = {}
    for number, door in enumerate(DOORS):
        stored = await api.request("POST", collection(namespace, door), named(f"t{number}", door))
        metadata = {**stored["metadata"], "annotations": FORGED}
        body = {**stored, "metadata": metadata, "status": {"state": "Pending"}}
        written = await api.request("PUT", f"{collection(namespace, door)}/t{number}/status", body)
        said[door] = written["status"], written["metadata"]["annotations"]

    assert said == {door: ({"state": "Pending"}, ADMINS) for door in DOORS}


@pytest.mark.parametrize("spelling", ["items", "components"])
async def test_largest_appwrapper_is_stored_as_it_was_written(
    api: Api, namespace: str, spelling: str
) -> None:
    """To write on it costs no more than a policy is allowed, and changes nothing beside."""
    large = {**POD, "data": {"numbers": [0, 1.5, "1"] * 250}}
    specs: dict[str, Json] = {
        "items": {"resources": {"GenericItems": [ITEM | {"generictemplate": large}] * 256}},
        "components": {"components": [COMPONENT | {"template": large}] * 256},
    }
    stored = await api.request("POST", collection(namespace), appwrapper(specs[spelling]))

    assert (stored["spec"], stored["metadata"]["annotations"]) == (specs[spelling], ADMINS)


@pytest.mark.parametrize(
    ("settings", "believed"),
    [
        pytest.param({"submitter": "annotation"}, ("alice", ["vision", "llm"]), id="believed"),
        pytest.param({}, ("", []), id="unless-told-otherwise-not"),
    ],
)
async def test_dispatcher_records_the_submitter_at_intake(
    world: World, alice: Person, settings: dict[str, str], believed: tuple[str, list[str]]
) -> None:
    await world.start_dispatcher(**settings)
    await alice.apply(bent(small_job("train"), FORGED))
    await world.until_state("train", "Running")

    (row,) = await rows(world, "SELECT user_name, user_groups FROM appwrapper WHERE name = 'train'")
    assert (row["user_name"], row["user_groups"]) == believed


@pytest.fixture
async def bob(plane: Plane, api: Api, namespace: str) -> Person:
    """May submit AppWrappers in the namespace, and nothing else."""
    rbac, group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}", "rbac.authorization.k8s.io"
    verbs = ["create", "get", "patch", "update"]
    rules = [{"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": verbs}]
    await api.request("POST", f"{rbac}/roles", {"metadata": {"name": "submitters"}, "rules": rules})
    body = {
        "metadata": {"name": "submitters"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "submitters"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
    }
    await api.request("POST", f"{rbac}/rolebindings", body)
    return Person(plane, namespace, "bob", ("llm",))


async def test_dispatcher_that_reviews_authors_refuses_objects_the_author_may_not_create(
    world: World, alice: Person, bob: Person
) -> None:
    """What bob writes into the annotation, alice's name, is of no help to bob."""
    await world.start_dispatcher(submitter="annotation", author_check="review", namespace=OWN_NAMESPACE)
    await alice.apply(small_job("alices"))
    await bob.apply(bent(small_job("bobs"), {USER_ANNOTATION: "alice"}))
    await world.until_state("alices", "Running")
    status = await world.until_shown("bobs", "Failed")

    failed = next(each for each in status["conditions"] if each["type"] == "Failed")
    assert failed["message"] == (
        f"{world.namespace}/bobs creation failure: spec.resources.GenericItems[0]: bob may not create jobs.batch in "
        f"namespace {world.namespace}. Ask an administrator for that right, then submit the AppWrapper anew."
    )
    assert await world.names("Job") == {"alices"}


async def test_appwrapper_that_is_older_than_the_stamp_is_refused_where_authors_are_reviewed(
    world: World, plane: Plane
) -> None:
    """Nobody knows whose it is."""
    await world.start_dispatcher(submitter="annotation", author_check="review", namespace=OWN_NAMESPACE)

    async def refused() -> str | None:
        status = plane.client.get(UNSTAMPED).get("status") or {}
        return str(status.get("conditions")) if status.get("state") == "Failed" else None

    assert "does not say who submitted the AppWrapper" in await world.until(refused, "it is refused")


@pytest.mark.parametrize("where", ["kube-public", OWN_NAMESPACE])
async def test_nothing_is_dispatched_in_the_systems_and_the_dispatchers_own_namespace(
    world: World, plane: Plane, where: str
) -> None:
    """Also where no policy refuses it at the door."""
    await plane.create_namespace(where)
    path = f"{collection(where)}/misplaced"
    await world.start_dispatcher(namespace=OWN_NAMESPACE)
    body = appwrapper({"resources": {"GenericItems": [item(config_map("a"))]}}, name="misplaced")
    await asyncio.to_thread(plane.client.request, "POST", collection(where), body)

    async def refused() -> str | None:
        status = plane.client.get(path).get("status") or {}
        return str(status.get("conditions")) if status.get("state") == "Failed" else None

    assert f'nothing is dispatched in "{where}"' in await world.until(refused, "it is refused")
    await asyncio.to_thread(plane.client.request, "DELETE", path)

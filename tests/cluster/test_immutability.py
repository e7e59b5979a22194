"""What an AppWrapper wraps stays as it was submitted; how urgent it is, and what is written on it, may change.

Changes are tried without being stored, except where one builds on the other.
"""

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.stand_in import Api, RefusedError
from tests.cluster.definitions import (
    DOORS,
    Json,
    appwrapper,
    collection,
    copied,
    create_once_served,
    install,
    uninstall,
    wait_for,
)

POLICY, BINDING = yaml.safe_load_all(
    (Path(__file__).parents[2] / "manifests" / "policies" / "admission-policy.yaml").read_text()
)
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
DRY_RUN = {"dryRun": "All"}
ANEW = "attempt to change immutable field: delete the AppWrapper and submit it anew"

CONTAINER: Json = {"name": "a", "image": "a", "resources": {"requests": {"cpu": 0.5, "memory": "16G"}}}
POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "labels": {"a": "b"}},
    "spec": {"containers": [CONTAINER]},
}
ITEM: Json = {
    "generictemplate": POD,
    "custompodresources": [{"replicas": 1, "requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}],
    "completionstatus": "Complete",
}
COMPONENT: Json = {
    "template": POD,
    "podSets": [{"path": "template", "replicas": 1}],
    "podSetInfos": [{"labels": {"a": "b"}}],
}
OURSELVES = "workload.codeflare.dev/appwrapper-controller"
SPELLINGS: dict[str, Json] = {
    "items": {"resources": {"GenericItems": [ITEM]}, "managedBy": OURSELVES},
    "components": {"components": [COMPONENT]},
}
MAY_CHANGE: dict[str, Json] = {
    "priority": {"spec": {"priority": 7}},
    "slope": {"spec": {"priorityslope": 0.5}},
    "suspend": {"spec": {"suspend": True}},
    "min-available": {"spec": {"schedulingSpec": {"minAvailable": 3}}},
    "requeuing": {"spec": {"schedulingSpec": {"requeuing": {"maxNumRequeuings": 3}}}},
    "label": {"metadata": {"labels": {"a": "b"}}},
    "annotation": {"metadata": {"annotations": {"workload.codeflare.dev.appwrapper/retryLimit": "5"}}},
    "finalizer": {"metadata": {"finalizers": ["example.com/a"]}},
}
ITEMS, COMPONENTS = "resources/GenericItems", "components"
GONE = object()


def edited(body: Json, path: str, value: object) -> Json:
    """A copy in which the field at the path, such as `a/0/b`, has another value, or is gone."""
    result = copy.deepcopy(body)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("/"))
    inner: Any = result
    for step in way:
        inner = inner[step]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return result


def renamed(found: Json, old: str, new: str, **content: object) -> Json:
    """A copy in which the template has one of its keys under another name, with that content if it is given."""
    result = copy.deepcopy(found)
    template = result["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    template[new] = template.pop(old)
    template.update(content)
    return result


@pytest.fixture
async def policy(api: Api, namespace: str) -> AsyncIterator[None]:
    """The operators' policy, from when it is enforced; it is no longer when the test has ended."""
    await submit(api, namespace, "items", name="canary")
    path = f"{collection(namespace)}/canary"
    await api.request("POST", POLICIES, POLICY)
    await api.request("POST", BINDINGS, BINDING)
    try:
        await until(api, path, is_enforced=True)
        yield
    finally:
        for place, document in ((BINDINGS, BINDING), (POLICIES, POLICY)):
            await api.request("DELETE", f"{place}/{document['metadata']['name']}")
        await until(api, path, is_enforced=False)


async def until(api: Api, path: str, *, is_enforced: bool) -> None:
    """Wait until what only the policy refuses is refused, or taken."""
    trick = renamed(await api.request("GET", path), "spec", "specification")

    async def it_is() -> bool:
        return (await answer(api, "PUT", path, trick) != "taken") is is_enforced

    await wait_for(it_is)


async def submit(
    api: Api, namespace: str, spelling: str, name: str = "t", group_version: str = DOORS[0]
) -> Json:
    body = appwrapper(SPELLINGS[spelling], group_version, name)
    return await api.request("POST", collection(namespace, group_version), body)


async def answer(api: Api, method: str, path: str, body: Json) -> str:
    """What the API server would say; nothing is stored."""
    try:
        await api.request(method, path, body, DRY_RUN)
    except RefusedError as refusal:
        return str(refusal)
    return "taken"


async def answers(api: Api, namespace: str, change: Json) -> dict[str, str]:
    """What the API server says about a change of either spelling, through every group and version."""
    said = {}
    for spelling in SPELLINGS:
        for group_version in DOORS:
            name = f"{spelling}-{group_version.rpartition('/')[2]}"
            await submit(api, namespace, spelling, name, group_version)
            path = f"{collection(namespace, group_version)}/{name}"
            said[f"{spelling} through {group_version}"] = await answer(api, "PATCH", path, change)
    return said


TAKEN = {f"{spelling} through {group_version}": "taken" for spelling in SPELLINGS for group_version in DOORS}


@pytest.mark.parametrize("change", MAY_CHANGE.values(), ids=MAY_CHANGE)
async def test_may_change(api: Api, namespace: str, change: Json) -> None:
    assert await answers(api, namespace, change) == TAKEN


@pytest.mark.parametrize(
    ("spelling", "path", "value"),
    [
        pytest.param("items", f"{ITEMS}/0/generictemplate/apiVersion", "v2", id="api-version"),
        pytest.param("items", f"{ITEMS}/0/generictemplate/kind", "Job", id="kind"),
        pytest.param("items", f"{ITEMS}/0/generictemplate/metadata/name", "b", id="name"),
        pytest.param("items", f"{ITEMS}/0/generictemplate/metadata/labels/a", "c", id="label"),
        pytest.param("items", f"{ITEMS}/0/generictemplate/spec/containers/0/image", "b", id="image"),
        pytest.param(
            "items", f"{ITEMS}/0/generictemplate/spec/containers/0/resources/requests/cpu", 1, id="cpu"
        ),
        pytest.param("items", f"{ITEMS}/0/generictemplate/data", {}, id="another-key"),
        pytest.param("items", f"{ITEMS}/0/generictemplate/spec", GONE, id="key-gone"),
        pytest.param("items", f"{ITEMS}/0/generictemplate", GONE, id="template-gone"),
        pytest.param("items", f"{ITEMS}/0/custompodresources/0/replicas", 2, id="declared-pods"),
        pytest.param("items", f"{ITEMS}/0/custompodresources/0/requests/cpu", 2, id="declared-cpu"),
        pytest.param("items", f"{ITEMS}/0/custompodresources/0/limits", GONE, id="declared-limits-gone"),
        pytest.param("items", f"{ITEMS}/0/custompodresources", GONE, id="declaration-gone"),
        pytest.param("items", f"{ITEMS}/0/completionstatus", "Failed", id="completion"),
        pytest.param("items", ITEMS, [ITEM, ITEM], id="another-item"),
        pytest.param("items", ITEMS, [], id="no-item"),
        pytest.param("items", "managedBy", "kueue.x-k8s.io/multikueue", id="another-manager"),
        pytest.param("items", "managedBy", GONE, id="no-manager"),
        pytest.param("components", "managedBy", OURSELVES, id="a-manager"),
        pytest.param(
            "components", f"{COMPONENTS}/0/template/spec/containers/0/image", "b", id="component-image"
        ),
        pytest.param("components", f"{COMPONENTS}/0/podSets/0/replicas", 2, id="pod-set-replicas"),
        pytest.param("components", f"{COMPONENTS}/0/podSets/0/path", "template.spec", id="pod-set-path"),
        pytest.param("components", f"{COMPONENTS}/0/podSetInfos/0/labels/a", "c", id="pod-set-info"),
        pytest.param("components", COMPONENTS, [COMPONENT, COMPONENT], id="another-component"),
        pytest.param("components", COMPONENTS, [], id="no-component"),
    ],
)
async def test_may_not_change(api: Api, namespace: str, spelling: str, path: str, value: object) -> None:
    field = path.partition("/")[0]
    said = {}
    for number, group_version in enumerate(DOORS):
        stored = await submit(api, namespace, spelling, f"t{number}", group_version)
        change = {**stored, "spec": edited(stored["spec"], path, value)}
        where = f"{collection(namespace, group_version)}/t{number}"
        said[group_version] = await answer(api, "PUT", where, change)

    assert said == {
        group_version: f'422: AppWrapper.{group_version.partition("/")[0]} "t{number}" is invalid: '
        f"spec.{field}: Forbidden: {ANEW}"
        for number, group_version in enumerate(DOORS)
    }


async def test_spelling_may_not_change(api: Api, namespace: str) -> None:
    stored = await submit(api, namespace, "components")
    change = {**stored, "spec": {"resources": SPELLINGS["items"]["resources"]}}

    assert await answer(api, "PUT", f"{collection(namespace)}/t", change) == (
        '422: AppWrapper.workload.codeflare.dev "t" is invalid: '
        f"[spec.resources: Forbidden: {ANEW}, spec.components: Forbidden: {ANEW}]"
    )


async def test_unchanged_spec_may_be_submitted_again(api: Api, namespace: str) -> None:
    stored = await submit(api, namespace, "items")
    again = appwrapper(SPELLINGS["items"])
    again["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]

    assert await answer(api, "PUT", f"{collection(namespace)}/t", again) == "taken"


async def test_whole_number_with_a_point_is_taken_for_a_change(api: Api, namespace: str) -> None:
    """The API server stores 1.0 as 1 and then finds them different; kubectl and Go clients send 1 at once."""
    path = f"{ITEMS}/0/generictemplate/spec/containers/0/resources/requests/cpu"
    submitted = edited(SPELLINGS["items"], path, 1.0)
    stored = await api.request("POST", collection(namespace), appwrapper(submitted))

    said = await answer(api, "PUT", f"{collection(namespace)}/t", {**stored, "spec": submitted})

    assert ANEW in said


async def test_content_changes_behind_a_renamed_key_where_the_policy_is_not_installed(
    api: Api, namespace: str
) -> None:
    """The rules of the definitions cannot see it, which is why there is a policy."""
    path = f"{collection(namespace)}/t"
    away = renamed(await submit(api, namespace, "items"), "spec", "specification")
    back = renamed(await api.request("PUT", path, away), "specification", "spec", spec={"containers": []})

    assert (await api.request("PUT", path, back))["spec"] == back["spec"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.usefixtures("policy")
async def test_policy_refuses_renamed_keys(api: Api, namespace: str, spelling: str) -> None:
    path, field = {
        "items": (f"{ITEMS}/0/generictemplate", "resources"),
        "components": (f"{COMPONENTS}/0/template", "components"),
    }[spelling]
    said = {}
    for number, group_version in enumerate(DOORS):
        stored = await submit(api, namespace, spelling, f"t{number}", group_version)
        change = edited(stored["spec"], f"{path}/specification", POD["spec"])
        change = edited(change, f"{path}/spec", GONE)
        where = f"{collection(namespace, group_version)}/t{number}"
        said[group_version] = await answer(api, "PUT", where, {**stored, "spec": change})

    name = "immutable.dispatcher.codeflare.dev"
    assert said == {
        group_version: f"422: {collection('', group_version).rpartition('/')[2]}.{group_version.partition('/')[0]} "
        f"\"t{number}\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: "
        f"spec.{field}: {ANEW}"
        for number, group_version in enumerate(DOORS)
    }


@pytest.mark.usefixtures("policy")
async def test_policy_takes_what_may_change(api: Api, namespace: str) -> None:
    everything: Json = {"spec": {}, "metadata": {}}
    for change in MAY_CHANGE.values():
        for part, fields in change.items():
            everything[part] |= fields

    assert await answers(api, namespace, everything) == TAKEN


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.usefixtures("policy")
async def test_largest_appwrapper_can_be_changed(api: Api, namespace: str, spelling: str) -> None:
    """Comparing it costs neither the definition's rules nor the policy more than they are allowed."""
    large = {**POD, "data": {"numbers": [0] * 1200}}
    specs: dict[str, Json] = {
        "items": {"resources": {"GenericItems": [ITEM | {"generictemplate": large}] * 256}},
        "components": {"components": [COMPONENT | {"template": large}] * 256},
    }
    spec = specs[spelling]
    await api.request("POST", collection(namespace), appwrapper(spec))

    assert await answer(api, "PATCH", f"{collection(namespace)}/t", {"spec": {"priority": 7}}) == "taken"


@pytest.mark.usefixtures("policy")
async def test_status_can_always_be_written(api: Api, namespace: str) -> None:
    said = {}
    for group_version in DOORS:
        name = group_version.rpartition("/")[2]
        stored = await submit(api, namespace, "items", name, group_version)
        body = renamed(stored, "spec", "specification") | {"status": {"state": "Pending"}}
        path = f"{collection(namespace, group_version)}/{name}/status"
        said[group_version] = (await api.request("PUT", path, body))["status"]

    assert said == {group_version: {"state": "Pending"} for group_version in DOORS}


async def test_appwrapper_stored_before_the_rules_can_be_labelled_and_deleted(
    api: Api, namespace: str
) -> None:
    crd = copied("old.example.com")
    await install(api, without_rules(crd))
    path = collection(namespace, "old.example.com/v1beta1")
    body = appwrapper(SPELLINGS["items"] | SPELLINGS["components"], "old.example.com/v1beta1")
    await create_once_served(api, path, body)
    await install(api, crd)

    async def the_rules_hold() -> bool:
        return await answer(api, "POST", path, {**body, "metadata": {"name": "canary"}}) != "taken"

    await wait_for(the_rules_hold)

    await api.request("PATCH", f"{path}/t", {"metadata": {"labels": {"a": "b"}}})
    await api.request("PATCH", f"{path}/t/status", {"status": {"state": "Failed"}})
    await api.request("DELETE", f"{path}/t")

    assert (await api.request("GET", path))["items"] == []
    await uninstall(api, crd)


def without_rules(crd: Json) -> Json:
    """The definition as it would be had it no rules."""
    plain: Json = copy.deepcopy(crd)
    for version in plain["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("x-kubernetes-validations", None)
    return plain

"""What users get wrong, and what they are told: at the door by the API server, or by the dispatcher afterwards."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections import Counter
from contextlib import aclosing
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.api.redaction import without_values
from dispatcher.kube.client import METADATA, ClusterClient
from dispatcher.kube.objects import appwrappers
from tests.cluster.manifests import (
    appwrapper,
    changed,
    component,
    components,
    config_map,
    deployment,
    item,
    job,
    pod,
    small_job,
)
from tests.cluster.outcomes import SETTLED, delete_all, epoch, failures, message_of, reason_of
from tests.cluster.world import DEADLINE_SECONDS, World, example
from tests.mutations import mutants

Json = dict[str, Any]

ITEM = "spec.resources.GenericItems[0]"
TEMPLATE = f"{ITEM}.generictemplate"
PODS = f"{ITEM}.custompodresources[0]"
PATH = "spec.components[0].podSets[0].path"
NAME_THE_PATH = "Name where the pod template is, beginning with `template` for the wrapped object."
PATTERN = r"'^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$'"
DECLARE = (
    "Correct the template, or declare what its pods ask for beside it, such as "
    "`custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]`."
)
QUANTITIES = "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi"
LARGEST = 2**63 - 1
MEGABYTE = 1_000_000
LARGE = 200_000
LISTS = 100_000
"""So many empty ones are 300 kB of JSON, which the dispatcher refuses, and 9 MiB in the API server at each write."""
TEXT = 140_000


def widget(**fields: object) -> Json:
    """An item of a kind that nobody has installed."""
    template = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}}
    return item(template, **{"custompodresources": [], **fields})


def declaring(replicas: int = 1, **requests: object) -> Json:
    return appwrapper(
        "t", item(config_map("c"), custompodresources=[{"replicas": replicas, "requests": requests}])
    )


def wrapping(*templates: Json) -> Json:
    return appwrapper("t", *map(item, templates))


def many_labels(size: int) -> dict[str, str]:
    return {f"label-{number:06}": "v" * 60 for number in range(size // 72)}


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        pytest.param(
            declaring(cpu="lots"),
            f'{PODS}.requests.cpu: Invalid value: "lots": {PODS}.requests.cpu in body should match {PATTERN}',
            id="unparsable-quantity",
        ),
        pytest.param(
            declaring(replicas=2**62, cpu=1),
            f'<nil>: Invalid value: "": Checked value must be of type integer with format int32 in {PODS}.replicas',
            id="absurd-replicas",
        ),
        pytest.param(
            appwrapper("t", item(job("j")), priorityslope=1e300),
            '[<nil>: Invalid value: "": Checked value must be of type number with format float in spec.priorityslope, '
            "spec.priorityslope: Invalid value: 1e+300: spec.priorityslope in body should be less than or equal to "
            "1e+12]",
            id="absurd-slope",
        ),
        pytest.param(
            appwrapper("t", item(job("j")), priorityslope=-1.1e12),
            "spec.priorityslope: Invalid value: -1.1e+12: spec.priorityslope in body should be greater than or equal "
            "to -1e+12",
            id="slope-that-no-table-takes",
        ),
    ],
)
async def test_api_server_refuses_at_the_door(client: ClusterClient, manifest: Json, message: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await client.create("/apis/workload.codeflare.dev/v1beta1/namespaces/default/appwrappers", manifest)

    # Whoever asks by kubectl sees the values, too; the dispatcher's own client leaves them out.
    assert str(caught.value) == without_values(f'AppWrapper.workload.codeflare.dev "t" is invalid: {message}')


async def test_name_longer_than_names_may_be_is_refused_at_the_door(world: World) -> None:
    with pytest.raises(errors.Invalid, match=r"metadata\.name: Invalid value .* no more than 253 "):
        await world.create(small_job("a" * 254))


async def test_spec_that_can_never_be_dispatched_fails_with_the_field_the_reason_and_a_remedy(
    world: World,
) -> None:
    await world.start_dispatcher()

    said = await failures(
        world,
        {
            "over-63-bits": declaring(memory=str(2**63)),
            "e30": declaring(cpu="1e30"),
            "sum-over-63-bits": declaring(2, memory=str(2**62)),
            "nul-in-resource": declaring(**{"a\0b": 1}),
            "template-negative": wrapping(pod("p", {"cpu": "-1"})),
            "template-unparsable": wrapping(pod("p", {"cpu": "lots"})),
            "template-e30": wrapping(pod("p", {"cpu": "1e30"})),
            "template-replicas-negative": wrapping(deployment("d", replicas=-1)),
            "template-replicas-absurd": wrapping(deployment("d", replicas=2**62)),
            "nul-in-toleration": wrapping(pod("p", tolerations=[{"key": "a\0b", "operator": "Exists"}])),
            "other-namespace": wrapping(config_map("c", namespace="kube-system")),
            "no-name": wrapping({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}),
            "bad-name": wrapping(config_map("c" * 254)),
            "twice": wrapping(config_map("c"), config_map("c")),
            "demand-unknown": appwrapper("t", widget(custompodresources=None)),
            "path-to-nothing": components("t", component(job("j"), template__spec__absent=1)),
            "path-to-no-template": components("t", component(job("j"), template__metadata=1)),
        },
    )

    assert said == {
        "over-63-bits": f"{PODS}.requests: memory: '{2**63}' is too large; allowed are at most {LARGEST} units. "
        "Correct the quantity.",
        "e30": f"{PODS}.requests: cpu: '1e30' is too large; allowed are at most {LARGEST} milli-units. "
        "Correct the quantity.",
        "sum-over-63-bits": f"spec: asks for more memory in total than can be counted (at most {LARGEST}). "
        "Correct the counts or the quantities.",
        "nul-in-resource": f'{PODS}.requests["a\\u0000b"]: is not a resource name such as cpu, memory or '
        "nvidia.com/gpu. Correct the name.",
        "template-negative": f"{TEMPLATE}.spec.containers[0].resources.requests.cpu: '-1' is negative; "
        f"{QUANTITIES}. {DECLARE}",
        "template-unparsable": f"{TEMPLATE}.spec.containers[0].resources.requests.cpu: 'lots' is not a quantity; "
        f"{QUANTITIES}. {DECLARE}",
        "template-e30": f"{TEMPLATE}.spec.containers[0].resources.requests.cpu: '1e30' is too large; "
        f"allowed are at most {LARGEST} milli-units. {DECLARE}",
        "template-replicas-negative": f"{TEMPLATE}.spec.replicas: must be between 0 and 2147483647. {DECLARE}",
        "template-replicas-absurd": f"{TEMPLATE}.spec.replicas: must be between 0 and 2147483647. {DECLARE}",
        "nul-in-toleration": f"{TEMPLATE}.spec.tolerations[0].key: must have no control characters. {DECLARE}",
        "other-namespace": f'{TEMPLATE}.metadata.namespace: [SyncQueueJob] resource namespace "kube-system" is '
        f'different from AppWrapper namespace "{world.namespace}". '
        "Leave it out: wrapped objects are created beside their AppWrapper.",
        "no-name": f"{TEMPLATE}.metadata: the ConfigMap has neither name nor generateName. Give it a name of its own.",
        "bad-name": f'{TEMPLATE}.metadata.name: "{"c" * 76}... is not a valid object name. Use lower case letters, '
        "digits, '-' and '.', at most 253, with a letter or digit at both ends.",
        "twice": 'spec.resources.GenericItems[1]: the ConfigMap "c" is also spec.resources.GenericItems[0]. '
        "Name each object once.",
        "demand-unknown": f"{ITEM}: the requests of the pods of a Widget (example.com) cannot be derived from its "
        "template. "
        "Declare it beside the template, such as "
        "`custompodresources: [{replicas: 2, requests: {cpu: 1, memory: 2Gi}}]` (`[]` if it makes no pods).",
        "path-to-nothing": f'{PATH}: "template.spec.absent" leads to nothing at "absent". {NAME_THE_PATH}',
        "path-to-no-template": f'{PATH}: "template.metadata" leads to something that is no pod template '
        f"with containers. {NAME_THE_PATH}",
    }
    await delete_all(world)


async def test_object_that_cannot_be_created_fails_with_the_api_servers_words_and_is_rolled_back(
    world: World,
) -> None:
    await world.start_dispatcher()
    await world.create(pod("theirs"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "theirs"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-0"},
    }
    bad_job = changed(job("j"), "spec.template.spec.restartPolicy", "Always")

    said = await failures(
        world,
        {
            "refused": wrapping(config_map("c2"), bad_job),
            "nul-in-its-words": wrapping(config_map("c3"), pod("p", serviceAccountName="a\0b")),
            "cluster-scoped": appwrapper(
                "t",
                item(config_map("c4")),
                item(
                    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}},
                    custompodresources=[],
                ),
            ),
            "not-kept": appwrapper("t", item(config_map("c5")), item(binding, custompodresources=[])),
            "job-of-64": wrapping(config_map("c6"), job("j" * 64)),
        },
    )

    assert said == {
        "refused": 'Job.batch "j" is invalid: spec.template.spec.restartPolicy: Required value: '
        'valid values: "OnFailure", "Never"',
        "nul-in-its-words": f'pods "p" is forbidden: error looking up service account {world.namespace}/a\\x00b: '
        'serviceaccount "a\\x00b" not found',
        "cluster-scoped": "Namespace is cluster-scoped: an AppWrapper creates objects in its namespace only",
        "not-kept": "Binding cannot be wrapped: the API server keeps no such objects",
        # The value is the name, and no value of a field is shown.
        "job-of-64": "Job.batch (not shown) is invalid: spec.template.labels: Invalid value (not shown): "
        "must be no more than 63 bytes",
    }
    assert {each["metadata"]["name"] for each in await world.every("ConfigMap")} == {"kube-root-ca.crt"}
    await delete_all(world)


async def test_object_of_that_name_that_is_not_ours_is_never_touched(world: World) -> None:
    await world.start_dispatcher()
    users = await world.create(config_map("users", labels={"owner": "somebody"}))
    await world.create_until("Running", appwrapper("first", item(config_map("firsts"))))
    firsts = await world.get("ConfigMap", "firsts")

    said = await failures(
        world,
        {
            "wants-users": wrapping(config_map("new-1"), config_map("users")),
            "wants-firsts": wrapping(config_map("new-2"), config_map("firsts")),
        },
    )

    remedy = "exists already and is not this AppWrapper's; delete it or choose another name"
    assert said == {
        "wants-users": f"ConfigMap {world.namespace}/users {remedy}",
        "wants-firsts": f"ConfigMap {world.namespace}/firsts {remedy}",
    }
    for name in ("wants-users", "wants-firsts"):
        await world.delete(name)
        await world.until_gone("AppWrapper", name)
    assert [await world.get("ConfigMap", name) for name in ("users", "firsts", "new-1", "new-2")] == [
        users,
        firsts,
        None,
        None,
    ]
    await delete_all(world)
    assert await world.get("ConfigMap", "users") == users


async def test_nothing_to_create_and_nothing_to_run_is_no_mistake(world: World) -> None:
    await world.start_dispatcher()

    await world.create(appwrapper("empty"))
    await world.create({**declaring(replicas=0, cpu=1), "metadata": {"name": "declared-none"}})
    await world.create(appwrapper("none", item(deployment("none", replicas=0))))

    for name in ("empty", "declared-none", "none"):
        await world.until_state(name, "Running")
    await delete_all(world)


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_many_labels_are_carried_or_refused_in_a_message_that_can_be_read(world: World) -> None:
    await world.start_dispatcher()
    labels = many_labels(LARGE)
    await world.create(changed(small_job("labelled"), "metadata.labels", many_labels(MEGABYTE)))
    await world.create(appwrapper("labels", item(config_map("labels", labels=labels))))
    one_value = changed(job("one-value"), "spec.template.metadata.labels", {"a": "v" * LARGE})

    said = await failures(world, {"one-value": wrapping(one_value)})

    await world.until_state("labelled", "Running")
    await world.until_state("labels", "Running")
    found = await world.get("ConfigMap", "labels")
    assert found is not None
    assert found["metadata"]["labels"].items() >= labels.items()
    start, end = 'Job.batch "one-value" is invalid: ', "must be no more than 63 bytes"
    assert said["one-value"].startswith(start)
    assert end in said["one-value"]
    assert len(said["one-value"]) <= 4096
    await delete_all(world)


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_spec_too_large_fails_with_its_size_and_keeps_no_other_from_being_dispatched(
    world: World,
) -> None:
    """The API server takes them, up to etcd's bound of 1.5 MB, and every parsed copy of them takes tens of MiB."""
    lists = wrapping({**config_map("c"), "data": {"lists": [[] for _ in range(LISTS)]}})
    text = wrapping({**config_map("c"), "data": {"a": "<" * TEXT, "b": "x" * TEXT}})
    script = wrapping({**config_map("script"), "data": {"a": "<" * LARGE}})  # Go writes it as 1.2 MB
    await post_large(world, "listed", lists)
    await post_large(world, "listed-text", text)
    await world.create(small_job("first"))
    await world.start_dispatcher()
    await world.until_state("first", "Running")
    await post_large(world, "watched", lists)
    await post_large(world, "watched-text", text)
    await post_large(world, "script", script)
    await world.create_until("Running", small_job("second"))
    await world.until_state("script", "Running")

    bound = "at most 262144 are taken. Keep files and data in ConfigMaps of their own, or on a volume, and mount them."
    for name in LARGE_ONES:
        size = (2 * TEXT + 138) if "text" in name else (3 * LISTS + 134)
        assert await message_of_large(world, name) == (
            f"{world.namespace}/{name} creation failure: spec: has {size} bytes of JSON; {bound}"
        )
    versions = [await version_of(world, name) for name in LARGE_ONES]
    await world.create_until("Running", small_job("third"))
    assert [await version_of(world, name) for name in LARGE_ONES] == versions  # each was told once
    for name in LARGE_ONES:
        await delete_large(world, name)
    await delete_all(world)


LARGE_ONES = ("listed", "listed-text", "watched", "watched-text")


async def large(world: World, name: str) -> Json:
    """An AppWrapper without its spec."""
    return await world.client.get(f"{world.path('AppWrapper')}/{name}", loads=appwrappers.parse)


async def delete_large(world: World, name: str) -> None:
    async def is_gone() -> bool:
        try:
            await world.client.get(path, accept=METADATA)
        except errors.NotFound:
            return True
        return False

    path = f"{world.path('AppWrapper')}/{name}"
    uid = (await world.client.get(path, accept=METADATA))["metadata"]["uid"]
    await world.client.delete(path, uid)
    await world.until(is_gone, f"{name} is gone")


async def next_version(world: World, found: Json) -> None:
    """Return once an object has changed."""
    query = {
        "watch": "true",
        "fieldSelector": f"metadata.name={found['metadata']['name']}",
        "resourceVersion": found["metadata"]["resourceVersion"],
    }
    watch = world.client.watch(world.path("AppWrapper"), query, DEADLINE_SECONDS, accept=METADATA)
    async with aclosing(watch) as lines:
        await anext(lines, None)


async def version_of(world: World, name: str) -> str:
    found = await world.client.get(f"{world.path('AppWrapper')}/{name}", accept=METADATA)
    return str(found["metadata"]["resourceVersion"])


async def message_of_large(world: World, name: str) -> str:
    """What its status says, once it has Failed.

    It is read again once it has changed only: each look costs the API server as much as a write.
    """

    async def look() -> Json | None:
        found = await large(world, name)
        status: Json = found.get("status") or {}
        if status.get("state") == "Failed":
            return status
        await next_version(world, found)
        return None

    return message_of(await world.until(look, f"{name} is Failed"))


async def test_names_at_their_limits_are_carried(world: World) -> None:
    await world.start_dispatcher()
    longest = "a" * 253
    cluster = changed(example("aw-raycluster-glue"), "metadata.name", "raycluster-53")
    cluster = changed(cluster, "spec.resources.GenericItems.0.generictemplate.metadata.name", "r" * 53)
    generated = changed(job("unused"), "metadata", {"generateName": "g" * 200})
    await world.create(changed(small_job("j"), "metadata.name", longest))
    await world.create(appwrapper("config-253", item(config_map("c" * 253))))
    await world.create(appwrapper("job-63", item(job("j" * 63))))
    await world.create(appwrapper("deployment-63", item(deployment("d" * 63))))
    await world.create(appwrapper("generated", item(generated)))
    await world.create(cluster)

    for name in (longest, "config-253", "job-63", "deployment-63", "generated", "raycluster-53"):
        await world.until_state(name, "Running")

    jobs = {each["metadata"]["name"] for each in await world.every("Job")}
    assert {len(name) for name in jobs if name.startswith("g")} == {63}
    await delete_all(world)


@pytest.mark.parametrize("levels", [300, 2000, 9900])
async def test_appwrapper_nested_too_deep_fails_alone(world: World, levels: int) -> None:
    """Parsers end at some depth, and one unreadable object must not end the list or the watch of all."""
    await asyncio.to_thread(post_nested, world, "listed", levels)
    await world.start_dispatcher()
    await world.create_until("Running", small_job("canary"))
    await asyncio.to_thread(post_nested, world, "watched", levels)

    for name in ("listed", "watched"):
        assert message_of(await world.until_state(name, "Failed")) == (
            f"{world.namespace}/{name} creation failure: {TEMPLATE}: is nested more than 100 levels deep. "
            "Make it flatter."
        )
    await delete_all(world)


def post_nested(world: World, name: str, levels: int) -> None:
    """Create an AppWrapper as text: Python's own JSON does not go that deep."""
    template = json.dumps({**config_map("c"), "data": "DEEP"}).replace('"DEEP"', "[" * levels + "]" * levels)
    body = json.dumps(appwrapper(name, item({"apiVersion": "v1", "kind": "X"}))).replace(
        '{"apiVersion": "v1", "kind": "X"}', template
    )
    post(world, body)


async def post_large(world: World, name: str, manifest: Json) -> None:
    """Create an AppWrapper, and do not read the answer, which would be too large for our client."""
    await asyncio.to_thread(post, world, json.dumps(changed(manifest, "metadata.name", name)))


def post(world: World, body: str) -> None:
    request = urllib.request.Request(  # noqa: S310  # our own API server
        f"{world.plane.url}{world.path('AppWrapper')}",
        body.encode(),
        {"Authorization": f"Bearer {world.plane.admin_token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cadata=world.plane.certificate_authority)
    with urllib.request.urlopen(request, context=context, timeout=DEADLINE_SECONDS):  # noqa: S310
        pass


# -----------------------------------------------------------------------------------------------------------
# Mutated AppWrappers, many at once, on a real API server: told why, one by one, and nothing else happens.


AT_ONCE = 8
DEFECTS = ("intake_failed", "reconcile_failed", "change_refused", "undecodable_object", "status_refused")
"""Log events that no input may cause."""


async def apply_all(world: World, documents: list[Json]) -> list[str]:
    """Apply them over several connections; the API server's words to those it refused."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def apply(document: Json) -> str:
        async with slots:
            try:
                await world.create(document)
            except errors.Invalid as error:
                return str(error)
        return ""

    return [said for said in await asyncio.gather(*map(apply, documents)) if said]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [200, pytest.param(500, marks=pytest.mark.exhaustive)])
async def test_dispatcher_leads_on_through_mutants_and_tells_each_why(world: World, count: int) -> None:
    process = await world.start_dispatcher()
    await world.create_until("Running", small_job("canary-before"))
    led = await epoch(world)

    refused = await apply_all(world, mutants(count))
    seen: Counter[str] = Counter()

    async def all_told() -> bool:
        seen.clear()
        for found in await world.every("AppWrapper"):
            status = found.get("status") or {}
            seen[str(status.get("queuejobstate")) if reason_of(status) else "untold"] += 1
        return not seen["untold"]

    await world.until(all_told, "every mutant is told why it is where it is")
    await world.create_until("Running", small_job("canary-after"))

    assert len(refused) + seen.total() == count + 1
    dispatched = sum(seen[state] for state in SETTLED)
    assert min(len(refused), seen["Failed"], dispatched) > count // 10, (len(refused), seen)
    assert set(seen) - {"untold"} <= {"Failed", "Backoff", *SETTLED}
    assert (process.is_running(), await epoch(world)) == (True, led)
    assert [event for event in DEFECTS if f'"{event}"' in process.log.read_text()] == []
    await delete_all(world)

"""What the testbed promises, on real clusters: lives of pods, garbage collection, an API server that dies."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from testbed import build, nodes
from testbed.client import MERGE_PATCH, ApiError, Client
from testbed.plane import Plane, Wanted, up_all
from testbed.ports import Ports
from testbed.processes import Supervisor

PREFIX = "testbed.dispatcher.codeflare.dev/"
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
WIDGETS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""
Life = Mapping[str, str]
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plane, Plane]]:
    """Two clusters that were started at once and serve widgets."""
    binaries = build.ensure()
    folder = tmp_path_factory.mktemp("testbed")
    crds = folder / "widgets.yaml"
    crds.write_text(WIDGETS)
    wanted = Wanted(nodes=2, shape=nodes.Shape(gpu=2), crds=[crds])
    with Supervisor(folder) as supervisor:
        hub, member = (Plane(supervisor, binaries, each, wanted) for each in ("hub", "member"))
        up_all([hub, member])
        yield hub, member


@pytest.fixture(scope="module")
def plane(planes: tuple[Plane, Plane]) -> Plane:
    return planes[0]


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod as those who wait for it see it."""

    phase: str
    ready: str | None
    state: str | None = None
    reason: str | None = None
    exit_code: int | None = None


RUNNING = Seen("Running", "True", "running")
CREATING = Seen("Pending", "False", "waiting", "ContainerCreating")
SUCCEEDED = Seen("Succeeded", "False", "terminated", "Completed", 0)


def failed(exit_code: int) -> Seen:
    return Seen("Failed", "False", "terminated", "Error", exit_code)


def seen(pod: Mapping[str, Any]) -> Seen:
    status = pod["status"]
    ready = {each["type"]: each["status"] for each in status.get("conditions", ())}.get("Ready")
    states = [each["state"] for each in status.get("containerStatuses", ())]
    if not states:
        return Seen(status["phase"], ready)
    [(state, detail)] = states[0].items()
    return Seen(status["phase"], ready, state, detail.get("reason"), detail.get("exitCode"))


def make_pod_spec(requests: Mapping[str, str] | None = None) -> dict[str, Any]:
    resources = {"requests": requests or {}, "limits": requests or {}}
    container = {"name": "main", "image": "none.invalid/none", "resources": resources}
    return {"restartPolicy": "Never", "containers": [container]}


def make_pod(
    name: str, life: Life | None = None, requests: Mapping[str, str] | None = None
) -> dict[str, Any]:
    annotations = {PREFIX + key: value for key, value in (life or {}).items()}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": make_pod_spec(requests)}


def make_job(name: str, life: Life | None = None) -> dict[str, Any]:
    template = make_pod("ignored", life)
    del template["metadata"]["name"]
    return {"metadata": {"name": name}, "spec": {"template": template, "completions": 2, "parallelism": 2}}


async def create(plane: Plane, path: str, body: Mapping[str, Any]) -> str:
    """Create an object and return its path."""
    made = await asyncio.to_thread(plane.client.request, "POST", path, body)
    return f"{path}/{made['metadata']['name']}"


async def get(plane: Plane, path: str) -> dict[str, Any]:
    return await asyncio.to_thread(plane.client.get, path)


async def status_of(client: Client, path: str) -> int:
    """Read an object and return the HTTP status of the answer."""
    try:
        await asyncio.to_thread(client.get, path)
    except ApiError as error:
        return error.status
    return 200


async def until(
    plane: Plane, path: str, is_so: Callable[[dict[str, Any]], bool], seconds: float = 60
) -> list[dict[str, Any]]:
    """Read an object until it is as wished, and return all that was read."""
    read = []
    deadline = time.monotonic() + seconds
    while True:
        read.append(await get(plane, path))
        if is_so(read[-1]):
            return read
        assert time.monotonic() < deadline, f"never came: {read[-1]}"
        await asyncio.sleep(0.05)


async def until_seen(plane: Plane, path: str, wished: Seen) -> list[Seen]:
    return [seen(each) for each in await until(plane, path, lambda pod: seen(pod) == wished)]


async def until_status(client: Client, path: str, status: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while await status_of(client, path) != status:
        assert time.monotonic() < deadline, f"never answered {status}: {path}"
        await asyncio.sleep(0.05)


async def until_gone(plane: Plane, path: str) -> None:
    await until_status(plane.client, path, 404)


@pytest.mark.parametrize(
    ("life", "before", "end"),
    [
        pytest.param({}, {}, RUNNING, id="runs"),
        pytest.param({"run-for": "2s"}, {RUNNING}, SUCCEEDED, id="runs-for"),
        pytest.param({"run-for": "forever"}, {}, RUNNING, id="runs-forever"),
        pytest.param({"fail-after": "2s"}, {RUNNING}, failed(1), id="fails-after"),
        pytest.param({"fail-after": "10ms", "exit-code": "3"}, {}, failed(3), id="fails-with"),
        pytest.param({"fail-after": "10ms", "run-for": "10ms"}, {}, failed(1), id="failure-is-stronger"),
        pytest.param({"start-after": "2s"}, {CREATING}, RUNNING, id="starts-after"),
        pytest.param(
            {"start-after": "2s", "run-for": "2s"}, {CREATING, RUNNING}, SUCCEEDED, id="start-and-run"
        ),
        pytest.param({"never-start": "true"}, {}, CREATING, id="never-starts"),
    ],
)
async def test_pod_lives_as_annotated(
    plane: Plane, request: pytest.FixtureRequest, life: Life, before: set[Seen], end: Seen
) -> None:
    pod = await create(plane, PODS, make_pod(f"lives-{request.node.callspec.id}", life))

    history = await until_seen(plane, pod, end)

    assert set(before) <= set(history)


async def test_pod_that_never_starts_does_not_when_others_do(plane: Plane) -> None:
    never = await create(plane, PODS, make_pod("never", {"never-start": "true"}))
    await until_seen(plane, never, CREATING)
    late = await create(plane, PODS, make_pod("late", {"start-after": "1s"}))

    await until_seen(plane, late, RUNNING)

    assert seen(await get(plane, never)) == CREATING


async def test_containers_of_a_running_pod_have_all_that_clients_read(plane: Plane) -> None:
    body = make_pod("complete")
    body["spec"]["initContainers"] = [
        {"name": "once", "image": "none.invalid/none"},
        {"name": "beside", "image": "none.invalid/none", "restartPolicy": "Always"},
    ]
    pod = await create(plane, PODS, body)
    await until_seen(plane, pod, RUNNING)

    status = (await get(plane, pod))["status"]

    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    wanted = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    assert conditions == dict.fromkeys(wanted, "True")
    assert [list(each["state"]) for each in status["initContainerStatuses"]] == [["terminated"], ["running"]]
    assert {"podIP", "podIPs", "hostIP", "startTime", "qosClass"} <= set(status)


@pytest.mark.parametrize("life", [{}, {"never-start": "true"}], ids=["running", "pending"])
async def test_deleted_pod_holds_its_resources_until_it_has_terminated(plane: Plane, life: Life) -> None:
    pod = await create(plane, PODS, make_pod(f"terminates-{len(life)}", {"terminate-after": "2s", **life}))
    await until_seen(plane, pod, CREATING if life else RUNNING)
    before = seen(await get(plane, pod))

    await asyncio.to_thread(plane.client.request, "DELETE", pod)
    terminating = await get(plane, pod)

    assert "deletionTimestamp" in terminating["metadata"]
    assert seen(terminating) == before
    await until_gone(plane, pod)


async def test_deleted_pod_with_a_finalizer_stops_and_stays(plane: Plane) -> None:
    body = make_pod("held")
    body["metadata"]["finalizers"] = ["example.com/held"]
    pod = await create(plane, PODS, body)
    await until_seen(plane, pod, RUNNING)

    await asyncio.to_thread(plane.client.request, "DELETE", pod)

    await until_seen(plane, pod, failed(143))
    released = {"metadata": {"finalizers": None}}
    await asyncio.to_thread(plane.client.request, "PATCH", pod, released, MERGE_PATCH)
    await until_gone(plane, pod)


async def test_job_ends_by_itself_unless_it_is_to_run_forever(plane: Plane) -> None:
    endless = await create(plane, JOBS, make_job("endless", {"run-for": "forever"}))
    await until(plane, endless, lambda job: job["status"].get("ready") == 2)
    usual = await create(plane, JOBS, make_job("usual"))

    await until(plane, usual, lambda job: job["status"].get("succeeded") == 2)

    assert (await get(plane, endless))["status"]["ready"] == 2


async def test_nodes_renew_their_leases(plane: Plane) -> None:
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-0"
    first = (await get(plane, lease))["spec"]["renewTime"]

    await until(plane, lease, lambda lease: lease["spec"]["renewTime"] != first)


async def test_garbage_collector_knows_the_kinds_a_plane_began_with(plane: Plane) -> None:
    body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "owner"}}
    owner = await create(plane, "/apis/example.com/v1/namespaces/default/widgets", body)
    uid = (await get(plane, owner))["metadata"]["uid"]
    owned = make_pod("owned")
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "example.com/v1", "kind": "Widget", "name": "owner", "uid": uid}
    ]
    pod = await create(plane, PODS, owned)

    await asyncio.to_thread(plane.client.request, "DELETE", owner)

    # Kinds it does not know it looks for every 30 seconds.
    await until_status(plane.client, pod, 404, seconds=20)


async def test_apiserver_that_is_killed_comes_back_with_all_it_knew(planes: tuple[Plane, Plane]) -> None:
    _, member = planes
    pod = await create(member, PODS, make_pod("kept"))

    await member.kill_apiserver()
    with pytest.raises(OSError, match="refused"):
        member.client.get(pod)
    await member.start_apiserver()

    await until_seen(member, pod, RUNNING)


def test_held_port_is_given_out_once_and_can_be_listened_on() -> None:
    ports = Ports("first", "second")
    others = [Ports("other") for _ in range(200)]

    assert ports["first"] != ports["second"]
    assert not {ports["first"], ports["second"]} & {each["other"] for each in others}
    # As a server does: it sets SO_REUSEADDR, binds, and listens.
    with socket.create_server(("127.0.0.1", ports["first"])) as server:
        socket.create_connection(server.getsockname()).close()
    for each in (ports, *others):
        each.release()

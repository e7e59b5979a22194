"""`logs`: which pods are of a gang, whose log comes first, and what is printed of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from tests.builders import make_appwrapper, make_metadata
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, Reply, answer, text
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

TRAIN: Final = "/apis/workload.codeflare.dev/v1beta1/namespaces/team-a/appwrappers/train"
PODS: Final = "/api/v1/namespaces/team-a/pods"


def train(cluster: str = "") -> Json:
    """The AppWrapper team-a/train; it runs if it has a cluster."""
    status = {"queuejobstate": "Running", "state": "Running", "cluster": cluster} if cluster else {}
    return make_appwrapper("train", status=status, namespace="team-a")


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with the AppWrapper train, which is queued."""
    async with FakeApiServer() as server:
        server.on("GET", TRAIN, answer(train()))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` in the namespace team-a of the hub."""
    use_kubeconfig(plain_kubeconfig(hub.url, "team-a"), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


JOBS: Final = "/apis/batch/v1/namespaces/team-a/jobs"
OF_TRAIN: Final = {
    "apiVersion": "workload.codeflare.dev/v1beta1",
    "kind": "AppWrapper",
    "name": "train",
    "uid": "uid-of-train",
}
OF_JOB: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-of-job"}
HEAD: Final = {"ray.io/node-type": "head"}


def pod(name: str, owner: Json = OF_TRAIN, created: str = "2026-11-20T08:58:06Z", **fields: Json) -> Json:
    """A pod of two containers, which an object controls."""
    owners = [{**owner, "controller": True}] if owner else []
    return {
        "metadata": make_metadata(
            name, namespace="team-a", creationTimestamp=created, ownerReferences=owners, **fields
        ),
        "spec": {"containers": [{"name": "main"}, {"name": "other"}]},
    }


def serve_pods(hub: FakeApiServer, *pods: Json) -> None:
    """The hub with these pods, and a Job of the AppWrapper."""
    hub.on("GET", TRAIN, answer(train("hub")))
    hub.on("GET", PODS, answer({"metadata": {}, "items": [*pods]}))
    hub.on("GET", "/apis/batch/v1", answer({"resources": [{"name": "jobs", "kind": "Job"}]}))
    owners = [{**OF_TRAIN, "controller": True}]
    hub.on(
        "GET",
        f"{JOBS}/job",
        answer({"metadata": make_metadata("job", namespace="team-a", ownerReferences=owners)}),
    )


async def commands_of(ask: Run) -> list[str]:
    return (await ask("logs", "train", "--commands")).out.splitlines()


async def test_logs_of_a_raycluster_come_from_its_head(ask: Run, hub: FakeApiServer) -> None:
    serve_pods(hub, pod("a"), pod("b", labels=HEAD))
    hub.on("GET", f"{PODS}/b/log", text("epoch 1\nepoch 2\n", 200))

    assert await ask("logs", "train", "-f") == Ran(0, "epoch 1\nepoch 2\n")
    assert dict(hub.requests("GET", f"{PODS}/b/log")[0].query) == {"container": "main", "follow": "true"}
    assert await commands_of(ask) == [
        "kubectl logs -n team-a b -c main",
        "kubectl logs -n team-a a -c main",
    ]


async def test_head_that_was_made_later_comes_after_the_gangs_own(ask: Run, hub: FakeApiServer) -> None:
    later = pod("aaa", created="2026-11-20T09:58:06Z", labels=HEAD)
    serve_pods(hub, later, pod("b", labels=HEAD))

    assert (await commands_of(ask))[0] == "kubectl logs -n team-a b -c main"


@pytest.mark.parametrize(
    ("owner", "is_shown"),
    [
        pytest.param(OF_JOB, True, id="by-an-object-of-the-gang"),
        pytest.param({**OF_JOB, "uid": "another"}, False, id="by-a-namesake"),
        pytest.param({**OF_JOB, "name": "none"}, False, id="by-no-object"),
        pytest.param({**OF_JOB, "kind": "Unknown"}, False, id="by-a-kind-that-is-not-served"),
        pytest.param({**OF_JOB, "apiVersion": "../.."}, False, id="by-no-version"),
        pytest.param({}, False, id="by-none"),
    ],
)
async def test_pod_is_of_the_gang_only_if_its_controllers_are(
    ask: Run, hub: FakeApiServer, owner: Json, is_shown: bool
) -> None:
    serve_pods(hub, pod("claims", owner))

    ran = await ask("logs", "train", "--commands")

    assert ran.code == (0 if is_shown else 1)
    assert ("claims" in ran.out) is is_shown


async def test_pods_of_an_anchor_are_of_its_gang(ask: Run, hub: FakeApiServer) -> None:
    name = "appwrapper-uid-of-train-3"
    serve_pods(
        hub, pod("worker", {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"uid-of-{name}"})
    )
    hub.on("GET", "/api/v1", answer({"resources": [{"name": "configmaps", "kind": "ConfigMap"}]}))
    hub.on(
        "GET",
        f"/api/v1/namespaces/team-a/configmaps/{name}",
        answer({"metadata": make_metadata(name, namespace="team-a")}),
    )

    assert await commands_of(ask) == ["kubectl logs -n team-a worker -c main"]


@pytest.mark.parametrize(
    ("chosen", "container"), [("other", "other"), ("none\x1b[2K", "main")], ids=["of-the-pod", "of-no-pod"]
)
async def test_default_container_counts_only_if_the_pod_has_it(
    ask: Run, hub: FakeApiServer, chosen: str, container: str
) -> None:
    serve_pods(hub, pod("a", annotations={"kubectl.kubernetes.io/default-container": chosen}))

    assert await commands_of(ask) == [f"kubectl logs -n team-a a -c {container}"]


async def test_logs_in_a_cluster_that_is_out_of_sight_are_commands(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", TRAIN, answer(train("east")))

    assert await ask("logs", "train") == Ran(
        0,
        "kubectl --context east logs -n team-a -l dispatcher.codeflare.dev/appwrapper-uid=uid-of-train --prefix "
        "--all-containers\n",
    )


async def test_logs_of_a_gang_that_waits_are_none(ask: Run) -> None:
    assert await ask("logs", "train") == Ran(
        1, "", "dispatcher: team-a/train has not been dispatched: it has no pods, so no logs\n"
    )


OF_SUBMITTER: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-submitter"}
OF_RAYJOB: Final = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "train", "uid": "uid-of-rayjob"}
RAYJOBS: Final = "/apis/ray.io/v1/namespaces/team-a/rayjobs"


def serve_rayjob(hub: FakeApiServer, *pods: Json) -> None:
    """The hub with these pods, a RayJob of the AppWrapper, and the Job that KubeRay makes to submit it."""
    serve_pods(hub, *pods)
    hub.on("GET", "/apis/ray.io/v1", answer({"resources": [{"name": "rayjobs", "kind": "RayJob"}]}))
    for path, of, above in (
        (f"{JOBS}/train", OF_SUBMITTER, OF_RAYJOB),
        (f"{RAYJOBS}/train", OF_RAYJOB, OF_TRAIN),
    ):
        metadata = make_metadata(
            "train", namespace="team-a", uid=of["uid"], ownerReferences=[{**above, "controller": True}]
        )
        hub.on("GET", path, answer({"metadata": metadata}))


def by_label(labelled: Sequence[Json], others: Sequence[Json]) -> Reply:
    """The pods that the label of the AppWrapper selects, and those without it."""

    async def reply(request: web.Request) -> web.StreamResponse:
        found = others if request.query["labelSelector"].startswith("!") else labelled
        return await answer({"metadata": {}, "items": list(found)})(request)

    return reply


async def test_log_of_a_rayjob_is_that_of_its_submitter_which_has_no_labels(
    ask: Run, hub: FakeApiServer
) -> None:
    serve_rayjob(hub)
    submitter = pod("train-x5k2p", OF_SUBMITTER, created="2026-11-20T09:58:06Z")
    foreign, older = (
        pod("foreign", {**OF_JOB, "name": "none"}),
        pod("old", OF_SUBMITTER, "2025-11-20T08:58:06Z"),
    )
    hub.on("GET", PODS, by_label([pod("head", labels=HEAD)], [foreign, older, submitter]))
    hub.on("GET", f"{PODS}/train-x5k2p/log", text("epoch 1\n", 200))

    assert await ask("logs", "train") == Ran(0, "epoch 1\n")
    assert await commands_of(ask) == [
        "kubectl logs -n team-a train-x5k2p -c main",
        "kubectl logs -n team-a head -c main",
    ]


async def test_log_of_the_run_before_the_last_restart_of_a_container(ask: Run, hub: FakeApiServer) -> None:
    serve_pods(hub, pod("a"), pod("b"))
    hub.on("GET", f"{PODS}/b/log", text("out of memory\n", 200))

    assert await ask("logs", "train", "--pod", "b", "-c", "other", "--previous") == Ran(0, "out of memory\n")
    assert dict(hub.requests("GET", f"{PODS}/b/log")[0].query) == {"container": "other", "previous": "true"}
    assert (await ask("logs", "train", "--previous", "--commands")).out.splitlines() == [
        "kubectl logs -n team-a --previous a -c main",
        "kubectl logs -n team-a --previous b -c main",
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--pod", "c"], 1, "team-a/train has no pod c now; its pods are a, b"),
        (["--pod", "b", "-c", "x"], 1, "pod b has no container x; it has main, other"),
        (["--previous", "-f"], 2, "--previous prints the log of a run that has ended"),
    ],
)
async def test_log_that_there_cannot_be_is_refused_with_what_there_is(
    ask: Run, hub: FakeApiServer, words: list[str], code: int, said: str
) -> None:
    serve_pods(hub, pod("a"), pod("b"))
    ran = await ask("logs", "train", *words)
    assert ran.code == code
    assert said in ran.err

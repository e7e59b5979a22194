"""`running` and `nodes`: the screens, and what is said of everything that the kubeconfig cannot see."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.api.names import MEMBERS_PATH
from dispatcher.cli.people.node_report import NodeReport, seen_nodes
from dispatcher.cli.screens.held_gangs import Owners, RunningReport, held_gangs, pods_of
from dispatcher.core.model.resources import Resources
from tests.builders import make_appwrapper, make_metadata
from tests.commands import Ran, Run, runner
from tests.fakes import FakeApiServer, Reply, answer, refusal
from tests.unit.cli.wire import plain_kubeconfig, use_kubeconfig

Json = dict[str, Any]

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)
APPWRAPPERS = "/apis/workload.codeflare.dev/v1beta1"
USER = "dispatcher.codeflare.dev/user"
QUEUE = "dispatcher.codeflare.dev/queue"
UID = "dispatcher.codeflare.dev/appwrapper-uid"


def job(pods: int, gpus: int, limit: int = 0) -> Json:
    """The spec of an AppWrapper with one Job."""
    requests = {"cpu": "4", "nvidia.com/gpu": gpus}
    container = {"name": "c", "image": "i", "resources": {"requests": requests, "limits": requests}}
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"parallelism": pods, "template": {"spec": {"containers": [container]}}},
    }
    return {
        "resources": {"GenericItems": [{"generictemplate": template}]},
        **({"schedulingSpec": {"dispatchDuration": {"limit": limit}}} if limit else {}),
    }


def gang(
    name: str,
    cluster: str,
    spec: Json,
    *,
    namespace: str = "team-a",
    state: str = "Running",
    **more: Any,  # noqa: ANN401
) -> Json:
    """An AppWrapper that was dispatched three hours before `NOW`."""
    dispatched = {"type": "Dispatched", "status": "True", "lastTransitionTime": "2026-11-23T09:00:00Z"}
    status = {"state": state, "queuejobstate": state, "cluster": cluster, "conditions": [dispatched]}
    return make_appwrapper(name, spec=spec, status=status, namespace=namespace, **more)


def pod(name: str, node: str, gpus: int, *, of: str = "", namespace: str = "team-a") -> Json:
    """A running pod; `of` is the name of its AppWrapper."""
    requests = {"cpu": "4", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": make_metadata(name, namespace=namespace, labels={UID: f"uid-of-{of}"} if of else {}),
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    }


def node(name: str, *, ready: str = "True", **spec: object) -> Json:
    """A node of eight GPUs."""
    allocatable = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": make_metadata(name),
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": conditions},
    }


GANGS = [
    gang("pretrain", "hub", job(2, 8, limit=6 * 3600), labels={QUEUE: "vision"}, annotations={USER: "ada"}),
    gang("sweep", "east", job(4, 1), annotations={USER: "system:serviceaccount:team-a:pipeline"}),
    gang("done", "hub", job(1, 1), state="Completed"),
    make_appwrapper("waits", spec=job(1, 1), status={"state": "Pending"}, namespace="team-a"),
]
PODS = [
    pod("pretrain-0", "gpu-1", 8, of="pretrain"),
    pod("pretrain-1", "", 8, of="pretrain"),
    pod("notebook", "gpu-2", 1),
    pod("foreign", "gpu-2", 1, of="pretrain", namespace="team-b"),
    pod("agent", "gpu-2", 0, namespace="kube-system"),
]
NODES = [
    node("gpu-2", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
    node("gpu-1", taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}]),
    node("gpu-3", ready="False"),
]  # fmt: skip


def listed(*items: Json) -> Reply:
    """The whole list as one page."""
    return answer({"metadata": {}, "items": list(items)})


def report() -> RunningReport:
    gangs = held_gangs(GANGS, {"team-a": {"kueue.x-k8s.io/queue-name": "team-a-queue"}})
    return RunningReport.of(gangs, {"hub": pods_of(PODS)}, NOW)


def node_report() -> NodeReport:
    owners = Owners(held_gangs(GANGS, {}))
    return NodeReport(seen_nodes("hub", NODES, pods_of(PODS), owners, all_pods=True))


def test_wide_tables_have_times_amounts_and_names() -> None:
    heading, _sweep, pretrain = report().as_wide_table().splitlines()
    assert pretrain.split("  8        ")[1].split() == [
        *("2026-11-23T09:00:00Z", "2026-11-23T15:00:00Z", "Running", "1/2"),
        *("cpu", "8,", "nvidia.com/gpu", "16", "cpu", "8,", "nvidia.com/gpu", "16", "-", "gpu-1"),
    ]
    assert heading.endswith(
        "STATE    PODS     DEMAND                    HELD                      GROWTH WAITS  NODE LIST"
    )
    cordoned = node_report().as_wide_table().splitlines()[2]
    assert cordoned.endswith(
        "52        512Gi        107        team-a/notebook,team-b/foreign,kube-system/agent"
    )


def test_gang_without_gpus_is_not_among_those_that_have_them() -> None:
    node = replace(node_report().nodes[0], by_gang={"team-a/cpu-only": Resources({"cpu": 1000})})
    assert "cpu-only" not in NodeReport([node]).as_table(None)


def test_programs_get_null_where_something_is_unknown() -> None:
    sweep, pretrain = report().as_value()
    assert (sweep["nodes"], sweep["gpus"], sweep["pods"]) == (None, {"held": 4, "bound": None}, None)
    assert (pretrain["gpus"], pretrain["pods"]) == ({"held": 16, "bound": 8}, {"live": 2, "bound": 1})
    assert pretrain["endsBy"] == "2026-11-23T15:00:00+00:00"


def test_gang_that_awaits_the_capacity_that_it_requested_runs_nowhere_yet() -> None:
    awaiting = gang("ray", "hub", job(1, 1), state="Pending")
    awaiting["status"]["waiting"] = {"reason": "AwaitingProvisioning", "message": "in 5 minutes"}
    assert held_gangs([awaiting], {}) == []
    del awaiting["status"]["waiting"]
    assert [each.name for each in held_gangs([awaiting], {})] == ["ray"]


ODD: Final = (["x"], "x", 7, {"x": "x"}, ["x", {"type": ["x"], "status": "True"}])
"""Values of other shapes than a field of a status has."""


@pytest.mark.parametrize("value", ODD, ids=str)
def test_odd_status_of_one_appwrapper_leaves_the_other_gangs(value: object) -> None:
    fields = (
        "waiting",
        "conditions",
        "growth",
        "held",
        "state",
        "lifecyclePhase",
        "queuejobstate",
        "cluster",
    )
    odd = [gang(f"odd-{field.lower()}", "hub", job(1, 1)) for field in fields]
    for each, field in zip(odd, fields, strict=True):
        each["status"][field] = value
    without_status = gang("odd", "hub", job(1, 1)) | {"status": value}
    found = held_gangs([without_status, *odd, *GANGS], {})
    assert {"pretrain", "sweep"} <= {each.name for each in found}


def test_time_of_a_condition_that_is_none_is_unknown() -> None:
    odd = gang("odd", "hub", job(1, 1))
    odd["status"]["conditions"][0]["lastTransitionTime"] = "yesterday"
    (found,) = held_gangs([odd], {})
    assert found.since is None


def test_running_shows_the_reason_of_pending_growth() -> None:
    ray = gang("ray", "hub", job(1, 1))
    ray["status"]["growth"] = {"pods": 2, "reason": "InsufficientQuota", "message": "2 more pods wait"}
    shown = RunningReport.of(held_gangs([ray], {}), {}, NOW)
    assert shown.as_wide_table().splitlines()[1].split()[-3:] == ["2:", "InsufficientQuota", "-"]
    assert shown.as_value()[0]["growth"] == ray["status"]["growth"]
    assert report().as_value()[0]["growth"] is None


def test_running_shows_the_resources_a_grown_gang_holds() -> None:
    ray = gang("ray", "hub", job(1, 1))
    ray["status"]["held"] = {"cpu": "12", "nvidia.com/gpu": "3", "memory": "1Gi"}
    odd = gang("odd", "hub", job(1, 2))
    odd["status"]["held"] = {"nvidia.com/gpu": "many"}
    shown = RunningReport.of(held_gangs([ray, odd], {}), {"hub": []}, NOW)
    assert [line.split()[5] for line in shown.as_table(None).splitlines()[1:]] == ["2", "3"]
    assert "cpu 4, nvidia.com/gpu 1  cpu 12, memory 1Gi, nvidia.com/gpu 3" in shown.as_wide_table()
    _, value = shown.as_value()
    assert (value["demand"], value["held"]) == (
        {"cpu": 4000, "nvidia.com/gpu": 1},
        {"cpu": 12000, "nvidia.com/gpu": 3, "memory": 2**30},
    )


def test_pod_belongs_to_the_gang_that_its_labels_name_in_its_namespace() -> None:
    by_name = pod("p", "gpu-1", 1)
    by_name["metadata"]["labels"] = {"workload.codeflare.dev/appwrapper": "sweep"}
    owners = Owners(held_gangs(GANGS, {}))

    found = [owners.of(each) for each in pods_of([*PODS, by_name])]

    names = [None if each is None else each.name for each in found]
    assert names == ["pretrain", "pretrain", None, None, None, "sweep"]


@pytest.fixture
async def hub() -> AsyncIterator[FakeApiServer]:
    """A hub with these gangs, pods and nodes; the context east leads nowhere unless a test adds it."""
    async with FakeApiServer() as server:
        for scope in ("", "/namespaces/team-a"):
            server.on("GET", f"{APPWRAPPERS}{scope}/appwrappers", listed(*GANGS))
        server.on("GET", "/api/v1/namespaces/team-a", answer({"metadata": {"name": "team-a"}}))
        server.on("GET", "/api/v1/namespaces", listed({"metadata": {"name": "team-a"}}))
        server.on("GET", "/api/v1/namespaces/team-a/pods", listed(*PODS[:3]))
        server.on("GET", "/api/v1/namespaces/team-a/limitranges", listed())
        server.on("GET", "/api/v1/pods", listed(*PODS))
        server.on("GET", "/api/v1/nodes", listed(*NODES))
        yield server


@pytest.fixture
def ask(
    hub: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run `dispatcher …` with a kubeconfig of the hub alone, and without a database."""
    use_kubeconfig(plain_kubeconfig(hub.url), tmp_path, monkeypatch)
    return runner(monkeypatch, capsys)


async def test_running_names_the_clusters_without_a_context_in_the_kubeconfig(ask: Run) -> None:
    ran = await ask("running", "-n", "team-a")

    assert ran.code == 0
    assert [line.split()[:4:3] for line in ran.out.splitlines()[1:]] == [
        ["team-a/sweep", "east"],
        ["team-a/pretrain", "hub"],
    ]
    assert ran.err == "The pods and nodes of east cannot be seen: the kubeconfig has no context named east.\n"


async def test_running_shows_the_others_if_the_settings_of_one_member_are_wrong(
    ask: Run, hub: FakeApiServer, tmp_path: Path
) -> None:
    config = plain_kubeconfig(hub.url)
    config["contexts"].append({"name": "east", "context": {"cluster": "gone", "user": "me"}})
    path = tmp_path / "hub.kubeconfig"
    path.write_text(yaml.safe_dump(config))

    ran = await ask("running", "-n", "team-a", "-o", "json")

    assert ran.code == 0
    assert [(each["name"], each["gpus"]["bound"]) for each in json.loads(ran.out)] == [
        ("sweep", None),
        ("pretrain", 8),
    ]
    assert ran.err.splitlines() == [
        f"The pods in east cannot be seen: {path}: a context names the cluster 'gone', which is missing"
    ]


async def test_running_asks_for_live_pods_of_the_gangs_alone(ask: Run, hub: FakeApiServer) -> None:
    ran = await ask("running", "-A", "-l", "app=train", "-o", "yaml")

    assert [(each["name"], each["gpus"]["bound"]) for each in yaml.safe_load(ran.out)] == [
        ("sweep", None),
        ("pretrain", 8),
    ]
    assert [dict(each.query) for each in hub.requests("GET", "/api/v1/namespaces/team-a/pods")] == [
        {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed", "limit": "500"}
    ]
    [asked] = hub.requests("GET", f"{APPWRAPPERS}/appwrappers")
    assert asked.query["labelSelector"] == "app=train"


async def test_running_without_rights_to_namespaces_says_so(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", "/api/v1/namespaces/team-a", refusal(403, "Forbidden", "namespaces is forbidden"))
    ran = await ask("running", "-n", "team-a")
    assert (ran.code, ran.err.splitlines()[0]) == (
        0,
        "Namespaces cannot be read, so a queue that a label of the namespace names is shown as default.",
    )


async def test_running_counts_what_the_cluster_adds_to_pods(ask: Run, hub: FakeApiServer) -> None:
    spec = job(2, 0)
    pod_spec = spec["resources"]["GenericItems"][0]["generictemplate"]["spec"]["template"]["spec"]
    pod_spec["containers"][0]["resources"] = {"limits": {"cpu": "3"}}
    pod_spec["runtimeClassName"] = "kata"
    hub.on("GET", f"{APPWRAPPERS}/namespaces/team-a/appwrappers", listed(gang("train", "hub", spec)))
    limits = {"type": "Container", "defaultRequest": {"cpu": "1", "memory": "1Gi"}}
    hub.on(
        "GET",
        "/api/v1/namespaces/team-a/limitranges",
        listed({"metadata": {"name": "lr", "namespace": "team-a"}, "spec": {"limits": [limits]}}),
    )
    overhead = {"metadata": {"name": "kata"}, "overhead": {"podFixed": {"cpu": "250m"}}}
    hub.on("GET", "/apis/node.k8s.io/v1/runtimeclasses/kata", answer(overhead))

    [shown] = json.loads((await ask("running", "-n", "team-a", "-o", "json")).out)

    assert shown["demand"] == shown["held"] == {"cpu": 6500, "memory": 2 * 2**30}


async def test_running_names_the_defaults_that_it_may_not_read(ask: Run, hub: FakeApiServer) -> None:
    path = "/api/v1/namespaces/team-a/limitranges"
    hub.on("GET", path, refusal(403, "Forbidden", "limitranges is forbidden"))
    ran = await ask("running", "-n", "team-a")
    assert ran.code == 0
    assert (
        "The LimitRanges of team-a in hub are not counted, they cannot be read: limitranges is forbidden"
        in ran.err.splitlines()
    )


async def test_nothing_that_runs_is_a_sentence(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", f"{APPWRAPPERS}/namespaces/team-a/appwrappers", listed())
    assert await ask("running", "-n", "team-a") == Ran(
        0, "", "No gang holds capacity in namespace team-a; -A shows all namespaces.\n"
    )


async def test_running_that_is_forbidden_quotes_the_hub(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", f"{APPWRAPPERS}/appwrappers", refusal(403, "Forbidden", "appwrappers is forbidden"))
    assert await ask("running", "-A") == Ran(
        1,
        "",
        "dispatcher: the hub does not allow it: appwrappers is forbidden. Leave out -A, or name a namespace with -n\n",
    )


async def test_nodes_without_rights_to_all_pods_shows_no_free_capacity(ask: Run, hub: FakeApiServer) -> None:
    hub.on("GET", "/api/v1/pods", refusal(403, "Forbidden", "pods is forbidden"))
    hub.on("GET", MEMBERS_PATH, refusal(403, "Forbidden", "memberclusters is forbidden"))

    ran = await ask("nodes", "-n", "team-a")

    columns = [re.split(" {2,}", line) for line in ran.out.splitlines()[1:]]
    assert {each[4] for each in columns} == {"unknown"}
    assert [each[5] for each in columns] == ["team-a/pretrain 8", "no AppWrapper 1, unknown", "unknown"]
    assert ran.err.splitlines() == [
        "Member clusters cannot be seen: memberclusters is forbidden",
        "Pods of other namespaces than team-a cannot be seen in hub: FREE is unknown.",
    ]


async def test_nodes_reads_a_member_through_the_context_of_its_name(
    ask: Run, hub: FakeApiServer, tmp_path: Path
) -> None:
    hub.on("GET", MEMBERS_PATH, listed({"metadata": {"name": "east"}}, {"metadata": {"name": "west"}}))
    config = plain_kubeconfig(hub.url)
    config["contexts"].append({"name": "east", "context": {"cluster": "hub", "user": "me"}})
    (tmp_path / "hub.kubeconfig").write_text(yaml.safe_dump(config))

    ran = await ask("nodes", "-o", "json")

    assert [(each["cluster"], each["name"]) for each in json.loads(ran.out)] == [
        ("east", "gpu-1"),
        ("east", "gpu-2"),
        ("east", "gpu-3"),
    ]
    assert ran.err == "The pods and nodes of west cannot be seen: the kubeconfig has no context named west.\n"

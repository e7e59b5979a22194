from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.autoscaler import (
    OUT_OF_STOCK,
    Answer,
    NoRoom,
    Pool,
    Turn,
    conditions_with,
    is_empty,
    make_nodes,
    next_turn,
    nodes_needed,
    request_of_node,
)
from testbed.kuberay import DirtyKeys, View
from testbed.nodes import Shape
from testbed.rayclusters import (
    Plan,
    Slot,
    make_pod,
    make_services,
    make_status,
    patch_for,
    plan_pods,
    problem_with,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW = "2026-11-20T09:00:00Z"
LATER = "2026-11-20T09:00:05Z"
HEAD = Slot("headgroup", 0, 0)

Json = dict[str, Any]


def make_group(name: str = "gpu", **fields: object) -> Json:
    containers = [{"name": "worker", "image": "ray:2"}]
    return {"groupName": name, "template": {"metadata": None, "spec": {"containers": containers}}, **fields}


def make_cluster(*groups: Json, **spec: object) -> Json:
    head = {"template": {"spec": {"containers": [{"name": "head", "image": "ray:2"}]}}}
    return {
        "metadata": {"name": "ray", "namespace": "ns", "uid": "u1", "generation": 1},
        "spec": {"headGroupSpec": head, "workerGroupSpecs": list(groups), **spec},
    }


def make_pods(cluster: Json, phase: str = "Running") -> list[Json]:
    """Build the pods of a cluster as they are when all is well."""
    slots = plan_pods(cluster, []).create
    return [as_stored(make_pod(cluster, slot), f"p{number}", phase) for number, slot in enumerate(slots)]


def as_stored(pod: Json, uid: str, phase: str = "Running", **metadata: object) -> Json:
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    stored = {"uid": uid, "name": f"pod-{uid}", "creationTimestamp": NOW, **metadata}
    return {
        **pod,
        "metadata": {**pod["metadata"], **stored},
        "status": {"phase": phase, "conditions": [ready]},
    }


def worker(replica: int, host: int = 0) -> Slot:
    return Slot("gpu", replica, host)


def test_blog_example_makes_a_head_and_a_worker() -> None:
    document = yaml.safe_load((EXAMPLES / "aw-raycluster-glue.yaml").read_text())
    template = document["spec"]["resources"]["GenericItems"][0]["generictemplate"]
    cluster = {**template, "metadata": {**template["metadata"], "namespace": "default", "uid": "u1"}}

    assert plan_pods(cluster, []) == Plan(create=(HEAD, Slot("small-group", 0, 0)))
    assert problem_with(cluster) is None


@pytest.mark.parametrize(
    ("group", "workers"),
    [
        pytest.param({}, 0, id="nothing-given"),
        pytest.param({"replicas": 2}, 2, id="replicas"),
        pytest.param({"replicas": 1, "minReplicas": 3}, 3, id="at-least-the-minimum"),
        pytest.param({"replicas": 5, "maxReplicas": 2}, 2, id="at-most-the-maximum"),
        pytest.param({"replicas": 2, "numOfHosts": 4}, 8, id="hosts"),
        pytest.param({"replicas": 2, "suspend": True}, 0, id="suspended-group"),
        pytest.param(
            {"replicas": None, "minReplicas": None, "maxReplicas": None, "numOfHosts": None}, 0, id="nulls"
        ),
    ],
)
def test_group_has_as_many_workers_as_its_bounds_allow(group: Json, workers: int) -> None:
    assert len(plan_pods(make_cluster(make_group(**group)), []).create) == 1 + workers


def test_settled_cluster_needs_nothing() -> None:
    cluster = make_cluster(make_group(replicas=2), make_group("cpu", replicas=1, numOfHosts=2))

    assert plan_pods(cluster, make_pods(cluster)) == Plan()


def test_finished_worker_is_deleted_and_made_anew() -> None:
    cluster = make_cluster(make_group(replicas=2))
    head, first, second = make_pods(cluster)

    plan = plan_pods(cluster, [head, first, as_stored(second, "p2", "Failed")])

    assert plan == Plan(create=(worker(1),), delete=("p2",))


def test_finished_head_is_made_anew_only_when_the_old_one_is_gone() -> None:
    cluster = make_cluster()
    (head,) = make_pods(cluster, "Succeeded")

    assert plan_pods(cluster, [head]) == Plan(delete=("p0",))
    assert plan_pods(cluster, []) == Plan(create=(HEAD,))


def test_deleted_pod_keeps_its_place_until_it_is_gone() -> None:
    cluster = make_cluster(make_group(replicas=1))
    head, lost = make_pods(cluster)

    assert plan_pods(cluster, [head, as_stored(lost, "p1", deletionTimestamp=NOW)]) == Plan()
    assert plan_pods(cluster, [head]) == Plan(create=(worker(0),))


def test_surplus_workers_go_the_unwanted_ones_first() -> None:
    pods = make_pods(make_cluster(make_group(replicas=3)))
    smaller = make_cluster(make_group(replicas=2, scaleStrategy={"workersToDelete": ["pod-p1"]}))
    none = make_cluster()

    assert plan_pods(smaller, pods) == Plan(delete=("p1",))
    assert plan_pods(none, pods) == Plan(delete=("p1", "p2", "p3"))


def test_lost_host_is_replaced_in_its_own_replica() -> None:
    cluster = make_cluster(make_group(replicas=2, numOfHosts=2))
    pods = make_pods(cluster)

    assert plan_pods(cluster, [pod for pod in pods if pod["metadata"]["uid"] != "p3"]) == Plan(
        create=(worker(1, 0),)
    )


def test_suspended_cluster_has_no_pods() -> None:
    cluster = make_cluster(make_group(replicas=1))
    suspended = make_cluster(make_group(replicas=1), suspend=True)

    assert plan_pods(suspended, make_pods(cluster)) == Plan(delete=("p0", "p1"))
    assert plan_pods(suspended, []) == Plan()


def test_worker_carries_kuberays_labels_over_those_of_its_template() -> None:
    group = make_group(replicas=1)
    group["template"]["metadata"] = {
        "labels": {"team": "a", "ray.io/group": "forged"},
        "annotations": {"x": "y"},
    }

    pod = make_pod(make_cluster(group), worker(0))

    assert pod["metadata"] == {
        "generateName": "ray-gpu-worker-",
        "namespace": "ns",
        "labels": {
            "team": "a",
            "ray.io/is-ray-node": "yes",
            "ray.io/cluster": "ray",
            "ray.io/node-type": "worker",
            "ray.io/group": "gpu",
            "ray.io/identifier": "ray-worker",
            "app.kubernetes.io/name": "kuberay",
            "app.kubernetes.io/created-by": "kuberay-operator",
        },
        "annotations": {"x": "y"},
        "ownerReferences": [
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "name": "ray",
                "uid": "u1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def test_worker_waits_for_the_head_in_a_container_of_its_own() -> None:
    pod = make_pod(make_cluster(make_group(replicas=1)), worker(0))

    amounts = {"cpu": "200m", "memory": "256Mi"}
    assert pod["spec"]["initContainers"] == [
        {"name": "wait-gcs-ready", "image": "ray:2", "resources": {"requests": amounts, "limits": amounts}}
    ]


def test_hosts_of_a_replica_are_labelled() -> None:
    labels = make_pod(make_cluster(make_group(replicas=2, numOfHosts=2)), worker(1, 0))["metadata"]["labels"]

    assert (labels["ray.io/worker-group-replica-index"], labels["ray.io/replica-host-index"]) == ("1", "0")
    assert labels["ray.io/worker-group-replica-name"] == "ray-gpu-1"


@pytest.mark.parametrize(
    ("options", "resources", "policy"),
    [
        pytest.param(
            None,
            {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}},
            None,
            id="default",
        ),
        pytest.param(
            {"resources": {"requests": {"cpu": 1}}, "version": "v2"},
            {"requests": {"cpu": 1}},
            "Never",
            id="own",
        ),
    ],
)
def test_autoscaler_is_a_container_of_the_head(
    options: Json | None, resources: Json, policy: str | None
) -> None:
    pod = make_pod(make_cluster(enableInTreeAutoscaling=True, autoscalerOptions=options), HEAD)

    assert pod["spec"]["containers"][1] == {"name": "autoscaler", "image": "ray:2", "resources": resources}
    assert pod["spec"].get("restartPolicy") == policy


def test_making_a_pod_leaves_the_template_as_it_was() -> None:
    cluster = make_cluster(make_group(replicas=1), enableInTreeAutoscaling=True)
    before = repr(cluster)
    make_pods(cluster)

    assert repr(cluster) == before


def test_head_has_a_service_and_hosts_have_one_more() -> None:
    single = make_services(make_cluster(make_group(replicas=1)))
    several = make_services(make_cluster(make_group(replicas=1, numOfHosts=2)))

    assert [one["metadata"]["name"] for one in single] == ["ray-head-svc"]
    assert [one["metadata"]["name"] for one in several] == ["ray-head-svc", "ray-headless"]
    assert {port["name"]: port["port"] for port in single[0]["spec"]["ports"]} == {
        "gcs-server": 6379,
        "dashboard": 8265,
        "client": 10001,
        "serve": 8000,
        "metrics": 8080,
    }


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        pytest.param(
            {"metadata": {"name": "a" * 54}}, "the name is longer than 53 characters", id="long-name"
        ),
        pytest.param({"metadata": {"name": "a"}}, "headGroupSpec has no containers", id="no-spec"),
        pytest.param(
            make_cluster(make_group(), make_group()),
            "workerGroupSpecs need groupNames of their own",
            id="same-name",
        ),
        pytest.param(
            make_cluster({"groupName": "x", "template": {}}),
            "a worker group has no containers",
            id="no-container",
        ),
    ],
)
def test_invalid_cluster_is_left_alone(cluster: Json, problem: str) -> None:
    assert problem_with(cluster) == problem


def conditions_of(status: Json) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status["conditions"]}


def test_cluster_is_ready_once_all_its_pods_are() -> None:
    cluster = make_cluster(make_group(replicas=1, minReplicas=1, maxReplicas=3))
    head, lagging = make_pods(cluster)

    waiting = make_status(cluster, [head, as_stored(lagging, "p1", "Pending")], None, NOW)
    ready = make_status({**cluster, "status": waiting}, [head, lagging], None, LATER)

    assert waiting["state"] is None
    assert conditions_of(waiting) == {"HeadPodReady": "True", "RayClusterProvisioned": "False"}
    assert ready == {
        "state": "ready",
        "observedGeneration": 1,
        "head": {"serviceName": "ray-head-svc", "podName": "pod-p0"},
        "conditions": [
            {
                "type": "HeadPodReady",
                "status": "True",
                "reason": "HeadPodRunningAndReady",
                "message": "HeadPodRunningAndReady",
                "lastTransitionTime": NOW,
            },
            {
                "type": "RayClusterProvisioned",
                "status": "True",
                "reason": "AllPodRunningAndReadyFirstTime",
                "message": "AllPodRunningAndReadyFirstTime",
                "lastTransitionTime": LATER,
            },
        ],
        "desiredWorkerReplicas": 1,
        "availableWorkerReplicas": 1,
        "readyWorkerReplicas": 1,
        "minWorkerReplicas": 1,
        "maxWorkerReplicas": 3,
    }


def test_ready_stays_when_pods_are_lost() -> None:
    cluster = make_cluster(make_group(replicas=1))
    cluster["status"] = make_status(cluster, make_pods(cluster), None, NOW)

    status = make_status(cluster, [], None, LATER)

    assert status["state"] == "ready"
    assert conditions_of(status) == {"HeadPodReady": "False", "RayClusterProvisioned": "True"}
    assert (status["desiredWorkerReplicas"], status["readyWorkerReplicas"]) == (1, None)


def test_stand_in_reports_a_suspension_in_two_steps() -> None:
    cluster = make_cluster(suspend=True)

    suspending = make_status(cluster, make_pods(make_cluster()), None, NOW)
    suspended = make_status({**cluster, "status": suspending}, [], None, LATER)

    assert conditions_of(suspending)["RayClusterSuspending"] == "True"
    assert suspended["state"] == "suspended"
    assert conditions_of(suspended) == {
        "HeadPodReady": "False",
        "RayClusterProvisioned": "False",
        "RayClusterSuspending": "False",
        "RayClusterSuspended": "True",
    }


def test_stand_in_reports_a_refused_pod_and_forgets_it() -> None:
    cluster = make_cluster()
    refused = make_status(cluster, [], "403: exceeded quota", NOW)
    healed = make_status({**cluster, "status": refused}, [], None, LATER)

    assert refused["conditions"][-1]["message"] == "403: exceeded quota"
    assert conditions_of(healed)["ReplicaFailure"] == "False"


def test_status_that_says_the_same_is_not_written() -> None:
    cluster = make_cluster(make_group(replicas=1))
    pods = make_pods(cluster)
    status = make_status(cluster, pods, None, NOW)
    stored = {key: value for key, value in status.items() if value is not None}

    assert patch_for(stored, make_status({**cluster, "status": stored}, pods, None, LATER), LATER) is None


def owned(uid: str, owner: str = "u1") -> Json:
    references = [{"uid": owner, "controller": True}]
    return {"metadata": {"uid": uid, "name": uid, "creationTimestamp": NOW, "ownerReferences": references}}


def seen(view: View) -> list[str]:
    return [one["metadata"]["uid"] for one in view.controlled_by("u1")]


def test_own_creation_is_seen_at_once_and_survives_a_list_that_began_before_it() -> None:
    view = View()
    view.expect(owned("p1"), now=2.0)
    view.replace([owned("p2")], listed_from=1.0)

    assert seen(view) == ["p1", "p2"]


def test_list_that_began_after_a_creation_has_the_last_word() -> None:
    view = View()
    view.expect(owned("p1"), now=1.0)
    view.replace([owned("p2")], listed_from=2.0)

    assert seen(view) == ["p2"]


def test_reply_that_comes_after_the_deletion_changes_nothing() -> None:
    view = View()
    view.apply("ADDED", owned("p1"))
    view.apply("DELETED", owned("p1"))
    view.expect(owned("p1"), now=1.0)

    assert seen(view) == []


async def test_key_is_handed_out_once_and_again_if_asked_for_meanwhile() -> None:
    keys = DirtyKeys()
    keys.add("a")
    keys.add("a")

    async with keys.next() as key:
        keys.add("a")
        assert key == "a"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), keys.next():
                pass

    async with keys.next() as again:
        assert again == "a"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), keys.next():
            pass


# -----------------------------------------------------------------------------------------------------------
# The stand-in for an autoscaler, as functions of values: how many nodes a request needs, and what it says
# next.


CREATED = datetime(2026, 11, 23, 12, tzinfo=UTC)
NODE = Shape(cpu="8", memory="32Gi", gpu=2)
POOL = Pool(shape=NODE, accept_after=timedelta(seconds=1), provide_after=timedelta(seconds=9))
ACCEPTED = CREATED + timedelta(seconds=1)
EXPECTED = CREATED + timedelta(seconds=10)


def make_request(*conditions: str, name: str = "train-provisioning-1", **parameters: str) -> Json:
    return {
        "metadata": {"name": name, "uid": "12345678-9", "creationTimestamp": "2026-11-23T12:00:00Z"},
        "spec": {"parameters": {key.replace("_", "-"): value for key, value in parameters.items()}},
        "status": {"conditions": [{"type": each, "status": "True"} for each in conditions]},
    }


def pending_pod(**requests: str) -> Json:
    amounts = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in requests.items()}
    return {"containers": [{"name": "main", "resources": {"requests": amounts}}]}


@pytest.mark.parametrize(
    ("crews", "needed"),
    [
        pytest.param([(pending_pod(gpu="2"), 3)], 3, id="a-node-each"),
        pytest.param([(pending_pod(gpu="1"), 3)], 2, id="two-on-a-node"),
        pytest.param([(pending_pod(gpu="1", cpu="5"), 2)], 2, id="cpu-is-what-lacks"),
        pytest.param(
            [(pending_pod(gpu="2", cpu="4"), 1), (pending_pod(cpu="4"), 1)], 1, id="two-crews-on-a-node"
        ),
        pytest.param(
            [(pending_pod(cpu="5"), 1), (pending_pod(gpu="2", cpu="4"), 1)], 2, id="two-crews-apart"
        ),
        pytest.param([(pending_pod(), 111)], 2, id="places-for-pods"),
        pytest.param([], 0, id="nothing"),
    ],
)
def test_request_needs_the_nodes_on_which_its_pods_fit(crews: list[tuple[Json, int]], needed: int) -> None:
    assert nodes_needed(crews, POOL) == needed


def test_pod_that_is_larger_than_a_node_is_named_with_what_lacks() -> None:
    with pytest.raises(NoRoom) as raised:
        nodes_needed([(pending_pod(gpu="3", cpu="1"), 1)], POOL)

    assert str(raised.value) == "a pod is larger than a node of gpu-pool: nvidia.com/gpu: needs 3, 2 there"


@pytest.mark.parametrize(
    ("request_", "turn"),
    [
        pytest.param(
            make_request(), Turn(Answer.ACCEPTED, ACCEPTED, "ETA: 2026-11-23T12:00:10Z"), id="accepted-first"
        ),
        pytest.param(
            make_request("Accepted"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="then-provisioned",
        ),
        pytest.param(make_request("Accepted", "Provisioned"), None, id="and-that-is-all"),
        pytest.param(
            make_request("Accepted", testbed_fail_first="1"),
            Turn(Answer.FAILED, EXPECTED, OUT_OF_STOCK),
            id="fails-on-demand",
        ),
        pytest.param(
            make_request("Accepted", name="train-provisioning-2", testbed_fail_first="1"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="and-not-the-second-time",
        ),
        pytest.param(
            make_request("Accepted", testbed_fail_first="often"),
            Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready"),
            id="no-number",
        ),
        pytest.param(make_request("Accepted", "Failed", testbed_fail_first="1"), None, id="failed"),
        pytest.param(make_request("Accepted", "Provisioned", "CapacityRevoked"), None, id="revoked"),
    ],
)
def test_next_condition_follows_from_those_that_are_set(request_: Json, turn: Turn | None) -> None:
    assert next_turn(request_, POOL) == turn


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [(("Accepted", "Provisioned"), Answer.REVOKED), (("Accepted",), Answer.PROVISIONED)],
    ids=["provisioned", "not-yet"],
)
def test_annotation_revokes_what_is_provisioned(conditions: tuple[str, ...], answer: Answer) -> None:
    request = make_request(*conditions)
    request["metadata"]["annotations"] = {"testbed.dispatcher.codeflare.dev/revoke": "maintenance"}

    turn = next_turn(request, POOL)

    assert turn is not None
    assert turn.answer == answer
    assert (turn.message == "maintenance") == (answer == Answer.REVOKED)


def test_condition_is_added_to_those_that_are_set() -> None:
    turn = Turn(Answer.PROVISIONED, EXPECTED, "the nodes are ready")

    accepted, provisioned = conditions_with(make_request("Accepted"), turn, EXPECTED)

    assert accepted == {"type": "Accepted", "status": "True"}
    assert provisioned == {
        "type": "Provisioned",
        "status": "True",
        "reason": "Provisioned",
        "message": "the nodes are ready",
        "lastTransitionTime": "2026-11-23T12:00:10Z",
    }


def test_nodes_know_their_request_and_have_the_same_names_each_time() -> None:
    nodes = make_nodes(make_request(), 2, POOL, CREATED)

    assert [each["metadata"]["name"] for each in nodes] == ["gpu-pool-12345678-0", "gpu-pool-12345678-1"]
    assert {request_of_node(each) for each in nodes} == {"12345678-9"}
    assert nodes[0]["metadata"]["labels"]["cloud.google.com/gke-nodepool"] == "gpu-pool"


@pytest.mark.parametrize(
    ("place", "phase", "empty"),
    [
        pytest.param("gpu-pool-12345678-0", "Running", False, id="runs-there"),
        pytest.param("gpu-pool-12345678-0", "Pending", False, id="starts-there"),
        pytest.param("gpu-pool-12345678-0", "Succeeded", True, id="done"),
        pytest.param("elsewhere", "Running", True, id="elsewhere"),
        pytest.param(None, "Pending", True, id="nowhere"),
    ],
)
def test_node_is_empty_without_pods_that_have_yet_to_finish(
    place: str | None, phase: str, empty: bool
) -> None:
    [node] = make_nodes(make_request(), 1, POOL, CREATED)
    pod = {"spec": {"nodeName": place}, "status": {"phase": phase}}

    assert is_empty(node, [pod]) is empty

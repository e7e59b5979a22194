"""The objects that KubeRay's operator makes from a RayCluster, as functions of values: pods, services and status.

They have KubeRay's labels, owner references, injected containers and sticky "ready". `testbed.kuberay` watches and
writes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

Json = dict[str, Any]

CLUSTER_LABEL = "ray.io/cluster"
GROUP_LABEL = "ray.io/group"
TYPE_LABEL = "ray.io/node-type"
REPLICA_NAME_LABEL = "ray.io/worker-group-replica-name"
REPLICA_LABEL = "ray.io/worker-group-replica-index"
HOST_LABEL = "ray.io/replica-host-index"
HEAD_GROUP = "headgroup"
LONGEST_NAME = 53
DEFAULT_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000}
METRICS_PORT = 8080
MAX_REPLICAS = 2**31 - 1
FINISHED = ("Succeeded", "Failed")
ALWAYS_SHOWN = ("HeadPodReady", "RayClusterProvisioned")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one pod; replica and host differ only in groups with several hosts for each replica."""

    group: str
    replica: int
    host: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes after which the pods are those of the RayCluster."""

    create: tuple[Slot, ...] = ()
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """The status, the reason and perhaps the message of a condition."""

    status: str
    reason: str
    message: str = ""

    @classmethod
    def of(cls, holds: bool, reason: str, otherwise: str, message: str = "") -> Self:
        """True for a reason, else false for another one."""
        return cls("True" if holds else "False", reason if holds else otherwise, message)


def problem_with(cluster: Json) -> str | None:
    """Why KubeRay would refuse this spec; None if it would not."""
    spec = cluster.get("spec") or {}
    if len(cluster["metadata"]["name"]) > LONGEST_NAME:
        return f"the name is longer than {LONGEST_NAME} characters"
    if not _containers(_head(spec)):
        return "headGroupSpec has no containers"
    names = [group.get("groupName") for group in _groups(spec)]
    if None in names or len(set(names)) < len(names):
        return "workerGroupSpecs need groupNames of their own"
    if not all(_containers(group) for group in _groups(spec)):
        return "a worker group has no containers"
    return None


def make_refusal(cluster: Json, problem: str) -> Json:
    """The Event by which KubeRay reports that it ignores a RayCluster."""
    where = f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}"
    return _warning(cluster, "InvalidRayClusterSpec", f"The RayCluster spec is invalid {where}: {problem}")


def make_complaint(cluster: Json, problem: str) -> Json:
    """The Event by which KubeRay reports that it cannot create a pod."""
    where = f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}"
    return _warning(cluster, "FailedToCreateWorkerPod", f"Failed to create a pod of {where}, {problem}")


def _warning(cluster: Json, reason: str, message: str) -> Json:
    metadata = cluster["metadata"]
    told = {
        "kind": "RayCluster",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "raycluster-warning-"},
        "involvedObject": {"apiVersion": cluster.get("apiVersion", "ray.io/v1"), **told},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "raycluster-controller"},
    }


def desired_slots(spec: Json) -> tuple[Slot, ...]:
    """The places of all pods: the head's first, then those of the groups in their order."""
    workers = (
        Slot(group["groupName"], replica, host)
        for group in _groups(spec)
        for replica in range(_replicas(group))
        for host in range(_hosts(group))
    )
    return (Slot(HEAD_GROUP, 0, 0), *workers)


def plan_pods(cluster: Json, pods: Sequence[Json]) -> Plan:
    """The changes that turn the present pods of a RayCluster into the desired ones.

    Finished pods are deleted and created again, a head only once the old one is gone. Pods in deletion keep their place
    until they are gone.
    """
    spec = cluster["spec"]
    if spec.get("suspend"):
        return Plan(delete=_deletable(pods))
    finished = [pod for pod in pods if _phase(pod) in FINISHED]
    alive = [pod for pod in pods if _phase(pod) not in FINISHED]
    create: list[Slot] = []
    surplus: list[Json] = []
    for group, slots in _by_group(spec, pods).items():
        missing, extra = _compare(
            slots, [pod for pod in alive if _group_of(pod) == group], _unwanted(spec, group)
        )
        head_is_leaving = group == HEAD_GROUP and any(_group_of(pod) == HEAD_GROUP for pod in finished)
        create += [] if head_is_leaving else missing
        surplus += extra
    return Plan(tuple(create), _deletable([*finished, *surplus]))


def make_pod(cluster: Json, slot: Slot) -> Json:
    """The pod for a place, with KubeRay's additions to its template."""
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    is_head = slot.group == HEAD_GROUP
    group = _head(spec) if is_head else next(one for one in _groups(spec) if one["groupName"] == slot.group)
    template = json.loads(json.dumps(group["template"]))
    given = template.get("metadata") or {}
    prefix = f"{name}-head-" if is_head else f"{name}-{slot.group}-worker-"
    labels = {
        **(given.get("labels") or {}),
        **_pod_labels(name, slot),
        **_host_labels(name, slot, _hosts(group)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{prefix[:49].rstrip('-')}-".lower(),
            "namespace": cluster["metadata"]["namespace"],
            "labels": labels,
            "annotations": given.get("annotations") or {},
            "ownerReferences": [owner_of(cluster)],
        },
        "spec": _head_pod_spec(spec, template["spec"])
        if is_head
        else _worker_pod_spec(spec, template["spec"]),
    }


def make_services(cluster: Json) -> list[Json]:
    """The head's service, and one more for the hosts if a replica has several."""
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    head = _service(cluster, f"{name}-head-svc", {CLUSTER_LABEL: name, TYPE_LABEL: "head"}, _head_ports(spec))
    if all(_hosts(group) == 1 for group in _groups(spec)):
        return [head]
    return [head, _service(cluster, f"{name}-headless", {CLUSTER_LABEL: name, TYPE_LABEL: "worker"}, [])]


def make_status(cluster: Json, pods: Sequence[Json], failure: str | None, now: str) -> Json:
    """The status, projected from the pods; `ready` and RayClusterProvisioned stay true, as in KubeRay."""
    spec, old = cluster["spec"], cluster.get("status") or {}
    slots = desired_slots(spec)
    heads = [pod for pod in pods if _group_of(pod) == HEAD_GROUP]
    workers = [pod for pod in pods if _group_of(pod) != HEAD_GROUP]
    suspended = bool(spec.get("suspend"))
    complete = not suspended and len(pods) == len(slots) and all(map(_is_ready, pods))
    counts = {
        "desiredWorkerReplicas": 0 if suspended else len(slots) - 1,
        "availableWorkerReplicas": sum(_phase(pod) == "Running" for pod in workers),
        "readyWorkerReplicas": sum(map(_is_ready, workers)),
        "minWorkerReplicas": sum((group.get("minReplicas") or 0) * _hosts(group) for group in _groups(spec)),
        "maxWorkerReplicas": min(
            MAX_REPLICAS, sum(_maximum(group) * _hosts(group) for group in _groups(spec))
        ),
    }
    facts = {
        "HeadPodReady": Fact.of(
            any(map(_is_ready, heads)),
            "HeadPodRunningAndReady",
            "HeadPodNotFound" if not heads else "HeadPodNotReady",
        ),
        "RayClusterProvisioned": Fact.of(
            complete or _was(old, "RayClusterProvisioned"),
            "AllPodRunningAndReadyFirstTime",
            "RayClusterPodsProvisioning",
        ),
        "RayClusterSuspending": Fact.of(
            suspended and bool(pods), "RayClusterSuspending", "RayClusterSuspending"
        ),
        "RayClusterSuspended": Fact.of(suspended and not pods, "RayClusterSuspended", "RayClusterSuspended"),
        "ReplicaFailure": Fact.of(failure is not None, "FailedCreatePod", "NoFailure", failure or ""),
    }
    return {
        "state": _state(old.get("state"), complete, suspended and not pods),
        "observedGeneration": cluster["metadata"].get("generation"),
        "head": {"serviceName": f"{cluster['metadata']['name']}-head-svc", **_head_of_status(heads)},
        "conditions": conditions_after(old.get("conditions") or [], facts, ALWAYS_SHOWN, now),
        **{name: count or None for name, count in counts.items()},
    }


def patch_for(old: Json, new: Json, now: str) -> Json | None:
    """The merge patch from one status to the other; None if they are equal."""
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return {**changed, "lastUpdateTime": now} if changed else None


def _head(spec: Json) -> Json:
    return spec.get("headGroupSpec") or {}


def _groups(spec: Json) -> list[Json]:
    return spec.get("workerGroupSpecs") or []


def _containers(group: Json) -> list[Json]:
    return ((group.get("template") or {}).get("spec") or {}).get("containers") or []


def _replicas(group: Json) -> int:
    if group.get("suspend"):
        return 0
    return max(group.get("minReplicas") or 0, min(group.get("replicas") or 0, _maximum(group)))


def _maximum(group: Json) -> int:
    maximum = group.get("maxReplicas")
    return MAX_REPLICAS if maximum is None else maximum


def _hosts(group: Json) -> int:
    return group.get("numOfHosts") or 1


def _by_group(spec: Json, pods: Iterable[Json]) -> dict[str, list[Slot]]:
    """The places by group; a group without desired pods has none."""
    groups: dict[str, list[Slot]] = {_group_of(pod): [] for pod in pods}
    for slot in desired_slots(spec):
        groups.setdefault(slot.group, []).append(slot)
    return groups


def _compare(slots: list[Slot], pods: list[Json], unwanted: set[str]) -> tuple[list[Slot], list[Json]]:
    """The places without a pod and the pods without a place; unwanted pods have none."""
    free = list(slots)
    surplus = []
    for pod in sorted(
        pods, key=lambda pod: (pod["metadata"]["name"] in unwanted, pod["metadata"]["creationTimestamp"])
    ):
        place = next((slot for slot in free if _holds(slot, pod)), None)
        if place is None or pod["metadata"]["name"] in unwanted:
            surplus.append(pod)
        else:
            free.remove(place)
    return free, surplus


def _holds(slot: Slot, pod: Json) -> bool:
    labels = pod["metadata"]["labels"]
    return HOST_LABEL not in labels or (labels[REPLICA_LABEL], labels[HOST_LABEL]) == (
        str(slot.replica),
        str(slot.host),
    )


def _unwanted(spec: Json, group: str) -> set[str]:
    given = next((one for one in _groups(spec) if one["groupName"] == group), {})
    return set((given.get("scaleStrategy") or {}).get("workersToDelete") or [])


def _deletable(pods: Iterable[Json]) -> tuple[str, ...]:
    return tuple(pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"])


def _pod_labels(cluster_name: str, slot: Slot) -> dict[str, str]:
    node_type = "head" if slot.group == HEAD_GROUP else "worker"
    return {
        "ray.io/is-ray-node": "yes",
        CLUSTER_LABEL: cluster_name,
        TYPE_LABEL: node_type,
        GROUP_LABEL: slot.group,
        "ray.io/identifier": f"{cluster_name}-{node_type}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }


def _host_labels(cluster_name: str, slot: Slot, hosts: int) -> dict[str, str]:
    if hosts == 1:
        return {}
    return {
        REPLICA_NAME_LABEL: f"{cluster_name}-{slot.group}-{slot.replica}"[-63:].lstrip("-."),
        REPLICA_LABEL: str(slot.replica),
        HOST_LABEL: str(slot.host),
    }


def owner_of(controller: Json, kind: str = "RayCluster") -> Json:
    """The owner reference of an object that this RayCluster or RayService controls."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": kind,
        "name": controller["metadata"]["name"],
        "uid": controller["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _head_pod_spec(spec: Json, pod_spec: Json) -> Json:
    if not spec.get("enableInTreeAutoscaling"):
        return pod_spec
    options = spec.get("autoscalerOptions") or {}
    amounts = {"cpu": "500m", "memory": "512Mi"}
    pod_spec["containers"].append(
        {
            "name": "autoscaler",
            "image": options.get("image") or pod_spec["containers"][0]["image"],
            "resources": options.get("resources") or {"requests": amounts, "limits": amounts},
        }
    )
    return _without_restarts(spec, pod_spec)


def _worker_pod_spec(spec: Json, pod_spec: Json) -> Json:
    amounts = {"cpu": "200m", "memory": "256Mi"}
    wait = {
        "name": "wait-gcs-ready",
        "image": pod_spec["containers"][0]["image"],
        "resources": {"requests": amounts, "limits": amounts},
    }
    pod_spec["initContainers"] = [*(pod_spec.get("initContainers") or []), wait]
    return _without_restarts(spec, pod_spec) if spec.get("enableInTreeAutoscaling") else pod_spec


def _without_restarts(spec: Json, pod_spec: Json) -> Json:
    if (spec.get("autoscalerOptions") or {}).get("version") == "v2":
        pod_spec["restartPolicy"] = "Never"
    return pod_spec


def _head_ports(spec: Json) -> list[Json]:
    given = _containers(_head(spec))[0].get("ports") or []
    named = {port.get("name") or f"port-{port['containerPort']}": port["containerPort"] for port in given}
    ports = {**(named or DEFAULT_PORTS), "metrics": METRICS_PORT}
    return [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()]


def _service(cluster: Json, name: str, selector: dict[str, str], ports: list[Json]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": cluster["metadata"]["namespace"],
            "labels": {CLUSTER_LABEL: cluster["metadata"]["name"]},
            "ownerReferences": [owner_of(cluster)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
            **({"ports": ports} if ports else {}),
        },
    }


def _group_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(GROUP_LABEL, ""))


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return _phase(pod) == "Running" and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


def _state(old: str | None, complete: bool, suspended: bool) -> str | None:
    if suspended:
        return "suspended"
    if complete:
        return "ready"
    return None if old == "suspended" else old


def _head_of_status(heads: Sequence[Json]) -> Json:
    if not heads:
        return {}
    status = heads[0].get("status") or {}
    return {
        "podName": heads[0]["metadata"]["name"],
        **({"podIP": status["podIP"]} if "podIP" in status else {}),
    }


def _was(status: Json, condition_type: str) -> bool:
    conditions = status.get("conditions") or []
    return any(one["type"] == condition_type and one["status"] == "True" for one in conditions)


def conditions_after(
    old: list[Json], facts: Mapping[str, Fact], always: Sequence[str], now: str
) -> list[Json]:
    """The updated list; a condition that was never true is absent, except for those that are always present."""
    before = {one["type"]: one for one in old}
    return [
        _condition(before.get(name), name, fact, now)
        for name, fact in facts.items()
        if fact.status == "True" or name in before or name in always
    ]


def _condition(before: Json | None, name: str, fact: Fact, now: str) -> Json:
    same = before is not None and before["status"] == fact.status
    return {
        "type": name,
        "status": fact.status,
        "reason": fact.reason,
        "message": before["message"] if before and same else fact.message or fact.reason,
        "lastTransitionTime": before["lastTransitionTime"] if before and same else now,
    }

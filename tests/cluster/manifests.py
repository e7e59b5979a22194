"""AppWrappers for the cluster tests, each a small change to something plain."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

POD_LIFE = "testbed.dispatcher.codeflare.dev"
SERVED = "applications:\n- name: answers\n  import_path: answers:app\n"
"""What Ray Serve serves; nothing is served without it."""


def appwrapper(name: str, *items: Json, **spec: Any) -> Json:  # noqa: ANN401
    """An AppWrapper wrapping `items`, each a GenericItem."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {**spec, "resources": {"GenericItems": list(items)}},
    }


def item(template: Json, **fields: Any) -> Json:  # noqa: ANN401
    """A GenericItem."""
    return {"generictemplate": template, **fields}


def config_map(name: str, **metadata: Any) -> Json:  # noqa: ANN401
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {}}


def pod(name: str, requests: Json | None = None, **spec: Any) -> Json:  # noqa: ANN401
    """A bare pod of one container."""
    container = {"name": "main", "image": "none", "resources": {"requests": requests or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def changed(manifest: Json, path: str, value: object) -> Json:
    """The same manifest with another value at a dotted path, the last step of which may be new."""
    other = copy.deepcopy(manifest)
    *steps, last = path.split(".")
    at: Any = other
    for step in steps:
        at = at[int(step) if step.isdecimal() else step]
    at[last] = value
    return other


def pod_template(cpu: str = "100m", **annotations: str) -> Json:
    """A pod template of one container."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"annotations": lives(annotations)}, "spec": {"containers": [container]}}


def lives(words: dict[str, str]) -> dict[str, str]:
    """The annotations of a pod, or of a RayJob, that have it live so."""
    return {f"{POD_LIFE}/{key.replace('_', '-')}": value for key, value in words.items()}


def deployment(name: str, replicas: int = 1, cpu: str = "100m") -> Json:
    labels = {"app": name}
    template = pod_template(cpu)
    template["metadata"]["labels"] = labels
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def job(name: str, parallelism: int = 1, cpu: str = "100m", **annotations: str) -> Json:
    template = pod_template(cpu, **({"run_for": "forever"} | annotations))
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"parallelism": parallelism, "completions": parallelism, "template": template},
    }


def statefulset(name: str, replicas: int = 1, cpu: str = "100m") -> Json:
    template = deployment(name, replicas, cpu)
    return {**template, "kind": "StatefulSet", "spec": {**template["spec"], "serviceName": name}}


def daemonset(name: str, cpu: str = "100m") -> Json:
    """One pod on each node."""
    template = deployment(name, 1, cpu)
    spec = {key: value for key, value in template["spec"].items() if key != "replicas"}
    return {**template, "kind": "DaemonSet", "spec": spec}


def replicaset(name: str) -> Json:
    """Of one pod, and of no Deployment."""
    return {**deployment(name), "kind": "ReplicaSet"}


def replication_controller(name: str) -> Json:
    """Of one pod."""
    like = deployment(name)
    spec = {**like["spec"], "selector": {"app": name}}
    return {**like, "apiVersion": "v1", "kind": "ReplicationController", "spec": spec}


def service(name: str) -> Json:
    """A service of nobody's pods."""
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def small_job(name: str) -> Json:
    """An AppWrapper that always fits."""
    return appwrapper(name, item(job(name)))


def renamed(manifest: Json, name: str) -> Json:
    """The same AppWrapper, and the RayCluster in it, under another name."""
    other = copy.deepcopy(manifest)
    other["metadata"]["name"] = name
    for each in other["spec"]["resources"]["GenericItems"]:
        each["generictemplate"]["metadata"]["name"] = name
    return other


def never_starting(manifest: Json) -> Json:
    """The same AppWrapper of a RayCluster, whose pods are bound but never run."""
    other = copy.deepcopy(manifest)
    for each in other["spec"]["resources"]["GenericItems"]:
        spec = each["generictemplate"]["spec"]
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            group["template"].setdefault("metadata", {})["annotations"] = {f"{POD_LIFE}/never-start": "true"}
    return other


def components(name: str, *wrapped: Json, **spec: Any) -> Json:  # noqa: ANN401
    """An AppWrapper as v1beta2 spells it, each of `wrapped` a component."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name},
        "spec": {**spec, "components": list(wrapped)},
    }


def component(template: Json, **pod_sets: int) -> Json:
    """A component whose pod templates are at these paths, `__` for a dot, so many pods of each."""
    sets = [{"path": path.replace("__", "."), "replicas": count} for path, count in pod_sets.items()]
    return {"template": template, **({"podSets": sets} if sets else {})}


def bent(manifest: Json, annotations: dict[str, str]) -> Json:
    """The same AppWrapper with annotations."""
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}


def rayjob(name: str, cpu: str = "100m", mode: str = "HTTPMode", **words: str) -> Json:
    """A RayJob of one head and one worker; the operator submits its job, which lives as its annotations say."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "annotations": lives(words)},
        "spec": {
            "entrypoint": "python train.py",
            "submissionMode": mode,
            "rayClusterSpec": raycluster(name, cpu)["spec"],
        },
    }


def rayservice(name: str, cpu: str = "100m", **words: str) -> Json:
    """A RayService of one head and one worker; an upgrade deletes the former RayCluster at once."""
    cluster = raycluster(name, cpu, workers=1, **words)["spec"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": name},
        "spec": {"serveConfigV2": SERVED, "rayClusterDeletionDelaySeconds": 0, "rayClusterConfig": cluster},
    }


def raycluster(name: str, cpu: str = "100m", workers: int = 1, **words: str) -> Json:
    """A RayCluster of one head and one group of workers."""
    group = {"groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": pod_template(cpu, **words)},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": pod_template(cpu, **words)}],
        },
    }


def autoscaling(name: str, cpu: str = "100m", gpu: str = "0", most: int = 3) -> Json:
    """A RayCluster of one head and one worker; Ray's autoscaler may have more workers, each with that many GPUs."""
    wrapped = changed(raycluster(name, cpu), "spec.workerGroupSpecs.0.maxReplicas", most)
    wrapped["spec"] |= {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}},
    }
    amounts = {"cpu": cpu, "nvidia.com/gpu": gpu}
    resources = {"requests": amounts, "limits": amounts}
    return changed(wrapped, "spec.workerGroupSpecs.0.template.spec.containers.0.resources", resources)

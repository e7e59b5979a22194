"""Objects of Ray with only the fields that count for their demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def template(*requests: Mapping[str, object], **spec: object) -> Json:
    """A pod template with a container for each of these requests."""
    containers = [{"name": f"c{index}", "resources": {"requests": own}} for index, own in enumerate(requests)]
    return {"spec": {"containers": containers, **spec}}


def group(worker: Mapping[str, object], **fields: object) -> Json:
    """A worker group whose pods have one container."""
    return {"groupName": "workers", "template": template(worker), **fields}


def cluster(head: Mapping[str, Any], *groups: Mapping[str, Any], **fields: object) -> Json:
    """The spec of a Ray cluster."""
    return {"headGroupSpec": {"template": head}, "workerGroupSpecs": list(groups), **fields}


def ray_cluster(head: Mapping[str, Any], *groups: Mapping[str, Any], **fields: object) -> Json:
    """A RayCluster."""
    return _obj("RayCluster", cluster(head, *groups, **fields))


def ray_job(cluster_spec: Mapping[str, Any] | None = None, **fields: object) -> Json:
    """A RayJob, with or without a Ray cluster of its own."""
    own = {} if cluster_spec is None else {"rayClusterSpec": cluster_spec}
    return _obj("RayJob", {**own, **fields})


def ray_service(config: Mapping[str, Any]) -> Json:
    """A RayService with this Ray cluster."""
    return _obj("RayService", {"rayClusterConfig": config, "serveConfigV2": "applications: []"})


def _obj(kind: str, spec: Json) -> Json:
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


HEAD = template({"cpu": 1, "memory": "2Gi"})
WORKER = {"cpu": 1, "memory": "1Gi"}

"""The objects that KubeRay's operator makes from a RayService, as functions of values: RayClusters, services, status.

No Ray runs, so a service counts as serving once its RayCluster is ready. A changed RayCluster spec upgrades the service
without downtime: a second RayCluster is made beside the active one, and takes over once it is ready. The numbers of
replicas are Ray's own, so their change is no upgrade. Not included: the delay before the old RayCluster is deleted, and
services that select the pods of the new one.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.rayclusters import CLUSTER_LABEL, TYPE_LABEL, Fact, Json, conditions_after, owner_of

ORIGIN_LABELS = {"name": "ray.io/originated-from-cr-name", "kind": "ray.io/originated-from-crd"}
SERVE_PORT = 8000
SUFFIX_LENGTH = 5
SCALED = ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
"""Fields of a worker group whose change is no upgrade."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The RayClusters of a service: the active one serves, the pending one is to take over, the others are deleted."""

    active: Json | None = None
    pending: Json | None = None
    outdated: tuple[Json, ...] = ()


def clusters_of(service: Json, clusters: Sequence[Json]) -> Clusters:
    """The parts of these RayClusters, which the service has; the wanted one is missing if none has its name."""
    wanted = next((each for each in clusters if each["metadata"]["name"] == cluster_name(service)), None)
    others = [each for each in clusters if each is not wanted]
    if wanted is not None and _is_ready(wanted):
        return Clusters(active=wanted, outdated=tuple(others))
    serving = [each for each in others if _is_ready(each)][:1]
    outdated = tuple(each for each in others if each not in serving)
    return Clusters(serving[0] if serving else None, wanted, outdated)


def _is_ready(cluster: Json) -> bool:
    return (cluster.get("status") or {}).get("state") == "ready"


def cluster_name(service: Json) -> str:
    """The name of the RayCluster that a RayService wants.

    KubeRay's suffix is random; this one is from the uid and the spec, so that a repeated creation makes no second
    RayCluster, and a service that goes back to its former spec finds the former one.
    """
    spec = dict(service["spec"]["rayClusterConfig"])
    groups = [
        {key: value for key, value in group.items() if key not in SCALED}
        for group in spec.get("workerGroupSpecs") or ()
    ]
    content = json.dumps([service["metadata"]["uid"], {**spec, "workerGroupSpecs": groups}], sort_keys=True)
    suffix = hashlib.sha256(content.encode()).hexdigest()[:SUFFIX_LENGTH]
    return f"{service['metadata']['name']}-{suffix}"


def make_cluster(service: Json) -> Json:
    """The RayCluster that a RayService wants."""
    metadata = service["metadata"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": cluster_name(service),
            "namespace": metadata["namespace"],
            "labels": _origin(service),
            "ownerReferences": [owner_of(service, "RayService")],
        },
        "spec": service["spec"]["rayClusterConfig"],
    }


def make_services(service: Json) -> list[Json]:
    """The services under the name of the RayService."""
    of_cluster = {CLUSTER_LABEL: cluster_name(service)}
    return [
        _service(service, "head-svc", {**of_cluster, TYPE_LABEL: "head"}),
        _service(service, "serve-svc", {**of_cluster, "ray.io/serve": "true"}),
    ]


def make_status(service: Json, clusters: Sequence[Json], now: str) -> Json:
    """The status: Initializing until a RayCluster is ready for the first time; `clusters` are those that are there."""
    old, found = service.get("status") or {}, clusters_of(service, clusters)
    serves = found.active is not None or old.get("serviceStatus") == "Running"
    is_upgrading = found.active is not None and found.pending is not None
    awaited = None if serves and not is_upgrading else _named(found.pending, cluster_name(service))
    facts = {
        "Ready": Fact.of(serves, "NonZeroServeEndpoints", "Initializing"),
        "UpgradeInProgress": Fact.of(is_upgrading, "BothActivePendingClustersExist", "NoPendingCluster"),
    }
    return {
        "serviceStatus": "Running" if serves else None,
        "activeServiceStatus": _named(found.active, cluster_name(service)) if serves else None,
        "pendingServiceStatus": awaited,
        "observedGeneration": service["metadata"].get("generation"),
        "conditions": conditions_after(old.get("conditions") or [], facts, tuple(facts), now),
    }


def _named(cluster: Json | None, otherwise: str) -> Json:
    """How the status names a RayCluster; by `otherwise` while it is not there."""
    if cluster is None:
        return {"rayClusterName": otherwise, "rayClusterStatus": {"state": None}}
    state = (cluster.get("status") or {}).get("state")
    return {"rayClusterName": cluster["metadata"]["name"], "rayClusterStatus": {"state": state}}


def _origin(service: Json) -> dict[str, str]:
    return {ORIGIN_LABELS["name"]: service["metadata"]["name"], ORIGIN_LABELS["kind"]: "RayService"}


def _service(service: Json, suffix: str, selector: dict[str, str]) -> Json:
    metadata = service["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{metadata['name']}-{suffix}",
            "namespace": metadata["namespace"],
            "labels": _origin(service),
            "ownerReferences": [owner_of(service, "RayService")],
        },
        "spec": {
            "selector": selector,
            "ports": [{"name": "serve", "port": SERVE_PORT, "targetPort": SERVE_PORT}],
        },
    }

"""The objects that KubeRay's operator makes from a RayService, as functions of values: RayCluster, services, status.

No Ray runs, so a service counts as serving once its RayCluster is ready. A changed spec does not upgrade the service:
the RayCluster stays as it was made.
"""

from collections.abc import Sequence

from testbed.rayclusters import CLUSTER_LABEL, TYPE_LABEL, Fact, Json, conditions_after, owner_of

ORIGIN_LABELS = {"name": "ray.io/originated-from-cr-name", "kind": "ray.io/originated-from-crd"}
SERVE_PORT = 8000
SUFFIX_LENGTH = 5


def cluster_name(service: Json) -> str:
    """The name of the RayCluster of a RayService.

    KubeRay's suffix is random; this one is from the uid, so that a repeated creation makes no second RayCluster.
    """
    return f"{service['metadata']['name']}-{service['metadata']['uid'][:SUFFIX_LENGTH]}"


def make_cluster(service: Json) -> Json:
    """The RayCluster of a RayService."""
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
    """The services under the name of the RayService, which stay when it gets another RayCluster."""
    of_cluster = {CLUSTER_LABEL: cluster_name(service)}
    return [
        _service(service, "head-svc", {**of_cluster, TYPE_LABEL: "head"}),
        _service(service, "serve-svc", {**of_cluster, "ray.io/serve": "true"}),
    ]


def make_status(service: Json, clusters: Sequence[Json], now: str) -> Json:
    """The status: Initializing until the RayCluster is ready for the first time; `clusters` has it, if it is there."""
    old = service.get("status") or {}
    state = next(((each.get("status") or {}).get("state") for each in clusters), None)
    serves = state == "ready" or old.get("serviceStatus") == "Running"
    named = {"rayClusterName": cluster_name(service), "rayClusterStatus": {"state": state}}
    facts = {
        "Ready": Fact.of(serves, "NonZeroServeEndpoints", "Initializing"),
        "UpgradeInProgress": Fact.of(False, "BothActivePendingClustersExist", "NoPendingCluster"),
    }
    return {
        "serviceStatus": "Running" if serves else None,
        "activeServiceStatus" if serves else "pendingServiceStatus": named,
        "pendingServiceStatus" if serves else "activeServiceStatus": None,
        "observedGeneration": service["metadata"].get("generation"),
        "conditions": conditions_after(old.get("conditions") or [], facts, tuple(facts), now),
    }


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

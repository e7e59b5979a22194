"""The built-in kinds that can be wrapped: one row for each kind, with everything that depends on the kind.

To add a kind, add its row, its API group to `VERSIONS` if that is new, and its cases to `test_demand.py` and
`test_object_status.py` of the core's tests. `registry` finds rows.
Source: https://kubernetes.io/docs/reference/kubernetes-api/, and the operators' own types for the kinds of CRDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dispatcher.core.kinds import object_status, podsets
from dispatcher.core.kinds.object_status import Rule, condition_ends
from dispatcher.core.kinds.podsets import Kind, kubeflow_job


@dataclass(frozen=True, slots=True)
class KnownKind:
    """One row. `pods` says how the kind makes pods; it is None where no template says so, for `why_underivable`.

    `status` reads the status of an object. `ends` is true if objects of the kind end by themselves. `serves` is true
    for a kind without pods that other workloads use, such as a Service: its gang is meant to go on.
    """

    group: str
    kind: str
    pods: Kind | None = podsets.NO_PODS
    why_underivable: str = ""
    status: Rule | None = None
    ends: bool = False
    serves: bool = False

    @property
    def may_make_pods(self) -> bool:
        """True unless the kind is known to make no pods."""
        return self.pods is None or bool(self.pods.rules)


def _without_pods(group: str, *kinds: str, serves: bool = False) -> tuple[KnownKind, ...]:
    return tuple(KnownKind(group, kind, serves=serves) for kind in kinds)


def _with_pods(group: str, kind: str, pods: Kind, status: Rule | None = None) -> KnownKind:
    """The row of a kind whose objects run until they are deleted."""
    return KnownKind(group, kind, pods, status=status)


def _ending(group: str, kind: str, pods: Kind, status: Rule) -> KnownKind:
    """The row of a kind whose objects end by themselves."""
    return KnownKind(group, kind, pods, status=status, ends=True)


def _underivable(group: str, kind: str, why: str, status: Rule | None = None) -> KnownKind:
    """The row of a kind without templates of all its pods; with `status` its objects end by themselves."""
    return KnownKind(group, kind, pods=None, why_underivable=why, status=status, ends=status is not None)


_TRAINED: Final = condition_ends("Succeeded")

ROWS: Final[tuple[KnownKind, ...]] = (
    *_without_pods(
        "", "ConfigMap", "Endpoints", "LimitRange", "PersistentVolumeClaim", "ResourceQuota", "Secret"
    ),
    *_without_pods("", "ServiceAccount"),
    *_without_pods("", "Service", serves=True),
    *_without_pods("apps", "ControllerRevision"),
    *_without_pods("autoscaling", "HorizontalPodAutoscaler"),
    *_without_pods("batch.volcano.sh", "PodGroup"),
    *_without_pods("coordination.k8s.io", "Lease"),
    *_without_pods("discovery.k8s.io", "EndpointSlice"),
    *_without_pods("networking.k8s.io", "Ingress", serves=True),
    *_without_pods("networking.k8s.io", "NetworkPolicy"),
    *_without_pods("policy", "PodDisruptionBudget"),
    *_without_pods("rbac.authorization.k8s.io", "Role", "RoleBinding"),
    *_without_pods("route.openshift.io", "Route", serves=True),
    *_without_pods("scheduling.k8s.io", "PodGroup"),
    *_without_pods("scheduling.sigs.k8s.io", "PodGroup"),
    *_without_pods("scheduling.volcano.sh", "PodGroup"),
    *_without_pods("scheduling.x-k8s.io", "PodGroup"),
    _ending("", "Pod", podsets.POD, object_status.pod_ends),
    _with_pods("apps", "Deployment", podsets.REPLICATED, object_status.deployment_hangs),
    _with_pods("apps", "ReplicaSet", podsets.REPLICATED, object_status.creates_no_pods),
    _with_pods("apps", "StatefulSet", podsets.REPLICATED),
    _ending("batch", "Job", podsets.JOB, condition_ends("Complete")),
    _ending("batch.volcano.sh", "Job", podsets.VOLCANO_JOB, object_status.volcano_job_ends),
    _ending("jobset.x-k8s.io", "JobSet", podsets.JOB_SET, condition_ends("Completed")),
    _ending("kubeflow.org", "JAXJob", kubeflow_job("jaxReplicaSpecs"), _TRAINED),
    _ending("kubeflow.org", "MPIJob", kubeflow_job("mpiReplicaSpecs"), _TRAINED),
    _ending("kubeflow.org", "PaddleJob", kubeflow_job("paddleReplicaSpecs"), _TRAINED),
    _ending(
        "kubeflow.org", "PyTorchJob", kubeflow_job("pytorchReplicaSpecs", podsets.with_init_pytorch), _TRAINED
    ),
    _ending("kubeflow.org", "TFJob", kubeflow_job("tfReplicaSpecs"), _TRAINED),
    _ending("kubeflow.org", "XGBoostJob", kubeflow_job("xgbReplicaSpecs"), _TRAINED),
    _with_pods("leaderworkerset.x-k8s.io", "LeaderWorkerSet", podsets.LEADER_WORKER_SET),
    _with_pods("ray.io", "RayCluster", podsets.RAY_CLUSTER, object_status.creates_no_pods),
    _ending("ray.io", "RayJob", podsets.RAY_JOB, object_status.ray_job_ends),
    _with_pods("ray.io", "RayService", podsets.RAY_SERVICE, object_status.ray_service_gave_up),
    _underivable("apps", "DaemonSet", "it makes one on every node there is"),
    _underivable("batch", "CronJob", "it makes them again and again, at its own times"),
    _underivable("ray.io", "RayCronJob", "it makes them again and again, at its own times"),
    _underivable(
        "sparkoperator.k8s.io",
        "SparkApplication",
        "its driver makes them as it goes",
        object_status.spark_application_ends,
    ),
    _underivable(
        "trainer.kubeflow.org",
        "TrainJob",
        "they are described by its runtime, which is another object",
        condition_ends("Complete"),
    ),
)

OWN_ROWS: Final[tuple[KnownKind, ...]] = (
    KnownKind(
        "autoscaling.x-k8s.io",
        "ProvisioningRequest",
        status=object_status.latest_of(
            "CapacityRevoked", "BookingExpired", "Failed", "Provisioned", "Accepted"
        ),
    ),
)
"""The kinds of objects that no author wraps: the dispatcher creates them for a gang and reads their status."""

VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("v1",),
    "apps": ("v1",),
    "autoscaling": ("v1", "v2"),
    "autoscaling.x-k8s.io": ("v1",),
    "batch": ("v1",),
    "batch.volcano.sh": ("v1alpha1",),
    "coordination.k8s.io": ("v1",),
    "discovery.k8s.io": ("v1",),
    "jobset.x-k8s.io": ("v1alpha2",),
    "kubeflow.org": ("v1", "v2beta1"),
    "leaderworkerset.x-k8s.io": ("v1",),
    "networking.k8s.io": ("v1",),
    "policy": ("v1",),
    "ray.io": ("v1", "v1alpha1"),
    "rbac.authorization.k8s.io": ("v1",),
    "route.openshift.io": ("v1",),
    "scheduling.k8s.io": ("v1alpha2",),
    "scheduling.sigs.k8s.io": ("v1alpha1",),
    "scheduling.volcano.sh": ("v1beta1",),
    "scheduling.x-k8s.io": ("v1alpha1",),
}
"""The versions in which clusters usually serve the kinds of each API group of `ROWS` and `OWN_ROWS`.

A kind in another version is read by the same rules. No cluster is asked for the kinds of such a version before the
cluster lists it: an author can write any version.
"""

"""The built-in kinds that can be wrapped: one row for each kind, with everything that depends on the kind.

To add a kind, add its row, its API group to `VERSIONS` if that is new, and its cases to `test_demand.py`,
`test_object_status.py` and, if it makes pods, `test_pod_labels.py` of the core's tests. `registry` finds rows.
Source: https://kubernetes.io/docs/reference/kubernetes-api/, and the operators' own types for the kinds of CRDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.kinds import object_status
from dispatcher.core.kinds.object_status import Rule, condition_ends
from dispatcher.core.kinds.pods import pod_rules
from dispatcher.core.kinds.pods.pod_rules import Kind, kubeflow_job


class Run(Struct, frozen=True):
    """How an object makes others again and again: of `kind`, in its own API group, with the spec at `spec`."""

    spec: str
    kind: str


class KnownKind(Struct, frozen=True):
    """One row. `pods` says how the kind makes pods; it is None where no template says so, for `why_underivable`.

    `run` is set if the object makes others at its own times: the pods of one such object are known, but not how many
    there are at once.

    `suspend` is the path of the flag that stops the controller of the kind; where `pods` has one, that counts.
    `managed_by` is the path of the name of another controller to make the pods, with the name of the usual one.

    `status` reads the status of an object. `ends` is true if objects of the kind end by themselves. `serves` is true
    for a kind without pods that other workloads use, such as a Service: its gang is meant to go on.

    `labels_of_object` are the labels by which its controller names the object that pods are of; the name of the object
    is its own in its namespace. `labels_of_pod` are the labels that the controller adds with another value for each pod
    of a template. `head` is the label, with its value, of the pod that leads the others.
    """

    group: str
    kind: str
    pods: Kind | None = pod_rules.NO_PODS
    why_underivable: str = ""
    status: Rule | None = None
    ends: bool = False
    serves: bool = False
    labels_of_object: frozenset[str] = frozenset()
    labels_of_pod: frozenset[str] = frozenset()
    head: tuple[str, str] | None = None
    suspend: str = ""
    managed_by: tuple[str, str] | None = None
    run: Run | None = None

    @property
    def may_make_pods(self) -> bool:
        """True unless the kind is known to make no pods."""
        return self.pods is None or bool(self.pods.rules)


def _labelled(
    row: KnownKind,
    of_object: tuple[str, ...] = (),
    of_pod: tuple[str, ...] = (),
    head: tuple[str, str] | None = None,
) -> KnownKind:
    """The row of a kind whose controller adds these labels to pods."""
    return replace(row, labels_of_object=frozenset(of_object), labels_of_pod=frozenset(of_pod), head=head)


def _without_pods(group: str, *kinds: str, serves: bool = False) -> tuple[KnownKind, ...]:
    return tuple(KnownKind(group, kind, serves=serves) for kind in kinds)


def _with_pods(group: str, kind: str, pods: Kind, status: Rule | None = None) -> KnownKind:
    """The row of a kind whose objects run until they are deleted."""
    return KnownKind(group, kind, pods, status=status)


def _ending(group: str, kind: str, pods: Kind, status: Rule) -> KnownKind:
    """The row of a kind whose objects end by themselves."""
    return KnownKind(group, kind, pods, status=status, ends=True)


def _underivable(group: str, kind: str, why: str, status: Rule | None = None, suspend: str = "") -> KnownKind:
    """The row of a kind without templates of all its pods; with `status` its objects end by themselves."""
    ends = status is not None
    return KnownKind(group, kind, pods=None, why_underivable=why, status=status, ends=ends, suspend=suspend)


def _scheduled(group: str, kind: str, run: Run) -> KnownKind:
    """The row of a kind whose objects have a schedule."""
    return replace(_underivable(group, kind, "it makes them again and again, at its own times"), run=run)


def _managed(row: KnownKind, path: str, usual: str) -> KnownKind:
    """The row of a kind whose objects may name another controller at `path` than the `usual` one."""
    return replace(row, managed_by=(path, usual))


_TRAINED: Final = condition_ends("Succeeded")
_RAY_LABELS: Final = ("ray.io/cluster", "ray.io/identifier")
_RAY_HEAD: Final = ("ray.io/node-type", "head")


_BY_RAY: Final = ("spec.managedBy", "ray.io/kuberay-operator")


def _training(kind: str, pods: Kind, operator: str = "training-operator") -> KnownKind:
    """The row of a kind of one of Kubeflow's operators."""
    row = _managed(
        _ending("kubeflow.org", kind, pods, _TRAINED),
        "spec.runPolicy.managedBy",
        f"kubeflow.org/{operator}",
    )
    return _labelled(row, ("training.kubeflow.org/job-name",), ("training.kubeflow.org/replica-index",))


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
    _ending("", "Pod", pod_rules.POD, object_status.pod_ends),
    _with_pods("apps", "Deployment", pod_rules.REPLICATED, object_status.deployment_hangs),
    _with_pods("apps", "ReplicaSet", pod_rules.REPLICATED, object_status.creates_no_pods),
    _labelled(
        _with_pods("apps", "StatefulSet", pod_rules.STATEFUL_SET),
        of_pod=("apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"),
    ),
    _labelled(
        _managed(
            _ending("batch", "Job", pod_rules.JOB, condition_ends("Complete")),
            "spec.managedBy",
            "kubernetes.io/job-controller",
        ),
        (
            "batch.kubernetes.io/controller-uid",
            "batch.kubernetes.io/job-name",
            "controller-uid",
            "job-name",
        ),
        ("batch.kubernetes.io/job-completion-index",),
    ),
    _ending("batch.volcano.sh", "Job", pod_rules.VOLCANO_JOB, object_status.volcano_job_ends),
    _labelled(
        _managed(
            _ending("jobset.x-k8s.io", "JobSet", pod_rules.JOB_SET, condition_ends("Completed")),
            "spec.managedBy",
            "jobset.sigs.k8s.io/jobset-controller",
        ),
        ("jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"),
        (
            "jobset.sigs.k8s.io/job-global-index",
            "jobset.sigs.k8s.io/job-group-index",
            "jobset.sigs.k8s.io/job-index",
            "jobset.sigs.k8s.io/job-key",
        ),
    ),
    _training("JAXJob", kubeflow_job("jaxReplicaSpecs")),
    _training(
        "MPIJob",
        kubeflow_job(
            "mpiReplicaSpecs", in_order=pod_rules.in_order_always, labels=pod_rules.labels_of_mpi_job
        ),
        "mpi-operator",
    ),
    _training("PaddleJob", kubeflow_job("paddleReplicaSpecs")),
    _training("PyTorchJob", kubeflow_job("pytorchReplicaSpecs", pod_rules.with_init_pytorch)),
    _training("TFJob", kubeflow_job("tfReplicaSpecs")),
    _training("XGBoostJob", kubeflow_job("xgbReplicaSpecs")),
    _labelled(
        _with_pods("leaderworkerset.x-k8s.io", "LeaderWorkerSet", pod_rules.LEADER_WORKER_SET),
        ("leaderworkerset.sigs.k8s.io/name",),
        (
            "controller-revision-hash",  # the workers of each group are a StatefulSet of their own
            "leaderworkerset.sigs.k8s.io/group-index",
            "leaderworkerset.sigs.k8s.io/group-key",
            "leaderworkerset.sigs.k8s.io/subgroup-index",
            "leaderworkerset.sigs.k8s.io/subgroup-key",
            "leaderworkerset.sigs.k8s.io/worker-index",
        ),
    ),
    _labelled(
        _managed(
            _with_pods("ray.io", "RayCluster", pod_rules.RAY_CLUSTER, object_status.creates_no_pods), *_BY_RAY
        ),
        _RAY_LABELS,
        head=_RAY_HEAD,
    ),
    _labelled(
        _managed(_ending("ray.io", "RayJob", pod_rules.RAY_JOB, object_status.ray_job_ends), *_BY_RAY),
        _RAY_LABELS,
        head=_RAY_HEAD,
    ),
    _labelled(
        _managed(
            _with_pods("ray.io", "RayService", pod_rules.RAY_SERVICE, object_status.ray_service_gave_up),
            *_BY_RAY,
        ),
        _RAY_LABELS,
        head=_RAY_HEAD,
    ),
    _underivable("apps", "DaemonSet", "it makes one on every node there is"),
    _scheduled("batch", "CronJob", Run("spec.jobTemplate.spec", "Job")),
    _scheduled("ray.io", "RayCronJob", Run("spec.jobTemplate", "RayJob")),
    _underivable(
        "sparkoperator.k8s.io",
        "SparkApplication",
        "its driver makes them as it goes",
        object_status.spark_application_ends,
        suspend="spec.suspend",
    ),
    _managed(
        _underivable(
            "trainer.kubeflow.org",
            "TrainJob",
            "they are described by its runtime, which is another object",
            condition_ends("Complete"),
            suspend="spec.suspend",
        ),
        "spec.managedBy",
        "trainer.kubeflow.org/trainjob-controller",
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

LABELS_OF_ONE_OBJECT: Final = frozenset(label for row in ROWS for label in row.labels_of_object)
"""Labels by which controllers name the object that pods are of."""
LABELS_OF_ONE_POD: Final = frozenset(label for row in ROWS for label in row.labels_of_pod)
"""Labels that controllers add with another value for each pod; they are not kept, and no term reads them.

With them every pod of a large Job would be a sort of its own.
"""
HEADS: Final = frozenset(row.head for row in ROWS if row.head)
"""The labels of pods that lead the others of their object, each with its value."""

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

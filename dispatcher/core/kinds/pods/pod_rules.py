"""How the known kinds make pods: where the pod templates of a kind are, and how many pods are made of each.

A kind with no rules makes no pods; a kind that is not in the registry may make any number. `podsets` reads the pods of
an object by these rules; `built_in` has the rows of the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dispatcher.core.kinds.fields import LARGEST_COUNT, Field

PodSpec: TypeAlias = Mapping[str, Any]
Injection: TypeAlias = Callable[[PodSpec, Field, Field], PodSpec]
"""Adds an operator's containers to a pod spec, given the group of the template and the whole object."""


Labels: TypeAlias = Callable[[Field, Field], Mapping[str, str]]
"""The labels that an operator adds to the pods of a template, given its group and the whole object."""


def _no_labels(_: Field, __: Field) -> Mapping[str, str]:
    return {}


def _always(_: Field) -> bool:
    return True


def _never(_: Field, __: Field) -> bool:
    return False


def _one_host(_: Field) -> int:
    return 1


class PodRule(Struct, frozen=True):
    """Where a kind has pod templates of one sort.

    Every object at `groups` (`*` for every element) has a pod template at `template` below it, or else the template
    that `otherwise` returns; `count` returns the number of its pods. At least one group is required unless the rule is
    `optional` or does not apply (`applies`). Pods that are no `members` need room, but start too late for the gang to
    wait for them. By the `labels` that the operator adds, pods may repel or attract each other. `grows` gets a
    group and the whole object, and is true if the operator adds pods beyond `count` by itself. The operator adds them
    in slices of as many pods as `hosts` returns, and no pod of a slice works without the others. One group at least
    must have a value at `count_path`, unless that is empty.
    """

    groups: str
    template: str
    count: Callable[[Field], int]
    injections: tuple[Injection, ...] = ()
    otherwise: Callable[[Field], Field] | None = None
    applies: Callable[[Field], bool] = _always
    optional: bool = False
    members: bool = True
    labels: Labels = _no_labels
    grows: Callable[[Field, Field], bool] = _never
    hosts: Callable[[Field], int] = _one_host
    count_path: str = ""


def _at_once(_: Field) -> bool:
    return False


def in_order_always(_: Field) -> bool:
    """True: the controller of the kind may make some pods only once others run."""
    return True


class Kind(Struct, frozen=True):
    """How one kind makes pods: none without rules, and none while the flag at `suspend` is true.

    A suspended object that is resumed later takes capacity that was not reserved, unless its author declares it.
    `in_order` gets the whole object, and is true if its controller makes some pods only once others run.
    """

    rules: tuple[PodRule, ...] = ()
    suspend: str = ""
    in_order: Callable[[Field], bool] = _at_once

    def is_suspended(self, wrapped: Mapping[str, Any]) -> bool:
        """True while this object is suspended; raises `TemplateError` if the flag is malformed."""
        return bool(self.suspend) and Field(wrapped).at(self.suspend).flag()


def can_grow(kind: Kind) -> bool:
    """True if objects of the kind may have groups that can grow."""
    return any(rule.grows is not _never for rule in kind.rules)


def _one(_: Field) -> int:
    return 1


def _replicas(group: Field) -> int:
    return group.at("replicas").integer(default=1)


def _replicas_if_written(task: Field) -> int:
    """The replicas of a Volcano task, which have no default."""
    return task.at("replicas").integer(default=0)


def _job_pods(job_spec: Field) -> int:
    """The pods of a Job that run at once: at most the completions that are left."""
    parallelism = job_spec.at("parallelism").integer(default=1)
    return min(parallelism, job_spec.at("completions").integer(default=parallelism))


def _ray_workers(group: Field) -> int:
    """The workers of a Ray group: slices of `numOfHosts` pods, between the bounds of the group."""
    if group.at("suspend").flag():
        return 0
    lowest = group.at("minReplicas").integer(default=0)
    highest = group.at("maxReplicas").integer(default=LARGEST_COUNT)
    replicas = group.at("replicas").integer(default=0)
    return min(max(replicas, lowest), highest) * _ray_hosts(group)


def _ray_hosts(group: Field) -> int:
    """The pods of one replica of a Ray group: KubeRay makes and removes them together."""
    return group.at("numOfHosts").integer(default=1)


def _ray_autoscales(cluster: str) -> Callable[[Field, Field], bool]:
    """True of a worker group that Ray's autoscaler may enlarge, in a Ray cluster whose spec is at this path."""

    def grows(group: Field, root: Field) -> bool:
        highest = group.at("maxReplicas").integer(default=LARGEST_COUNT)
        is_open = highest > group.at("minReplicas").integer(default=0)
        return is_open and root.at(cluster).at("enableInTreeAutoscaling").flag()

    return grows


def _job_set_pods(replicated: Field) -> int:
    return _replicas(replicated) * _job_pods(replicated.at("template.spec"))


def _workers_of_leaders(spec: Field) -> int:
    """The workers of all groups: each group has `size` pods, one of which is the leader."""
    size = spec.at("leaderWorkerTemplate.size").integer(default=1)
    return _replicas(spec) * max(size - 1, 0)


def _worker_template(spec: Field) -> Field:
    return spec.at("leaderWorkerTemplate.workerTemplate")


def _starts_in_order(root: Field) -> bool:
    """A StatefulSet makes a pod once the one before is Ready, unless its author wrote otherwise."""
    return root.at("spec.podManagementPolicy").text() != "Parallel"


def _leaders_first(root: Field) -> bool:
    """A LeaderWorkerSet may make the workers of a group once its leader is Ready."""
    return root.at("spec.startupPolicy").text() == "LeaderReady"


def _jobs_start_in_order(root: Field) -> bool:
    """A JobSet may create a Job once those before it are ready, or done."""
    if root.at("spec.startupPolicy.startupPolicyOrder").text() == "InOrder":
        return True
    return any(depends.value for depends in root.each("spec.replicatedJobs.*.dependsOn"))


def _tasks_depend_on_others(root: Field) -> bool:
    """A task of a Volcano Job may name tasks to wait for."""
    return any(depends.value for depends in root.each("spec.tasks.*.dependsOn"))


def _labels_of_ray(role: str, *, are_named: bool) -> Labels:
    """The labels by which KubeRay finds pods; they have the object's name if it is the Ray cluster itself."""

    def labels(group: Field, root: Field) -> Mapping[str, str]:
        name = _name(root) if are_named else ""
        group_name = "headgroup" if role == "head" else group.at("groupName").text()
        return {
            "ray.io/is-ray-node": "yes",
            "ray.io/node-type": role,
            "ray.io/group": group_name,
            **({"ray.io/cluster": name, "ray.io/identifier": f"{name}-{role}"} if name else {}),
        }

    return labels


def _labels_of_job(_: Field, root: Field) -> Mapping[str, str]:
    name = _name(root)
    return {"batch.kubernetes.io/job-name": name, "job-name": name} if name else {}


def _labels_of_kubeflow(group: Field, root: Field) -> Mapping[str, str]:
    name = _name(root)
    replica_type = {"training.kubeflow.org/replica-type": group.key.lower()}
    return {**replica_type, **({"training.kubeflow.org/job-name": name} if name else {})}


def labels_of_mpi_job(group: Field, root: Field) -> Mapping[str, str]:
    """The labels of the MPI operator; MPIJobs of the older version `v1` are the training operator's.

    Source: https://github.com/kubeflow/mpi-operator/blob/v0.6.0/pkg/controller/mpi_job_controller.go, `defaultLabels`.
    """
    if root.at("apiVersion").text() == "kubeflow.org/v1":
        return _labels_of_kubeflow(group, root)
    name = _name(root)
    role = {"training.kubeflow.org/job-role": group.key.lower()}
    return {**role, **({"training.kubeflow.org/job-name": name} if name else {})}


def _labels_of_job_set(replicated: Field, root: Field) -> Mapping[str, str]:
    name = _name(root)
    replicated_job = {"jobset.sigs.k8s.io/replicatedjob-name": replicated.at("name").text()}
    return {**replicated_job, **({"jobset.sigs.k8s.io/jobset-name": name} if name else {})}


def _name(root: Field) -> str:
    """The name of the object; empty if it is made at the creation."""
    return root.at("metadata.name").text()


def _container(name: str, cpu: str, memory: str) -> Mapping[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}}


_AUTOSCALER: Final = _container("autoscaler", "500m", "512Mi")
_WAIT_GCS_READY: Final = _container("wait-gcs-ready", "200m", "256Mi")
_INIT_PYTORCH: Final = _container("init-pytorch", "50m", "10Mi")
_SUBMITTER: Final = _container("ray-job-submitter", "500m", "200Mi")


def _with_autoscaler(cluster: str) -> Injection:
    """Adds KubeRay's sidecar to the head; resources of the author replace the default ones as a whole."""

    def inject(pod_spec: PodSpec, _: Field, root: Field) -> PodSpec:
        spec = root.at(cluster)
        if not spec.at("enableInTreeAutoscaling").flag():
            return pod_spec
        own = spec.at("autoscalerOptions.resources")
        resources = _AUTOSCALER["resources"] if own.value is None else own.mapping()
        return _with_one_more(pod_spec, "containers", {**_AUTOSCALER, "resources": resources})

    return inject


def _with_wait_gcs_ready(pod_spec: PodSpec, _: Field, __: Field) -> PodSpec:
    """Adds KubeRay's init container to a worker, as the last."""
    return _with_one_more(pod_spec, "initContainers", _WAIT_GCS_READY)


def with_init_pytorch(pod_spec: PodSpec, group: Field, root: Field) -> PodSpec:
    """Adds the init container with which workers wait for their master, if there is one.

    The operator reads `worker` as `Worker`.
    """
    if group.key.lower() != "worker":
        return pod_spec
    has_master = any(each.key.lower() == "master" for each in root.each("spec.pytorchReplicaSpecs.*"))
    return _with_one_more(pod_spec, "initContainers", _INIT_PYTORCH) if has_master else pod_spec


def _with_submitter(pod_spec: PodSpec, _: Field, root: Field) -> PodSpec:
    """Adds the container that submits a RayJob to the head in SidecarMode."""
    if _submission_mode(root) != "SidecarMode":
        return pod_spec
    return _with_one_more(pod_spec, "containers", _SUBMITTER)


def _submission_mode(root: Field) -> str:
    return root.at("spec.submissionMode").text() or "K8sJobMode"


def _submits_by_job(root: Field) -> bool:
    return _submission_mode(root) == "K8sJobMode"


def _default_submitter(spec: Field) -> Field:
    return Field({"spec": {"containers": [_SUBMITTER]}}, spec.child("submitterPodTemplate").path)


def _has_own_cluster(root: Field) -> bool:
    """True unless the RayJob selects an existing Ray cluster."""
    return not root.at("spec.clusterSelector").mapping()


def _with_one_more(pod_spec: PodSpec, containers: str, container: Mapping[str, Any]) -> PodSpec:
    """Appends a container; `pod_requests` refuses a value that is no list."""
    own = pod_spec.get(containers) or []
    return {**pod_spec, containers: [*own, container]} if isinstance(own, list | tuple) else pod_spec


def _ray_cluster(
    spec: str,
    *of_the_head: Injection,
    applies: Callable[[Field], bool] = _always,
    is_object: bool = False,
) -> tuple[PodRule, ...]:
    """The rules of a Ray cluster whose spec is at this path; RayJobs and RayServices contain one.

    With `is_object` the object is the cluster itself.
    """
    return (
        PodRule(
            groups=f"{spec}.headGroupSpec",
            template="template",
            count=_one,
            injections=(_with_autoscaler(spec), *of_the_head),
            applies=applies,
            labels=_labels_of_ray("head", are_named=is_object),
        ),
        PodRule(
            groups=f"{spec}.workerGroupSpecs.*",
            template="template",
            count=_ray_workers,
            injections=(_with_wait_gcs_ready,),
            applies=applies,
            optional=True,
            labels=_labels_of_ray("worker", are_named=is_object),
            grows=_ray_autoscales(spec),
            hosts=_ray_hosts,
        ),
    )


RAY_JOB: Final = Kind(
    (
        *_ray_cluster("spec.rayClusterSpec", _with_submitter, applies=_has_own_cluster),
        PodRule(
            groups="spec",
            template="submitterPodTemplate",
            count=_one,
            otherwise=_default_submitter,
            applies=_submits_by_job,
            members=False,  # KubeRay makes it only once the cluster is ready
        ),
    ),
    suspend="spec.suspend",
)

LEADER_WORKER_SET: Final = Kind(
    (
        PodRule("spec", "leaderWorkerTemplate.leaderTemplate", _replicas, otherwise=_worker_template),
        PodRule("spec", "leaderWorkerTemplate.workerTemplate", _workers_of_leaders),
    ),
    in_order=_leaders_first,
)


def kubeflow_job(
    replica_specs: str,
    *injections: Injection,
    in_order: Callable[[Field], bool] = _at_once,
    labels: Labels = _labels_of_kubeflow,
) -> Kind:
    """A kind of an operator of Kubeflow; its pod templates are in the field `spec.<replica_specs>`, by role."""
    rule = PodRule(f"spec.{replica_specs}.*", "template", _replicas, injections, labels=labels)
    return Kind((rule,), suspend="spec.runPolicy.suspend", in_order=in_order)


REPLICATED: Final = Kind((PodRule("spec", "template", _replicas),))
STATEFUL_SET: Final = Kind(REPLICATED.rules, in_order=_starts_in_order)
NO_PODS: Final = Kind()
POD: Final = Kind((PodRule("", "", _one),))
JOB: Final = Kind((PodRule("spec", "template", _job_pods, labels=_labels_of_job),), suspend="spec.suspend")
VOLCANO_JOB: Final = Kind(
    (PodRule("spec.tasks.*", "template", _replicas_if_written),), in_order=_tasks_depend_on_others
)
JOB_SET: Final = Kind(
    (PodRule("spec.replicatedJobs.*", "template.spec.template", _job_set_pods, labels=_labels_of_job_set),),
    suspend="spec.suspend",
    in_order=_jobs_start_in_order,
)
RAY_CLUSTER: Final = Kind(_ray_cluster("spec", is_object=True), suspend="spec.suspend")
RAY_SERVICE: Final = Kind(_ray_cluster("spec.rayClusterConfig"))

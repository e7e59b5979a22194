"""The pod sets of the known kinds, read from their templates.

A `Kind` says where the pod templates of a kind are and how many pods are made of each; `registry` maps kinds to rows. A
kind with no rules makes no pods; a kind that is not in the registry may make any number. Templates have not passed the
API server: `core.kinds.fields` reads them, and `TemplateError` names the field that is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from dispatcher.core.kinds.affinity import Template, constraints_of, node_requirements_of, rules_between
from dispatcher.core.kinds.fields import LARGEST_COUNT, ConstraintError, Field, TemplateError, template_at
from dispatcher.core.kinds.pod_requests import PodSpecError, pod_requests
from dispatcher.core.model.gang import Constraint, PodSet
from dispatcher.core.model.nodes import Toleration

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


@dataclass(frozen=True, slots=True)
class PodRule:
    """Where a kind has pod templates of one sort.

    Every object at `groups` (`*` for every element) has a pod template at `template` below it, or else the template
    that `otherwise` returns; `count` returns the number of its pods. At least one group is required unless the rule is
    `optional` or does not apply (`applies`). Pods that are no `members` need room, but start too late for the gang to
    wait for them. By the `labels` that the operator adds, pods may repel or attract each other. `grows` is true of a
    group, given the whole object, whose operator makes more pods than `count` by itself; it makes as many at a time as
    `hosts` returns, of which none works without the others.
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


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind makes pods: none without rules, and none while the flag at `suspend` is true.

    A suspended object that is resumed later takes capacity that was not reserved, unless its author declares it.
    """

    rules: tuple[PodRule, ...] = ()
    suspend: str = ""

    def is_suspended(self, wrapped: Mapping[str, Any]) -> bool:
        """True while this object is suspended; raises `TemplateError` if the flag is malformed."""
        return bool(self.suspend) and Field(wrapped).at(self.suspend).flag()


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one wrapped object: its pod sets, how many of the pods the gang waits for, and their templates.

    `labelled` has the template of each pod set with all labels of its pods; empty where these are not known.
    """

    sets: tuple[PodSet, ...] = ()
    members: int = 0
    templates: tuple[Field, ...] = field(default=(), compare=False)
    labelled: tuple[Template, ...] = field(default=(), compare=False)


def pods_of(kind: Kind, wrapped: Mapping[str, Any]) -> Pods:
    """The pods that an object of this kind makes; raises `TemplateError` if a template is malformed."""
    if kind.is_suspended(wrapped):
        return Pods()
    root = Field(wrapped)
    return _all([_pods(rule, group, root) for rule in kind.rules for group in _groups(rule, root)])


def readable_pods_of(kind: Kind, wrapped: Mapping[str, Any]) -> Pods:
    """The pods of an object's well-formed templates; none if its `suspend` flag is malformed.

    Raises `ConstraintError` if only the constraints of a template are malformed: its pods have requests that count.
    """
    try:
        if kind.is_suspended(wrapped):
            return Pods()
    except TemplateError:
        return Pods()
    root = Field(wrapped)
    return _all([pods for rule in kind.rules for pods in _readable(rule, root)])


def _readable(rule: PodRule, root: Field) -> Iterator[Pods]:
    try:
        groups = _groups(rule, root)
    except TemplateError:
        return
    for group in groups:
        try:
            yield _pods(rule, group, root)
        except ConstraintError:
            raise
        except TemplateError:
            continue


def _all(found: Sequence[Pods]) -> Pods:
    labelled = tuple(each for pods in found for each in pods.labelled)
    try:
        rules = rules_between(labelled)
    except TemplateError as error:
        raise ConstraintError(error.path, error.problem) from error
    pod_sets = (pod_set for pods in found for pod_set in pods.sets)
    return Pods(
        sets=tuple(rule.of(pod_set) for pod_set, rule in zip(pod_sets, rules, strict=True)),
        members=sum(pods.members for pods in found),
        templates=tuple(template for pods in found for template in pods.templates),
        labelled=labelled,
    )


def _pods(rule: PodRule, group: Field, root: Field) -> Pods:
    """The pods of one template."""
    template = _template(rule, group)
    pod_set = _pod_set(rule, template, group, root)
    if not pod_set.count:
        return Pods()
    labelled = Template(template, root, lambda: rule.labels(group, root))
    return Pods((pod_set,), pod_set.count if rule.members else 0, (template,), (labelled,))


def is_template_of(kind: Kind, wrapped: Mapping[str, Any], path: str) -> bool:
    """True if the pod template at this path is one of this kind's, also while the object is suspended."""
    root, pointed_out = Field(wrapped), template_at(wrapped, path).value
    try:
        groups = [
            (rule, group) for rule in kind.rules if rule.applies(root) for group in root.each(rule.groups)
        ]
        return any(group.at(rule.template).value is pointed_out for rule, group in groups)
    except TemplateError:
        return False


def can_grow(kind: Kind) -> bool:
    """True if objects of the kind may have groups that can grow."""
    return any(rule.grows is not _never for rule in kind.rules)


class GrowingTemplate(NamedTuple):
    """The pod template of a group that can grow: its pods before any growth, and how many more it has at a time."""

    pods: int
    hosts: int = 1


def growing_templates(kind: Kind, wrapped: Mapping[str, Any]) -> Mapping[str, GrowingTemplate]:
    """The pod templates of groups that can grow, by their paths inside the object; empty if a field is malformed."""
    root = Field(wrapped)
    try:
        return {
            group.at(rule.template).path: GrowingTemplate(rule.count(group), rule.hosts(group))
            for rule in kind.rules
            if rule.applies(root)
            for group in root.each(rule.groups)
            if rule.grows(group, root)
        }
    except TemplateError:
        return {}


def pod_set_at(wrapped: Mapping[str, Any], path: str, count: int) -> PodSet:
    """The pod set of `count` pods of the template at this path; raises `TemplateError` if there is none."""
    template = template_at(wrapped, path)
    return _shape(template, template.at("spec").mapping(), count, Field(wrapped), dict)


def constraint_of(pod_spec: Mapping[str, Any]) -> Constraint | None:
    """The conditions of a pod that exists on its node; None if this release cannot read them."""
    spec = Field(pod_spec)
    try:
        return _tolerations(spec), node_requirements_of(spec)
    except TemplateError:
        return None


def _groups(rule: PodRule, root: Field) -> tuple[Field, ...]:
    if not rule.applies(root):
        return ()
    groups = tuple(root.each(rule.groups))
    if not (groups or rule.optional):
        raise TemplateError(rule.groups.removesuffix(".*"), "must name at least one sort of pods")
    return groups


def _template(rule: PodRule, group: Field) -> Field:
    template = group.at(rule.template)
    return rule.otherwise(group) if template.value is None and rule.otherwise else template


def _pod_set(rule: PodRule, template: Field, group: Field, root: Field) -> PodSet:
    pod_spec = template.at("spec")
    containers = pod_spec.at("containers")
    if not (isinstance(containers.value, list | tuple) and containers.value):
        raise TemplateError(containers.path, "must list the containers of the pod")
    injected = pod_spec.mapping()
    for inject in rule.injections:
        injected = inject(injected, group, root)
    return _shape(template, injected, rule.count(group), root, lambda: rule.labels(group, root))


def _shape(
    template: Field,
    injected: PodSpec,
    count: int,
    root: Field,
    added_labels: Callable[[], Mapping[str, str]],
) -> PodSet:
    pod_spec = template.at("spec")
    try:
        requests = pod_requests(injected)
    except PodSpecError as error:
        raise TemplateError(f"{pod_spec.path}.{error.path}".removeprefix("."), error.problem) from error
    try:
        constraints = constraints_of(template, root, added_labels)
    except TemplateError as error:
        raise ConstraintError(error.path, error.problem) from error
    return PodSet(
        count,
        requests,
        _tolerations(pod_spec),
        nodes=constraints.nodes,
        apart=constraints.apart,
        together=constraints.together,
        path=template.path,
        spread=constraints.spread,
        repels=constraints.repels,
        attracts=constraints.attracts,
        sort=constraints.sort,
    )


def _tolerations(pod_spec: Field) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(
            key=toleration.at("key").text(),
            operator=toleration.at("operator").text() or "Equal",
            value=toleration.at("value").text(),
            effect=toleration.at("effect").text(),
        )
        for toleration in pod_spec.each("tolerations.*")
    )


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


def _labels_of_ray(role: str) -> Labels:
    """The labels by which KubeRay finds pods; only a RayCluster has the name that its pods carry."""

    def labels(group: Field, root: Field) -> Mapping[str, str]:
        name = _name(root) if root.at("kind").text() == "RayCluster" else ""
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


def with_init_pytorch(pod_spec: PodSpec, group: Field, _: Field) -> PodSpec:
    """Adds the init container with which workers wait for their master; the operator reads `worker` as `Worker`."""
    is_worker = group.key.lower() == "worker"
    return _with_one_more(pod_spec, "initContainers", _INIT_PYTORCH) if is_worker else pod_spec


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
    spec: str, *of_the_head: Injection, applies: Callable[[Field], bool] = _always
) -> tuple[PodRule, ...]:
    """The rules of a Ray cluster whose spec is at this path; RayJobs and RayServices contain one."""
    return (
        PodRule(
            groups=f"{spec}.headGroupSpec",
            template="template",
            count=_one,
            injections=(_with_autoscaler(spec), *of_the_head),
            applies=applies,
            labels=_labels_of_ray("head"),
        ),
        PodRule(
            groups=f"{spec}.workerGroupSpecs.*",
            template="template",
            count=_ray_workers,
            injections=(_with_wait_gcs_ready,),
            applies=applies,
            optional=True,
            labels=_labels_of_ray("worker"),
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
    )
)


def kubeflow_job(replica_specs: str, *injections: Injection) -> Kind:
    """A kind of the Kubeflow training operator whose pod templates are below `spec.<replica_specs>`."""
    rule = PodRule(f"spec.{replica_specs}.*", "template", _replicas, injections, labels=_labels_of_kubeflow)
    return Kind((rule,), suspend="spec.runPolicy.suspend")


REPLICATED: Final = Kind((PodRule("spec", "template", _replicas),))
NO_PODS: Final = Kind()
POD: Final = Kind((PodRule("", "", _one),))
JOB: Final = Kind((PodRule("spec", "template", _job_pods, labels=_labels_of_job),), suspend="spec.suspend")
VOLCANO_JOB: Final = Kind((PodRule("spec.tasks.*", "template", _replicas_if_written),))
JOB_SET: Final = Kind(
    (PodRule("spec.replicatedJobs.*", "template.spec.template", _job_set_pods, labels=_labels_of_job_set),),
    suspend="spec.suspend",
)
RAY_CLUSTER: Final = Kind(_ray_cluster("spec"), suspend="spec.suspend")
RAY_SERVICE: Final = Kind(_ray_cluster("spec.rayClusterConfig"))

"""The pod sets of the kinds we know, read from their templates.

`KINDS` says for each kind, by (API group, kind), where its pod templates are and how many pods are made of
each, whatever the version: a new kind is one row. A kind with no rules makes no pods; a kind that is not in
the table may make any number. Templates have not been through the API server: nothing is defaulted, any
field may be missing, null or of another type, and then `TemplateError` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.core.gang import PodSet, Toleration
from dispatcher.core.podrequests import PodSpecError, pod_requests

LARGEST_COUNT: Final = 2**31 - 1
"""Replicas and the like are int32 in every kind."""


class TemplateError(ValueError):
    """A wrapped object whose pods cannot be told: `path` is inside the object."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Field:
    """A value inside a wrapped object, with its path for complaints; absent and null are both None."""

    value: object
    path: str = ""

    def at(self, path: str) -> Field:
        """Find the value at a dotted path below this one; it is None where any step is missing."""
        field = self
        for key in filter(None, path.split(".")):
            field = field.child(key)
        return field

    def each(self, path: str) -> Iterator[Field]:
        """Find the values at a dotted path, in which `*` stands for every element of a list or an object."""
        before, star, after = path.partition("*")
        start = self.at(before)
        if not star:
            yield start
            return
        for element in start.elements():
            yield from element.each(after)

    def integer(self, default: int) -> int:
        """Read a count, at least 0 and at most what Kubernetes can store."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise TemplateError(self.path, "must be a whole number")
        if not 0 <= self.value <= LARGEST_COUNT:
            raise TemplateError(self.path, f"must be between 0 and {LARGEST_COUNT}")
        return self.value

    def flag(self) -> bool:
        """Read a boolean; false if absent."""
        if self.value is None or isinstance(self.value, bool):
            return bool(self.value)
        raise TemplateError(self.path, "must be true or false")

    def text(self, default: str = "") -> str:
        """Read a string that can be printed: the API server checks no template, and no database takes a NUL."""
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            raise TemplateError(self.path, "must be a string")
        if not self.value.isprintable():
            raise TemplateError(self.path, "must have no control characters")
        return self.value

    def mapping(self) -> Mapping[str, Any]:
        """Read an object; empty if absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise TemplateError(self.path, "must be an object")
        return self.value

    def child(self, key: str) -> Field:
        """Find the value of one key, which may contain dots."""
        return Field(self.mapping().get(key), f"{self.path}.{key}" if self.path else key)

    def elements(self) -> Iterator[Field]:
        """Go through a list or an object; nothing if absent."""
        if isinstance(self.value, list | tuple):
            for index, value in enumerate(self.value):
                yield Field(value, f"{self.path}[{index}]")
        else:
            for key in self.mapping():
                yield Field(self.mapping()[key], f"{self.path}[{key[:60]!r}]")


PodSpec = Mapping[str, Any]


def _as_written(pod_spec: PodSpec, _: Field) -> PodSpec:
    return pod_spec


@dataclass(frozen=True, slots=True)
class PodRule:
    """Where a kind keeps pods of one sort.

    Every object at `groups` (`*` for every element) has a pod template at `template` below it, and `count`
    says how many pods are made of it. `inject` adds to a pod spec what an operator adds, given the object.
    """

    groups: str
    template: str
    count: Callable[[Field], int]
    inject: Callable[[PodSpec, Field], PodSpec] = _as_written


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind makes pods: none without rules, and none while the flag at `suspend` is true.

    Whoever resumes a suspended object later takes capacity that was never reserved: what shall be reserved
    for it has to be declared.
    """

    rules: tuple[PodRule, ...] = ()
    suspend: str = ""


def pod_sets_of(kind: Kind, wrapped: Mapping[str, Any]) -> tuple[PodSet, ...]:
    """List the pods that an object of this kind makes, template by template; TemplateError if unreadable."""
    root = Field(wrapped)
    if kind.suspend and root.at(kind.suspend).flag():
        return ()
    pod_sets = (_pod_set(rule, group, root) for rule in kind.rules for group in root.each(rule.groups))
    return tuple(pod_set for pod_set in pod_sets if pod_set.count)


def _pod_set(rule: PodRule, group: Field, root: Field) -> PodSet:
    pod_spec = group.at(rule.template).at("spec")
    containers = pod_spec.at("containers")
    if not (isinstance(containers.value, list | tuple) and containers.value):
        raise TemplateError(containers.path, "must list the containers of the pod")
    try:
        requests = pod_requests(rule.inject(pod_spec.mapping(), root))
    except PodSpecError as error:
        raise TemplateError(pod_spec.path, str(error)) from error
    return PodSet(rule.count(group), requests, _tolerations(pod_spec))


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


def _job_pods(job_spec: Field) -> int:
    """How many pods of a Job run at once: never more than have still to complete."""
    parallelism = job_spec.at("parallelism").integer(default=1)
    return min(parallelism, job_spec.at("completions").integer(default=parallelism))


def _ray_workers(group: Field) -> int:
    """KubeRay counts slices, of `numOfHosts` pods each, and keeps them between its bounds."""
    if group.at("suspend").flag():
        return 0
    lowest = group.at("minReplicas").integer(default=0)
    highest = group.at("maxReplicas").integer(default=LARGEST_COUNT)
    replicas = group.at("replicas").integer(default=0)
    return min(max(replicas, lowest), highest) * group.at("numOfHosts").integer(default=1)


_AUTOSCALER: Final = {"limits": {"cpu": "500m", "memory": "512Mi"}}
_WAIT_GCS_READY: Final = {
    "name": "wait-gcs-ready",
    "resources": {"limits": {"cpu": "200m", "memory": "256Mi"}},
}


def _with_autoscaler(pod_spec: PodSpec, cluster: Field) -> PodSpec:
    """Add KubeRay's sidecar to the head; resources that a user gives it replace its own altogether."""
    if not cluster.at("spec.enableInTreeAutoscaling").flag():
        return pod_spec
    own = cluster.at("spec.autoscalerOptions.resources")
    resources = _AUTOSCALER if own.value is None else own.mapping()
    return _with_one_more(pod_spec, "containers", {"name": "autoscaler", "resources": resources})


def _with_wait_gcs_ready(pod_spec: PodSpec, _: Field) -> PodSpec:
    """Add KubeRay's init container to a worker, as the last."""
    return _with_one_more(pod_spec, "initContainers", _WAIT_GCS_READY)


def _with_one_more(pod_spec: PodSpec, containers: str, container: Mapping[str, Any]) -> PodSpec:
    """Append a container; what is no list stays, for `pod_requests` to refuse."""
    own = pod_spec.get(containers) or []
    return {**pod_spec, containers: [*own, container]} if isinstance(own, list | tuple) else pod_spec


_REPLICATED = Kind((PodRule("spec", "template", _replicas),))

_PODLESS: Final = {
    "": ("ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
    "networking.k8s.io": ("Ingress", "NetworkPolicy"),
    "policy": ("PodDisruptionBudget",),
    "rbac.authorization.k8s.io": ("Role", "RoleBinding"),
    "route.openshift.io": ("Route",),
    "scheduling.k8s.io": ("PodGroup",),
    "scheduling.sigs.k8s.io": ("PodGroup",),
    "scheduling.volcano.sh": ("PodGroup",),
    "scheduling.x-k8s.io": ("PodGroup",),
    "batch.volcano.sh": ("PodGroup",),
}

KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    **{(group, kind): Kind() for group, kinds in _PODLESS.items() for kind in kinds},
    ("", "Pod"): Kind((PodRule("", "", _one),)),
    ("apps", "Deployment"): _REPLICATED,
    ("apps", "ReplicaSet"): _REPLICATED,
    ("apps", "StatefulSet"): _REPLICATED,
    ("batch", "Job"): Kind((PodRule("spec", "template", _job_pods),), suspend="spec.suspend"),
    ("ray.io", "RayCluster"): Kind(
        (
            PodRule("spec.headGroupSpec", "template", _one, _with_autoscaler),
            PodRule("spec.workerGroupSpecs.*", "template", _ray_workers, _with_wait_gcs_ready),
        ),
        suspend="spec.suspend",
    ),
}

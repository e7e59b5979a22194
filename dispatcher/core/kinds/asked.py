"""What the spec of a wrapped object asks of its controller: pods, none while it is suspended, and workers to remove.

The spec is read from the object's JSON, which may be anything: a malformed field makes the number of pods unknown, and
nothing raises. The same function reads the template of an AppWrapper and the object at the API server, so a difference
of the two numbers is a change that a user, an autoscaler or a webhook made. A reading costs one step for each group of
pods of the object.

Ray's autoscaler names the workers that it wants to be removed in the RayCluster, and KubeRay deletes their pods. Ray
names workers that were idle for some time. So a named worker loses the least if it is to give way.
Source: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/configuring-autoscaling.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from dispatcher.core.kinds.built_in import KnownKind
from dispatcher.core.kinds.fields import Field, TemplateError
from dispatcher.core.kinds.pods.pod_rules import Kind, can_grow
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.text import mapping_of, mappings_of, name_of


class Asked(Struct, frozen=True):
    """What the spec of an object asks for.

    `pods` is the number of pods that the gang waits for; None if it is not known. `is_suspended` is true while the
    controller of the kind is to make no pods. `manager` is the controller that the spec names in place of the usual
    one; empty if it names none. `is_autoscaled` is true if the operator of the kind changes the number by itself.
    `queue_of_kueue` is the queue in which Kueue is to admit a suspended object; empty if its labels name none.
    """

    pods: int | None = None
    is_suspended: bool = False
    manager: str = ""
    is_autoscaled: bool = False
    queue_of_kueue: str = ""


NOT_KNOWN: Final = Asked()
"""What an object asks for that was read and does not tell a number of pods."""


def asked_by(row: KnownKind, raw: Mapping[str, Any]) -> Asked:
    """What an object that was read asks for; the number is not known for kinds without pods, and without a spec."""
    return asked_of(row, raw) if row.may_make_pods and "spec" in raw else NOT_KNOWN


def asked_of(row: KnownKind, raw: Mapping[str, Any]) -> Asked:
    """What an object of this kind asks for, for any JSON."""
    root = Field(raw)
    is_suspended = _is_suspended(row, root)
    pods = 0 if is_suspended else _pods(row.pods, root)
    queue = _queue_of_kueue(raw) if is_suspended else ""
    return Asked(pods, is_suspended, _manager(row, root), _is_autoscaled(row.pods, root), queue)


def makes_pods_in_order(row: KnownKind, raw: Mapping[str, Any]) -> bool:
    """True if some pods of the object may be made only once others run; also if that is not known."""
    if row.pods is None:
        return True
    try:
        return row.pods.in_order(Field(raw))
    except TemplateError:
        return True


def _is_suspended(row: KnownKind, root: Field) -> bool:
    path = row.suspend or (row.pods.suspend if row.pods else "")
    try:
        return bool(path) and root.at(path).flag()
    except TemplateError:
        return False


def _pods(kind: Kind | None, root: Field) -> int | None:
    if kind is None:
        return None
    try:
        return sum(
            rule.count(group)
            for rule in kind.rules
            if rule.members and rule.applies(root)
            for group in root.each(rule.groups)
        )
    except TemplateError:
        return None


def _is_autoscaled(kind: Kind | None, root: Field) -> bool:
    if kind is None or not can_grow(kind):
        return False
    try:
        return any(rule.grows(group, root) for rule in kind.rules for group in root.each(rule.groups))
    except TemplateError:
        return False


def _manager(row: KnownKind, root: Field) -> str:
    if not row.managed_by:
        return ""
    path, usual = row.managed_by
    try:
        manager = root.at(path).text()
    except TemplateError:
        return ""
    return "" if manager == usual else manager[:_LONGEST_MANAGER]


_LONGEST_MANAGER: Final = 63
"""The longest `managedBy` that Kubernetes takes; an operator's CRD may take more."""


def _queue_of_kueue(raw: Mapping[str, Any]) -> str:
    """The queue that the labels of an object name.

    Kueue suspends an object with this label when it is created, and resumes it once its queue has quota for it.
    Source: https://kueue.sigs.k8s.io/docs/concepts/workload/
    """
    labels = mapping_of(mapping_of(mapping_of(raw).get("metadata")).get("labels"))
    return name_of(labels.get(KUEUE_QUEUE_LABEL))


MOST_NAMED: Final = 1000
"""The names that are read of one RayCluster; the others count as not named."""

NO_WORKERS: Final = frozenset[str]()


def named_to_delete(group: str, kind: str, raw: Mapping[str, Any]) -> frozenset[str]:
    """The names of the pods that an object names to be deleted, for any JSON; empty for other kinds than RayCluster."""
    if (group, kind) != ("ray.io", "RayCluster"):
        return NO_WORKERS
    return frozenset(islice(_names_to_delete(raw), MOST_NAMED))


def owns_rayclusters(ref: ObjectRef) -> bool:
    """True for an object of which KubeRay makes RayClusters."""
    return ref.api_version.startswith("ray.io/") and ref.kind in {"RayJob", "RayService"}


def _names_to_delete(raw: Mapping[str, Any]) -> Iterator[str]:
    for group in mappings_of(mapping_of(raw.get("spec")).get("workerGroupSpecs")):
        named = mapping_of(group.get("scaleStrategy")).get("workersToDelete")
        yield from (each for each in named if isinstance(each, str)) if isinstance(named, list) else ()

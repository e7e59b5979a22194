"""The manifest that is created for a wrapped object: the user's template with its final name and our marks.

The marks identify the owner of an object. Labels, on the object and in every pod template: the AppWrapper's uid and the
attempt, the AppWrapper's name and the object's as MCAD and its successor spelled them, and in the pod
templates the item's index. Annotations: the hub's id, the item's index, and the seal, which alone proves the attempt
(`core.model.seals`). The owner is the AppWrapper on the hub, and in a member cluster a ConfigMap for each attempt, its
anchor. Anybody can write labels, so they prove nothing: `ownership_of` uses the owner reference, and the labels only
for the attempt.

Templates of groups that can grow get the dispatcher's scheduling gate (`with_gates`).

Fields of the API server and finalizers are dropped: see `core.kinds.template_fields`. Labels, tolerations and the like
from a quota manager (`TemplatePodSet.info`) are added to the pod templates. Malformed parts of a template stay, for the
API server to refuse.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api import names
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name
from dispatcher.core.kinds.pods.pod_rules import Kind
from dispatcher.core.kinds.pods.podsets import GrowingTemplate, growing_templates
from dispatcher.core.kinds.template_fields import STATUS, is_pod_template, without_server_fields
from dispatcher.core.model.gangs.gang import template_name
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.core.model.seals import Seals
from dispatcher.text import text_of

Json = dict[str, Any]

_LONGEST_GENERATED_NAME: Final = 63  # as the API server's own: Services, Jobs and others take no longer ones
_HASH_LENGTH: Final = 10
MOST_HINTED_NODES: Final = 32
"""The most nodes that a template prefers; a pod set on more nodes leaves few others to go to."""
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_ROOT: Final = "template"
"""The name of the wrapped object itself in the path of a pod set."""


class Anchor(Struct, frozen=True):
    """The ConfigMap in a member cluster that owns all that one attempt created there."""

    name: str
    uid: str


class NodeHint(Struct, frozen=True):
    """The nodes on which the pods of one template have places, the most preferred first.

    `path` is inside the wrapped object.
    """

    item: int
    path: str
    nodes: tuple[str, ...]


class Owner(Struct, frozen=True):
    """The AppWrapper that an object is created for, its attempt and its hub.

    In a member cluster there is no AppWrapper: `anchor` is the ConfigMap there of this attempt. `hints` are the places
    of the gang's pods at its dispatch. All its pods get the `pod_annotations`. `seals` seal its objects; None for an
    owner of which nothing is created.
    """

    uid: str
    group: str
    version: str
    namespace: str
    name: str
    attempt: int
    hub_id: str
    anchor: Anchor | None = None
    hints: tuple[NodeHint, ...] = ()
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    seals: Seals | None = None

    def reference(self) -> Json:
        """The owner reference by which Kubernetes deletes the object with its owner."""
        api_version, kind = f"{self.group}/{self.version}", names.APPWRAPPER_KIND
        name, uid = self.name, self.uid
        if self.anchor:
            api_version, kind, name, uid = "v1", "ConfigMap", self.anchor.name, self.anchor.uid
        return {
            "apiVersion": api_version,
            "kind": kind,
            "name": name,
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def labels(self) -> dict[str, str]:
        """The labels of the object and of its pods: the uid identifies, the name is for people and MCAD's clients."""
        name = _as_label(self.name)
        return {
            names.UID_LABEL: self.uid,
            names.ATTEMPT_LABEL: str(self.attempt),
            names.NAME_LABEL: name,
            names.MCAD_NAME_LABEL: name,
        }


def _proofs(owner: Owner) -> dict[str, str]:
    """The annotations that say which hub made an object, and prove for which attempt."""
    seal = {names.SEAL_ANNOTATION: owner.seals.of(owner.uid, owner.attempt)} if owner.seals else {}
    return {names.HUB_ANNOTATION: owner.hub_id, **seal}


def reference(wrapped: WrappedObject, owner: Owner) -> ObjectRef:
    """The reference of an item in the cluster; the same for every call."""
    return ObjectRef(
        item=wrapped.index,
        api_version=wrapped.api_version,
        kind=wrapped.kind,
        namespace=owner.namespace,
        name=wrapped.name or _generated_name(wrapped, owner),
    )


def anchor_of(owner: Owner) -> Json:
    """The ConfigMap that owns the objects of this attempt in a member cluster: deleting it deletes the gang."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": anchor_name(owner.uid, owner.attempt),
            "namespace": owner.namespace,
            "labels": owner.labels(),
            "annotations": _proofs(owner),
        },
        "immutable": True,
        "data": {"appwrapper": f"{owner.namespace}/{owner.name}", "attempt": str(owner.attempt)},
    }


def anchor_name(uid: str, attempt: int) -> str:
    """The name of the anchor of an attempt; the same for every call."""
    return f"{names.ANCHOR_PREFIX}{uid}-{attempt}"


def appwrapper_of(reference: Mapping[str, Any]) -> str | None:
    """The uid of the AppWrapper that an owner reference names, itself or by an anchor; None if it names none."""
    group = str(reference.get("apiVersion")).partition("/")[0]
    if reference.get("kind") == names.APPWRAPPER_KIND and group in names.PLURALS:
        return str(reference.get("uid"))
    if (group, reference.get("kind")) == ("v1", "ConfigMap"):
        found = _ANCHOR.fullmatch(str(reference.get("name")))
        return found[1] if found and int(found[2]) <= _LAST_ATTEMPT else None
    return None


_ANCHOR: Final = re.compile(re.escape(names.ANCHOR_PREFIX) + "(.+)-([0-9]{1,10})")
_LAST_ATTEMPT: Final = 2**31 - 1
"""The largest number of an attempt that the database holds."""


def build(wrapped: WrappedObject, owner: Owner) -> Json:
    """The object to create; the user's template is not changed."""
    template = {key: value for key, value in wrapped.template.items() if key != STATUS}
    # An object of the dispatcher's own has an index below 0: it makes no pods of the gang.
    is_ours = wrapped.index < 0
    built: Json = (
        dict(template) if is_ours else _with_pods_marked(template, _ROOT, _PodMarks.of(wrapped, owner))
    )
    metadata = without_server_fields(built.get("metadata") or {})
    metadata.pop("generateName", None)
    metadata["name"] = reference(wrapped, owner).name
    metadata["namespace"] = owner.namespace
    metadata["ownerReferences"] = [owner.reference()]
    metadata["labels"] = _labelled(metadata.get("labels"), _labels(wrapped, owner))
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **_annotations(wrapped, owner)}
    built["metadata"] = metadata
    return built


def with_infos(wrapped: WrappedObject) -> WrappedObject:
    """The wrapped object with the additions of a quota manager in its pod templates, as they are created."""
    infos = {pod_set.path: pod_set.info for pod_set in wrapped.pod_sets if pod_set.info}
    if not infos:
        return wrapped
    return replace(wrapped, template=_with_pods_marked(wrapped.template, _ROOT, _PodMarks({}, infos, {})))


def with_gates(kind: Kind, wrapped: WrappedObject) -> WrappedObject:
    """The wrapped object with the dispatcher's scheduling gate in the pod templates of groups that can grow."""
    growing = growing_templates(kind, wrapped.template)
    if not growing:
        return wrapped
    gates = _Gates({f"{_ROOT}.{path}": _gate_of(wrapped.index, path, growing[path]) for path in growing})
    return replace(wrapped, template=_with_pods_marked(wrapped.template, _ROOT, gates))


def _gate_of(item: int, path: str, growing: GrowingTemplate) -> str:
    """The annotation of the pods of a template that can grow."""
    hosts = f" {growing.hosts}" if growing.hosts > 1 else ""
    return f"{growing.pods} {template_name(item, path)}{hosts}"


def adoption(found: Mapping[str, Any], wrapped: WrappedObject, owner: Owner) -> Json | None:
    """The merge patch that adds our marks to an object of ours; None if it has them."""
    metadata = found.get("metadata") or {}
    labels = _labels_in(metadata)
    if names.UID_LABEL in labels:
        return None
    marked = _labelled(labels, _labels(wrapped, owner))
    return {
        "metadata": {
            "uid": metadata.get("uid"),
            "labels": {key: value for key, value in marked.items() if labels.get(key) != value},
            "annotations": _annotations(wrapped, owner),
        }
    }


class ObjectOwnership(StrEnum):
    """The owner of an existing object with the name of one that we want to create."""

    THIS_ATTEMPT = "this-attempt"
    """Ours, created by this attempt."""
    EARLIER_ATTEMPT = "earlier-attempt"
    """Ours, created by an earlier attempt of the same AppWrapper: it is removed first."""
    LATER_ATTEMPT = "later-attempt"
    """Ours, created by a later attempt, which a restored database does not know. Never touched."""
    ANOTHER_APPWRAPPER = "another-appwrapper"
    """Another AppWrapper's: if that is deleted the object goes with it, else the name is taken."""
    FOREIGN = "foreign"
    """No AppWrapper's: never touched."""


def ownership_of(found: Mapping[str, Any], owner: Owner) -> ObjectOwnership:
    """The owner of `found`, an object at the API server."""
    metadata = found.get("metadata") or {}
    appwrapper = owned_by(metadata)
    if appwrapper is None:
        return ObjectOwnership.FOREIGN
    if appwrapper != owner.uid:
        return ObjectOwnership.ANOTHER_APPWRAPPER
    if is_of_later_attempt(metadata, owner):
        return ObjectOwnership.LATER_ATTEMPT
    if owner.anchor and (controller_of(metadata) or {}).get("uid") != owner.anchor.uid:
        return (
            ObjectOwnership.EARLIER_ATTEMPT
        )  # or this one, under an anchor that is deleted: the object is deleted with it
    marked = _labels_in(metadata).get(names.ATTEMPT_LABEL)
    if marked is not None and marked != str(owner.attempt):
        return ObjectOwnership.EARLIER_ATTEMPT
    return ObjectOwnership.THIS_ATTEMPT


def is_of_later_attempt(metadata: Mapping[str, Any], owner: Owner) -> bool:
    """True if the object's label has a greater attempt number than `owner`."""
    return (attempt_number(metadata) or 0) > owner.attempt


def seal_in(metadata: Mapping[str, Any]) -> str:
    """The seal that an object shows; empty if it shows none."""
    annotations = metadata.get("annotations")
    return text_of(annotations.get(names.SEAL_ANNOTATION)) if isinstance(annotations, Mapping) else ""


def attempt_number(metadata: Mapping[str, Any]) -> int | None:
    """The attempt number in an object's label; None if there is no valid one."""
    marked = str(_labels_in(metadata).get(names.ATTEMPT_LABEL))
    return int(marked) if _NUMBER.fullmatch(marked) else None


def _labels_in(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = metadata.get("labels")
    return labels if isinstance(labels, Mapping) else {}


_NUMBER: Final = re.compile("[0-9]{1,9}")
"""Smaller than the largest value of the column, so that there is always a next number."""


def owned_by(metadata: Mapping[str, Any]) -> str | None:
    """The uid of the AppWrapper that controls an object, itself or by an anchor; None if none does."""
    controller = controller_of(metadata)
    return appwrapper_of(controller) if controller else None


def controller_of(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference that controls an object, if any does."""
    references = metadata.get("ownerReferences")
    for candidate in references if isinstance(references, list) else ():
        if isinstance(candidate, Mapping) and candidate.get("controller"):
            found: Mapping[str, Any] = candidate
            return found
    return None


def _labels(wrapped: WrappedObject, owner: Owner) -> dict[str, str]:
    """The labels of the object and of its pods."""
    name = reference(wrapped, owner).name
    return owner.labels() | ({names.RESOURCE_NAME_LABEL: name} if is_qualified_name(name) else {})


def _annotations(wrapped: WrappedObject, owner: Owner) -> dict[str, str]:
    return {**_proofs(owner), names.ITEM_ANNOTATION: str(wrapped.index)}


class _PodMarks(Struct, frozen=True):
    """Additions to the pod templates of one object: labels and annotations to all, `infos` and hinted nodes by path."""

    labels: Mapping[str, str]
    infos: Mapping[str, Mapping[str, Any]]
    hints: Mapping[str, tuple[str, ...]]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, wrapped: WrappedObject, owner: Owner) -> _PodMarks:
        labels = _labels(wrapped, owner) | {names.ITEM_LABEL: str(wrapped.index)}
        hints = {template_path(each.path): each.nodes for each in owner.hints if each.item == wrapped.index}
        infos = {pod_set.path: pod_set.info for pod_set in wrapped.pod_sets}
        return cls(labels, infos, hints, owner.pod_annotations)

    def put_on(self, template: Json, path: str) -> Json:
        informed = _hinted(_informed(template, self.infos.get(path, {})), self.hints.get(path, ()))
        metadata = without_server_fields(informed.get("metadata") or {})
        metadata["labels"] = _labelled(metadata.get("labels"), self.labels)
        if self.annotations:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **self.annotations}
        return {**{key: value for key, value in informed.items() if key != STATUS}, "metadata": metadata}


class _Gates(Struct, frozen=True):
    """The dispatcher's scheduling gate, beside those of the user, and the value of its annotation by path."""

    values: Mapping[str, str]

    def put_on(self, template: Json, path: str) -> Json:
        metadata = template.get("metadata") or {}
        annotations = metadata.get("annotations") or {}
        if path not in self.values or not isinstance(annotations, dict):
            return template
        metadata = {**metadata, "annotations": {**annotations, names.GROWTH_ANNOTATION: self.values[path]}}
        spec, ours = dict(template["spec"]), {"name": names.GROWTH_GATE}
        if ours not in (spec.get("schedulingGates") or []):
            _append(spec, "schedulingGates", [ours])
        return {**template, "metadata": metadata, "spec": spec}


def _with_pods_marked(value: Any, path: str, marks: _PodMarks | _Gates) -> Any:  # noqa: ANN401  # any JSON
    """`value` with `marks` on every pod template in it, at any path."""
    if isinstance(value, list):
        return [_with_pods_marked(entry, f"{path}[{index}]", marks) for index, entry in enumerate(value)]
    if not isinstance(value, dict):
        return value
    copied = {key: _with_pods_marked(entry, f"{path}.{key}", marks) for key, entry in value.items()}
    return marks.put_on(copied, path) if is_pod_template(copied) else copied


def _informed(template: Json, info: Mapping[str, Any]) -> Json:
    """A pod template with the additions of a quota manager; the user's value of a key stays."""
    if not info:
        return template
    metadata, spec = dict(template.get("metadata") or {}), dict(template["spec"])
    for part, key in ((metadata, "labels"), (metadata, "annotations"), (spec, "nodeSelector")):
        _add_keys(part, key, info.get(key))
    for key in ("tolerations", "schedulingGates"):
        _append(spec, key, info.get(key))
    return {**template, "metadata": metadata, "spec": spec}


def template_path(path: str) -> str:
    """The path of a pod set's template, which is inside the wrapped object, from the wrapped object on."""
    plain = re.sub(r"\['([^']*)'\]", r".\1", path)
    return f"{_ROOT}.{plain}" if plain else _ROOT


def _hinted(template: Json, nodes: tuple[str, ...]) -> Json:
    """The pod template with a preference for these nodes, beside the preferences of the user.

    kube-scheduler spreads pods. Without the preference, a large pod of the gang could be left without a node. The
    preference is soft: a pod goes to another node if its place is taken. It cannot bound the number of pods on a node,
    so the weights fall: nodes with room for the planned pods only are filled first, and the node with room for more
    pods comes last.
    Source:
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    if not nodes or len(nodes) > MOST_HINTED_NODES:
        return template
    spec = dict(template["spec"])
    affinity = spec.get("affinity") or {}
    by_node = affinity.get("nodeAffinity") or {} if isinstance(affinity, dict) else None
    own = by_node.get(_PREFERRED) or [] if isinstance(by_node, dict) else None
    if not isinstance(affinity, dict) or not isinstance(by_node, dict) or not isinstance(own, list):
        return template  # the API server refuses it
    weights = _weights(len(nodes))
    ours = [
        {"weight": weight, "preference": _named(node)} for weight, node in zip(weights, nodes, strict=True)
    ]
    preferred = [*own, *ours]
    spec["affinity"] = {**affinity, "nodeAffinity": {**by_node, _PREFERRED: preferred}}
    return {**template, "spec": spec}


def _weights(count: int) -> list[int]:
    """Falling weights of `count` nodes, the last far below the others; other scores decide between equal weights."""
    if count == 1:
        return [100]
    return [*(100 - 40 * at // max(1, count - 2) for at in range(count - 1)), 10]


def _named(node: str) -> Json:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}


def _add_keys(part: Json, key: str, added: object) -> None:
    own = part.get(key) or {}
    if added and isinstance(added, Mapping) and isinstance(own, Mapping):
        part[key] = {**added, **own}


def _append(part: Json, key: str, added: object) -> None:
    own = part.get(key) or []
    if added and isinstance(added, list) and isinstance(own, list):
        part[key] = [*own, *added]


def _labelled(labels: Mapping[str, str] | None, marks: Mapping[str, str]) -> dict[str, str]:
    """The user's labels and our marks; the user's value of a key without our prefix stays."""
    ours = {key: value for key, value in marks.items() if key.startswith(f"{names.PREFIX}/")}
    return {**marks, **(labels or {}), **ours}


def _as_label(name: str) -> str:
    """A name as the value of a label; a long name is cut and ends in a hash."""
    if len(name) <= LONGEST_LABEL:
        return name
    return f"{name[: LONGEST_LABEL - _HASH_LENGTH - 1]}-{_hash(name)}"


def _generated_name(wrapped: WrappedObject, owner: Owner) -> str:
    """The name of an item with `generateName`, from the AppWrapper's uid and the item: every retry has the same."""
    digest = _hash(f"{owner.uid}/{wrapped.index}")
    prefix = (wrapped.generate_name or f"{owner.name}-")[: _LONGEST_GENERATED_NAME - _HASH_LENGTH]
    return f"{prefix}{digest}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]

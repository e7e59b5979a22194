"""What is really created for a wrapped object: the user's template, its name settled, bearing our marks.

The marks say whose an object is. Labels, on the object and in every pod template inside it: the
AppWrapper's uid and the attempt. Annotations: the hub's id and the item's index. The owner is the AppWrapper.
Labels prove nothing alone, anybody can write them: `whose` believes the owner reference and uses the labels
to tell one attempt from another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from dispatcher.api import names
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.record import ObjectRef

Json = dict[str, Any]

_SERVER_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
    "generateName",
    "ownerReferences",
)
_LONGEST_LABEL: Final = 63
_LONGEST_GENERATED_NAME: Final = 63  # as the API server's own: Services, Jobs and others take no longer ones
_HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class Owner:
    """The AppWrapper an object is created for, and by which attempt of which hub."""

    uid: str
    group: str
    version: str
    namespace: str
    name: str
    attempt: int
    hub_id: str

    def reference(self) -> Json:
        """The owner reference that makes Kubernetes remove the object with its AppWrapper."""
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": names.APPWRAPPER_KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def labels(self) -> dict[str, str]:
        """The labels of the object and of its pods."""
        marks = {names.UID_LABEL: self.uid, names.ATTEMPT_LABEL: str(self.attempt)}
        if len(self.name) <= _LONGEST_LABEL:
            marks[names.MCAD_NAME_LABEL] = self.name
        return marks


def reference(wrapped: WrappedObject, owner: Owner) -> ObjectRef:
    """The name an item goes by in the cluster; the same however often it is asked."""
    return ObjectRef(
        item=wrapped.index,
        api_version=wrapped.api_version,
        kind=wrapped.kind,
        namespace=owner.namespace,
        name=wrapped.name or _generated_name(wrapped, owner),
    )


def build(wrapped: WrappedObject, owner: Owner) -> Json:
    """The object to create; the user's template is not changed."""
    target = reference(wrapped, owner)
    metadata = {
        key: value
        for key, value in (wrapped.template.get("metadata") or {}).items()
        if key not in _SERVER_FIELDS
    }
    built: Json = {
        key: _marked(value, owner.labels())
        for key, value in wrapped.template.items()
        if key not in {"metadata", "status"}
    }
    metadata["name"] = target.name
    metadata["namespace"] = target.namespace
    metadata["ownerReferences"] = [owner.reference()]
    metadata["labels"] = _labelled(metadata.get("labels"), owner.labels())
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        names.HUB_ANNOTATION: owner.hub_id,
        names.ITEM_ANNOTATION: str(wrapped.index),
    }
    built["metadata"] = metadata
    return built


class Whose(StrEnum):
    """Whose an object is that was found where we want to create one."""

    THIS_ATTEMPT = "this-attempt"
    """Ours, made by this attempt: it is the one we wanted."""
    EARLIER_ATTEMPT = "earlier-attempt"
    """Ours, made by an earlier attempt of the same AppWrapper: to be removed first."""
    ANOTHER_APPWRAPPER = "another-appwrapper"
    """Owned by another AppWrapper: if that one is deleted the object is going, else the name is taken."""
    FOREIGN = "foreign"
    """Somebody else's: never touched."""


def whose(found: Mapping[str, Any], owner: Owner) -> Whose:
    """Whose `found`, an object as the API server has it, is."""
    metadata = found.get("metadata") or {}
    controller = controller_of(metadata)
    if controller is None or controller.get("kind") != names.APPWRAPPER_KIND:
        return Whose.FOREIGN
    if controller.get("uid") != owner.uid:
        return Whose.ANOTHER_APPWRAPPER
    marked = (metadata.get("labels") or {}).get(names.ATTEMPT_LABEL)
    if marked is not None and marked != str(owner.attempt):
        return Whose.EARLIER_ATTEMPT
    return Whose.THIS_ATTEMPT


def controller_of(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference that controls an object, if any does."""
    for candidate in metadata.get("ownerReferences") or ():
        if candidate.get("controller"):
            found: Mapping[str, Any] = candidate
            return found
    return None


def _marked(value: Any, marks: Mapping[str, str]) -> Any:  # noqa: ANN401  # any JSON
    """`value` with `marks` on every pod template in it, wherever a kind keeps its templates."""
    if isinstance(value, list):
        return [_marked(entry, marks) for entry in value]
    if not isinstance(value, dict):
        return value
    copied = {key: _marked(entry, marks) for key, entry in value.items()}
    if _is_pod_template(copied):
        metadata = dict(copied.get("metadata") or {})
        metadata["labels"] = _labelled(metadata.get("labels"), marks)
        copied["metadata"] = metadata
    return copied


def _is_pod_template(value: Mapping[str, Any]) -> bool:
    """What is malformed is none: it is left for the API server to refuse in its own words."""
    spec, metadata = value.get("spec"), value.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return False
    if not isinstance(metadata.get("labels"), dict | None):
        return False
    containers = spec.get("containers")
    return isinstance(containers, list) and bool(containers)


def _labelled(labels: Mapping[str, str] | None, marks: Mapping[str, str]) -> dict[str, str]:
    """The user's labels and our marks; the prefix is ours, MCAD's name label stays the user's if set."""
    ours = {key: value for key, value in marks.items() if key.startswith(f"{names.PREFIX}/")}
    return {**marks, **(labels or {}), **ours}


def _generated_name(wrapped: WrappedObject, owner: Owner) -> str:
    """A server-made name cannot be exactly-once, so we make it: from the AppWrapper's uid and the item."""
    digest = hashlib.sha256(f"{owner.uid}/{wrapped.index}".encode()).hexdigest()[:_HASH_LENGTH]
    prefix = (wrapped.generate_name or f"{owner.name}-")[: _LONGEST_GENERATED_NAME - _HASH_LENGTH]
    return f"{prefix}{digest}"

"""Fields that the dispatcher drops from wrapped objects: fields of the API server, and finalizers.

An object that was read from a cluster has a uid and a status. A finalizer in a template would keep the created object,
and the capacity it takes, until its author removes the finalizer. These fields are dropped from wrapped objects and
from their pod templates; the author is warned of those with a value.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dispatcher.api.spec_errors import joined

if TYPE_CHECKING:
    from dispatcher.api.appwrapper import AppWrapperSpec

STATUS: Final = "status"

_FIELDS: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "managedFields",
    "ownerReferences",
    "selfLink",
)
_MOST_NAMED: Final = 8
"""Fields that the warning names."""


def without_server_fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata without the fields that are dropped."""
    return {key: value for key, value in metadata.items() if key not in _FIELDS}


def is_pod_template(value: Mapping[str, Any]) -> bool:
    """True for a pod template; a malformed one is left for the API server to refuse."""
    spec, metadata = value.get("spec"), value.get("metadata") or {}
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        return False
    if not isinstance(metadata.get("labels"), dict | None):
        return False
    containers = spec.get("containers")
    return isinstance(containers, list) and bool(containers)


def warning(spec: AppWrapperSpec) -> str:
    """A sentence with the dropped fields that have a value; empty if there are none."""
    paths = [
        path
        for wrapped in spec.wrapped
        for path in _dropped(wrapped.template, spec.template_path_of(wrapped), is_root=True)
    ]
    if not paths:
        return ""
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"not created: {', '.join(paths[:_MOST_NAMED])}{more}"


def _dropped(value: object, path: str, *, is_root: bool = False) -> Iterator[str]:
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _dropped(entry, f"{path}[{index}]")
    elif isinstance(value, dict):
        if is_root or is_pod_template(value):
            metadata = value.get("metadata") or {}
            yield from (f"{path}.metadata.{key}" for key in _FIELDS if metadata.get(key))
            if value.get(STATUS):
                yield f"{path}.{STATUS}"
        for key, entry in value.items():
            if isinstance(entry, dict | list) and not (is_root and key in {"metadata", STATUS}):
                yield from _dropped(entry, joined(path, key))

"""Fields of templates: those that are dropped from wrapped objects, and all fields without their values.

An object that was read from a cluster has a uid and a status. A finalizer in a template would keep the created object,
and the capacity it takes, until its author removes the finalizer. These fields are dropped from wrapped objects and
from their pod templates; the author is warned of those with a value.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/

Whether a field is unknown depends on the paths of fields alone, so an API server is asked about these without values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from dispatcher.api.spec_errors import joined
from dispatcher.text import mapping_of

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


def digest_of_paths(template: object) -> bytes:
    """A digest of the fields of a JSON value: the same whatever the values and the order of keys; of any depth.

    A list of objects counts with its length, because the path of a field has the index of its item.
    """
    import hashlib  # commands import this module, and need no digest

    digest = hashlib.sha256()
    left = [template]
    while left:
        match left.pop():
            case dict() as fields:
                names = sorted(fields)
                digest.update(repr(names).encode(errors="backslashreplace"))
                left.extend(fields[name] for name in names)
            case list() as items if any(isinstance(each, dict | list) for each in items):
                digest.update(f"<{len(items)}>".encode())
                left.extend(items)
            case _:
                digest.update(b".")
    return digest.digest()


_SOME_TEXT: Final = "1000"
"""Decodes as a string, as a quantity and as base64."""
_SOME_TIME: Final = "2000-01-01T00:00:00Z"
_SOME_DURATION: Final = "1s"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d")
_DURATION: Final = re.compile(r"([0-9.]+(ns|us|µs|ms|s|m|h))+")
_QUANTITY: Final = re.compile(r"[0-9.]+m")
_NAME: Final = "field-check"


def fields_alone(template: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The fields of a template with placeholders for their values, as an object of that namespace; of any depth.

    It has no more of the author's template than `apiVersion`, `kind`, the keys of all fields and maps, the types of
    their values, and the number of items in lists of objects. An API server decodes it as the template, so it knows the
    same fields; what it says of the values means nothing.
    """
    root: dict[str, Any] = {}
    left: list[tuple[Any, Any]] = [(template, root)]
    while left:
        source, copy = left.pop()
        if isinstance(source, Mapping):
            for key, value in source.items():
                copy[key] = _placeholder(value, left)
        else:
            copy.extend(_placeholder(each, left) for each in source)
    named = {**mapping_of(root.get("metadata")), "name": _NAME, "namespace": namespace}
    return {**root, "apiVersion": template["apiVersion"], "kind": template["kind"], "metadata": named}


def _placeholder(value: object, left: list[tuple[Any, Any]]) -> object:
    """A value of the same type; those inside of an object or a list follow from what is added to `left`."""
    match value:
        case dict():
            made: Any = {}
        case list() if any(isinstance(each, dict | list) for each in value):
            made = []
        case list():
            return [_scalar_like(each) for each in value[:1]]
        case _:
            return _scalar_like(value)
    left.append((value, made))
    return made


def _scalar_like(value: object) -> object:
    """A value of the same type as one that has no others inside."""
    match value:
        case bool() | None:
            return value and False
        case int():
            return 1
        case float():
            return 0.5
        case str():
            return _text_like(value)
        case _:
            return None


def _text_like(value: str) -> str:
    """A string that decodes where this one does: times and durations have types of their own."""
    if _TIME.match(value):
        return _SOME_TIME
    if _DURATION.fullmatch(value) and not _QUANTITY.fullmatch(value):
        return _SOME_DURATION
    return _SOME_TEXT

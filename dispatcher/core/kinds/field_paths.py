"""The fields of a template without their values: whether a field is unknown depends on the paths of fields alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.text import mapping_of


def digest_of_paths(template: object) -> bytes:
    """A digest of the fields of a JSON value: the same whatever the values and the order of keys; of any depth.

    A list of objects counts with its length, because the path of a field has the index of its item.
    """
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

"""Parses AppWrappers whose spec is too large, without the spec.

An API server writes the fields of an AppWrapper in the order of their names: `metadata`, `spec`, `status`. So the text
from `,"spec":` to `,"status":` is cut out, and the rest is parsed. The cut is never wrong unnoticed. Quotes within
strings are escaped, so the text `,"status":` is never part of a string. If it belongs to an object inside the spec, the
rest has closing brackets too many and is no JSON; then the next place is tried. Before `,"spec":` there are only fields
that the API server has ordered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson
from msgspec import Struct

from dispatcher.api.names import OUR_MANAGERS
from dispatcher.api.sizes import SpecSize, count_containers
from dispatcher.kube import bounds

LARGEST_STATUS: Final = 2**18
"""Bytes of a status that are read; the dispatcher writes much smaller ones."""

_SPEC: Final = b',"spec":{'
_STATUS: Final = b',"status":{'
_NO_SPEC: Final = b',"spec":null'
_ESCAPED: Final = (b"\\u003c", b"\\u003e", b"\\u0026")
"""Go's escapes of `<`, `>` and `&`, which are one byte each."""
_TRIES: Final = 4
"""Places tried as the begin of the status; a status or a spec may contain that text itself."""
_MANAGER: Final = re.compile(rb'"managedBy":"([^"\\]*)"')

Json = dict[str, Any]


class Unread(Struct, frozen=True):
    """Stands for a spec that was not parsed; `is_ours` is false if a component names another manager."""

    size: SpecSize
    has_components: bool
    is_ours: bool


def loads(raw: bytes) -> Json:
    """Parse an AppWrapper, or a line of a watch of AppWrappers; `spec` is an `Unread` if it is too large.

    Raises `orjson.JSONDecodeError` for invalid JSON, and `TooLarge` past the bounds of any answer.
    """
    start = raw.find(_SPEC)
    if start < 0 or _size(raw, start, len(raw)).is_acceptable:
        return _object(bounds.loads(raw))
    begin = start + len(_SPEC) - 1
    for end in _ends(raw, start):
        try:
            read = _object(orjson.loads(b"".join((raw[:start], _NO_SPEC, raw[end:]))))
        except orjson.JSONDecodeError:
            continue
        if "metadata" not in read.get("object", read):
            continue  # in another order
        size = _size(raw, begin, end)
        spec = bounds.loads(raw[begin:end]) if size.is_acceptable else _unread(raw[begin:end], size)
        read.get("object", read)["spec"] = spec
        return read
    return _object(bounds.loads(raw))


def _ends(raw: bytes, start: int) -> Iterator[int]:
    """The places where the spec may end, the most likely first; the last two leave out the status."""
    status = raw.rfind(_STATUS, start)
    for _ in range(_TRIES):
        if status < 0 or len(raw) - status > LARGEST_STATUS:
            break
        yield status
        status = raw.rfind(_STATUS, start, status)
    whole = raw.rstrip()
    for closing in (b"}}", b"}"):
        if whole.endswith(closing):
            yield len(whole) - len(closing)


def _size(raw: bytes, begin: int, end: int) -> SpecSize:
    """The size of a part, without parsing it."""
    longer = sum(raw.count(each, begin, end) for each in _ESCAPED) * 5
    return SpecSize(end - begin - longer, count_containers(raw, begin, end))


def _unread(spec: bytes, size: SpecSize) -> Unread:
    managers = {each.decode(errors="replace") for each in _MANAGER.findall(spec)}
    return Unread(
        size=size,
        has_components=spec.startswith(b'{"components":[{'),
        is_ours=managers <= {each for each in OUR_MANAGERS if each is not None},
    )


def _object(read: Any) -> Json:  # noqa: ANN401  # any JSON
    if not isinstance(read, dict):
        raise orjson.JSONDecodeError("is no object", "", 0)
    return read

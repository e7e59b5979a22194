"""Parses and writes the JSON of API servers at any depth.

An API server accepts objects that are nested 10,000 levels deep. Our parser ends at 1024 and our serializer at 254, and
one unreadable object would end a list or a watch for all objects. So values deeper than `DEEPEST` levels are read as
null: no kind needs as many, and `api.validation` refuses templates at a lower depth.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from dispatcher.api.sizes import count_containers
from dispatcher.errors import TooLarge

DEEPEST: Final = 200

LARGEST_DEEP: Final = 2**21
"""Bytes that are searched for deep values, in 0.3 s at most: more than an object that etcd stores as JSON."""

# A truncated string is a token too; otherwise each quote within it would be tried as the begin of a string.
_TOKEN: Final = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]')


def loads(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON; raises `orjson.JSONDecodeError` for invalid JSON, `TooLarge` for JSON that may only be too deep."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if count_containers(raw) <= DEEPEST:
            raise
        if len(raw) > LARGEST_DEEP:
            raise TooLarge(f"JSON of {len(raw)} bytes is nested too deep, or none: {error}") from error
        return orjson.loads(_without_depths(raw))


def dumps(value: object, *, in_order: bool = False) -> bytes:
    """Write a value of JSON; `in_order` of the names of its fields.

    The bytes take no more memory than their length: those of `orjson` keep its buffer, of at least 4 KiB.
    """
    option = orjson.OPT_SORT_KEYS if in_order else None
    try:
        written = orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        written = orjson.dumps(_writable(value, DEEPEST), option=option)
    return bytes(memoryview(written))


def is_same(one: bytes, another: bytes) -> bool:
    """True if both are the JSON of equal values."""
    return one == another or bool(loads(one) == loads(another))


def _without_depths(raw: bytes) -> bytes:
    """The JSON with null in place of every list and object at the first level that is too deep."""
    parts: list[bytes] = []
    depth = copied = 0
    for token in _TOKEN.finditer(raw):
        match raw[token.start()]:
            case 0x5B | 0x7B:
                depth += 1
                if depth == DEEPEST + 1:
                    parts.append(raw[copied : token.start()])
                    copied = token.start()
            case 0x5D | 0x7D:
                if depth == DEEPEST + 1:
                    parts.append(b"null")
                    copied = token.end()
                depth -= 1
    return b"".join((*parts, raw[copied:]))


def _writable(value: object, levels: int) -> object:
    """The value without what lies too deep, and with question marks in place of halves of characters."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if not isinstance(value, list | dict):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [_writable(entry, levels - 1) for entry in value]
    return {_writable(key, 0): _writable(entry, levels - 1) for key, entry in value.items()}

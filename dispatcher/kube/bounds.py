"""The JSON of API servers: bounds on bytes while they arrive, on values before they are parsed, and on depth.

A member cluster's API server may be hostile, and an honest one passes on what tenants write. So answers must not be
compressed, each answer, each line of a watch and all unfinished ones of one API server together are bounded, and JSON
that would take a multiple of its size in memory is not parsed. Past a bound `TooLarge` is raised.

Unfinished answers are bounded by their purpose. What a tenant makes large must not keep the watches of the cluster from
being read: single objects have bytes of their own, and so have the words of Events, which are only hints.

An honest API server with etcd's default bound stores at most 1.5 MiB of an object. As JSON that is at most about 10
MiB, if it consists of characters that Go escapes with six (`<`) or of the shortest possible fields.

An API server accepts objects that are nested 10,000 levels deep. Our parser ends at 1024 and our serializer at 254, and
one unreadable object would end a list or a watch for all objects. So values deeper than `DEEPEST` levels are read as
null: no kind needs as many, and `api.validation` refuses templates at a lower depth.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

import orjson

from dispatcher.api.validation import count_containers
from dispatcher.errors import TooLarge

LARGEST_ANSWER: Final = 2**24
"""Bytes of an answer, or of one line of a watch: more than the JSON of any object that etcd stores."""

LARGEST_REFUSAL: Final = 2**22
"""Bytes that are read of an error. It may quote the refused object twice, and the rest is not needed."""

MOST_HELD: Final = 2**27
"""Bytes of all unfinished lists, and lines of watches, of one API server together."""

MOST_HELD_OF_OBJECTS: Final = 2**26
"""The same of reads and writes of single objects."""

LARGEST_HINT: Final = 2**21
"""Bytes of an answer that is only a hint: some hundred Events of usual size."""

MOST_HELD_OF_HINTS: Final = 2**24
"""Bytes of all unfinished answers that are only hints."""

MOST_CONTAINERS: Final = 2**19
"""Lists and objects in one answer. Each takes 56 to 232 bytes of memory, and as little as 3 bytes of JSON, so no object
that etcd stores as JSON has as many. In a pod, which is stored as protobuf, each takes at least 4 bytes. A page of a
list has a lower bound (`paging`). Parsing takes 80 ms at most, without garbage collections."""

MOST_KEPT: Final = 2**17
"""Lists and objects in one object that is read by itself, because it stays in memory while it is handled."""

MOST_VALUES: Final = 2**20
"""Commas in one answer, one less than values."""

MOST_MARKS: Final = 2**22
"""Brackets and commas, also within strings, whose positions are examined: that takes up to 150 ms."""

LARGEST_COLLECTED: Final = 2**18
"""Bytes of JSON up to which garbage collections run during parsing; above it they would take most of the time."""

_NO_MARKS: Final = bytes(set(range(256)) - set(b'"[{,'))


class Purpose(Enum):
    """What an answer is read for."""

    CLUSTER = "cluster"
    """The lists and watches of a cluster: without them nothing can be decided."""
    OBJECT = "object"
    """One object."""
    HINT = "hint"
    """Words for a person; without them everything goes on."""


class Allowance:
    """Bytes that the unfinished answers of one API server for one purpose may still take; at most `most`."""

    def __init__(self, most: int = MOST_HELD, largest: int = LARGEST_ANSWER) -> None:
        self.most = self.left = most
        self.largest = largest


def allowances() -> dict[Purpose, Allowance]:
    """The allowances of one API server."""
    return {
        Purpose.CLUSTER: Allowance(),
        Purpose.OBJECT: Allowance(MOST_HELD_OF_OBJECTS),
        Purpose.HINT: Allowance(MOST_HELD_OF_HINTS, LARGEST_HINT),
    }


class Buffer:
    """The bytes of one answer; at most `most`, taken from an allowance until the buffer is closed."""

    def __init__(self, allowance: Allowance, what: str, most: int | None = None) -> None:
        self._allowance = allowance
        self._what = what
        self._most = allowance.largest if most is None else most
        self._held = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.take()

    def add(self, arrived: bytes) -> None:
        """Add bytes; raises `TooLarge` past a bound."""
        if len(self._held) + len(arrived) > self._most:
            raise TooLarge(f"{self._what}: the answer is larger than {in_mebibytes(self._most)}")
        if len(arrived) > self._allowance.left:
            raise TooLarge(
                f"{self._what}: its answers take more than {in_mebibytes(self._allowance.most)} at once"
            )
        self._allowance.left -= len(arrived)
        self._held += arrived

    def take(self) -> bytes:
        """The bytes; the buffer is empty afterwards."""
        taken = bytes(self._held)
        self._allowance.left += len(taken)
        self._held = bytearray()
        return taken


def loads_one(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Parse an object that is read by itself; raises as `loads` does."""
    return loads(raw, MOST_KEPT)


def loads(raw: bytes, most: int = MOST_CONTAINERS) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON; raises `TooLarge` past a bound, `orjson.JSONDecodeError` for invalid JSON."""
    check_values(raw, most)
    if len(raw) <= LARGEST_COLLECTED:
        return loads_unbounded(raw)
    with _no_collections():
        return loads_unbounded(raw)


def check_values(raw: bytes, most: int = MOST_CONTAINERS) -> None:
    """Raise `TooLarge` for JSON of more than `most` lists and objects, or too many values."""
    if len(raw) < 2 * most:
        return  # it cannot have so many
    if not _has_too_many(raw, most):
        return
    # Any user may write brackets into a string, such as an annotation; they take no memory.
    if count_containers(raw) + raw.count(b",") > MOST_MARKS or _has_too_many(without_strings(raw), most):
        raise TooLarge(
            f"an answer of {len(raw)} bytes has more than {most} lists and objects, or {MOST_VALUES} values"
        )


def without_strings(raw: bytes) -> bytes:
    """The opening brackets and the commas of JSON outside of strings."""
    marks = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    # Two adjacent quotes do not change whether the text after them is inside a string.
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _has_too_many(raw: bytes, most: int) -> bool:
    return count_containers(raw) > most or raw.count(b",") > MOST_VALUES


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disables garbage collections, which would traverse all parsed values again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_mebibytes(size: int) -> str:
    """A size in MiB, for messages."""
    return f"{size / 2**20:g} MiB"


DEEPEST: Final = 200

LARGEST_DEEP: Final = 2**21
"""Bytes that are searched for deep values, in 0.3 s at most: more than an object that etcd stores as JSON."""

# A truncated string is a token too; otherwise each quote within it would be tried as the begin of a string.
_TOKEN: Final = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]')


def loads_unbounded(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON of any size; raises `orjson.JSONDecodeError` if it is none, `TooLarge` if it may only be too deep."""
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
    return one == another or bool(loads_unbounded(one) == loads_unbounded(another))


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

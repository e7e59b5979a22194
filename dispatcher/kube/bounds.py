"""How much of an API server's answers is taken in: bytes while they arrive, and values before they are parsed.

A member cluster's API server may be anybody's, and what tenants write comes through an honest one as well. So nothing
is decompressed, no answer and no line of a watch is held beyond a bound, all that one API server has us hold at once
has a bound, and JSON that would become a multiple of itself in memory is not parsed. Past a bound `TooLarge` is raised.

An honest API server with etcd's default bound stores at most 1.5 MiB of an object. As JSON that is at most some
10 MiB, if it consists of characters that Go writes as six (`<`), or of nothing but the shortest of fields.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from dispatcher.api.sizes import count_containers
from dispatcher.errors import TooLarge
from dispatcher.kube import json_codec

LARGEST_ANSWER: Final = 2**24
"""Bytes of an answer, or of one line of a watch: more than any object that etcd stores has as JSON."""

LARGEST_REFUSAL: Final = 2**22
"""Bytes that are read of an answer other than 2xx. It may quote what it refuses, twice, and nobody needs the rest."""

MOST_HELD: Final = 2**27
"""Bytes that one API server may have us hold at once, in answers and lines that have not ended yet."""

MOST_CONTAINERS: Final = 2**19
"""Lists and objects in one answer. Each takes 56 to 232 bytes, and as little as 3 bytes of JSON, so no object that etcd
stores as JSON has as many. In a pod, which is stored as protobuf, each takes at least 4 bytes. One page of a list may
have much fewer (`paging`). Parsing takes 80 ms at most, without collections of garbage."""

MOST_KEPT: Final = 2**17
"""The same in one object that is read by itself, which is kept for as long as something is done about it."""

MOST_VALUES: Final = 2**20
"""Commas in one answer, of which there is one less than values."""

MOST_MARKS: Final = 2**22
"""Brackets and commas, also those within strings, of which it is found out where they are: that takes up to 150 ms."""

LARGEST_COLLECTED: Final = 2**18
"""Bytes of JSON that are parsed while garbage may be collected. In more, collections take most of the time."""

_NO_MARKS: Final = bytes(set(range(256)) - set(b'"[{,'))


class Allowance:
    """What may still be held of the answers of one API server."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self.left = most


class Buffer:
    """What has arrived of one answer; at most `most` bytes, taken from an allowance until it is left."""

    def __init__(self, allowance: Allowance, what: str, most: int = LARGEST_ANSWER) -> None:
        self._allowance = allowance
        self._what = what
        self._most = most
        self._held = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.take()

    def add(self, arrived: bytes) -> None:
        """Hold these, too; raises `TooLarge` past a bound."""
        if len(self._held) + len(arrived) > self._most:
            raise TooLarge(f"{self._what}: the answer is larger than {in_mebibytes(self._most)}")
        if len(arrived) > self._allowance.left:
            raise TooLarge(f"{self._what}: its answers take more than {in_mebibytes(MOST_HELD)} at once")
        self._allowance.left -= len(arrived)
        self._held += arrived

    def take(self) -> bytes:
        """All that was held; from now on nothing is."""
        taken = bytes(self._held)
        self._allowance.left += len(taken)
        self._held = bytearray()
        return taken


def loads_one(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
    """Parse an object that is read by itself; raises as `loads`."""
    return loads(raw, MOST_KEPT)


def loads(raw: bytes, most: int = MOST_CONTAINERS) -> Any:  # noqa: ANN401  # any JSON
    """Parse JSON; `TooLarge` for what would take many times its size, `orjson.JSONDecodeError` for what is none."""
    check_values(raw, most)
    if len(raw) <= LARGEST_COLLECTED:
        return json_codec.loads(raw)
    with _no_collections():
        return json_codec.loads(raw)


def check_values(raw: bytes, most: int = MOST_CONTAINERS) -> None:
    """Raise `TooLarge` for JSON of more than `most` lists and objects, or too many values."""
    if len(raw) < 2 * most:
        return  # it cannot have so many
    if not _has_too_many(raw, most):
        return
    # Anybody may write brackets into a string, of an annotation for example: those cost nothing.
    if count_containers(raw) + raw.count(b",") > MOST_MARKS or _has_too_many(without_strings(raw), most):
        raise TooLarge(
            f"an answer of {len(raw)} bytes has more than {most} lists and objects, or {MOST_VALUES} values"
        )


def without_strings(raw: bytes) -> bytes:
    """The opening brackets and the commas of JSON that are not within strings."""
    marks = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
    # Two quotes with nothing between them leave what follows inside, or outside, as it was.
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _has_too_many(raw: bytes, most: int) -> bool:
    return count_containers(raw) > most or raw.count(b",") > MOST_VALUES


@contextmanager
def _no_collections() -> Iterator[None]:
    """Within it no garbage is collected: collections would go through all that was parsed again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_mebibytes(size: int) -> str:
    """A size for people."""
    return f"{size / 2**20:g} MiB"

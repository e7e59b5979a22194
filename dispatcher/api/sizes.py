"""Bounds on the size of an AppWrapper's spec: a larger spec is refused unparsed.

A parsed spec takes ten to thirty times its size in memory, and parsing it blocks the event loop. etcd accepts 1.5 MiB,
for which `[[],[],…]` takes 42 MiB of memory.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from dispatcher.api.spec_errors import SpecError

LARGEST_SPEC: Final = 2**18
"""Bytes of JSON without white space. A gang of a hundred pods, each with its own template, has about 100,000."""

MOST_CONTAINERS: Final = 2**14
"""Lists and objects; brackets within strings count as well. In the largest spec each then has 16 bytes on average, too
little for a pod template."""


class SpecSize(Struct, frozen=True):
    """How large a spec is, in bytes and in lists and objects."""

    length: int
    containers: int

    @property
    def is_acceptable(self) -> bool:
        """False if the spec is to be refused unparsed."""
        return self.length <= LARGEST_SPEC and self.containers <= MOST_CONTAINERS

    @classmethod
    def of(cls, spec: bytes) -> SpecSize:
        """The size of a spec as JSON."""
        return cls(len(spec), count_containers(spec))


def count_containers(raw: bytes, start: int = 0, end: int | None = None) -> int:
    """Lists and objects in JSON; brackets within strings count as well."""
    return raw.count(b"[", start, end) + raw.count(b"{", start, end)


def refusal(size: SpecSize) -> SpecError:
    """The error for a spec that is too large: size, bound and remedy."""
    if size.length > LARGEST_SPEC:
        return SpecError(
            "spec",
            f"has {size.length} bytes of JSON; at most {LARGEST_SPEC} are taken",
            "Keep files and data in ConfigMaps of their own, or on a volume, and mount them",
        )
    return SpecError(
        "spec",
        f"consists of {size.containers} lists and objects; at most {MOST_CONTAINERS} are taken",
        "Keep data in ConfigMaps of their own, or on a volume, and mount them",
    )

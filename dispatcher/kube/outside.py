"""Fields of an object that nobody has checked: a mapping or a list that may be anything, and a bounded part of one.

A decoder reads through these functions what an API server sent: a field of another type counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; none if the value is no list."""
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def texts_of(value: object) -> dict[str, str]:
    """The entries of an object whose values are texts; none if the value is no object."""
    return {key: each for key, each in mapping_of(value).items() if isinstance(each, str)}


def first_keys(written: Mapping[str, Any], preferred: Iterable[str], most: int) -> Iterator[str]:
    """At most `most` keys: the preferred ones that are there, then others as written, which an API server sorts."""
    there = [key for key in preferred if key in written]
    others = (key for key in written if key not in there)
    yield from there
    yield from islice(others, max(0, most - len(there)))

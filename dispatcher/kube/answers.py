"""Checks that an API server's answer is an object or a list of objects: any server may answer anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dispatcher import errors
from dispatcher.kube.api_calls import Json

_UID: Final = re.compile("[!-~]{1,253}")
"""Characters that every database can store."""


def one_object(answer: Json, path: str) -> Json:
    """The answer to a request for one object; raises `Unavailable` for anything else, such as a list."""
    match answer:
        case {"metadata": {"uid": str(uid)}} if _UID.fullmatch(uid):
            return answer
    raise errors.Unavailable(f"{path}: the answer makes no sense")


def items_of(page: Json) -> Iterator[Json]:
    """The objects of a page of a list; raises `Unavailable` for anything else.

    No object is left out, because it would look deleted.
    """
    match page:
        case {"metadata": dict(), "items": None} | {"metadata": dict(), "items": []}:
            return
        case {"metadata": dict(), "items": list(items)} if all(map(_is_object, items)):
            yield from items
            return
        case {"metadata": dict()} if "items" not in page:
            return
    raise errors.Unavailable("a list: the answer makes no sense")


def _is_object(raw: object) -> bool:
    match raw:
        case {"metadata": {"name": str()}}:
            return True
    return False

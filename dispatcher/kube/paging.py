"""Lists, page by page: complete, and bounded in bytes, not only in number.

The model: a page has as many objects as make `AIM` bytes, going by those before. One that turns out too large is asked
for again in smaller parts, and an object that is too large all by itself is read in another way if there is one, else
left out and told: neither keeps the others from being listed. A list without end is given up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher import errors, log
from dispatcher.kube import bounds
from dispatcher.kube.answers import items_of
from dispatcher.kube.client import JSON, METADATA_LIST, ClusterClient, Json

PAGE: Final = 500
"""Objects asked for at once, at most."""

AIM: Final = 2**22
"""Bytes that a page is to have; parsing them takes some tens of milliseconds, in which nobody else has a turn."""

MOST_LISTED: Final = 250_000
"""Objects of one kind in one cluster. Kubernetes itself ends at 150,000 pods.
Source: https://kubernetes.io/docs/setup/best-practices/cluster-large/"""

_SMALLER: Final = 8
_GROWTH: Final = 4

_log = log.get("paging")

ReadAlone = Callable[[Json], Awaitable[Json | None]]


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list, and the resource version of the whole; of those `left_out` there is metadata only."""

    items: tuple[Json, ...]
    version: str
    left_out: tuple[Json, ...] = ()


async def no_other_way(_metadata: Json) -> Json | None:
    """There is no other way to read an object that is too large."""
    return None


async def pages(
    client: ClusterClient,
    path: str,
    query: Mapping[str, str],
    *,
    accept: str = JSON,
    read_alone: ReadAlone | None = None,
) -> AsyncIterator[Page]:
    """A complete list; raises what a read raises, and `TooLarge` for a list without end.

    For an object that is too large by itself `read_alone` is asked, with its metadata. It is left out if that gives
    None; if there is no `read_alone`, `TooLarge` is raised: then the list is a proof of what is absent.
    """
    limit, listed, token = PAGE, 0, ""
    while True:
        asked = {**query, "limit": str(limit), **({"continue": token} if token else {})}
        try:
            raw, size = await _read(client, path, asked, accept)
            page, token = _understood(path, raw)
        except errors.TooLarge:
            if limit > 1:
                limit = max(1, limit // _SMALLER)
                continue
            if read_alone is None or accept == METADATA_LIST:
                raise
            raw, size = await _read(client, path, asked, METADATA_LIST)
            page, token = _understood(path, raw)
            page = await _each_alone(path, page, read_alone)
        yield page
        if not token:
            return
        listed += max(1, len(page.items) + len(page.left_out))
        if listed > MOST_LISTED:
            raise errors.TooLarge(f"GET {path}: the list has more than {MOST_LISTED} objects")
        limit = _next_limit(limit, size, len(page.items))


def _next_limit(limit: int, size: int, count: int) -> int:
    """How many to ask for next, if so many had that size."""
    fitting = AIM * count // max(1, size) if count else PAGE
    return max(1, min(PAGE, limit * _GROWTH, fitting))


async def _read(client: ClusterClient, path: str, query: Mapping[str, str], accept: str) -> tuple[Json, int]:
    """A page, and its size in bytes."""
    size = 0

    def loads(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
        nonlocal size
        size = len(raw)
        return bounds.loads(raw)

    return await client.get(path, query, accept=accept, loads=loads), size


def _understood(path: str, raw: Json) -> tuple[Page, str]:
    try:
        metadata, items = raw["metadata"], tuple(items_of(raw))
        return Page(items, str(metadata.get("resourceVersion") or "")), metadata.get("continue") or ""
    except (KeyError, TypeError, AttributeError) as error:
        raise errors.Unavailable(f"GET {path}: the answer makes no sense: {error!r}") from error


async def _each_alone(path: str, page: Page, read_alone: ReadAlone) -> Page:
    found, left_out = [], []
    for item in page.items:
        try:
            read = await read_alone(item)
        except errors.TooLarge:
            read = None
        except errors.NotFound:
            continue  # it has gone meanwhile
        if read is None:
            _log.error("object_too_large", path=path, name=str(item.get("metadata", {}).get("name"))[:300])
            left_out.append(item)
        else:
            found.append(read)
    return Page(tuple(found), page.version, tuple(left_out))

"""Lists, page by page: complete, and bounded in bytes, not only in number.

The model: a page has as many objects as make `AIM` bytes, or `AIM_CONTAINERS` lists and objects, going by those before.
One that turns out to have half as much again is not parsed but asked for in smaller parts. An object that is
too large all by itself is read in another way if there is one, else left out and told: neither keeps the others from
being listed. A list without end is given up.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dispatcher import errors, log
from dispatcher.api.sizes import count_containers
from dispatcher.kube import bounds
from dispatcher.kube.answers import items_of
from dispatcher.kube.client import JSON, METADATA_LIST, ClusterClient, Json

PAGE: Final = 500
"""Objects asked for at once, at most."""

AIM: Final = 2**20
"""Bytes that a page is to have: of pods, some 300. Parsing them, with the collections of garbage that this causes,
takes some 10 to 15 ms, in which nobody else has a turn; of four times as many it took over 100 ms."""

AIM_CONTAINERS: Final = 2**16
"""Lists and objects that a page is to have: parsing small ones takes as long as parsing that many bytes."""

MOST_SHARES: Final = 1.5
"""How many times that much a page of more than one object may have and is still parsed."""

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
            raw, shares = await _read(client, path, asked, accept, MOST_SHARES if limit > 1 else math.inf)
            page, token = _understood(path, raw)
        except errors.TooLarge:
            if limit > 1:
                limit = max(1, limit // _SMALLER)
                continue
            if read_alone is None or accept == METADATA_LIST:
                raise
            raw, _ = await _read(client, path, asked, METADATA_LIST, math.inf)
            shares = 1.0  # the next may be as large: four of them would be read for nothing
            page, token = _understood(path, raw)
            page = await _each_alone(path, page, read_alone)
        yield page
        if not token:
            return
        listed += max(1, len(page.items) + len(page.left_out))
        if listed > MOST_LISTED:
            raise errors.TooLarge(f"GET {path}: the list has more than {MOST_LISTED} objects")
        limit = _next_limit(limit, shares, len(page.items))


def _next_limit(limit: int, shares: float, count: int) -> int:
    """How many to ask for next, if so many were so many times what a page is to have."""
    fitting = int(count / shares) if count and shares else PAGE
    return max(1, min(PAGE, limit * _GROWTH, fitting))


def _shares(raw: bytes) -> float:
    """How many times an answer is as large as a page is to be; by its bytes alone if it has too many of them."""
    by_length = len(raw) / AIM
    return by_length if by_length > MOST_SHARES else max(by_length, count_containers(raw) / AIM_CONTAINERS)


async def _read(
    client: ClusterClient, path: str, query: Mapping[str, str], accept: str, most: float
) -> tuple[Json, float]:
    """A page, and how many times it is as large as it is to be; `TooLarge` if that is more than `most`."""
    shares = 0.0

    def loads(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
        nonlocal shares
        shares = _shares(raw)
        if shares > most:
            raise errors.TooLarge(f"GET {path}: a page is {shares:.0f} times as large as it is to be")
        return bounds.loads(raw)

    return await client.get(path, query, accept=accept, loads=loads), shares


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

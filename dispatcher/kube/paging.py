"""Complete lists in pages that are bounded in bytes.

A page has as many objects as take `AIM` bytes or `AIM_CONTAINERS` lists and objects, by the size of the pages before;
the first has `FIRST_PAGE`. A page that is 1.5 times as large is not parsed, but requested again in smaller pages. An
object that is too large by itself is read in another way if there is one, else it is logged and left out, so that the
other objects are still listed. A list with too many objects ends with an error.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api.validation import count_containers
from dispatcher.kube import bounds
from dispatcher.kube.api_calls import items_of
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import JSON, METADATA_LIST, ClusterClient, Json

PAGE: Final = 500
"""Most objects in a page."""

FIRST_PAGE: Final = 200
"""Objects in the first page. 500 pods or AppWrappers of 4 KiB are too large for a page: the API server would read and
send them for nothing."""

AIM: Final = 2**20
"""Bytes aimed at in a page: about 300 pods. Parsing them, with the garbage collections it causes, blocks the event loop
for 10 to 15 ms; four times as many took over 100 ms."""

AIM_CONTAINERS: Final = 2**16
"""Lists and objects aimed at in a page: parsing that many small ones takes as long as parsing `AIM` bytes."""

MOST_SHARES: Final = 1.5
"""Multiple of that size up to which a page of more than one object is parsed."""

MOST_LISTED: Final = 250_000
"""Objects of one kind in one cluster. Kubernetes itself ends at 150,000 pods.
Source: https://kubernetes.io/docs/setup/best-practices/cluster-large/"""

_SMALLER: Final = 8
_GROWTH: Final = 4

_log = log.get("paging")

ReadAlone = Callable[[Json], Awaitable[Json | None]]


class Page(Struct, frozen=True):
    """Some objects of a list, and the resource version of the list; for objects `left_out` there is only metadata."""

    items: tuple[Json, ...]
    version: str
    left_out: tuple[Json, ...] = ()


async def no_other_way(_metadata: Json) -> Json | None:
    """None: the object cannot be read in another way."""
    return None


async def pages(
    client: ClusterClient,
    path: str,
    query: Mapping[str, str],
    *,
    accept: str = JSON,
    read_alone: ReadAlone | None = None,
    retries_forbidden: bool = False,
) -> AsyncIterator[Page]:
    """The pages of a complete list; raises as a read does, and `TooLarge` for a list with too many objects.

    `read_alone` reads an object that is too large, given its metadata; None leaves the object out. Without
    `read_alone`, `TooLarge` is raised instead: then an object that is missing in the list does not exist. If it
    `retries_forbidden`, a refusal counts once the API server is ready (`ClusterClient.retry_forbidden`).
    """
    limit, listed, token = FIRST_PAGE, 0, ""
    while True:
        paged_query = {**query, "limit": str(limit), **({"continue": token} if token else {})}
        try:
            most = MOST_SHARES if limit > 1 else math.inf
            raw, shares = await _read(
                client, path, paged_query, accept, most, retries_forbidden=retries_forbidden
            )
            page, token = _understood(path, raw)
        except errors.TooLarge:
            if limit > 1:
                limit = max(1, limit // _SMALLER)
                continue
            if read_alone is None or accept == METADATA_LIST:
                raise
            raw, _ = await _read(client, path, paged_query, METADATA_LIST, math.inf)
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
    """The size of the next page, if a page of `count` objects had `shares` times the size aimed at."""
    fitting = int(count / shares) if count and shares else PAGE
    return max(1, min(PAGE, limit * _GROWTH, fitting))


def _shares(raw: bytes) -> float:
    """The size of an answer as a multiple of the size aimed at; by bytes alone if they are too many."""
    by_length = len(raw) / AIM
    return by_length if by_length > MOST_SHARES else max(by_length, count_containers(raw) / AIM_CONTAINERS)


async def _read(
    client: ClusterClient,
    path: str,
    query: Mapping[str, str],
    accept: str,
    most: float,
    *,
    retries_forbidden: bool = False,
) -> tuple[Json, float]:
    """A page and its size as a multiple of the size aimed at; raises `TooLarge` above `most`."""
    shares = 0.0

    def loads(raw: bytes) -> Any:  # noqa: ANN401  # any JSON
        nonlocal shares
        shares = _shares(raw)
        if shares > most:
            raise errors.TooLarge(f"GET {path}: a page is {shares:.0f} times as large as it is to be")
        return bounds.loads(raw)

    def call() -> Awaitable[Json]:
        return client.get(path, query, accept=accept, loads=loads, purpose=Purpose.CLUSTER)

    return await (client.retry_forbidden(call) if retries_forbidden else call()), shares


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

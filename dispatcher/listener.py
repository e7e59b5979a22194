"""Listens for HTTP with a bound on open connections: whoever reaches the port can open any number of them.

Idle connections cost descriptors, and a process without descriptors answers nobody. So a connection lasts
`MOST_SECONDS`, and gives way once `MOST_CONNECTIONS` others came after it, unless its server says that it is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from aiohttp import web

MOST_CONNECTIONS: Final = 64
"""Connections at once; a kubelet and a few Prometheus servers have one each, for milliseconds, and a browser six."""

MOST_SECONDS: Final = 10.0
"""The longest life of a connection, from its first byte to the last; a probe gives up after a second by default."""

IsKept = Callable[[web.RequestHandler], bool]


@asynccontextmanager
async def listening(
    server: web.Server,
    address: str,
    port: int,
    *,
    most_seconds: float = MOST_SECONDS,
    is_kept: IsKept = lambda _: False,
) -> AsyncIterator[int]:
    """Listen until the block ends; yields the port that was bound. Connections that are kept have no bound."""
    connections = _Connections(server, is_kept)
    listener = await asyncio.get_running_loop().create_server(connections.accept, address, port)
    ending = asyncio.create_task(connections.end_old(most_seconds), name="old-connections")
    try:
        yield int(listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        ending.cancel()
        with suppress(asyncio.CancelledError):
            await ending


class _Connections:
    """The open connections that are not kept, oldest first: about `MOST_CONNECTIONS` at most, and none for long.

    The oldest of the peer with the most gives way: neither idle connections nor ever new ones from elsewhere must keep
    a kubelet's probe away. Connections that the event loop accepts in one turn (its backlog, 100) are counted in the
    next.
    """

    def __init__(self, server: web.Server, is_kept: IsKept) -> None:
        self._server = server
        self._is_kept = is_kept
        self._seen: dict[web.RequestHandler, float] = {}

    def accept(self) -> web.RequestHandler:
        """The protocol of a connection that was just accepted."""
        left = [each for each in self._bounded() if each.transport and not each.transport.is_closing()]
        by_peer: dict[str, deque[web.RequestHandler]] = {}
        for each in left:
            by_peer.setdefault(_peer_of(each), deque()).append(each)
        for _ in range(len(left) - MOST_CONNECTIONS + 1):
            _end(max(by_peer.values(), key=len).popleft())
        return self._server()

    async def end_old(self, most_seconds: float) -> None:
        """End connections of that age, until cancelled; looks four times within it."""
        while True:
            await asyncio.sleep(most_seconds / 4)
            now = asyncio.get_running_loop().time()
            self._seen = {each: self._seen.get(each, now) for each in self._bounded()}
            for handler, since in self._seen.items():
                if since <= now - most_seconds * 3 / 4:
                    _end(handler)

    def _bounded(self) -> list[web.RequestHandler]:
        return [each for each in self._server.connections if not self._is_kept(each)]


def _peer_of(handler: web.RequestHandler) -> str:
    """The address of a connection's peer; empty if it has gone."""
    name = handler.transport.get_extra_info("peername") if handler.transport else None
    return str(name[0]) if name else ""


def _end(handler: web.RequestHandler) -> None:
    """End a connection at once: a part of an answer that its peer does not read must not keep it open."""
    if handler.transport is not None:
        handler.transport.abort()

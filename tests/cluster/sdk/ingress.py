"""A stand-in for an ingress controller: any host, any path, 200."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class IngressController:
    """Reached as an HTTP proxy, so that hosts need no name service."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[IngressController]:
        """One that ends with the block."""
        controller = cls()
        async with await asyncio.start_server(controller._answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            controller.url = f"http://{host}:{port}"
            yield controller

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

"""A proxy before Postgres that sees every COMMIT, and fails there if a test says so.

It reads the wire protocol only for transactions: the statements since the begin of a session's transaction, its COMMIT,
and the server's answer to that. Everything else passes unchanged. It refuses encryption, which it cannot read, and
supports neither COPY nor pipelines of several transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict

from testbed.proxy import Fault, Rules

SSL_REQUEST: Final = 80877103
ENCRYPTION_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
REFUSES_ENCRYPTION: Final = b"N"
DEFAULT_PORT: Final = 5432


@dataclass(slots=True)
class Commit:
    """A transaction whose client sent COMMIT; `applied` once the server has confirmed the commit."""

    statements: tuple[str, ...]
    applied: bool = False


class Conversation:
    """The transactions of one session, from the messages of its client."""

    def __init__(self) -> None:
        self._prepared: dict[bytes, str] = {}
        self._statements: list[str] = []

    def hear(self, message: bytes) -> Commit | None:
        """Reads one message of this type, length and content; returns a commit if it requests one."""
        kind, content = message[:1], message[5:]
        match kind:
            case b"Q":
                return self._statement(content.rstrip(b"\0").decode(errors="replace"))
            case b"P":
                name, text, _ = content.split(b"\0", 2)
                self._prepared[name] = text.decode(errors="replace")
            case b"B":
                _, name, _ = content.split(b"\0", 2)
                return self._statement(self._prepared.get(name, ""))
            case _:
                pass
        return None

    def _statement(self, text: str) -> Commit | None:
        words = text.strip().rstrip(";").upper().split()
        match words[:1]:
            case ["COMMIT"]:
                commit = Commit(tuple(self._statements))
                self._statements.clear()
                return commit
            case ["BEGIN" | "ROLLBACK"]:
                self._statements.clear()
            case _:
                self._statements.append(text)
        return None


class PostgresProxy:
    """Use as an async context manager; `url` leads through it, to the database of the given URL."""

    def __init__(self, url: str) -> None:
        self.rules: Rules[Commit] = Rules()
        self._parameters = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        self._sessions: dict[asyncio.Task[None], Session] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for session in self._sessions.values():
            session.end()
        await asyncio.gather(*self._sessions)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """A libpq URL."""
        given = self._parameters
        user, password = (quote(given.get(name, ""), safe="") for name in ("user", "password"))
        authority = f"{user}:{password}@" if password else f"{user}@" if user else ""
        port = self._server.sockets[0].getsockname()[1]
        database = quote(given.get("dbname", ""), safe="")
        return f"postgresql://{authority}127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"

    def cut(self) -> None:
        """Cuts every present session; faults at commits still run to their end."""
        for session in self._sessions.values():
            session.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Side(reader, writer)
        try:
            server = await self._connect()
        except OSError:
            client.cut()  # the server is away, so the proxy is, too
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine always runs in a task
        session = self._sessions[task] = Session(client, server, self.rules)
        try:
            # Either side may close at any point: tests cause that.
            with contextlib.suppress(OSError, EOFError):
                await session.run()
        finally:
            del self._sessions[task]

    async def _connect(self) -> Side:
        host, port = self._parameters.get("host", ""), int(self._parameters.get("port", DEFAULT_PORT))
        if host.startswith("/"):
            return Side(*await asyncio.open_unix_connection(Path(host) / f".s.PGSQL.{port}"))
        return Side(*await asyncio.open_connection(host or "127.0.0.1", port))


class Side:
    """One end of a session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def opening(self) -> tuple[int, bytes]:
        """The code and the whole of a message without a type: the messages before a session."""
        head = await self._reader.readexactly(8)
        length, code = struct.unpack("!ii", head)
        return code, head + await self._reader.readexactly(length - 8)

    async def messages(self) -> AsyncIterator[bytes]:
        """Every whole message, until the end."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await self._reader.readexactly(5)
                (length,) = struct.unpack("!i", head[1:])
                yield head + await self._reader.readexactly(length - 4)

    async def send(self, message: bytes) -> None:
        """Sends, and waits while the other end takes nothing."""
        self._writer.write(message)
        await self._writer.drain()

    def cut(self) -> None:
        """Cuts the connection."""
        self._writer.transport.abort()


class Session:
    """One client's connection and the server's end of it."""

    def __init__(self, client: Side, server: Side, rules: Rules[Commit]) -> None:
        self._client = client
        self._server = server
        self._rules = rules
        self._asked: tuple[Commit, Fault] | None = None
        self._pumps: list[asyncio.Task[None]] = []
        # A fault runs to its end, even if it makes a side close.
        self._acting = asyncio.Lock()

    async def run(self) -> None:
        """Passes messages on until either side closes or a fault cuts both."""
        try:
            if await self._open():
                self._pumps = [asyncio.create_task(self._up()), asyncio.create_task(self._down())]
                await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Cuts both connections, which ends `run` unless a fault holds it."""
        self._client.cut()
        self._server.cut()

    def end(self) -> None:
        """Cuts both connections, and cancels everything held."""
        self.cut()
        for pump in self._pumps:
            pump.cancel()

    async def _open(self) -> bool:
        """Passes the startup message on; False for a request to cancel, which is no session."""
        while True:
            code, message = await self._client.opening()
            if code in (SSL_REQUEST, ENCRYPTION_REQUEST):
                await self._client.send(REFUSES_ENCRYPTION)
                continue
            await self._server.send(message)
            return code != CANCEL_REQUEST

    async def _up(self) -> None:
        conversation = Conversation()
        async for message in self._client.messages():
            commit = conversation.hear(message)
            if commit is not None and not await self._ask(commit):
                return
            await self._server.send(message)
        async with self._acting:
            pass

    async def _ask(self, commit: Commit) -> bool:
        """Applies the faults of a commit; False if it is not passed on."""
        fault = self._rules.meet(commit)
        async with self._acting:
            await fault.before()
        self._asked = commit, fault
        return fault.forward

    async def _down(self) -> None:
        held: list[bytes] = []
        async for message in self._server.messages():
            if self._asked is None:
                await self._client.send(message)
                continue
            held.append(message)
            commit, fault = self._asked
            commit.applied |= message[:1] == b"C" and message[5:] == b"COMMIT\0"
            if message[:1] == b"Z":
                async with self._acting:
                    await fault.after()
                if not fault.pass_on:
                    return
                self._asked = None
                await self._client.send(b"".join(held))
                held.clear()
        async with self._acting:
            pass

"""Keeps the declared queues in the database: history knows each quota, and the specs by which a decision was made.

The declarations are written when this leader begins, and after a change of a valid queue; nothing is written in
between. A change that cannot be written is tried again, and counts from the moment at which it was written.

The queues and trees that were seen are kept as well: a later leader must not take the absence of one that is just being
replaced for a hub without queues. So are the values of priority classes: one that is just being replaced keeps its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from dispatcher import errors, log
from dispatcher.core.intake.labels import ClassValue
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.leaf_quota import LeafQuota, leaf_quotas
from dispatcher.core.queues.queue import Queue

RETRY_SECONDS: Final = 30.0
"""Seconds until declarations that could not be written are tried again."""

_log = log.get("queue-declarations")


class Queues(Protocol):
    """The declared queues."""

    @property
    def declared(self) -> DeclaredQueues:
        """All declared queues; the same value until one of them changes."""

    @property
    def seen(self) -> frozenset[str]:
        """The keys of the queues and trees that are there or linger."""


class Classes(Protocol):
    """The priority classes."""

    @property
    def seen(self) -> Mapping[str, ClassValue] | None:
        """The classes that are there or linger, by key; None while there may be others that an earlier leader saw."""


class Store(Protocol):
    """The operations on the database."""

    async def declare(self, quotas: Sequence[LeafQuota], now: datetime) -> None:
        """Note that exactly these leaves are declared from `now` on."""

    async def declare_specs(self, queues: Sequence[Queue], now: datetime) -> None:
        """Note that exactly these queues, in the order of declaration, are valid from `now` on."""

    async def note_seen(self, keys: Collection[str]) -> None:
        """Note that exactly these queues and trees are there or linger."""

    async def note_classes(self, classes: Mapping[str, ClassValue]) -> None:
        """Note that exactly these priority classes are there or linger."""


class DeclarationKeeper:
    """Writes the declarations while `run` runs."""

    def __init__(self, queues: Queues, classes: Classes, store: Store, now: Callable[[], datetime]) -> None:
        self._queues = queues
        self._classes = classes
        self._store = store
        self._now = now
        self._changed = asyncio.Event()
        self._written: tuple[LeafQuota, ...] | None = None
        self._written_specs: tuple[Queue, ...] | None = None
        self._written_seen: frozenset[str] | None = None
        self._written_classes: Mapping[str, ClassValue] | None = None

    def wake(self) -> None:
        """Have the declarations compared soon: a queue or a class was declared, changed or removed."""
        self._changed.set()

    async def run(self) -> None:
        """Write each change, until cancelled."""
        while True:
            self._changed.clear()
            pause = None if await self._write_safely() else RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _write_safely(self) -> bool:
        """Write what has changed; False if that failed."""
        try:
            await self._write()
        except errors.Fenced:
            raise
        except errors.StoreError as error:
            _log.warning("queue_declarations_not_written", error=str(error))
            return False
        except Exception as error:  # noqa: BLE001  # the loop's edge: history has the quotas of before, no more
            log.internal_error("queue-declarations", error)
            return False
        return True

    async def _write(self) -> None:
        declared, now = self._queues.declared, self._now()
        seen = self._queues.seen
        if seen != self._written_seen:
            await self._store.note_seen(seen)
            self._written_seen = seen
        classes = self._classes.seen
        if classes is not None and classes != self._written_classes:
            await self._store.note_classes(classes)
            self._written_classes = classes
        forest = declared.forest
        specs = declared.valid
        if specs != self._written_specs:
            await self._store.declare_specs(specs, now)
            self._written_specs = specs
        quotas = leaf_quotas(forest) if declared.is_declared else ()
        if quotas != self._written:
            await self._store.declare(quotas, now)
            self._written = quotas

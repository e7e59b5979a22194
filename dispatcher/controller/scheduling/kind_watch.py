"""Watches of some kinds on the hub whose changes have one follower: the part that queues and priority classes share.

An API server that does not serve a kind, or refuses to list it, counts as one without such objects; a refusal is in the
log. Any other failure of a first list delays the leader, because a list that cannot be read is not an empty list.

Later, an absent object counts as gone only by what the API server says for long enough (`absence`). A CRD takes its
objects with it, so a kind that a ready API server does not list is a complete list without objects; a refusal, a
failure, and a 404 of the collection alone are no list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dispatcher import errors, log
from dispatcher.kube.discovery import Discovery, Kind
from dispatcher.kube.reflector import Reflector


class KindLocator:
    """Finds the collection of a kind for a reflector, in the first of `versions` that is served.

    After a 404 of the collection (`look_again`) the kind is looked up anew, with a request for each version and one
    whether the API server is ready. `on_gone` is called when `is_gone` becomes true.
    """

    def __init__(
        self,
        discovery: Discovery,
        versions: Sequence[str],
        kind: str,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._discovery = discovery
        self._versions = versions
        self._kind = kind
        self._on_gone = on_gone
        self._found: Kind | None = None
        self.is_gone = False
        """True from the answer of a ready API server that it serves no version, until another look ends otherwise."""

    async def locate(self) -> str:
        """The path of the collection; raises `NotFound` if a ready API server serves no version of the kind."""
        was_gone, self.is_gone = self.is_gone, False
        try:
            self._found = await self._find()
        except errors.NotFound:
            self.is_gone = True
            if not was_gone:
                self._on_gone()
            raise
        return self._found.everywhere()

    def look_again(self) -> None:
        """Have the next `locate` ask the API server: it does not know the path of the collection."""
        if self._found is not None:
            self._discovery.forget(self._found)
            self._found = None

    async def _find(self) -> Kind:
        for version in self._versions[:-1]:
            try:
                return await self._discovery.find(version, self._kind)
            except errors.NotFound:
                continue
        return await self._discovery.find(self._versions[-1], self._kind)


class KindWatch:
    """Runs `reflectors`, and awaits `on_changed` after `mark_changed` was called; several changes at once are one.

    `worker` names the loop in the log and in the metric of internal errors. `on_forbidden` gets the name of each watch
    whose first list is refused.
    """

    def __init__(
        self,
        worker: str,
        reflectors: Sequence[Reflector[Any]],
        on_changed: Callable[[], Awaitable[None]],
        on_forbidden: Callable[[str], None],
    ) -> None:
        self._worker = worker
        self._reflectors = reflectors
        self._on_changed = on_changed
        self._on_forbidden = on_forbidden
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._reflectors:
                tasks.create_task(each.run(), name=each.name)
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._notify()

    async def wait_until_listed(self) -> None:
        """Return once each kind was listed, or the API server does not serve it or has refused the list."""
        for each in self._reflectors:
            await each.heard.wait()
            if each.is_forbidden:
                self._on_forbidden(each.name)

    @property
    def first_lists(self) -> Sequence[tuple[Reflector[Any], asyncio.Event]]:
        """The watches, each with the event of its first answer; a refusal counts as one."""
        return [(each, each.heard) for each in self._reflectors]

    def mark_changed(self) -> None:
        """Have `on_changed` awaited soon."""
        self._changed.set()

    async def _notify(self) -> None:
        try:
            await self._on_changed()
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: a later change calls it again
            log.internal_error(self._worker, error)

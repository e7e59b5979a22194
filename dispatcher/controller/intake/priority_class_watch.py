"""The watch of priority classes: Kubernetes' own, and Kueue's where their CRD is installed.

An API server that does not serve a kind, or refuses to list it, counts as one without such classes; a refusal is in the
log. Any other failure of a first list delays the leader: AppWrappers would be queued with priority 0 meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.core.intake.priority_classes import PriorityClasses
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector

PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
"""The versions of WorkloadPriorityClass, the newest first; the first that is served is watched."""
KUEUE_KIND: Final = "WorkloadPriorityClass"

_log = log.get("priority_classes")


class _Class(NamedTuple):
    name: str
    value: int


class PriorityClassWatch:
    """Keeps the values of all priority classes; awaits `on_changed` with the names of those that have changed."""

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_changed: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self._discovery = discovery
        self._on_changed = on_changed
        self._of_workloads: dict[str, int] = {}
        self._of_pods: dict[str, int] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._reflectors = (
            Reflector("priorityclasses", client, _path, _decode, self._keeping(self._of_pods)),
            Reflector(
                "workloadpriorityclasses",
                client,
                self._path_of_kueue,
                _decode,
                self._keeping(self._of_workloads),
            ),
        )

    @property
    def classes(self) -> PriorityClasses:
        """The classes as they are now."""
        return PriorityClasses(self._of_workloads, self._of_pods)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._reflectors:
                tasks.create_task(each.run(), name=each.name)
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._notify()

    async def wait_until_listed(self) -> None:
        """Return once each kind was listed, or the API server does not serve it or has refused the list."""
        for each in self._reflectors:
            await each.heard.wait()
            if each.is_forbidden:
                _log.warning("priority_classes_unknown", watch=each.name, remedy="apply manifests/hub.yaml")

    @property
    def first_lists(self) -> FirstLists:
        """The watches of priority classes; a refusal counts as an answer."""
        return [(each, each.heard) for each in self._reflectors]

    async def _notify(self) -> None:
        names = frozenset(self._changed)
        self._changed.clear()
        try:
            await self._on_changed(names)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: the next change is told all the same
            log.internal_error("priority_classes", error)

    def _keeping(self, values: dict[str, int]) -> Callable[[str, _Class | None, _Class | None], None]:
        def changed(_uid: str, old: _Class | None, new: _Class | None) -> None:
            if old == new:
                return
            for each in filter(None, (old, new)):
                values.pop(each.name, None)
                self._changed.add(each.name)
            if new is not None:
                values[new.name] = new.value
            self._wake.set()

        return changed

    async def _path_of_kueue(self) -> str:
        for version in KUEUE_VERSIONS[:-1]:
            try:
                return (await self._discovery.find(version, KUEUE_KIND)).everywhere()
            except errors.NotFound:
                continue
        return (await self._discovery.find(KUEUE_VERSIONS[-1], KUEUE_KIND)).everywhere()


async def _path() -> str:
    return PATH


def _decode(raw: Json) -> _Class:
    return _Class(raw["metadata"]["name"], int(raw["value"]))

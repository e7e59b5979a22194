"""The watch of priority classes: Kubernetes' own, and Kueue's where their CRD is installed.

`kind_watch` has the rules for kinds that cannot be listed: AppWrappers would be queued with priority 0 meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.controller.scheduling.kind_watch import KindWatch
from dispatcher.core.intake.priority_classes import PriorityClasses
from dispatcher.core.model.preemption import PREEMPT_NEVER
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector

_LARGEST: Final = 2**31
"""A priority is a number of 32 bits, with a sign."""

PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
"""The versions of WorkloadPriorityClass, the newest first; the first that is served is watched."""
KUEUE_KIND: Final = "WorkloadPriorityClass"

_log = log.get("priority_classes")


class _Class(NamedTuple):
    name: str
    value: int
    never_preempts: bool


class PriorityClassWatch(KindWatch):
    """Keeps the values of all priority classes; awaits `on_changed` with the names of those that have changed."""

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_changed: Callable[[frozenset[str]], Awaitable[None]],
    ) -> None:
        self._discovery = discovery
        self._on_changed_names = on_changed
        self._of_workloads: dict[str, int] = {}
        self._of_pods: dict[str, int] = {}
        self._never_preempting: set[str] = set()
        self._changed_names: set[str] = set()
        reflectors = (
            Reflector(
                "priorityclasses",
                client,
                _path,
                _decode,
                self._keeping(self._of_pods, self._never_preempting),
            ),
            Reflector(
                "workloadpriorityclasses",
                client,
                self._path_of_kueue,
                _decode,
                self._keeping(self._of_workloads, set()),
            ),
        )
        super().__init__("priority_classes", reflectors, self._notify_of_names, _warn)

    @property
    def classes(self) -> PriorityClasses:
        """The classes as they are now."""
        return PriorityClasses(self._of_workloads, self._of_pods, self._never_preempting)

    async def _notify_of_names(self) -> None:
        names = frozenset(self._changed_names)
        self._changed_names.clear()
        await self._on_changed_names(names)

    def _keeping(
        self, values: dict[str, int], never_preempting: set[str]
    ) -> Callable[[str, _Class | None, _Class | None], None]:
        def changed(_uid: str, old: _Class | None, new: _Class | None) -> None:
            if old == new:
                return
            for each in filter(None, (old, new)):
                values.pop(each.name, None)
                never_preempting.discard(each.name)
                self._changed_names.add(each.name)
            if new is not None:
                values[new.name] = new.value
                if new.never_preempts:
                    never_preempting.add(new.name)
            self.mark_changed()

        return changed

    async def _path_of_kueue(self) -> str:
        for version in KUEUE_VERSIONS[:-1]:
            try:
                return (await self._discovery.find(version, KUEUE_KIND)).everywhere()
            except errors.NotFound:
                continue
        return (await self._discovery.find(KUEUE_VERSIONS[-1], KUEUE_KIND)).everywhere()


def _warn(watch: str) -> None:
    _log.warning("priority_classes_unknown", watch=watch, remedy="apply manifests/base/hub.yaml")


async def _path() -> str:
    return PATH


def _decode(raw: Json) -> _Class | None:
    """None for a value that is no priority: such a class is not known."""
    value = raw.get("value")
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST:
        return None
    return _Class(raw["metadata"]["name"], value, raw.get("preemptionPolicy") == PREEMPT_NEVER)

"""The watch of priority classes: Kubernetes' own, and Kueue's where their CRD is installed.

`kind_watch` has the rules for kinds that cannot be listed: new AppWrappers would be queued with priority 0 meanwhile. A
class that is not there any more keeps its last values until its absence has lasted (`absence`): while it is replaced,
no gang changes its priority. The last values are recorded, so a later leader knows them, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from dispatcher import log
from dispatcher.controller.scheduling.absence import CHECK_SECONDS, LASTS_SECONDS, Absences
from dispatcher.controller.scheduling.kind_watch import KindLocator, KindWatch
from dispatcher.core.intake.labels import ChangedClasses, ClassValue, PriorityClasses
from dispatcher.core.model.records.preemption import PREEMPT_NEVER
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector

_LARGEST: Final = 2**31
"""A priority is a number of 32 bits, with a sign."""

PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
KUEUE_VERSIONS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
"""The versions of WorkloadPriorityClass, the newest first; the first that is served is watched."""
KUEUE_KIND: Final = "WorkloadPriorityClass"

MOST_REPORTED: Final = 20
"""Absent classes that are logged after one change."""

_OF_EARLIER_LEADERS: Final = ""
"""The key of all classes that only earlier leaders saw, and did not record."""

_log = log.get("priority_classes")


class _Class(NamedTuple):
    name: str
    value: int
    never_preempts: bool


class _ClassesOfKind:
    """The last values of the classes of one kind that are there, or whose absence has not lasted.

    Without a `locator` the kind is one of Kubernetes' own, which every API server has. `on_changed` is called with each
    name whose values change.
    """

    def __init__(
        self, name: str, client: ClusterClient, locator: KindLocator | None, on_changed: Callable[[str], None]
    ) -> None:
        self.values: dict[str, int] = {}
        self.never_preempting: set[str] = set()
        self._locator = locator
        self._on_changed = on_changed
        self._is_outdated = False
        """True from the end of the kind to the next list: the reflector's store outlives its CRD."""
        self.reflector: Reflector[_Class] = Reflector(
            name,
            client,
            locator.locate if locator is not None else _path,
            _decode,
            self._note,
            on_listed=self._note_listed,
            on_not_served=self._note_not_served,
        )

    @property
    def there(self) -> set[str]:
        """The names of the classes that are there, by the last that is known."""
        return set() if self._is_outdated else {each.name for each in self.reflector.items.values()}

    @property
    def is_current(self) -> bool:
        """True while a class that is not there is known to be absent, also because its kind is gone (`kind_watch`)."""
        return self.reflector.is_current or self._is_gone

    def keep(self, name: str, value: ClassValue) -> None:
        """Keep what a class says, which a list may change."""
        self.values[name] = value.value
        (self.never_preempting.add if value.never_preempts else self.never_preempting.discard)(name)

    def forget(self, name: str) -> None:
        """Forget a class whose absence has lasted."""
        self.values.pop(name, None)
        self.never_preempting.discard(name)
        self._on_changed(name)

    @property
    def _is_gone(self) -> bool:
        return self._locator is not None and self._locator.is_gone

    def _note(self, _uid: str, old: _Class | None, new: _Class | None) -> None:
        if new is None or old == new:
            return
        known = self.values.get(new.name), new.name in self.never_preempting
        self.keep(new.name, ClassValue(new.value, new.never_preempts))
        if known != (new.value, new.never_preempts):
            self._on_changed(new.name)

    def _note_listed(self) -> None:
        self._is_outdated = False

    def _note_not_served(self) -> None:
        if self._locator is not None:
            self._is_outdated |= self._locator.is_gone
            self._locator.look_again()


class PriorityClassWatch(KindWatch):
    """Keeps the values of all priority classes; awaits `on_changed` with those that have changed.

    A name that is not there may be that of a class until complete lists were read. Where no earlier leader has recorded
    the classes that it saw (`load`), they must have gone on for as long as an absence has to last. Every few seconds
    each class costs one step.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_changed: Callable[[ChangedClasses], Awaitable[None]],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_changed_classes = on_changed
        self._seconds = seconds
        self._absences = Absences(seconds)
        self._absences.load([_OF_EARLIER_LEADERS])
        self._awaits_lists = False
        """True while the classes of earlier leaders are known, and the lists are not complete."""
        self._changed_names: set[str] = set()
        self._are_others_changed = False
        kueue = KindLocator(discovery, KUEUE_VERSIONS, KUEUE_KIND)
        self._of_pods = _ClassesOfKind("priorityclasses", client, None, self._note_changed)
        self._of_workloads = _ClassesOfKind("workloadpriorityclasses", client, kueue, self._note_changed)
        self._kinds = {"pods/": self._of_pods, "workloads/": self._of_workloads}
        """By the beginning of the keys of their classes."""
        reflectors = [each.reflector for each in self._kinds.values()]
        super().__init__("priority_classes", reflectors, self._notify_of_classes, _warn)

    def load(self, seen: Mapping[str, ClassValue] | None) -> None:
        """Load the classes that earlier leaders recorded, by key; None if they recorded none."""
        if seen is None:
            return
        self._awaits_lists = True
        self._absences = Absences(self._seconds)
        self._absences.load(seen)
        for key, each in seen.items():
            kind, name = self._of(key)
            kind.keep(name, each)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="priority-class-lists")
            tasks.create_task(self._follow_absences(), name="priority-class-absences")

    @property
    def classes(self) -> PriorityClasses:
        """The classes as they are now, and those that were there until lately."""
        return PriorityClasses(
            self._of_workloads.values,
            self._of_pods.values,
            self._of_pods.never_preempting,
            are_all=self._are_all,
        )

    @property
    def seen(self) -> Mapping[str, ClassValue] | None:
        """The classes that are there or linger, by key; None while there may be others that an earlier leader saw."""
        if not self._are_all:
            return None
        return {
            beginning + name: ClassValue(value, name in kind.never_preempting)
            for beginning, kind in self._kinds.items()
            for name, value in kind.values.items()
        }

    @property
    def _are_all(self) -> bool:
        return not self._awaits_lists and _OF_EARLIER_LEADERS not in self._absences.lingering

    async def _notify_of_classes(self) -> None:
        known = frozenset(name for kind in self._kinds.values() for name in kind.values)
        changed = ChangedClasses(frozenset(self._changed_names), known if self._are_others_changed else None)
        self._changed_names.clear()
        self._are_others_changed = False
        await self._on_changed_classes(changed)

    def _note_changed(self, name: str) -> None:
        self._changed_names.add(name)
        self.mark_changed()

    async def _follow_absences(self) -> None:
        """Forget the classes whose absence has lasted."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._look()

    def _look(self) -> None:
        before, known = self._absences.lingering, self._keys(lambda kind: kind.values)
        self._absences.load(known - self._absences.seen)  # also a class that came and went between two looks
        seen = self._absences.seen
        self._absences.note(self._keys(lambda kind: kind.there), self._is_listed)
        for key in seen - self._absences.seen:
            self._forget(key)
        if self._awaits_lists and self._is_listed(""):
            self._awaits_lists = False
            self._forget(_OF_EARLIER_LEADERS)
        absent = sorted(self._absences.lingering - before - {_OF_EARLIER_LEADERS})
        if absent:
            _log.warning(
                "priority_classes_absent",
                classes=absent[:MOST_REPORTED],
                count=len(absent),
                effect="their last values count until complete lists have lacked them, or their kind was not served, "
                f"for {LASTS_SECONDS:g} s",
            )

    def _forget(self, key: str) -> None:
        if key == _OF_EARLIER_LEADERS:
            self._are_others_changed = True
            self.mark_changed()
            return
        kind, name = self._of(key)
        kind.forget(name)

    def _of(self, key: str) -> tuple[_ClassesOfKind, str]:
        beginning, slash, name = key.partition("/")
        return self._kinds[beginning + slash], name

    def _keys(self, names: Callable[[_ClassesOfKind], Iterable[str]]) -> frozenset[str]:
        return frozenset(key + name for key, kind in self._kinds.items() for name in names(kind))

    def _is_listed(self, key: str) -> bool:
        return all(kind.is_current for each, kind in self._kinds.items() if not key or key.startswith(each))


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

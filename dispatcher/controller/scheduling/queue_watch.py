"""The watch of the queues: DispatchQueues, and MCAD's QuotaSubtrees where their CRD is installed.

`kind_watch` has the rules for kinds that cannot be listed. A queue, or a tree, that was there lingers until its absence
has lasted (`absence`): while one is replaced, nothing is dispatched without its quota.

Nothing changes several objects at once, so between the first and the last change of one `kubectl apply` the queues are
as nobody declared them: of two queues that swap their parents, one tree has both, and the other one no quota at all. A
change that moves a queue or an amount of quota counts once no further change has come for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from dispatcher import log
from dispatcher.api.names import PREFIX
from dispatcher.controller.scheduling.absence import CHECK_SECONDS, LASTS_SECONDS, Absences
from dispatcher.controller.scheduling.kind_watch import KindLocator, KindWatch
from dispatcher.core.queues.access import open_to_all, to_be_named
from dispatcher.core.queues.declared_queues import (
    DeclaredQueues,
    DispatchQueue,
    is_of_tree,
    last_valid,
    read_dispatch_queue,
    tree_of,
)
from dispatcher.core.queues.forest import Defaults
from dispatcher.core.queues.queue import Queue
from dispatcher.core.queues.quota_subtrees import API_VERSIONS, TREE_LABEL, Problem
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector
from dispatcher.text import mapping_of

DISPATCH_QUEUE: Final = (f"{PREFIX}/v1alpha1", "DispatchQueue")
QUOTA_SUBTREE: Final = "QuotaSubtree"
SETTLE_SECONDS: Final = 2.0
"""Seconds without another change after which a change that moves quota counts."""
MOST_PAUSES: Final = 10
"""Pauses of `SETTLE_SECONDS` after which it counts in any case."""
MOST_REPORTED: Final = 20
"""Malformed parts of QuotaSubtrees that are logged after one change."""

_Item = TypeVar("_Item")
_log = log.get("queues")


class QueueWatch(KindWatch):
    """Holds all declared queues as one value, and awaits `on_changed` after it has changed.

    A change of metadata or of a status alone is none. A malformed part of a QuotaSubtree is logged once, until it
    changes: the object has no status of ours that could show it.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        defaults: Defaults,
        on_changed: Callable[[], Awaitable[None]],
        now: Callable[[], datetime],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._defaults = defaults
        self._declared: DeclaredQueues | None = None
        self._now = now
        self._absences = Absences(seconds)
        self._were_there: frozenset[str] = frozenset()
        self._deleted: dict[str, datetime | None] = {}
        """When this leader saw that a lingering name was deleted; None for one that an earlier leader saw last."""
        self._last: dict[str, Queue] = {}
        self._reported: frozenset[Problem] = frozenset()
        self._access: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._listed: set[str] = set()
        """The watches whose first list is complete, and whose kind is not gone; the objects of others do not count."""
        self._locators: dict[str, KindLocator] = {}
        self._is_settling = False
        """True from a change that moves quota until it counts; the value stays as it was."""
        self._moved = asyncio.Event()
        """Set by each change while it `_is_settling`."""
        self._dispatch_queues: Reflector[DispatchQueue] = self._watch(
            "dispatchqueues", *DISPATCH_QUEUE, _dispatch_queue
        )
        self._quota_subtrees: tuple[Reflector[Json], ...] = tuple(
            self._watch(
                f"quotasubtrees.{version.partition('/')[0]}", version, QUOTA_SUBTREE, _decoder(version)
            )
            for version in API_VERSIONS
        )

        async def report_and_notify() -> None:
            self._report(self.declared.problems)
            self._report_access(self.declared)
            await on_changed()

        super().__init__("queues", (self._dispatch_queues, *self._quota_subtrees), report_and_notify, _warn)

    def load(self, seen: Iterable[str], last: Mapping[str, Queue]) -> None:
        """Load the records of earlier leaders: the keys that they saw, and the last valid declaration of each queue."""
        self._absences.load(seen)
        self._last.update(last)
        self._declared = None

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="queue-lists")
            tasks.create_task(self._follow_absences(), name="queue-absences")
            tasks.create_task(self._settle(), name="queue-moves")

    @property
    def declared(self) -> DeclaredQueues:
        """All declared queues; the same value until one of them changes."""
        if self._declared is None:
            found = self._read()
            if self._note_absences(found):
                found = self._read()
            self._last.update(last_valid([found.valid]))
            self._declared = found
        return self._declared

    @property
    def last(self) -> Mapping[str, Queue]:
        """The last valid declaration of each queue that was ever valid, by name."""
        return self._last

    @property
    def seen(self) -> frozenset[str]:
        """The keys of the queues and trees that are there or linger: those that a later leader has to know."""
        return self._absences.seen

    def _read(self) -> DeclaredQueues:
        return DeclaredQueues.of(
            self._items(self._dispatch_queues),
            (item for each in self._quota_subtrees for item in self._items(each)),
            self._defaults,
            self._absences.lingering,
            self._last,
            dict(self._deleted),
        )

    async def _follow_absences(self) -> None:
        """Let the names go whose absence has lasted; each look costs a step for each queue."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._note_absences(self.declared):
                self.mark_changed()

    def _note_absences(self, declared: DeclaredQueues) -> bool:
        """Note which queues and trees are there now; True if another one is absent, deleted, or surely gone."""

        def is_known(key: str) -> bool:
            return self._is_listed(key) and not (is_of_tree(key) and tree_of(key) in declared.unread)

        changed = self._absences.note(declared.there, is_known)
        if changed:
            self._log_lingering()
        return self._note_deleted(declared) or changed

    def _note_deleted(self, declared: DeclaredQueues) -> bool:
        """Note since when complete lists lack the absent names; True if they lack others than before."""
        lacked = self._absences.lacked
        changed = lacked != self._deleted.keys()
        if changed:
            times = {name: self._now() if name in self._were_there else None for name in lacked}
            self._deleted = {name: self._deleted.get(name, time_) for name, time_ in times.items()}
        self._were_there = (self._were_there | declared.there) & self._absences.seen
        return changed

    def _is_listed(self, key: str) -> bool:
        """True if the lists that could have a queue or a tree are complete and current; that of a gone kind is."""
        watches = self._quota_subtrees if is_of_tree(key) else (self._dispatch_queues,)
        return all(each.is_current or self._locators[each.name].is_gone for each in watches)

    def _log_lingering(self) -> None:
        lingering = sorted(self._absences.lingering)
        if lingering:
            _log.warning(
                "queues_absent",
                queues=lingering[:MOST_REPORTED],
                count=len(lingering),
                effect="gangs that need one wait until it is there again, or until complete lists have lacked it, or "
                f"its kind was not served, for {LASTS_SECONDS:g} s",
            )

    @property
    def dispatch_queues(self) -> Iterable[DispatchQueue]:
        """The DispatchQueues in no order, also malformed ones, each with its status of now."""
        return self._items(self._dispatch_queues)

    def _items(self, watch: Reflector[_Item]) -> Iterable[_Item]:
        return watch.items.values() if watch.name in self._listed else ()

    def _report(self, problems: Sequence[Problem]) -> None:
        new = [each for each in problems if each not in self._reported]
        for each in new[:MOST_REPORTED]:
            _log.warning("quota_subtree_malformed", subtree=each.subtree, error=each.message)
        self._reported = frozenset(problems)

    def _report_access(self, declared: DeclaredQueues) -> None:
        """Log at the start, and after a change, which queues serve namespaces that no operator has named."""
        places = declared.forest.places.values() if declared.is_declared else ()
        access = (tuple(open_to_all(places)), tuple(to_be_named(places)))
        opened, named = access if access != self._access else ((), ())
        self._access = access
        if opened:
            _log.warning(
                "queues_open",
                queues=opened[:MOST_REPORTED],
                count=len(opened),
                effect="any user's label takes the quota of these queues",
                remedy="write a namespaceSelector on each of them, declare default with one if AppWrappers without a "
                "queue are to run, then set DISPATCHER_QUEUE_ACCESS=selected",
            )
        if named:
            _log.warning(
                "queues_without_selector",
                queues=named[:MOST_REPORTED],
                count=len(named),
                effect="only namespaces whose own label names one of these queues are served",
                remedy='write a namespaceSelector on each of them ("" for every namespace), or label the namespaces',
            )

    def _watch(
        self, name: str, api_version: str, kind: str, decode: Callable[[Json], _Item]
    ) -> Reflector[_Item]:
        def changed(_uid: str, old: _Item | None, new: _Item | None) -> None:
            # The objects of a first list count together, since a tree without some of its queues is another tree.
            if old == new or name not in self._listed:
                return
            self._is_settling = self._is_settling or _moves_quota(old, new)
            self.mark_changed()

        def listed() -> None:
            if name not in self._listed:
                self._listed.add(name)
                self._renew()

        def gone() -> None:
            # Objects that were deleted with their CRD, while no watch saw it, are still in the reflector's store.
            if name in self._listed:
                self._listed.discard(name)
                self.mark_changed()

        locator = KindLocator(self._discovery, (api_version,), kind, gone)
        self._locators[name] = locator
        return Reflector(
            name,
            self._client,
            locator.locate,
            decode,
            changed,
            on_listed=listed,
            on_not_served=locator.look_again,
        )

    def mark_changed(self) -> None:
        """Have the value made anew when it is read, and `on_changed` awaited soon; later, while quota moves."""
        if self._is_settling:
            self._moved.set()
        else:
            self._renew()

    def _renew(self) -> None:
        self._declared = None
        super().mark_changed()

    async def _settle(self) -> None:
        """Let the changes count that move quota, once they are over."""
        while True:
            await self._moved.wait()
            for _ in range(MOST_PAUSES):
                self._moved.clear()
                await asyncio.sleep(SETTLE_SECONDS)
                if not self._moved.is_set():
                    break
            self._is_settling = False
            self._moved.clear()
            self._renew()


def _moves_quota(old: object, new: object) -> bool:
    """True if a queue has another parent or other quota than before, or one of MCAD's objects was changed.

    A queue that comes or goes is no such change: it takes nothing from others, or lingers.
    """
    if isinstance(old, DispatchQueue) and isinstance(new, DispatchQueue):
        return (old.queue.parent, old.queue.resources) != (new.queue.parent, new.queue.resources)
    return old is not None and new is not None


def _warn(watch: str) -> None:
    _log.warning("queues_unknown", watch=watch, remedy="apply manifests/base/hub.yaml")


def _dispatch_queue(raw: Json) -> DispatchQueue:
    metadata = raw["metadata"]
    return read_dispatch_queue(
        raw, metadata["name"], metadata["uid"], str(metadata.get("creationTimestamp") or "")
    )


def _decoder(api_version: str) -> Callable[[Json], Json]:
    """Keeps the parts of a QuotaSubtree that declare queues: MCAD writes others, such as their status, all the time."""

    def decode(raw: Json) -> Json:
        metadata = raw["metadata"]
        labels = mapping_of(metadata.get("labels"))
        return {
            "apiVersion": api_version,
            "metadata": {
                "namespace": metadata.get("namespace", ""),
                "name": metadata["name"],
                "labels": {TREE_LABEL: labels[TREE_LABEL]} if TREE_LABEL in labels else {},
            },
            "spec": raw.get("spec"),
        }

    return decode

"""The watch of the queues: DispatchQueues, and MCAD's QuotaSubtrees where their CRD is installed.

`kind_watch` has the rules for kinds that cannot be listed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from dispatcher import log
from dispatcher.api.names import PREFIX
from dispatcher.controller.scheduling.kind_watch import KindWatch
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue, read_dispatch_queue
from dispatcher.core.queues.forest import Defaults
from dispatcher.core.queues.quota_subtrees import API_VERSIONS, TREE_LABEL, Problem
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector

DISPATCH_QUEUE: Final = (f"{PREFIX}/v1alpha1", "DispatchQueue")
QUOTA_SUBTREE: Final = "QuotaSubtree"
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
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._defaults = defaults
        self._declared: DeclaredQueues | None = None
        self._reported: frozenset[Problem] = frozenset()
        self._listed: set[str] = set()
        """The watches whose first list is complete; the objects of others do not count yet."""
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
            await on_changed()

        super().__init__("queues", (self._dispatch_queues, *self._quota_subtrees), report_and_notify, _warn)

    @property
    def declared(self) -> DeclaredQueues:
        """All declared queues; the same value until one of them changes."""
        if self._declared is None:
            self._declared = DeclaredQueues.of(
                self._items(self._dispatch_queues),
                (item for each in self._quota_subtrees for item in self._items(each)),
                self._defaults,
            )
        return self._declared

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

    def _watch(
        self, name: str, api_version: str, kind: str, decode: Callable[[Json], _Item]
    ) -> Reflector[_Item]:
        def changed(_uid: str, old: _Item | None, new: _Item | None) -> None:
            # The objects of a first list count together, since a tree without some of its queues is another tree.
            if old != new and name in self._listed:
                self.mark_changed()

        def listed() -> None:
            if name not in self._listed:
                self._listed.add(name)
                self.mark_changed()

        locate = self._locator(api_version, kind)
        return Reflector(name, self._client, locate, decode, changed, on_listed=listed)

    def _locator(self, api_version: str, kind: str) -> Callable[[], Awaitable[str]]:
        async def locate() -> str:
            return (await self._discovery.find(api_version, kind)).everywhere()

        return locate

    def mark_changed(self) -> None:
        """Have the value made anew when it is read, and `on_changed` awaited soon."""
        self._declared = None
        super().mark_changed()


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
        labels = metadata.get("labels") or {}
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

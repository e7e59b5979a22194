"""Reads how the pods of an AppWrapper failed, once it is about to end: words for people, by which nothing is decided.

A label is a claim, so a pod counts only if its controllers lead to the AppWrapper. Pods that an operator makes without
the dispatcher's labels, such as the submitter of a RayJob, are found by their controllers alone.

Anybody who may create pods in the namespace may write controllers that are many, refused or slow to read. So an answer
takes at most `HINT_SECONDS`, a few pages of pods and `MOST_READS` other reads. A controller that cannot be read hides
its own pods alone, and the AppWrapper's own pods are asked for before those without a label.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher import errors
from dispatcher.api.names import UID_LABEL
from dispatcher.core.kinds.pod_failure import by_turn
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube import paths
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import HINT_SECONDS, ClusterClient, Json
from dispatcher.kube.objects.owner_resolver import NOBODY, HintReads, OwnerResolver, controller_ref
from dispatcher.text import mapping_of, mappings_of

MOST_PODS: Final = 200
"""Pods that are read at a time."""

FEW_PODS: Final = 20
"""Pods that are read where more of them are too large for a hint."""

MOST_READS: Final = 10
"""Reads of controllers, and of the kinds that they have, for one answer."""

_FAILED: Final = {"fieldSelector": "status.phase=Failed"}


class PodFailureReader:
    """The failures of pods in one cluster."""

    def __init__(self, client: ClusterClient, owners: OwnerResolver) -> None:
        self._client = client
        self._owners = owners

    async def first(self, namespace: str, appwrapper: str) -> PodFailure | None:
        """The first failure among the pods of an AppWrapper (by uid); None if there is none, or it cannot be read.

        A failed pod counts before a container that restarted, and a failed pod with its label before one without.
        """
        search = _Search(self._client, self._owners, namespace, appwrapper)
        with contextlib.suppress(errors.ClusterError, TimeoutError):  # the gang ends without the words
            await search.run()
        return search.found


class _Search:
    """One search; `found` is the failure that counts, of those that were found so far."""

    def __init__(self, client: ClusterClient, owners: OwnerResolver, namespace: str, appwrapper: str) -> None:
        self.found: PodFailure | None = None
        self._client = client
        self._owners = owners
        self._namespace = namespace
        self._appwrapper = appwrapper
        self._reads = HintReads(MOST_READS)
        self._roots: dict[ObjectRef, str] = {}
        self._deadline: float | None = None
        """When the search ends; None before the first page.

        That page has the same time by itself, so that the client knows a path without an answer in time, and does not
        ask again for a while.
        """

    async def run(self) -> None:
        """Search until the first failure is found, or the time is over. Raises `ClusterError` and `TimeoutError`."""
        of_it = {"labelSelector": f"{UID_LABEL}={self._appwrapper}"}
        of_nobody = {"labelSelector": f"!{UID_LABEL}"}
        await self._look_at(await self._listed({**of_it, **_FAILED}))
        if self.found is None:
            await self._look_at(await self._listed(of_it))
            await self._look_at(await self._listed({**of_nobody, **_FAILED}))

    async def _listed(self, query: Mapping[str, str]) -> list[Json]:
        """The first pods of the namespace that a query selects; none if already a few are too large for a hint."""
        for most in (MOST_PODS, FEW_PODS):
            with contextlib.suppress(errors.TooLarge):
                return await self._page({**query, "limit": str(most)})
        return []

    async def _page(self, query: Mapping[str, str]) -> list[Json]:
        path, begun = paths.collection("v1", "pods", self._namespace), asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._deadline):
                page = await self._client.get(path, query, purpose=Purpose.HINT)
        finally:
            self._deadline = self._deadline or begun + HINT_SECONDS
        return list(mappings_of(page.get("items")))

    async def _look_at(self, pods: Sequence[Json]) -> None:
        """Find the first failure among these pods; until then, the first of a pod whose controller is known counts."""
        turn = [
            (failure, controller_ref(mapping_of(raw.get("metadata")), self._namespace))
            for failure, raw in by_turn(pods)
        ]
        known = next(
            (failure for failure, each in turn if self._owners.confirm(None, each) == self._appwrapper), None
        )
        self.found = known or self.found
        for failure, controller in turn:
            if failure is known:
                return
            if controller is not None and await self._root_of(controller) == self._appwrapper:
                self.found = failure
                return

    async def _root_of(self, controller: ObjectRef) -> str:
        """The AppWrapper above a controller; `NOBODY` if there is none, or if it cannot be read."""
        if controller not in self._roots:
            self._roots[controller] = NOBODY
            async with asyncio.timeout_at(self._deadline):
                with contextlib.suppress(errors.ClusterError):
                    self._roots[controller] = await self._owners.root_of(controller, self._reads)
        return self._roots[controller]

"""Lists the live pods of AppWrappers at the API server, for decisions that a watch's lag could make wrong.

Before capacity is released, the API server must confirm that no pod is live. `ask` queues a question and returns. One
list answers all questions queued before it began, at most one list runs a second, and each answer wakes the AppWrapper,
whose reconcile asks again. So an answer is never older than its question, and any number of AppWrappers may ask at
once.

A pod counts for the AppWrapper that its label names, in the AppWrapper's namespace, if any controller owns it,
confirmed or not: in doubt the capacity stays reserved. A pod without a controller does not count, whatever its labels
(`kubectl debug --copy-to` copies them): it would reserve the capacity for ever. A wrapped Pod has the AppWrapper as its
controller.

Pods of a gang that MCAD dispatched do not have our label. `count` and `force` find them by their owners. `ask` does not
see them, so its callers check the watched pods first.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.kinds.manifest import controller_of
from dispatcher.core.model.clock import time_in
from dispatcher.core.model.gangs.pods import PodCounts, PodPhase
from dispatcher.core.scheduling.capacity.appwrapper_share import count_pods
from dispatcher.kube import paths
from dispatcher.kube.client import JSON, METADATA_LIST, ClusterClient, Json
from dispatcher.kube.objects.nodes import PODS_PATH, PodView, decode_pod
from dispatcher.kube.paging import pages
from dispatcher.text import mapping_of

SECONDS_BETWEEN: Final = 1.0
SECONDS_KEPT: Final = 15.0
"""Lifetime of an answer. Under load it takes a while until the AppWrapper is reconciled; a much later reconcile,
perhaps for another reason, must not get an old answer."""

SECONDS_BETWEEN_FORCES: Final = 30.0
"""Each pod that goes wakes its AppWrapper, whose reconcile would force the others again."""

UNKNOWN_ITEM: Final = -1
"""Stands for the item of a pod without a valid item label."""

Claim: TypeAlias = tuple[str, str]
"""A namespace, and the uid of an AppWrapper in it."""

_OVER: Final = frozenset({PodPhase.SUCCEEDED.value, PodPhase.FAILED.value})

_LIVE: Final = ",".join(f"status.phase!={phase}" for phase in sorted(_OVER))

_log = log.get("live_pod_lister")


class LiveItems(Struct, frozen=True):
    """The items with `live` pods, and those with pods that are `staying`, which means not deleted."""

    live: frozenset[int] = frozenset()
    staying: frozenset[int] = frozenset()


class _Answer(Struct, frozen=True):
    version: int
    left: LiveItems
    begun_at: float


class LivePodLister:
    """Answers questions while `run` runs; `on_answer` gets the uid of an AppWrapper whose answer is there.

    `is_down` is true of nodes that are not Ready; `owner_of` gives the AppWrapper of a pod without our label.
    """

    def __init__(
        self,
        client: ClusterClient,
        on_answer: Callable[[str], None],
        is_down: Callable[[str], bool],
        owner_of: Callable[[PodView], str | None],
    ) -> None:
        self._client = client
        self._on_answer = on_answer
        self._is_down = is_down
        self._owner_of = owner_of
        self._asked: dict[Claim, int] = {}
        self._listed: dict[Claim, int] = {}
        self._answers: dict[Claim, _Answer] = {}
        self._forced: dict[Claim, float] = {}
        self._wake = asyncio.Event()

    def ask(self, claim: Claim, version: int) -> LiveItems | None:
        """The items with live pods, from a list begun after the first call; None until then.

        `on_answer` is called once the answer is there. `version` is the record's: another version is another question
        and replaces the earlier one. An answer is returned once; the next call asks again.
        """
        answer = self._answers.pop(claim, None)
        if answer is not None and answer.version == version and answer.begun_at > _now() - SECONDS_KEPT:
            return answer.left
        if self._asked.get(claim, self._listed.get(claim)) != version:
            self._asked[claim] = version
            self._wake.set()
        return None

    async def count(self, claim: Claim) -> PodCounts:
        """The pods of an AppWrapper as the API server has them now, counted like watched pods."""
        views = map(_decoded, await self._of(claim))
        return count_pods((view.pod for view in views if view), self._is_down)

    async def force(self, claim: Claim, now: datetime, since: datetime) -> int:
        """Delete overdue live pods without grace; return their number. Acts at most every 30 s for a claim.

        A pod is overdue if it was deleted and its grace period is over at `now`, by the cluster's clock and by the
        hub's: the hub asked for the deletion at `since` or later. Other pods stay: after a deletion with
        --cascade=orphan they are meant to run on. The nodes, which may be unreachable, are not waited for; containers
        may run on there.
        """
        if not self._may_force(claim):
            return 0
        forced = 0
        for raw in await self._of(claim):
            if _is_live(raw) and _is_overdue(raw["metadata"], now, since):
                forced += await self._force(raw["metadata"])
        self._forced[claim] = _now()
        return forced

    async def run(self) -> None:
        """List while there are questions, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._round()
            await asyncio.sleep(SECONDS_BETWEEN)

    def _may_force(self, claim: Claim) -> bool:
        oldest = _now() - SECONDS_BETWEEN_FORCES
        while self._forced and next(iter(self._forced.values())) <= oldest:
            del self._forced[next(iter(self._forced))]
        return claim not in self._forced

    async def _round(self) -> None:
        begun_at = _now()
        self._listed, self._asked = self._asked, {}
        try:
            left = await self._list()
        except errors.ClusterError as error:
            _log.warning("list_failed", error=str(error))
            self._ask_again()
        except Exception as error:  # noqa: BLE001  # the loop's edge: one answer must not end the watches beside it
            log.internal_error("live_pod_lister", error)
            self._ask_again()
        else:
            self._answer(left, begun_at)
        finally:
            self._listed = {}

    def _ask_again(self) -> None:
        self._asked = {**self._listed, **self._asked}
        self._wake.set()

    def _answer(self, left: dict[Claim, LiveItems], begun_at: float) -> None:
        oldest = begun_at - SECONDS_KEPT
        self._answers = {claim: kept for claim, kept in self._answers.items() if kept.begun_at > oldest}
        answered = {claim: version for claim, version in self._listed.items() if claim not in self._asked}
        for claim, version in answered.items():
            self._answers[claim] = _Answer(version, left.get(claim, LiveItems()), begun_at)
        for _, appwrapper in answered:
            try:
                self._on_answer(appwrapper)
            except Exception as error:  # noqa: BLE001  # the others want to hear their answer, too
                log.internal_error("live_pod_lister", error, appwrapper=appwrapper)

    async def _list(self) -> dict[Claim, LiveItems]:
        """The items with live pods of each claim that was asked about."""
        live: dict[Claim, set[int]] = defaultdict(set)
        staying: dict[Claim, set[int]] = defaultdict(set)
        # Finished pods are left out, and of live ones only the metadata is read: the list grows with the running pods
        # only.
        query = {"labelSelector": names.UID_LABEL, "fieldSelector": _LIVE}
        async for raw in self._pods(PODS_PATH, query, METADATA_LIST):
            metadata = raw["metadata"]
            labels = metadata.get("labels") or {}
            claim = (str(metadata.get("namespace")), str(labels.get(names.UID_LABEL)))
            if claim in self._listed and _is_live(raw):
                live[claim].add(_item(labels))
                if "deletionTimestamp" not in metadata:
                    staying[claim].add(_item(labels))
        return {
            claim: LiveItems(frozenset(items), frozenset(staying[claim])) for claim, items in live.items()
        }

    async def _of(self, claim: Claim) -> list[Json]:
        namespace, appwrapper = claim
        path = paths.collection("v1", "pods", namespace)
        labelled = [
            raw async for raw in self._pods(path, {"labelSelector": f"{names.UID_LABEL}={appwrapper}"})
        ]
        if labelled:
            return labelled
        return await self._unlabelled_of(path, appwrapper)

    async def _unlabelled_of(self, path: str, appwrapper: str) -> list[Json]:
        """The pods found by their owners; read in full only if there are any, because mostly there are none.

        Such pods may belong to any attempt: some operators do not copy our labels to their pods.
        """
        query = {"labelSelector": f"!{names.UID_LABEL}"}
        async for raw in self._pods(path, query, METADATA_LIST):
            if self._is_of(raw, appwrapper):
                break
        else:
            return []
        return [raw async for raw in self._pods(path, query) if self._is_of(raw, appwrapper)]

    def _is_of(self, raw: Json, appwrapper: str) -> bool:
        view = _decoded(raw)
        return view is not None and self._owner_of(view) == appwrapper

    async def _pods(self, path: str, selectors: Mapping[str, str], accept: str = JSON) -> AsyncIterator[Json]:
        """Every selected pod that has a controller."""
        async for page in pages(self._client, path, selectors, accept=accept):
            for raw in page.items:
                if controller_of(raw["metadata"]) is not None:
                    yield raw

    async def _force(self, metadata: Json) -> bool:
        path = paths.item("v1", "pods", metadata["namespace"], metadata["name"])
        try:
            await self._client.delete(path, metadata["uid"], grace_seconds=0)
        except (errors.NotFound, errors.Conflict):
            return False  # it is gone, and what has its name now is another
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()


def _decoded(raw: Json) -> PodView | None:
    """The pod as the watch keeps it; None if it is unreadable, in which case the watch logs it and leaves it out."""
    try:
        return decode_pod(raw)
    except Exception:  # noqa: BLE001  # one pod must not end the list of the others
        return None


def _is_overdue(metadata: Json, now: datetime, since: datetime) -> bool:
    """True for a deleted pod whose grace period is over: `deletionTimestamp` includes the grace period.

    A cluster whose clock lags writes a time that is over at once, so the grace period also counts from `since`. A time
    or a grace period that cannot be read is never over.
    """
    gone_by, grace = time_in(metadata.get("deletionTimestamp")), metadata.get("deletionGracePeriodSeconds", 0)
    if gone_by is None or type(grace) is not int:
        return False
    try:
        return max(gone_by, since + timedelta(seconds=grace)) <= now
    except OverflowError:
        return False


def _is_live(raw: Json) -> bool:
    phase = mapping_of(raw.get("status")).get("phase")
    return not isinstance(phase, str) or phase not in _OVER


def _item(labels: Json) -> int:
    written = str(labels.get(names.ITEM_LABEL))
    return int(written) if _ITEM.fullmatch(written) else UNKNOWN_ITEM


_ITEM: Final = re.compile("[0-9]{1,9}")

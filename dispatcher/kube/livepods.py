"""What the API server itself says of the pods of an AppWrapper, for those who must not rely on a cache that lags.

Whoever gives capacity back asks which items still have live pods. Nobody waits: a question is noted, one list
answers all that were noted before it began, at most one list a second, and who asked is woken and asks again. So
an answer is never older than its question, and any number may ask at once.

A pod counts for the AppWrapper its label names, in its own namespace, if anything controls it, confirmed or not:
that errs towards holding on. One that nothing controls is nobody's but its maker's, whatever labels it bears
(`kubectl debug --copy-to` copies them), and would hold on for ever. (A wrapped Pod is controlled by its AppWrapper.)

The pods of a gang that was not dispatched by us bear no label of ours. `count` and `force` find them by their owners;
`ask` does not see them, so who asks looks at the watched pods first.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.capacity import PodCounts, PodPhase, count_pods
from dispatcher.core.manifest import controller_of
from dispatcher.kube.client import JSON, METADATA_LIST, ClusterClient, Json
from dispatcher.kube.nodes import PODS_PATH, PodView, decode_pod

SECONDS_BETWEEN: Final = 1.0
PAGE: Final = 500
SECONDS_KEPT: Final = 15.0
"""For so long an answer is kept for who asked: under load it takes a while until that one's turn, but who comes
much later, for another reason perhaps, must not be told what was true then."""

UNKNOWN_ITEM: Final = -1
"""Stands for the item of a pod that does not say of which it is."""

Claim: TypeAlias = tuple[str, str]
"""A namespace, and the uid of an AppWrapper in it."""

_OVER: Final = frozenset({PodPhase.SUCCEEDED.value, PodPhase.FAILED.value})

_LIVE: Final = ",".join(f"status.phase!={phase}" for phase in sorted(_OVER))

_log = log.get("livepods")


@dataclass(frozen=True, slots=True)
class _Answer:
    version: int
    items: frozenset[int]
    begun_at: float


class LivePods:
    """Answers questions in rounds, for which `run` must be running; `on_answer` is told the AppWrapper's uid.

    `is_down` knows the nodes that are not Ready, and `owner_of` the AppWrapper of a pod that does not say whose it is.
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
        self._wake = asyncio.Event()

    def ask(self, claim: Claim, version: int) -> frozenset[int] | None:
        """The items of which live pods are left, from a list begun after this was first asked; None until then.

        `on_answer` is called once it is known. `version` is the record's: with another one it is another question,
        and the one before is forgotten. An answer is given once; who asks again asks anew.
        """
        answer = self._answers.pop(claim, None)
        if answer is not None and answer.version == version and answer.begun_at > _now() - SECONDS_KEPT:
            return answer.items
        if self._asked.get(claim, self._listed.get(claim)) != version:
            self._asked[claim] = version
            self._wake.set()
        return None

    async def count(self, claim: Claim) -> PodCounts:
        """The pods of an AppWrapper as the API server has them now, decoded as the watched ones are."""
        return count_pods((decode_pod(raw).pod for raw in await self._of(claim)), self._is_down)

    async def force(self, claim: Claim) -> int:
        """Delete those live pods at once that are being deleted already; how many.

        That does not wait for their nodes, which may be away: their containers may run on where they are.
        """
        forced = 0
        for raw in await self._of(claim):
            if _is_live(raw) and raw["metadata"].get("deletionTimestamp"):
                forced += await self._force(raw["metadata"])
        return forced

    async def run(self) -> None:
        """List for whoever asked, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._round()
            await asyncio.sleep(SECONDS_BETWEEN)

    async def _round(self) -> None:
        begun_at = _now()
        self._listed, self._asked = self._asked, {}
        try:
            left = await self._list()
        except errors.ClusterError as error:
            _log.warning("list_failed", error=str(error))
            self._asked = {**self._listed, **self._asked}
            self._wake.set()
        else:
            self._answer(left, begun_at)
        finally:
            self._listed = {}

    def _answer(self, left: dict[Claim, set[int]], begun_at: float) -> None:
        oldest = begun_at - SECONDS_KEPT
        self._answers = {claim: kept for claim, kept in self._answers.items() if kept.begun_at > oldest}
        answered = {claim: version for claim, version in self._listed.items() if claim not in self._asked}
        for claim, version in answered.items():
            self._answers[claim] = _Answer(version, frozenset(left.get(claim, ())), begun_at)
        for _, appwrapper in answered:
            self._on_answer(appwrapper)

    async def _list(self) -> dict[Claim, set[int]]:
        """The items that have live pods, for those who asked."""
        left: dict[Claim, set[int]] = defaultdict(set)
        # Of those that are over nothing comes, of the others only whose they are: the list grows with what runs.
        query = {"labelSelector": names.UID_LABEL, "fieldSelector": _LIVE}
        async for raw in self._pods(PODS_PATH, query, METADATA_LIST):
            metadata = raw["metadata"]
            claim = (metadata["namespace"], metadata["labels"][names.UID_LABEL])
            if claim in self._listed and _is_live(raw):
                left[claim].add(_item(metadata["labels"]))
        return left

    async def _of(self, claim: Claim) -> list[Json]:
        namespace, appwrapper = claim
        path = f"/api/v1/namespaces/{namespace}/pods"
        labelled = [
            raw async for raw in self._pods(path, {"labelSelector": f"{names.UID_LABEL}={appwrapper}"})
        ]
        if labelled:
            return labelled
        others = self._pods(path, {"labelSelector": f"!{names.UID_LABEL}"})
        return [raw async for raw in others if self._owner_of(decode_pod(raw)) == appwrapper]

    async def _pods(self, path: str, selectors: Mapping[str, str], accept: str = JSON) -> AsyncIterator[Json]:
        """Every selected pod that something controls, page by page."""
        query = {**selectors, "limit": str(PAGE)}
        while True:
            page = await self._client.get(path, query, accept=accept)
            for raw in page.get("items") or ():
                if controller_of(raw["metadata"]) is not None:
                    yield raw
            token = page["metadata"].get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    async def _force(self, metadata: Json) -> bool:
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            await self._client.delete(path, metadata["uid"], grace_seconds=0)
        except (errors.NotFound, errors.Conflict):
            return False  # it is gone, and what has its name now is another
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()


def _is_live(raw: Json) -> bool:
    return (raw.get("status") or {}).get("phase") not in _OVER


def _item(labels: Json) -> int:
    written = str(labels.get(names.ITEM_LABEL))
    return int(written) if written.isascii() and written.isdecimal() else UNKNOWN_ITEM

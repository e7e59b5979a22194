"""Which AppWrappers still have live pods, from the API server itself.

One list serves all who ask, at most one a second.

Releasing capacity must not rest on a cache that lags: whoever releases asks here, and gets an answer from a
list that was begun after the question. A pod counts for the AppWrapper its label names, in its own namespace, if
anything controls it, confirmed or not: that errs towards holding on. One that nothing controls is nobody's but its
maker's, whatever labels it bears (`kubectl debug --copy-to` copies them), and would hold on for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.capacity import PodPhase
from dispatcher.core.manifest import controller_of
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.nodes import PODS_PATH

SECONDS_BETWEEN: Final = 1.0
PAGE: Final = 500
_OVER: Final = frozenset({PodPhase.SUCCEEDED.value, PodPhase.FAILED.value})

Claim = tuple[str, str]
"""A namespace, and the uid of an AppWrapper in it."""

_log = log.get("livepods")


class LivePods:
    """Answers questions in rounds; `run` must be running."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._asked: list[asyncio.Future[frozenset[Claim]]] = []
        self._wake = asyncio.Event()

    async def owners(self) -> frozenset[Claim]:
        """The AppWrappers that have live pods, as of after this call."""
        future: asyncio.Future[frozenset[Claim]] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._wake.set()
        return await future

    async def run(self) -> None:
        """List for whoever asked, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            try:
                answer = await self._list()
            except errors.ClusterError as error:
                _log.warning("list_failed", error=str(error))
                _fail(asked, error)
            else:
                _answer(asked, answer)
            await asyncio.sleep(SECONDS_BETWEEN)

    async def _list(self) -> frozenset[Claim]:
        found: set[Claim] = set()
        query = {"labelSelector": names.UID_LABEL, "limit": str(PAGE)}
        while True:
            page = await self._client.get(PODS_PATH, query)
            for pod in page.get("items") or ():
                metadata = pod["metadata"]
                is_over = (pod.get("status") or {}).get("phase") in _OVER
                if not is_over and controller_of(metadata) is not None:
                    found.add((metadata["namespace"], metadata["labels"][names.UID_LABEL]))
            token = page["metadata"].get("continue")
            if not token:
                return frozenset(found)
            query = {**query, "continue": token}


def _answer(asked: list[asyncio.Future[frozenset[Claim]]], answer: frozenset[Claim]) -> None:
    for future in asked:
        if not future.done():
            future.set_result(answer)


def _fail(asked: list[asyncio.Future[frozenset[Claim]]], error: errors.ClusterError) -> None:
    for future in asked:
        if not future.done():
            future.set_exception(error)

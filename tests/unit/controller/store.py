"""The store as the controller's tests see it: what is committed is remembered, or refused as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from dispatcher.core.model.records.record import Change, Record
from dispatcher.store.state.queue import CommitResult, QueueStore, Refusal

Verdict = Callable[[Change], str]
"""Empty to accept; else "stale", or why it is refused."""


class FakeStore(QueueStore):
    """Commits at once, unless `gate` is held; `batches` and `groups` are the causes committed in one transaction."""

    def __init__(self, verdict: Verdict = lambda _change: "") -> None:
        self.batches: list[list[tuple[str, str]]] = []
        self.groups: list[list[tuple[str, str]]] = []
        self.changes: list[Change] = []
        self.records: dict[str, Record] = {}
        self.specs: dict[str, bytes] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.verdict = verdict

    async def commit(self, changes: Sequence[Change]) -> CommitResult:
        self.batches.append([(change.after.name, change.events[0].cause) for change in changes])
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return sum((self._commit_one(change) for change in changes), start=CommitResult())

    async def commit_together(self, changes: Sequence[Change]) -> CommitResult:
        self.groups.append([(change.after.name, change.events[0].cause) for change in changes])
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        refusals = {verdict for change in changes if (verdict := self.verdict(change))}
        uids = tuple(change.after.uid for change in changes)
        if "stale" in refusals:
            return CommitResult(stale=uids)
        if refusals:
            return CommitResult(refused=tuple(Refusal(uid, min(refusals)) for uid in uids))
        return sum((self._commit_one(change) for change in changes), start=CommitResult())

    async def load_specs(self, hashes: Collection[str]) -> dict[str, bytes]:
        return {each: self.specs[each] for each in hashes}

    def _commit_one(self, change: Change) -> CommitResult:
        verdict = self.verdict(change)
        if verdict == "stale":
            return CommitResult(stale=(change.after.uid,))
        if verdict:
            return CommitResult(refused=(Refusal(change.after.uid, verdict),))
        self.changes.append(change)
        if change.spec is not None:
            self.specs[change.after.spec_hash] = change.spec
        seq = change.after.enqueue_seq or len(self.records) + 1
        self.records[change.after.uid] = replace(change.after, enqueue_seq=seq)
        return CommitResult(accepted=(self.records[change.after.uid],))

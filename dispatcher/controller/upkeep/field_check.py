"""Tells the unknown fields of wrapped objects while their gang waits, by dry runs of their creation.

An API server warns about an unknown field when it creates the object, for a gang that waits hours after its submission.
So a gang that waits is checked before, by a dry run of a creation that the dispatcher may do anyway, which stores
nothing. It goes only to a cluster that may run the gang, and has the fields of the objects without their values.
The condition `UnknownFields` and an Event have the warnings; those of the creation follow as without a check.

The check delays no dispatch and costs little. A gang that its first cycle dispatches is not checked. Whether a field is
unknown depends on the fields of a template and not on their values, so one dry run answers for all objects with the
same fields. At most `1 / PAUSE_SECONDS` gangs are checked per second, the newest first. A gang is checked once, by the
leader under which it begins to wait: after an error, or a change of leader, its creation warns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.core.kinds.manifest import reference
from dispatcher.core.kinds.template_fields import digest_of_paths
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.record import Change, Phase, Record

PAUSE_SECONDS: Final = 0.1
"""Seconds between two gangs."""
ANSWER_SECONDS: Final = 600.0
"""How long an answer is remembered: a definition of a kind may be replaced by one with other fields."""
MOST_ANSWERS: Final = 1_000
"""Answers that are remembered; a small number of templates makes most gangs."""

_log = log.get("field_check")


class _Question(NamedTuple):
    cluster: str
    api_version: str
    kind: str
    fields: bytes


class _Answer(NamedTuple):
    """`until` is in seconds of the loop's clock."""

    fields: tuple[str, ...]
    until: float


class FieldCheck:
    """Checks gangs while `run` runs; `note` is called with each committed change.

    `clusters_for` gives the connected clusters that a cycle would accept for a gang, whatever is free there. The first
    of them that serves a kind answers for it; no other cluster learns of the gang.
    """

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        committer: Committer,
        clusters_for: Callable[[Record], Iterable[WatchedCluster]],
    ) -> None:
        self._context = context
        self._cache = cache
        self._committer = committer
        self._clusters_for = clusters_for
        self._waiting: dict[str, None] = {}
        self._answers: BoundedDict[_Question, _Answer] = BoundedDict(MOST_ANSWERS)
        self._wake = asyncio.Event()

    def note(self, change: Change) -> None:
        """Have a gang checked if it begins to wait for its first dispatch."""
        before, after = change.before, change.after
        waits = after.phase is Phase.QUEUED and after.pending is not None and not after.attempts
        if waits and before is not None and before.pending is None:
            self._waiting[after.uid] = None
            self._wake.set()

    @property
    def waiting(self) -> int:
        """How many gangs are to be checked."""
        return len(self._waiting)

    async def run(self) -> None:
        """Check one gang after the other, until cancelled."""
        while True:
            await self._wake.wait()
            if self._waiting:
                uid, _ = self._waiting.popitem()
                await self._check_safely(uid)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._wake.clear()

    async def _check_safely(self, uid: str) -> None:
        try:
            await self.check(uid)
        except errors.StoreError:
            raise
        except errors.ClusterError as error:
            _log.info("fields_not_checked", uid=uid, error=str(error))
        except Exception as error:  # noqa: BLE001  # the loop's edge: the creation warns
            log.internal_error("field-check", error, appwrapper=uid)

    async def check(self, uid: str) -> None:
        """Commit the unknown fields of a gang, if it has any and still waits for its first dispatch."""
        record = self._cache.get(uid)
        if record is None or not self._waits(record):
            return
        warnings = await self._warnings(record)
        # The record may have changed meanwhile.
        record = self._cache.get(uid)
        if record is None or not warnings or not self._waits(record):
            return
        change = queue_changes.warn(record, warnings, self._context.now())
        await self._committer.commit_all([change] if change else [])

    def _waits(self, record: Record) -> bool:
        is_first = record.phase is Phase.QUEUED and not record.attempts
        return is_first and bool(record.spec_hash) and self._context.is_wanted(record)

    async def _warnings(self, record: Record) -> list[str]:
        """The unknown fields of all wrapped objects, each with its object."""
        spec = await self._context.specs.of(record)
        owner = replace(self._context.owner_of(record), attempt=1)
        warnings: list[str] = []
        for wrapped in spec.wrapped:
            found = await self._unknown_fields(record, wrapped)
            ref = reference(wrapped, owner)
            warnings += (f"{ref.kind} {ref.name}: {each}" for each in found)
        return warnings

    async def _unknown_fields(self, record: Record, wrapped: WrappedObject) -> tuple[str, ...]:
        """The answer of the first cluster that serves the kind; empty if none does.

        Also empty if that cluster refuses the dry run, which is not remembered.
        """
        digest = await asyncio.to_thread(digest_of_paths, wrapped.template)
        for cluster in self._clusters_for(record):
            question = _Question(cluster.name, wrapped.api_version, wrapped.kind, digest)
            known, now = self._answers.get(question), asyncio.get_running_loop().time()
            if known is not None and now < known.until:
                return known.fields
            try:
                fields = await cluster.object_client.unknown_fields(wrapped, record.namespace)
            except errors.NotFound:
                continue
            except errors.Forbidden:
                return ()
            self._answers[question] = _Answer(fields, now + ANSWER_SECONDS)
            return fields
        return ()

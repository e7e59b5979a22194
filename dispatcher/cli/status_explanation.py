"""Why an AppWrapper waits, and what would let it go, from its status alone.

The dispatcher writes the position, the holders, the least repair and the estimate into the statuses of the first
AppWrappers of each queue. Nothing is planned here: changes that a person asks about need the leader's snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dispatcher.cli.status_description import OUTSIDE, state_of
from dispatcher.cli.status_waiting import (
    clusters_table,
    estimate_of,
    holders_table,
    position_of,
    quota_of,
    repair_of,
)
from dispatcher.core.model.record import LACKS_QUOTA, TOO_LARGE, Phase
from dispatcher.core.model.timestamps import time_in
from dispatcher.text import name_of, one_line, text_of

Json = dict[str, Any]

ONLY_IN_SNAPSHOT: Final = (
    "ahead",
    "behind",
    "eligibleAt",
    "nodes",
    "uncordon",
    "accounts",
    "spared",
    "takenAt",
)
"""Fields of an explanation that need the leader's snapshot."""
_ON_NO_CLUSTER: Final = TOO_LARGE - LACKS_QUOTA
_COPIED: Final = ("cluster", "reason", "resource", "message", "clusters", "queue", "quota", "preempting")
"""Fields of `status.waiting` that an explanation has under the same names."""


@dataclass(frozen=True, slots=True)
class StatusExplanation:
    """An AppWrapper as it was read at a moment."""

    appwrapper: Json
    now: datetime

    def as_value(self) -> dict[str, Any]:
        """The explanation as a JSON document; docs/explain.md has its fields."""
        metadata, state, waiting = self.appwrapper["metadata"], state_of(self.appwrapper), self._waiting
        known = {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "state": state,
        }
        if state is not Phase.QUEUED:
            return known
        start = time_in(waiting.get("estimatedStart"))
        return {
            **known,
            "verdict": self._verdict if waiting else None,
            "position": waiting.get("position"),
            "queueLength": waiting.get("queueLength"),
            **{field: waiting.get(field) for field in _COPIED},
            "holders": waiting.get("holders") or [],
            "otherHolders": waiting.get("otherHolders") or 0,
            "repair": [waiting["repair"]] if waiting.get("repair") else [],
            "estimatedStart": start.isoformat() if start else None,
            "estimateUnknown": waiting.get("estimateUnknown"),
            **dict.fromkeys(ONLY_IN_SNAPSHOT),
        }

    def as_text(self, width: int | None, *, is_wide: bool = False) -> str:
        """The explanation for people; only tables follow the width, and have exact times in wide output."""
        now = None if is_wide else self.now
        lines = (
            self._lines(width, now) if state_of(self.appwrapper) is Phase.QUEUED else (self._not_pending(),)
        )
        return "\n".join(map(one_line, lines))

    @property
    def _key(self) -> str:
        return f"{self.appwrapper['metadata']['namespace']}/{self.appwrapper['metadata']['name']}"

    @property
    def _status(self) -> Json:
        return self.appwrapper.get("status") or {}

    @property
    def _waiting(self) -> Json:
        return self._status.get("waiting") or {}

    @property
    def _verdict(self) -> str:
        return "DoesNotFit" if self._waiting.get("reason") in _ON_NO_CLUSTER else "Waits"

    def _lines(self, width: int | None, now: datetime | None) -> Iterator[str]:
        waiting = self._waiting
        if not waiting:
            yield f"{self._key} is Queued: no scheduling cycle has evaluated it yet."
            return
        verb = "waits" if self._verdict == "Waits" else "does not fit any cluster"
        yield f"{self._key} {verb}: {name_of(waiting.get('reason'))}"
        yield f"  {self._place()}"
        if waiting.get("reason") not in TOO_LARGE:  # the line above says why it never starts
            yield f"  estimated start {estimate_of(waiting)}"
        clusters = clusters_table(waiting, width)
        if not clusters:
            yield f"  {text_of(waiting.get('message'))}"
        if quota := quota_of(waiting):
            yield f"  queue {name_of(waiting.get('queue'))}: {quota}"
        if preempting := ", ".join(map(name_of, waiting.get("preempting") or ())):
            yield f"  preempting {preempting}"
        for lines in (clusters, holders_table(waiting, now, width)):
            yield from ("", *lines) if lines else ()
        if repair := repair_of(waiting):
            yield from ("", "It would be dispatched", f"  {repair}")

    def _place(self) -> str:
        if position := position_of(self._waiting):
            return f"position {position} in the queue"
        if self._waiting.get("reason") in TOO_LARGE:
            return "no position in the queue: it would not go if nothing else ran"
        return "no position in the queue now"

    def _not_pending(self) -> str:
        status, state = self._status, state_of(self.appwrapper)
        if state is None and not self._waiting:
            return f"{self._key} has no status: no dispatcher has seen it yet."
        where = f" on {name_of(status['cluster'])}" if status.get("cluster") else ""
        failed = [each for each in status.get("conditions") or () if each.get("type") == "Failed"]
        told = status.get("unhealthy") or (failed[0] if state is Phase.FAILED and failed else self._waiting)
        why = ": ".join(filter(None, (text_of(told.get("reason")), text_of(told.get("message")))))
        return f"{self._key} is {state or OUTSIDE}{where}{f': {why}' if why else ''}."

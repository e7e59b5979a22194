"""Why an AppWrapper waits, and what would dispatch it, from its status alone.

The dispatcher writes the position, the holders, the least changes and the estimate into the statuses of the first
AppWrappers of each queue. Nothing is planned here: changes that a person asks about need the leader's snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from dispatcher.api.conditions import ConditionType
from dispatcher.cli.screens.appwrapper_status import (
    NEVER_GOES,
    NO_POSITION_YET,
    NO_QUEUE_TAKES_IT,
    OUTSIDE,
    AppWrapperStatus,
    changes_of,
    clusters_table,
    estimate_of,
    holders_table,
    position_of,
    quota_of,
)
from dispatcher.cli.screens.tables import folded, state_in_words
from dispatcher.core.model.pending_reasons import AWAITING_APPROVAL, IN_NO_QUEUE, LACKS_QUOTA, TOO_LARGE
from dispatcher.core.model.timestamps import time_in
from dispatcher.text import name_of, one_line, text_of

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
_ABOUT_THE_START: Final = TOO_LARGE | IN_NO_QUEUE | {AWAITING_APPROVAL}
"""Pending reasons of gangs without a position: that line also says why no start is estimated."""
_COPIED: Final = ("cluster", "reason", "resource", "message", "clusters", "queue", "quota", "preempting")
"""Fields of `status.waiting` that an explanation has under the same names."""


class StatusExplanation(AppWrapperStatus, frozen=True):
    """The explanation of an AppWrapper by its status."""

    def as_value(self) -> dict[str, Any]:
        """The explanation as a JSON document; docs/explain.md has its fields."""
        metadata, waiting = self.metadata, self.waiting
        known = {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "state": self.phase,
        }
        if not self.is_queued:
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
            "priority": waiting.get("leastPriority"),
            "repair": [waiting["repair"]] if waiting.get("repair") else [],
            "estimatedStart": start.isoformat() if start else None,
            "estimateUnknown": waiting.get("estimateUnknown"),
            **dict.fromkeys(ONLY_IN_SNAPSHOT),
        }

    @property
    def _unknown_fields(self) -> str:
        """The fields of wrapped objects that their kinds do not have, in the words of the API server; empty if none."""
        told = (each for each in self.conditions if each.get("type") == ConditionType.UNKNOWN_FIELDS)
        return next((text_of(each.get("message")) for each in told if each.get("status") == "True"), "")

    def as_text(self, width: int | None, *, is_wide: bool = False) -> str:
        """The explanation for people; tables have exact times in wide output."""
        now = None if is_wide else self.now
        lines = self._lines(width, now) if self.is_queued else (self._not_pending(),)
        return folded("\n".join(map(one_line, lines)), width)

    @property
    def _verdict(self) -> str:
        return "DoesNotFit" if self.waiting.get("reason") in _ON_NO_CLUSTER else "Waits"

    def _lines(self, width: int | None, now: datetime | None) -> Iterator[str]:
        waiting = self.waiting
        if not waiting:
            yield f"{self.key} is Queued: no scheduling cycle has evaluated it yet."
            return
        verb = "waits" if self._verdict == "Waits" else "does not fit any cluster"
        yield f"{self.key} {verb}: {name_of(waiting.get('reason'))}"
        yield f"  {self._place()}"
        if waiting.get("reason") not in _ABOUT_THE_START:
            yield f"  estimated start {estimate_of(waiting)}"
        clusters = clusters_table(waiting, width)
        if not clusters:
            yield f"  {text_of(waiting.get('message'))}"
        if quota := quota_of(waiting):
            yield f"  queue {name_of(waiting.get('queue'))}: {quota}"
        if self._unknown_fields:
            yield f"  warning: {self._unknown_fields}"
        if preempting := ", ".join(map(name_of, waiting.get("preempting") or ())):
            yield f"  preempting {preempting}"
        for lines in (clusters, holders_table(waiting, now, width)):
            yield from ("", *lines) if lines else ()
        if changes := changes_of(waiting):
            yield from ("", "It would be dispatched", *(f"  {each}" for each in changes))

    def _place(self) -> str:
        if position := position_of(self.waiting):
            return f"position {position} in the queue"
        if self.waiting.get("reason") in IN_NO_QUEUE:
            return NO_QUEUE_TAKES_IT
        if self.waiting.get("reason") in TOO_LARGE:
            return NEVER_GOES
        is_approved = self.waiting.get("reason") != AWAITING_APPROVAL
        return "no position in the queue now" if is_approved else NO_POSITION_YET

    def _not_pending(self) -> str:
        status = self.status
        if self.phase is None and not self.waiting:
            return f"{self.key} has no status: no dispatcher has seen it yet."
        told = status.get("unhealthy") or self.failure or self.waiting or status.get("growth") or {}
        state = str(self.phase or OUTSIDE)
        said = state_in_words(state, status.get("cluster"), told.get("reason"), told.get("message"))
        return f"{self.key} is {said}."

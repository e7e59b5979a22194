"""An AppWrapper as the hub has it, and the parts of its status that `show` and `explain` read."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.core.model.record import Phase
from dispatcher.core.status.phases import phase_in

Json = dict[str, Any]

OUTSIDE: Final = "outside the queue"
"""Shown as the state of an AppWrapper that was seen and has no record, because its namespace has too many."""


class AppWrapperStatus(Struct, frozen=True):
    """An AppWrapper as it was read at a moment."""

    appwrapper: Json
    now: datetime

    @property
    def metadata(self) -> Json:
        """Its metadata."""
        found: Json = self.appwrapper["metadata"]
        return found

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.metadata['namespace']}/{self.metadata['name']}"

    @property
    def status(self) -> Json:
        """Its status; empty before a dispatcher has seen it."""
        return self.appwrapper.get("status") or {}

    @property
    def waiting(self) -> Json:
        """Its pending reason and outlook; empty if it waits for nothing."""
        return self.status.get("waiting") or {}

    @property
    def phase(self) -> Phase | None:
        """Its phase; None if it has no record."""
        return Phase.DELETING if self.metadata.get("deletionTimestamp") else phase_in(self.status)

    @property
    def is_queued(self) -> bool:
        """True if it is in the queue."""
        return self.phase is Phase.QUEUED

    @property
    def conditions(self) -> list[Json]:
        """The conditions of its status."""
        return self.status.get("conditions") or []

    @property
    def failure(self) -> Json:
        """The condition that says why it has failed; empty if it has not."""
        if self.phase is not Phase.FAILED:
            return {}
        return next((each for each in self.conditions if each.get("type") == "Failed"), {})

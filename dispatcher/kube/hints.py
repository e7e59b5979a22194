"""Which hints a cluster is asked for: words for a person, without which everything goes on.

The Events of a cluster may have an etcd of their own, or be too many to be searched in time. Whoever waits for their
words keeps a place of its cluster in the work queue. So a hint has little time, and a path whose answer took all of it
is not asked again for a while; after several such paths none is. One tenant alone makes one path slow.
"""

from __future__ import annotations

from typing import Final

from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.potential import NAMESPACES_FOR_ALL

HINT_SECONDS: Final = 3.0
"""The time of one hint."""
SILENT_SECONDS: Final = 60.0
"""How long a path without an answer in that time is not asked."""
MOST_PATHS: Final = 1_000
"""Paths without an answer that are remembered."""


class SilentHints:
    """The paths of one API server whose hints had no answer in time. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._silent_until: BoundedDict[str, float] = BoundedDict(MOST_PATHS)

    def is_silent(self, path: str, now: float) -> bool:
        """True if a hint at that path is not to be asked for now. Costs a step for each path that was silent."""
        for each in [each for each, until in self._silent_until.items() if until <= now]:
            del self._silent_until[each]
        return path in self._silent_until or len(self._silent_until) >= NAMESPACES_FOR_ALL

    def note(self, path: str, now: float) -> None:
        """Note that a hint had no answer in time."""
        self._silent_until[path] = now + SILENT_SECONDS

"""Which hints a cluster is asked for: words for a person, without which everything goes on.

The Events of a cluster may have an etcd of their own, or be too many to be searched in time. Whoever waits for their
words keeps a place of its cluster in the work queue. So a hint has little time, and a path whose answer took all of it
is not asked again for a while; after several such paths within a minute none is. One tenant alone makes one path slow.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.potential import NAMESPACES_FOR_ALL

HINT_SECONDS: Final = 3.0
"""The time of one hint."""
FIRST_SILENT_SECONDS: Final = 5.0
"""How long a path without an answer in that time is not asked; a server that was busy for a moment costs no more."""
SILENT_SECONDS: Final = 60.0
"""The longest time: it doubles each time that there is no answer again."""
MOST_PATHS: Final = 1_000
"""Paths without an answer that are remembered."""


class _Silence(NamedTuple):
    begun: float
    seconds: float


class SilentHints:
    """The paths of one API server whose hints had no answer in time. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._silences: BoundedDict[str, _Silence] = BoundedDict(MOST_PATHS)

    def is_silent(self, path: str, now: float) -> bool:
        """True if a hint at that path is not to be asked for now. Costs a step for each path that was silent."""
        own = self._silences.get(path)
        if own is not None and now < own.begun + own.seconds:
            return True
        late = sum(now < each.begun + SILENT_SECONDS for each in self._silences.values())
        return late >= NAMESPACES_FOR_ALL

    def note(self, path: str, now: float) -> None:
        """Note that a hint had no answer in time."""
        before = self._silences.get(path)
        seconds = FIRST_SILENT_SECONDS if before is None else min(SILENT_SECONDS, 2 * before.seconds)
        self._silences[path] = _Silence(now, seconds)

    def note_answer(self, path: str) -> None:
        """Note that a hint had an answer in time."""
        self._silences.pop(path, None)

"""Names of objects whose absence would free something: they count as gone only once their absence has lasted.

`kubectl replace --force`, a CRD that is installed again, and a pruning deployment remove an object for a moment and put
it back. Without the last queue no gang would need quota meanwhile, and without the last MemberCluster the hub itself
would take gangs. So a name that was there lingers until complete lists have lacked it for `LASTS_SECONDS`. A list that
is refused or fails says nothing: a name lingers for as long as that goes on. Whether a kind that is not served any more
is a complete list without objects, the followers say (`kind_watch`, `members.membership`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

LASTS_SECONDS: Final = 600.0
"""Seconds for which complete lists must lack a name before it counts as gone."""
CHECK_SECONDS: Final = 5.0
"""Period in which the followers of absences look whether one has lasted."""


class Absences:
    """The names that were there, each with the time since which complete lists have lacked it.

    `seconds` is a monotonic clock. A call of `note` costs one step for each name.
    """

    def __init__(self, seconds: Callable[[], float], lasts: float = LASTS_SECONDS) -> None:
        self._seconds = seconds
        self._lasts = lasts
        self._absent_since: dict[str, float | None] = {}
        self.lingering: frozenset[str] = frozenset()
        """The names that are not there, and not surely gone."""
        self.lacked: frozenset[str] = frozenset()
        """The names of `lingering` that complete lists lack now. Whether the other names are there is unknown."""

    @property
    def seen(self) -> frozenset[str]:
        """The names that are there or linger: those that a later leader has to know."""
        return frozenset(self._absent_since)

    def load(self, names: Iterable[str]) -> None:
        """Load the names that an earlier leader saw; they linger until a list has them."""
        for name in names:
            self._absent_since.setdefault(name, None)
        self.lingering |= self.seen

    def note(self, there: Collection[str], is_listed: Callable[[str], bool]) -> bool:
        """Note the names that are there now; true if `lingering` has changed.

        `is_listed` says of an absent name whether the lists that could have it are complete and current.
        """
        now, lingering = self._seconds(), set[str]()
        for name in there:
            self._absent_since[name] = None
        for name, since in list(self._absent_since.items()):
            if name in there:
                continue
            if not is_listed(name):
                self._absent_since[name] = None  # only time in which the lists are current counts
            elif since is None:
                self._absent_since[name] = now
            elif now - since >= self._lasts:
                del self._absent_since[name]
                continue
            lingering.add(name)
        self.lacked = frozenset(name for name in lingering if self._absent_since[name] is not None)
        changed = lingering != self.lingering
        if changed:
            self.lingering = frozenset(lingering)
        return changed

"""Recent errors of one cluster: its own, and those of creations, by the namespace of the gang.

The objects of one gang can cause errors that say nothing about the cluster: a quota of its namespace, or a webhook that
refuses its author. So errors of creations count for the gangs of that namespace, and for all gangs as far as
`NAMESPACES_FOR_ALL` namespaces had as many.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct, field

from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.clusters.potential import NAMESPACES_FOR_ALL

COUNT_FOR: Final = timedelta(minutes=10)
MOST_ERRORS: Final = 100
"""The most errors of one namespace, or of the cluster itself, that count."""
MOST_NAMESPACES: Final = 1_000
"""The most namespaces of a cluster whose errors are remembered, those with the last errors."""
OF_THE_CLUSTER: Final = ""
"""The namespace of errors that no gang caused."""


class ErrorCounts(Struct, frozen=True):
    """The number of errors that count `for_all` gangs, and how many more for those of some namespaces."""

    for_all: int = 0
    in_namespaces: dict[str, int] = field(default_factory=dict)

    def for_gangs_of(self, namespace: str) -> int:
        """The number of errors for the gangs of a namespace."""
        return self.for_all + self.in_namespaces.get(namespace, 0)


NO_ERRORS: Final = ErrorCounts()


class RecentErrors:
    """The errors of a cluster in the last minutes; bounded by `MOST_NAMESPACES` of `MOST_ERRORS`."""

    def __init__(self) -> None:
        self._at: BoundedDict[str, deque[datetime]] = BoundedDict(MOST_NAMESPACES)
        self._own: deque[datetime] = deque(maxlen=MOST_ERRORS)

    def note(self, now: datetime, namespace: str = OF_THE_CLUSTER) -> None:
        """Note an error of the cluster itself, or one while a gang of `namespace` was created there."""
        if namespace == OF_THE_CLUSTER:
            self._own.append(now)
            return
        times = self._at.get(namespace, deque[datetime](maxlen=MOST_ERRORS))
        times.append(now)
        self._at[namespace] = times  # the last one to be forgotten

    def counts(self, now: datetime) -> ErrorCounts:
        """The errors that count now; costs O(namespaces with errors)."""
        own = _count(self._own, now)
        counts = {name: count for name, times in list(self._at.items()) if (count := _count(times, now))}
        for name in self._at.keys() - counts.keys():
            del self._at[name]
        shared = _shared(list(counts.values()))
        more = {name: count - shared for name, count in counts.items() if count > shared}
        return ErrorCounts(own + shared, more)


def _count(times: deque[datetime], now: datetime) -> int:
    while times and now - times[0] > COUNT_FOR:
        times.popleft()
    return len(times)


def _shared(counts: list[int]) -> int:
    """The number of errors that enough namespaces had each."""
    if len(counts) < NAMESPACES_FOR_ALL:
        return 0
    return sorted(counts, reverse=True)[NAMESPACES_FOR_ALL - 1]

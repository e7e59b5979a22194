"""How a cluster stands, and what of a change of it is told in history.

What was noted last is compared with what is so now, so whoever leads next repeats nothing. By hand a cluster is open,
cordoned or being emptied, and whatever it becomes is told; how its connection is, is told beside that. Silence is no
part of it: `unreachable` and `reachable` are told when it begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from dispatcher.core.scheduling import cluster_filters


class ClusterEvent(StrEnum):
    """What happens to a cluster, in the words of `history.cluster_events`."""

    JOINED = "joined"
    """It was connected for the first time."""
    DECLARED = "declared"
    """It is declared again, after it was removed."""
    REMOVED = "removed"
    """It is declared no longer."""
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    """It takes gangs again: it is neither cordoned nor being emptied."""
    DRAINING = "draining"
    CLOSED = "closed"
    """Nothing goes there, for what is wrong with the connection."""
    OPENED = "opened"
    """Nothing is wrong with the connection any more."""
    UNREACHABLE = "unreachable"
    REACHABLE = "reachable"
    CREDENTIALS_ROTATED = "credentials-rotated"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a cluster stands; equal if nothing differs that history tells, however it is put in words.

    `closed_reason` is a reason of `core.scheduling.cluster_filters`, empty if its connection is well, and None if that
    cannot be told now.
    `said` is why its operator closed it, `closed_message` what is wrong with the connection.
    """

    is_declared: bool = True
    is_cordoned: bool = False
    is_draining: bool = False
    closed_reason: str | None = ""
    said: str = field(default="", compare=False)
    closed_message: str = field(default="", compare=False)

    def following(self, before: Standing) -> Standing:
        """The same, where what cannot be told now is as it was before."""
        return replace(self, closed_reason=before.closed_reason) if self.closed_reason is None else self


@dataclass(frozen=True, slots=True)
class ClusterNews:
    """One event of a cluster, without its time."""

    event: ClusterEvent
    reason: str = ""
    message: str = ""


def news(before: Standing, after: Standing) -> list[ClusterNews]:
    """Tell what has changed, in the order in which it is to be read; one that is removed is told to be nothing else."""
    if not after.is_declared:
        return [ClusterNews(ClusterEvent.REMOVED)] if before.is_declared else []
    told = [] if before.is_declared else [ClusterNews(ClusterEvent.DECLARED)]
    wish = _wish(after)
    if _wish(before).event is not wish.event:
        told.append(wish)
    if after.closed_reason != before.closed_reason:
        told.append(_connection(after))
    return told


def _wish(standing: Standing) -> ClusterNews:
    """What its operator wants of it; who is being emptied is so, cordoned or not."""
    if standing.is_draining:
        return ClusterNews(ClusterEvent.DRAINING, cluster_filters.DRAINING, standing.said)
    if standing.is_cordoned:
        return ClusterNews(ClusterEvent.CORDONED, cluster_filters.CORDONED, standing.said)
    return ClusterNews(ClusterEvent.UNCORDONED)


def _connection(standing: Standing) -> ClusterNews:
    if standing.closed_reason:
        return ClusterNews(ClusterEvent.CLOSED, standing.closed_reason, standing.closed_message)
    return ClusterNews(ClusterEvent.OPENED)

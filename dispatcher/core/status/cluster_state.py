"""The state of a cluster, and the events in history about its changes.

The current state is compared with the noted one, so a new leader repeats no event. An operator opens, cordons or drains
a cluster; the state of its connection is separate. `unreachable` and `reachable` are events of their own.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model import pending_reasons
from dispatcher.values import equal_without


class ClusterEvent(StrEnum):
    """What happens to a cluster, in the words of `history.cluster_events`."""

    CONNECTED = "connected"
    """It was connected for the first time."""
    DECLARED = "declared"
    """It is declared again, after it was removed."""
    REMOVED = "removed"
    """It is declared no longer."""
    CORDONED = "cordoned"
    UNCORDONED = "uncordoned"
    """The cluster takes gangs again: it is neither cordoned nor draining."""
    DRAINING = "draining"
    CLOSED = "closed"
    """The cluster takes no gangs, because of a problem of its connection."""
    OPENED = "opened"
    """The connection has no problem any more."""
    UNREACHABLE = "unreachable"
    REACHABLE = "reachable"
    CREDENTIALS_ROTATED = "credentials-rotated"


@equal_without("said", "closed_message")
class ClusterState(Struct, frozen=True):
    """The state of a cluster; two states are equal if history records no difference, whatever their messages.

    `closed_reason` is a reason of `core.scheduling.cluster_filters`, empty if the connection has no problem, None if
    that is not known now. `said` is the operator's reason for a cordon, `closed_message` the problem of the connection.
    """

    is_declared: bool = True
    is_cordoned: bool = False
    is_draining: bool = False
    closed_reason: str | None = ""
    said: str = ""
    closed_message: str = ""

    def following(self, before: ClusterState) -> ClusterState:
        """The same state, with an unknown `closed_reason` taken from the state before."""
        return replace(self, closed_reason=before.closed_reason) if self.closed_reason is None else self


class ClusterChange(Struct, frozen=True):
    """One event of a cluster, without its time."""

    event: ClusterEvent
    reason: str = ""
    message: str = ""


def changes(before: ClusterState, after: ClusterState) -> list[ClusterChange]:
    """The changes between two states, in reading order; a removed cluster has no other change."""
    if not after.is_declared:
        return [ClusterChange(ClusterEvent.REMOVED)] if before.is_declared else []
    changes = [] if before.is_declared else [ClusterChange(ClusterEvent.DECLARED)]
    wish = _wish(after)
    if _wish(before).event is not wish.event:
        changes.append(wish)
    if after.closed_reason != before.closed_reason:
        changes.append(_connection(after))
    return changes


def _wish(state: ClusterState) -> ClusterChange:
    """The event for the operator's setting; a drained cluster counts as drained, cordoned or not."""
    if state.is_draining:
        return ClusterChange(ClusterEvent.DRAINING, pending_reasons.DRAINING, state.said)
    if state.is_cordoned:
        return ClusterChange(ClusterEvent.CORDONED, pending_reasons.CORDONED, state.said)
    return ClusterChange(ClusterEvent.UNCORDONED)


def _connection(state: ClusterState) -> ClusterChange:
    if state.closed_reason:
        return ClusterChange(ClusterEvent.CLOSED, state.closed_reason, state.closed_message)
    return ClusterChange(ClusterEvent.OPENED)

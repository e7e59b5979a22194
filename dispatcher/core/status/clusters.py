"""The state of a member cluster: the events in history about its changes, and the status of its MemberCluster.

The current state is compared with the noted one, so a new leader repeats no event. An operator opens, cordons or drains
a cluster; the state of its connection is separate. `unreachable` and `reachable` are events of their own.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.fit.cluster_filters import Closed
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

    `closed_reason` is a reason of `core.scheduling.fit.cluster_filters`, empty if the connection has no problem, None
    if that is not known now. `said` is the operator's reason for a cordon, `closed_message` the problem of the
    connection.
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


_UNKNOWN: Final = {pending_reasons.NOT_REPORTED}
_NOT_REACHED: Final = {
    pending_reasons.UNREACHABLE,
    pending_reasons.NOT_CONNECTED,
    pending_reasons.ANOTHER_CLUSTER,
}


class PoolState(Struct, frozen=True):
    """A pool that may grow: the nodes of it that are there, the potential ones, and the end of a distrust."""

    name: str
    nodes: int
    potential: int
    distrusted_until: datetime | None = None


class MemberState(Struct, frozen=True):
    """The state of one member; `closed` is why it takes no gangs, and `since` the last change of that.

    The member does not answer since `unreachable_since`, which is long before `since` if that began under another
    leader.
    """

    since: datetime
    closed: Closed | None = None
    cluster_uid: str = ""
    allocatable: Resources = NOTHING
    free: Resources = NOTHING
    running: int = 0
    unreachable_since: datetime | None = None
    pools: tuple[PoolState, ...] = ()


def status_of(known: MemberState) -> dict[str, Any]:
    """The whole `status` of a MemberCluster, as JSON; absent fields mean none, or unknown."""
    status: dict[str, Any] = {
        "conditions": [
            _condition("Reachable", _is_reached(known.closed), known),
            _condition("Authenticated", _is_accepted(known.closed), known),
        ],
        "running": known.running,
    }
    if known.cluster_uid:
        status["clusterUID"] = known.cluster_uid
    if known.allocatable:
        status["allocatable"], status["free"] = _in_words(known.allocatable), _in_words(known.free)
    if known.closed:
        status["reason"], status["message"] = known.closed.reason, known.closed.message
    if known.unreachable_since:
        status["unreachableSince"] = timestamp(known.unreachable_since)
    if known.pools:
        status["potential"] = [_pool(each) for each in known.pools]
    return status


def _pool(pool: PoolState) -> dict[str, Any]:
    until = {"distrustedUntil": timestamp(pool.distrusted_until)} if pool.distrusted_until else {}
    return {"name": pool.name, "nodes": pool.nodes, "potential": pool.potential, **until}


def _is_reached(closed: Closed | None) -> bool | None:
    if closed is not None and closed.reason in _UNKNOWN:
        return None
    return closed is None or closed.reason not in _NOT_REACHED


def _is_accepted(closed: Closed | None) -> bool | None:
    reached = _is_reached(closed)
    if not reached:
        return None
    return closed is None or closed.reason != pending_reasons.CREDENTIALS_REFUSED


def _condition(type_: str, holds: bool | None, known: MemberState) -> dict[str, str]:  # a value, no flag
    condition = {
        "type": type_,
        "status": "Unknown" if holds is None else str(holds),
        "lastTransitionTime": timestamp(known.since),
    }
    if known.closed and not holds:
        condition |= {"reason": known.closed.reason, "message": known.closed.message}
    return condition


def _in_words(amounts: Resources) -> dict[str, str]:
    return {name: in_words(name, amount) for name, amount in sorted(amounts.items())}

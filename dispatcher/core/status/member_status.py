"""The status of a MemberCluster: whether it can be used, its free capacity, and since when."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher.core.model import pending_reasons
from dispatcher.core.model.quantity import in_words
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.model.timestamps import timestamp
from dispatcher.core.scheduling.cluster_filters import Closed

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

"""The gangs that cause an exception in a plan over many gangs: each kind of gang is planned alone, on copies.

A plan that an exception ended may be half changed, so nothing of it is used. The gangs that are found take part in no
plan for some time, and the others are planned anew.

Growth: a plan of one gang for each kind of gang; only after such an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from msgspec.structs import replace

from dispatcher.core.model.failures import Failure
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.record import Record
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.pending_queue import PendingQueue

BARRED_FOR: Final = timedelta(minutes=5)
"""The time for which gangs that ended a plan take part in none."""


class Culprits(NamedTuple):
    """Gangs of one kind, and the exception of a plan of one of them."""

    records: tuple[Record, ...]
    failure: Failure


def culprits_in_steps(
    records: Iterable[Record], plan_alone: Callable[[Record], object]
) -> Steps[list[Culprits]]:
    """The gangs with which a plan raises an exception; one of each kind is planned."""
    kinds: dict[object, list[Record]] = {}
    for record in records:
        kinds.setdefault(_kind_of(record), []).append(record)
    found: list[Culprits] = []
    for alike in kinds.values():
        try:
            plan_alone(alike[0])
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            found.append(Culprits(tuple(alike), Failure.of(alike[0].uid, error)))
        yield
    return found


def plan_in_one_queue(
    record: Record,
    snapshots: Mapping[str, ClusterSnapshot],
    policy: QueueingStrategy,
    bound: timedelta,
    now: datetime,
) -> None:
    """Plan one gang alone, as `PendingQueue` does; changes copies of the snapshots only."""
    alone = PendingQueue()
    alone.put(record)
    alone.plan(copies_of(snapshots), policy, bound, now)
    for failure in alone.take_failures():
        raise failure.error


def copies_of(snapshots: Mapping[str, ClusterSnapshot]) -> dict[str, ClusterSnapshot]:
    """The same snapshots; a plan that takes from them leaves the others as they are."""
    return {name: replace(each, capacity=each.capacity.copy()) for name, each in snapshots.items()}


def _kind_of(record: Record) -> object:
    """Gangs of one kind differ in nothing but their age and their names; a gang that has none is a kind of its own."""
    try:
        kind = (
            record.leaves,
            record.shape,
            record.namespace,
            record.priority,
            record.priority_slope,
            record.blocked_since is None,
            record.is_preempting,
            record.never_preempts,
            bool(record.preempted_at),
        )
        hash(kind)
    except Exception:  # noqa: BLE001  # its plan raises as well
        return record.uid
    return kind

"""The turns of growth: which gated pod, or slice, is decided next.

A pod, or a slice, has the turn of a gang of these pods that its author queued when the first of them was created. So
growth goes in the order of a scheduling cycle: by the level, share or load of its queue, by the recent use of its
namespace where the queue orders by that, by effective priority, and by age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from dispatcher.api.names import HUB_CLUSTER
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.growth import GatedPod, age_in
from dispatcher.core.model.incremental import Steps, in_order
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import sum_of
from dispatcher.core.scheduling.cycle.turns import Turns
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import RecentUse
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

Hosts = tuple[GatedPod, ...]
"""The hosts of one slice, or one pod."""


def growth_turns(
    asking: Iterable[tuple[Record, Hosts]],
    later: QuotaLedger,
    shares: Mapping[str, Shares],
    usage: RecentUse,
    now: datetime,
) -> Steps[Turns]:
    """The turns of what each gang asks for; the uid of a turn is that of the first host.

    Without declared queues the ledger has an empty forest: then only priority and age count.
    """
    by_age = yield from in_order(asking, lambda each: _age_of(each[0], each[1][0], now))
    queued = QueuedGangs()
    for number, (record, hosts) in enumerate(by_age):
        queued.put(_alone(record, hosts, number, now), now)
        yield
    return Turns(queued, later, shares, usage, now)


def asked_at(record: Record, pod: GatedPod, now: datetime) -> datetime:
    """Since when a pod of a gang asks to start, never later than `now`.

    The hub's API server dates AppWrappers and pods alike. A member's clock is its own: if it lags, its pods would pass
    every gang that waits. So a pod of a member asks no longer than the gang's growth request is known.
    """
    created = age_in(pod.created_at)
    if record.attempt is not None and record.attempt.cluster != HUB_CLUSTER:
        noted = record.growth_request
        created = max(created, now if noted is None else noted.since)
    return min(created, now)


def _alone(record: Record, hosts: Hosts, number: int, now: datetime) -> Record:
    """The pods as a gang of their own; of two that were created in the same second, `number` decides."""
    created, requests = asked_at(record, hosts[0], now), sum_of(each.requests for each in hosts)
    return replace(
        record,
        uid=hosts[0].uid,
        gang=Gang(requests, len(hosts), namespace=record.namespace),
        created_at=created,
        aged_from=None,
        enqueue_seq=number,
        is_preempting=False,
    )


def _age_of(record: Record, pod: GatedPod, now: datetime) -> tuple[datetime, str, str, str]:
    return asked_at(record, pod, now), pod.created_at, pod.namespace, pod.name

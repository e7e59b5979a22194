"""The turns of growth: which gated pod, or slice, is decided next.

A pod, or a slice, has the turn of a gang of these pods that its author queued when the first of them was created. So
growth goes in the order of a scheduling cycle: by the level, share or load of its queue, by the recent use of its
namespace where the queue orders by that, by effective priority, and by age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from dispatcher.core.model.gang import Gang
from dispatcher.core.model.growth import GatedPod
from dispatcher.core.model.incremental import Steps, in_order
from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import sum_of
from dispatcher.core.scheduling.sharing.division import Shares
from dispatcher.core.scheduling.sharing.gangs import RecentUse
from dispatcher.core.scheduling.sharing.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger
from dispatcher.core.scheduling.sharing.turns import Turns

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
    by_age = yield from in_order(asking, lambda each: _age_of(each[1][0]))
    queued = QueuedGangs()
    for number, (record, hosts) in enumerate(by_age):
        queued.put(_alone(record, hosts, number), now)
        yield
    return Turns(queued, later, shares, usage, now)


def _alone(record: Record, hosts: Hosts, number: int) -> Record:
    """The pods as a gang of their own; of two that were created in the same second, `number` decides."""
    created, requests = datetime.fromisoformat(hosts[0].created_at), sum_of(each.requests for each in hosts)
    return replace(
        record,
        uid=hosts[0].uid,
        gang=Gang(requests, len(hosts)),
        created_at=created,
        enqueue_seq=number,
        is_preempting=False,
    )


def _age_of(pod: GatedPod) -> tuple[str, str, str]:
    return pod.created_at, pod.namespace, pod.name

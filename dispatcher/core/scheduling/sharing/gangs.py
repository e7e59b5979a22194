"""The gangs of a cycle over queues: pending gangs with their leaves, and gangs that hold capacity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.clusters.provisioning import ProvisioningClass
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.records.preemption import PREEMPTIONS_WITHIN
from dispatcher.core.model.records.record import ACTIVE, HOLDING, Attempt, Phase, Record
from dispatcher.core.model.resources import NOTHING, PODS, Resources
from dispatcher.core.queues import ordering
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.queues.queue import Order

RecentUse = Mapping[tuple[str, str], Fraction]
"""The recent use of each namespace in each leaf, by leaf and namespace."""


class _RecordedGang(Struct, frozen=True):
    record: Record

    @property
    def leaves(self) -> tuple[str, ...]:
        """Its queues."""
        return self.record.leaves

    @property
    def uid(self) -> str:
        """The uid of its AppWrapper."""
        return self.record.uid


class PendingGang(_RecordedGang, frozen=True):
    """A gang that waits in one leaf of each of its trees; its turn is that of the first.

    `preemptions` is how often it was preempted within the last 24 hours. `asked` is the class from which its queue
    requests its capacity: then no cluster needs room for it. It waits in other `queues` than it names where labels name
    none. `is_by_clusters` is true if only clusters decide whether it goes.
    """

    preemptions: int = 0
    asked: ProvisioningClass | None = None
    queues: tuple[str, ...] = ()
    is_by_clusters: bool = False

    @property
    def leaves(self) -> tuple[str, ...]:
        """The queues in which it waits."""
        return self.queues or self.record.leaves


class Part(Struct, frozen=True):
    """A part of a gang: the gang without its surplus (no `name`), or a part of its surplus.

    A part of the surplus is one pod, or the hosts of one slice, or growth that no pod uses (no `pods`). Its removal
    frees `charge` in the queues of the gang, and `held` in its cluster. `unused` is the growth that no pod uses, which
    leaves before each pod.
    """

    charge: Resources
    held: Resources
    name: str = ""
    pods: tuple[SurplusPod, ...] = ()
    unused: Resources = NOTHING


class ActiveGang(_RecordedGang, frozen=True):
    """A gang that holds capacity of a cluster, and quota in its leaves.

    `dispatched_at` is when its objects were to be created: at the dispatch, or once the requested capacity was there.
    `is_leaving` is true while it is deleted, suspended, requeued or preempted, unless its cluster does not answer.
    `is_fixed` is true for a gang that nobody may preempt now: it is being created, or its cluster does not answer. A
    gang that awaits the capacity that it requested is not being created yet. With a `part` it is only that part of
    the gang. It is `charged` in other queues where its own are gone (`charged_in`).
    """

    cluster: str
    dispatched_at: datetime
    is_leaving: bool = False
    is_fixed: bool = False
    part: Part | None = None
    charged: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """The queues in which it is charged: its own, or those above that bear the charges of queues that are gone."""
        return self.charged or self.record.leaves

    @property
    def is_left(self) -> bool:
        """True if a queue of it is gone, so that it would not be dispatched again."""
        return bool(self.charged)

    @property
    def uid(self) -> str:
        """The uid of its AppWrapper; that of a part of its surplus has the name of the part as well."""
        if self.part is None or not self.part.name:
            return self.record.uid
        return f"{self.record.uid}/{self.part.name}"

    @property
    def is_surplus(self) -> bool:
        """True for a part of a gang's surplus."""
        return self.part is not None and bool(self.part.name)

    @property
    def is_unused(self) -> bool:
        """True for the part of a gang's surplus that no pod uses."""
        return self.part is not None and bool(self.part.name) and not self.part.pods

    @property
    def charge(self) -> Resources:
        """The amounts that its queues are charged with for it."""
        return self.record.quota_charge if self.part is None else self.part.charge

    @property
    def awaits_capacity(self) -> bool:
        """True while its cluster has no capacity for it yet: it holds quota alone."""
        attempt = self.record.attempt
        return attempt is not None and attempt.awaits_capacity

    @property
    def demand(self) -> Resources:
        """The amounts that it takes of its cluster for its demand, which may be less than its queues are charged with.

        While it awaits capacity it takes none. A part of the surplus takes what its removal frees.
        """
        if self.part is not None and self.part.name:
            return self.part.held
        return NOTHING if self.awaits_capacity else self.record.gang.in_cluster(self.cluster).demand

    def is_protected(self, min_runtime: timedelta, now: datetime) -> bool:
        """True if it has not run for as long as its queue lets a gang run; one that awaits capacity does not run.

        Surplus pods are not protected: the gang goes on without them.
        """
        return now - self.dispatched_at < min_runtime and not self.awaits_capacity and not self.is_surplus


class Rank(NamedTuple):
    """The order of two gangs wherever a tie is left; the lowest is first."""

    is_not_preempting: bool
    recent_use: Fraction
    in_queue: ordering.Rank


NO_USE: Final = Fraction(0)
"""The recent use where it decides nothing."""


def rank(gang: PendingGang, now: datetime) -> Rank:
    """The rank of a gang among those of all queues."""
    return Rank(not gang.record.is_preempting, NO_USE, ordering.rank(gang.record, now))


def recent_use(place: Place | None, namespace: str, usage: RecentUse) -> Fraction:
    """The recent use by which a queue orders the gangs of a namespace; `NO_USE` if it does not order by it."""
    if place is None or place.queue.order is not Order.USAGE:
        return NO_USE
    return usage.get((place.name, namespace), NO_USE)


# --- from records --------------------------------------------------------------------------------------------


def gave_way_too_often(how: str, times: int) -> str:
    """That a gang may not borrow any more, because it gave way so many times."""
    return f"it {how} {times} times within 24 hours, and would have to borrow"


def count_preemptions(record: Record, now: datetime) -> int:
    """How often a gang was preempted, as far as it counts against `maxPreemptions`."""
    return sum(now - each < PREEMPTIONS_WITHIN for each in record.preempted_at)


def count_taken(record: Record, now: datetime) -> int:
    """How often surplus was taken from the present attempt of a gang; its growth borrows less often for that."""
    growth = record.attempt.growth if record.attempt else ()
    return sum(each.is_taken and now - each.at < PREEMPTIONS_WITHIN for each in growth)


def active_gang(record: Record, *, is_unreachable: bool) -> ActiveGang | None:
    """A record that holds capacity as queues see it, else None; `is_unreachable` if its cluster does not answer."""
    attempt = record.attempt
    if record.phase not in HOLDING or attempt is None:
        return None
    is_beginning = record.phase is Phase.DISPATCHING
    may_end = record.phase in ACTIVE or (is_beginning and attempt.awaits_capacity)
    return ActiveGang(
        record,
        attempt.cluster,
        attempt.began_at,
        is_leaving=record.phase not in ACTIVE and not is_beginning and not is_unreachable,
        is_fixed=is_unreachable or not may_end,
    )


def set_aside(record: Record) -> ActiveGang | None:
    """A gang that holds capacity, of which nothing else can be decided: it is charged, and nobody may preempt it.

    It stands for a gang that causes exceptions, so it has only fields of the record that need no function, and another
    uid. It is charged with the demand, the number of its pods and all growth, which is at least the charge of the gang.
    What it holds of its cluster stays charged in snapshots. None of a record that holds none.
    """
    attempt = record.attempt
    if attempt is None or record.phase not in HOLDING:
        return None
    grown, more_pods = (
        (attempt.growth[-1].amounts, attempt.growth[-1].count) if attempt.growth else (NOTHING, 0)
    )
    plain = Record(
        uid=f"{record.uid}/aside",
        group=record.group,
        namespace=record.namespace,
        name=record.name,
        created_at=record.created_at,
        phase=record.phase,
        phase_since=record.phase_since,
        queue=record.queue,
        more_queues=record.more_queues,
        priority=record.priority,
        gang=Gang(record.gang.demand + grown, record.gang.charged[PODS] + more_pods),
        attempt=Attempt(attempt.number, attempt.cluster, attempt.decided_at),
    )
    return ActiveGang(plain, attempt.cluster, attempt.decided_at, is_fixed=True)


def with_aside(active: Iterable[ActiveGang], uids: Collection[str]) -> list[ActiveGang]:
    """These gangs, those of `uids` set aside, each once: they have no parts."""
    found: list[ActiveGang] = []
    done = set[str]()
    for gang in active:
        uid = gang.record.uid
        if uid not in uids:
            found.append(gang)
        elif uid not in done:
            done.add(uid)
            found += [each] if (each := set_aside(gang.record)) is not None else []
    return found


def charged_in(forest: Forest, active: Sequence[ActiveGang]) -> Sequence[ActiveGang]:
    """These gangs, each with the queues in which it is charged. One look for each gang, where any queue is gone."""
    gone = forest.charged_in.keys()
    if not gone:
        return active
    return [
        each if gone.isdisjoint(each.leaves) else replace(each, charged=forest.charged(each.leaves))
        for each in active
    ]


def leaving_by_cluster(active: Iterable[ActiveGang]) -> dict[str, list[tuple[str, Resources]]]:
    """The gangs that leave, by cluster: the uid of each, and the amounts that it gives back there."""
    found: dict[str, list[tuple[str, Resources]]] = {}
    for gang in active:
        if gang.is_leaving:
            found.setdefault(gang.cluster, []).append((gang.uid, gang.demand))
    return found

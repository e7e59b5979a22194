"""The gangs that cause an exception in a plan over many gangs: each kind of gang is planned alone, on copies.

A plan that an exception ended may be half changed, so nothing of it is used. The gangs that are found take part in no
plan for some time, and the others are planned anew. A gang that holds capacity may cause an exception as well: it is
set aside for some time, which means that it stays charged, and that nothing else of it is considered.

Growth: a plan of one gang for each kind of gang; only after such an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from msgspec.structs import replace

from dispatcher.core.model.clusters.potential import NAMESPACES_FOR_ALL
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.failures import Failure
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot

BARRED_FOR: Final = timedelta(minutes=5)
"""The time for which gangs that ended a plan take part in none."""


MOST_BLAMED: Final = NAMESPACES_FOR_ALL - 1
"""The most namespaces whose gangs are blamed for the exception of one plan, or of one search over a world."""


PLAIN: Final = "/plain"
"""Follows the uid of a gang in the uid of the plain one that stands for it."""


class Culprits(NamedTuple):
    """Gangs of one kind, and the exception of a plan of one of them."""

    records: tuple[Record, ...]
    failure: Failure


def culprits_in_steps(
    records: Iterable[Record], plan_alone: Callable[[Record], Steps[None]]
) -> Steps[list[Culprits]]:
    """The gangs with which a plan raises an exception; one of each kind is planned."""
    kinds: dict[object, list[Record]] = {}
    for record in records:
        kinds.setdefault(_kind_of(record), []).append(record)
    found: list[Culprits] = []
    for alike in kinds.values():
        try:
            yield from plan_alone(alike[0])
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            found.append(Culprits(tuple(alike), Failure.of(alike[0].uid, error)))
        yield
    return found


class Holder(NamedTuple):
    """A gang that holds capacity: the uid and the namespace of its AppWrapper."""

    uid: str
    namespace: str


def to_blame_in_steps(
    raises: Callable[[frozenset[str]], Steps[bool]], holders: Sequence[Holder]
) -> Steps[frozenset[str] | None]:
    """The uids of gangs that hold capacity without which a plan raises no more: those of some namespaces.

    `raises` plans with these gangs set aside, by uid, for no gang that waits, or for a plain one. None if the plan
    raises with none of them, with all of them, or with those of `MOST_BLAMED` namespaces set aside.

    Growth: a plan for each halving of their number, for each namespace.
    """
    if not (yield from raises(frozenset())) or (yield from raises(frozenset(each.uid for each in holders))):
        return None
    blamed = frozenset[str]()
    for _ in range(MOST_BLAMED):
        first, last = (
            0,
            len(holders),
        )  # set aside, the gangs up to `last` are enough, and those up to `first` are not
        while last - first > 1:
            middle = (first + last) // 2
            if (yield from raises(blamed.union(each.uid for each in holders[:middle]))):
                first = middle
            else:
                last = middle
        namespace = holders[last - 1].namespace
        blamed = blamed.union(each.uid for each in holders if each.namespace == namespace)
        if not (yield from raises(blamed)):
            return blamed
    return None


def culprits_by_stand_ins(
    raises: Callable[[frozenset[str]], Steps[Exception | None]], records: Sequence[Record], error: Exception
) -> Steps[list[Culprits]]:
    """The gangs of a world that cause the `error` of a search over it, of any that wait or hold capacity.

    `raises` searches with stand-ins for the gangs of these uids, which have nothing of them but their amounts, and
    returns the exception. Of a gang that is found, all of its kind are blamed; if another one of its namespace is found
    then, its whole namespace is. Of gangs that hold capacity one may be blamed without which no search comes to the
    gang that causes it.

    Raises the `error` if the search raises with stand-ins for all gangs, which is no fault of theirs, or with those of
    `MOST_BLAMED` namespaces.

    Growth: a search for each halving of the number of gangs, twice for each namespace.
    """
    if (yield from raises(frozenset(each.uid for each in records))) is not None:
        raise error
    found: list[Culprits] = []
    for _ in range(2 * MOST_BLAMED):
        blamed = frozenset(record.uid for each in found for record in each.records)
        first, last, cause = 0, len(records), error
        while last - first > 1:
            middle = (first + last) // 2
            again = yield from raises(blamed.union(each.uid for each in records[:middle]))
            if again is None:
                last = middle
            else:
                first, cause = middle, again
        found.append(_with_alike(records[last - 1], records, found, cause))
        if (yield from raises(blamed.union(each.uid for each in found[-1].records))) is None:
            return found
    raise error


def _with_alike(
    record: Record, records: Iterable[Record], found: Iterable[Culprits], error: Exception
) -> Culprits:
    """A gang with those that are blamed with it: those of its kind, or of its namespace if one is blamed already."""
    failure = Failure.of(record.uid, error)
    if any(each.records[0].namespace == record.namespace for each in found):
        alike = [each for each in records if each.namespace == record.namespace]
    else:
        alike = alike_in(record, records)
    return Culprits(tuple(alike), failure)


def alike_in(record: Record, records: Iterable[Record]) -> list[Record]:
    """The gangs of one kind with a gang, and the gang itself."""
    if record.phase is not Phase.QUEUED:
        return [record]
    kind = _kind_of(record)
    queued = (each for each in records if each.phase is Phase.QUEUED and each.namespace == record.namespace)
    return [each for each in queued if each is record or _kind_of(each) == kind]


def plain_of(record: Record) -> Record:
    """A gang that waits and needs a little more than this one, without anything else of it.

    If a plan raises for this one and not for that, this one is to blame, and not the gangs that hold capacity.
    """
    sets = tuple(PodSet(each.count, _a_little_more(each.requests)) for each in record.gang.pod_sets)
    return Record(
        uid=f"{record.uid}{PLAIN}",
        group=record.group,
        namespace=record.namespace,
        name=record.name,
        created_at=record.created_at,
        phase=record.phase,
        phase_since=record.phase_since,
        enqueue_seq=record.enqueue_seq,
        queue=record.queue,
        more_queues=record.more_queues,
        priority=record.priority,
        gang=Gang(_a_little_more(record.gang.demand), record.gang.pods, sets),
        blocked_since=record.blocked_since,
    )


def _a_little_more(amounts: Resources) -> Resources:
    return Resources({name: amount + amount // 1000 + 1 for name, amount in amounts.items()})


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

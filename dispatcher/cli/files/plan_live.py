"""Kubernetes objects applied to the leader's last snapshot, for `plan --live`: the facts of the cycle after that.

The queues are judged as the leader judges them (`SchedulingRules.with_declared`). An AppWrapper that the leader knows
keeps its record with the demand that it was charged with, and follows what its user may change as the leader follows it
(`core.intake.proposal.applied`): an API server changes nothing else of it. Others are new, with the defaults of pods
that the leader counts. The snapshot has no specs, so kinds and demands are compared to find out whether a file wraps
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from dispatcher.cli.files.plan_manifests import Manifests, Proposed, changed_by, proposals_of, queued
from dispatcher.cli.query import note
from dispatcher.core.intake.proposal import (
    Proposal,
    applied,
    known_defaults,
    may_be_charge_of,
    with_pod_defaults,
)
from dispatcher.core.intake.status_end import end_in_status
from dispatcher.core.lifecycle.approvals import awaited
from dispatcher.core.lifecycle.queue_changes import await_approvals
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.core.scheduling.fit.cluster_filters import is_unreachable
from dispatcher.core.scheduling.sharing.gangs import active_gang
from dispatcher.text import mapping_of

if TYPE_CHECKING:
    from dispatcher.store.snapshot.snapshot_reader import Snapshot

DISPATCHED: Final = "Dispatched already, and not planned again"
LEAVING: Final = "Suspended, and leaving the cluster"
SUSPENDED: Final = "Suspended, and not planned before it is resumed"
ENDED: Final = "Ended already, and not planned again"
ANEW: Final = "Planned as deleted and submitted anew, because kubectl apply changes no wrapped objects"
CHARGED: Final = (
    "Planned with the demand of the submission, because defaults of pods have changed since, "
    "or the file has other requests, which kubectl apply refuses"
)
NO_LABELS: Final = (
    "No queue has selected namespaces until now, so the snapshot lacks labels of theirs: "
    "add the Namespaces (kubectl get namespaces -o yaml)."
)
_MOST_NAMED: Final = 3
"""AppWrappers that a note names."""
_ENDED: Final = frozenset({Phase.COMPLETED, Phase.FAILED})


class _Applied(NamedTuple):
    """What `kubectl apply` makes of one AppWrapper: a `new` one, or a changed `record`; neither if it has ended.

    `why` is the note about an AppWrapper that is not planned as it is written.
    """

    new: Proposed | None = None
    record: Record | None = None
    why: str = ""


class _AllApplied(NamedTuple):
    """The AppWrappers of files: those that are new, and the records by uid of those that the leader knows.

    `replaced` are the uids of known ones that a new one stands for.
    """

    new: list[Proposed]
    known: dict[str, Record]
    replaced: set[str]


def live_world_of(found: Manifests, snapshot: Snapshot, cluster: str) -> World:
    """The leader's last snapshot, changed by these objects; nodes are those of `cluster`, or of the only one.

    Raises `SpecError`, `InvalidFile`.
    """
    world, rules = changed_by(found, snapshot.world, snapshot.rules, cluster)
    before, after = snapshot.world.forest, world.forest
    changed = _apply(proposals_of(found, rules, world.now), snapshot, rules)
    records = {**snapshot.records, **changed.known}
    there = {each.uid: records.get(each.uid, each) for each in world.pending}
    there.update((uid, each) for uid, each in changed.known.items() if each.phase is Phase.QUEUED)
    waiting = [
        _approved(each, before.places_of(snapshot.records.get(uid, each).leaves), after, world.now)
        for uid, each in there.items()
        if each.phase is Phase.QUEUED and uid not in changed.replaced
    ]
    new = [each.proposal.record for each in queued(changed.new)]
    world = replace(world, pending=(*waiting, *new), running=_running(world, records))
    is_unlabelled = any(each.namespace not in found.namespaces for each in world.pending)
    if is_unlabelled and _selects_namespaces(after) and not _selects_namespaces(before):
        note(NO_LABELS)
    return world


def _apply(proposals: Iterable[Proposed], snapshot: Snapshot, rules: SchedulingRules) -> _AllApplied:
    """Part the AppWrappers of files into new and known ones; notes name those that are not planned as written."""
    by_name = {_name_of(each): each for each in snapshot.records.values() if each.phase is not Phase.DELETED}
    all_applied = _AllApplied([], {}, set())
    told: defaultdict[str, list[str]] = defaultdict(list)
    for each in proposals:
        proposed = each.proposal.record
        before = by_name.get(_name_of(proposed))
        new, record, why = _applied_to(before, each, snapshot, rules)
        if new is not None:
            all_applied.new.append(new)
        if new is not None and before is not None:
            all_applied.replaced.add(before.uid)
        if record is not None:
            all_applied.known[record.uid] = record
        if why:
            told[why].append(proposed.key)
    for why, keys in told.items():
        more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
        note(f"{why}: {', '.join(keys[:_MOST_NAMED])}{more}.")
    return all_applied


def _name_of(record: Record) -> tuple[str, str]:
    return record.group, record.key


def _applied_to(
    record: Record | None, written: Proposed, snapshot: Snapshot, rules: SchedulingRules
) -> _Applied:
    """The AppWrapper as it is written, applied to the one of its name; `record` is None if the leader knows none.

    The gang keeps the demand that it was charged with at its submission, whatever the leader would charge today.
    """
    if _has_ended(record, written):
        return _Applied(why=ENDED)
    today = _with_defaults(written, snapshot)
    if record is None:
        return _Applied(new=today)
    is_as_today = record.gang == today.proposal.record.gang
    has_kinds = record.requirements.kinds == today.proposal.record.requirements.kinds
    may_be_same = has_kinds and (is_as_today or may_be_charge_of(record.gang, written.proposal, rules))
    if not (record.holds_capacity or may_be_same):
        return _Applied(new=today, why=ANEW)
    after = _followed(record, written.proposal, rules, snapshot.world.now)
    if after.phase is not Phase.QUEUED:
        return _Applied(record=after, why=_why_not_planned(record, after))
    return _Applied(record=after, why="" if is_as_today else CHARGED)


def _has_ended(record: Record | None, written: Proposed) -> bool:
    """True for an AppWrapper that has ended, by its record or, if the leader knows none, by its status in the file."""
    if record is not None:
        return record.phase in _ENDED
    return end_in_status(mapping_of(written.raw.get("status"))) is not None


def _with_defaults(proposed: Proposed, snapshot: Snapshot) -> Proposed:
    """The AppWrapper with the defaults of pods in the clusters, as far as the leader's snapshot has them."""
    proposal = proposed.proposal
    known = known_defaults(proposal, snapshot.world.clusters, snapshot.surveys, None)
    return proposed._replace(proposal=with_pod_defaults(proposal, known.defaults, snapshot.rules))


def _followed(record: Record, proposal: Proposal, rules: SchedulingRules, now: datetime) -> Record:
    """The record after the leader has followed the file; one that is resumed awaits the approvals that it needs now."""
    after, lacks = applied(record, proposal, rules, now), proposal.record.pending
    is_resumed = record.phase is Phase.SUSPENDED and after.phase is Phase.QUEUED
    return await_approvals(after, lacks, now).after if is_resumed and lacks is not None else after


def _why_not_planned(before: Record, after: Record) -> str:
    if not after.holds_capacity:
        return SUSPENDED
    return DISPATCHED if after.phase is before.phase else LEAVING


def _approved(record: Record, former: Iterable[Place], forest: Forest, now: datetime) -> Record:
    """A queued gang, which awaits the approvals that its queues name now and its `former` ones did not.

    Only the status of its AppWrapper says which others it has.
    """
    if record.awaits_approval:
        return record
    had = {name for place in former for name in place.approvals}
    lacks = awaited("", record.leaves, forest, had)
    return record if lacks is None else await_approvals(record, lacks, now).after


def _running(world: World, records: Mapping[str, Record]) -> tuple[RunningGang, ...]:
    """The running gangs as queues see them. Where no queue was declared, they were charged in none; now they may be."""
    if world.queues is None:
        return world.running
    unreachable = {each.name for each in world.clusters if is_unreachable(each.closed)}
    return tuple(
        replace(each, active=active_gang(records[each.name], is_unreachable=each.cluster in unreachable))
        if each.name in records
        else each
        for each in world.running
    )


def _selects_namespaces(forest: Forest) -> bool:
    return any(place.namespace_selectors for place in forest.places.values())

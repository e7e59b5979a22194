"""Health issues of a dispatched gang, and when each is due for an eviction or a failure.

The time of an issue begins at the dispatch while the gang has never run, later when the issue is noted in the record.
An issue that ends within its grace has no effect. MCAD's checks apply where `minAvailable` is written, v1beta2's to
components. Without either, a gang is evicted for issues that do not recover: no pods at all, lost pods, a pod without a
node, and, until the gang has run, pods that nobody made or that do not start. Pods that pull images or run init
containers may take any time.

Pods that its objects do not ask for (`withheld`) are no health issue of a gang that has run, unless `minAvailable` is
written. A gang that has never run needs the pods that its objects ask for, and at least one. While Kueue is still to
admit all that a gang asks for, its pods are not missed for the operator's time: an eviction loses the place of the
objects in Kueue's queue. While nobody has read what an object asks for, pods that a gang which has run lacks are in
doubt: it is not evicted for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.kinds.completion import pods_of
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.lifecycle.missing_pods import ABSENT, NONE_WITHHELD, UNPLACED, Lack, Withheld, lack_in
from dispatcher.core.lifecycle.policy import LifecyclePolicy
from dispatcher.core.model.clusters.potential import in_words
from dispatcher.core.model.gangs.growth import GatedPod, PodRef, PodsByTemplate, SurplusPod
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import NotedIssue, ObjectRef, Phase, Record
from dispatcher.core.model.resources import Resources

UNSEEN: Final = timedelta(seconds=5)
"""The time after a creation in which a watch may not show the object yet."""

TOLD_AFTER: Final = timedelta(seconds=30)
"""The time after a dispatch from which the status says that pods are missing or do not start.

Most gangs have all pods by then, so that they cost no note."""

WORDS_RENEWED_AFTER: Final = timedelta(minutes=1)
"""The least time from one event of a gang to other words about the same health issue."""

PODS_PER_SECOND: Final = 5
"""Pods that controllers make at the least; for so many more pods of a gang its grace is a second longer.

Source: the Job controller makes 20 a second, for all Jobs of a cluster, with the default `--kube-api-qps`."""

_MOST_NAMED: Final = 3

_KEEPING: Final = frozenset({words.FAILED_COMPONENT, words.MISSING_COMPONENT, words.FOUND_FAILED_PODS})


def keeps_what_ended(record: Record) -> bool:
    """True if ended objects of a failed gang stay for their logs while the others are removed."""
    was_created = record.attempt is not None and record.attempt.created_at is not None
    return record.phase is Phase.FAILING and was_created and record.reason in _KEEPING


class Remedy(StrEnum):
    """The step that follows once a health issue is due."""

    REQUEUE = "requeue"
    FAIL = "fail"


class HealthIssue(Struct, frozen=True):
    """A health issue; at `due` its remedy follows. `due` is None until the issue is noted in the record.

    An issue with a `due` is noted only if it is `told_from` a time on, with `since` as its begin. Without a `due`,
    `told_from` delays the note: each gang lacks pods in the first moments. It `is_in_doubt` if objects that nobody has
    read may ask for so few pods that there is no issue; then it ends no attempt. It `is_anew` if the record has an
    issue of the same reason whose time is not the time of this issue.
    """

    reason: str
    message: str
    remedy: Remedy
    due: datetime | None
    told_from: datetime | None = None
    since: datetime | None = None
    is_in_doubt: bool = False
    is_anew: bool = False


class ObservedObjects(Struct, frozen=True):
    """The pods of a dispatched gang, and the states of its wrapped objects in the order of the attempt.

    A state is None where it is unknown; `absent` are objects that a complete watch does not have. `drift` names the
    changed fields; empty if there are none, None while that is not known. `taken` are the requests of the live pods
    that it is charged for, which are the bound ones, or the admitted ones if its templates have the dispatcher's gate;
    None if not known. `taken_pods` is the number of these pods. `beyond` are its admitted pods beyond the base gang,
    None if its templates have no gate. `gated` are its pods with the gate, the oldest first. It `gives_up` pods while
    one of those that it gives up for another gang is live; `to_delete` are those of them whose deletion was not
    requested yet. `unplaced` are its granted pods without a node, with the other hosts of their slices. `withheld` are
    pods that its objects do not ask for. `unserved` are objects of kinds that the cluster does not serve.
    """

    pods: PodCounts = field(default_factory=PodCounts)
    states: tuple[ObjectState | None, ...] = ()
    absent: tuple[ObjectRef, ...] = ()
    drift: str | None = ""
    taken: Resources | None = None
    gated: tuple[GatedPod, ...] = ()
    gives_up: bool = False
    to_delete: tuple[PodRef, ...] = ()
    beyond: PodsByTemplate | None = None
    unplaced: tuple[SurplusPod, ...] = ()
    withheld: Withheld = NONE_WITHHELD
    unserved: tuple[ObjectRef, ...] = ()
    taken_pods: int = 0


def failures(record: Record, states: Sequence[ObjectState | None]) -> Iterator[HealthIssue]:
    """Wrapped objects that failed; a gang with an evicted Pod is requeued."""
    for ref, state in zip(_objects(record), states, strict=False):
        if state is not None and state.end in {End.FAILED, End.EVICTED}:
            failed = state.end is End.FAILED
            said = f": {state.message}" if state.message else ""
            yield HealthIssue(
                words.FAILED_COMPONENT if failed else words.FOUND_FAILED_PODS,
                f"{ref.title} {'failed' if failed else 'was evicted'}{said}",
                Remedy.FAIL if failed else Remedy.REQUEUE,
                record.phase_since,
            )


def deadline(record: Record, policy: LifecyclePolicy) -> HealthIssue | None:
    """The end of the dispatch duration."""
    if policy.limit is None:
        return None
    message = words.DEADLINE_MESSAGE.format(seconds=int(policy.limit.total_seconds()))
    due = _dispatched_at(record) + policy.limit
    return HealthIssue(words.DISPATCH_DEADLINE_EXCEEDED, message, Remedy.FAIL, due)


def missing(
    record: Record,
    absent: Sequence[ObjectRef],
    done: Collection[int] = (),
    unserved: Collection[ObjectRef] = (),
    grace: timedelta = timedelta(),
) -> HealthIssue | None:
    """Objects that were deleted before they were done; `done` are the done items.

    If the cluster does not serve the kind of one, that is `unserved`, nobody deleted it by itself. The cluster may say
    so for a moment only, so the issue may last for `grace`; from its note on it stands, also once the kind is back.
    """
    lost = [ref for ref in absent if not (ref.done or ref.item in done)]
    if not lost:
        return None
    noted = record.unhealthy
    is_noted = noted is not None and noted.reason == words.KIND_NOT_INSTALLED
    if is_noted or any(ref in unserved for ref in lost):
        gone = [ref for ref in lost if ref in unserved] or lost
        message = f"{_at(record)} stopped serving {_kinds_of(gone)}, and {_names_of(gone)} went with it"
        due = noted.since + grace if noted is not None and is_noted else None
        return HealthIssue(words.KIND_NOT_INSTALLED, message, Remedy.REQUEUE, due)
    # A watch may not show a new object yet.
    due = _dispatched_at(record) + UNSEEN
    expected = len(_objects(record))
    counted = words.MISSING_MESSAGE.format(found=expected - len(lost), expected=expected)
    return HealthIssue(words.MISSING_COMPONENT, f"{counted}: {_names_of(lost)} was deleted", Remedy.FAIL, due)


def not_served(record: Record, unserved: Sequence[ObjectRef]) -> str:
    """That the cluster does not serve the kinds of these objects, so that nothing is known of them; empty if it does.

    Their pods run on, and are observed as before.
    """
    left = [ref for ref in unserved if not ref.done]
    if not left:
        return ""
    return f"{_at(record)} does not serve {_kinds_of(left)}: the state of {_names_of(left)} is not known"


def _at(record: Record) -> str:
    return f"cluster {record.attempt.cluster}" if record.attempt else "its cluster"


def _kinds_of(refs: Sequence[ObjectRef]) -> str:
    kinds = dict.fromkeys(f"{ref.kind} of {ref.api_version}" for ref in refs)
    return ", ".join(list(kinds)[:_MOST_NAMED])


def _names_of(refs: Sequence[ObjectRef]) -> str:
    return ", ".join(ref.title for ref in refs[:_MOST_NAMED])


def potential_nodes_missing(
    record: Record, pods: PodCounts, bind_within: timedelta | None, awaited: Collection[str], now: datetime
) -> HealthIssue | None:
    """Pods without nodes of a gang on trust, which must have them `bind_within` after its creation.

    `bind_within` is None for a gang that is not on trust. `awaited` are the pools whose nodes have not come. Once all
    have, a pod may lack its node for another reason: it has just been made in place of another one, or its scheduler is
    slow.
    """
    if bind_within is None or not pods.unbound or record.attempt is None:
        return None
    seconds, trusted = int(bind_within.total_seconds()), in_words(record.attempt.assignment.trusted)
    said = f"pods without a node {seconds} s after their creation: {pods.unbound}"
    message = f"{said}; the gang trusted {trusted} to come"
    due = _dispatched_at(record) + bind_within
    if now >= due and not awaited:
        return None
    return HealthIssue(words.POTENTIAL_NODES_MISSING, message, Remedy.REQUEUE, due)


def missing_pods(
    record: Record,
    policy: LifecyclePolicy,
    pods: PodCounts,
    done: Collection[int] = (),
    bind_within: timedelta | None = None,
    withheld: Withheld = NONE_WITHHELD,
) -> HealthIssue | None:
    """Pods that should run and do not; pods of `done` items need not, and may be gone.

    The time of a gang on trust begins once its pods should have nodes, `bind_within` after its creation.
    """
    if withheld.awaits_all and not pods.live and policy.kueue_wait:
        return _awaited(record, policy, withheld)
    unmade, noted = unmade_pods(record, policy, pods, done, withheld), record.unhealthy
    pods = replace(pods, succeeded=completed(record, policy, pods, done))
    if policy.min_available:
        found = _shortage_of_mcad(record, policy, pods, unmade)
    else:
        found = _shortage(record, policy, pods, unmade, withheld, some_are_done=bool(done))
    if found is None:
        return None
    if is_in_doubt := _is_in_doubt(record, policy, pods, withheld, some_are_done=bool(done)):
        if noted is not None and noted.reason == words.DRIFTED:
            return None  # it may say that they ask for fewer pods, and stands until every object is read
        found = replace(
            found, message=f"{found.message}; how many pods are asked for is not known: {withheld.unread}"
        )
    found, is_anew = _after_noted(found, record, policy), False
    due = _due(record, found.reason, found.grace, from_note=found.from_note)
    if noted is not None and _has_time_of_its_own(found, noted, record, policy):
        due, is_anew = None, True
    begun = _dispatched_at(record) + (bind_within or timedelta())
    if bind_within is not None and found.reason != words.FOUND_FAILED_PODS and not found.is_late:
        told = noted.since if noted is not None and noted.reason == found.reason and found.is_told else begun
        due, is_anew = max(begun, told) + found.grace, False
    told_from = begun + TOLD_AFTER if found.is_told else None
    since = _dispatched_at(record) if found.is_told and not found.from_note else None
    issue = HealthIssue(
        found.reason, found.message, Remedy.REQUEUE, due, told_from, since, is_in_doubt, is_anew
    )
    if issue.reason == words.FOUND_FAILED_PODS and policy.is_terminal(pods.exit_codes):
        codes = ", ".join(map(str, sorted(pods.exit_codes)))
        return replace(issue, message=f"{found.message}, with exit code {codes}", remedy=Remedy.FAIL)
    return issue


_WITHOUT_PODS: Final = "no pods, for at most "
"""The first words of the message about a gang whose objects all wait for Kueue."""


def _awaited(record: Record, policy: LifecyclePolicy, withheld: Withheld) -> HealthIssue:
    """The wait of a whole gang for Kueue; failed pods that are left are those of an earlier admission.

    The time of each attempt counts from the dispatch until the gang has run, however often its objects are suspended,
    then from the note of this wait.
    """
    message = f"{_WITHOUT_PODS}{int(policy.kueue_wait.total_seconds())} s: {withheld.awaiting}"
    begun, noted = _dispatched_at(record), record.unhealthy
    issue = HealthIssue(words.ADMISSION_AWAITED, message, Remedy.REQUEUE, None, begun + TOLD_AFTER)
    if noted is not None and noted.reason == issue.reason:
        is_anew = not noted.message.startswith(_WITHOUT_PODS)  # one object waited, or pods were going
        issue = replace(issue, due=None if is_anew else noted.since + policy.kueue_wait, is_anew=is_anew)
    return issue if _is_under_way(record) else replace(issue, due=begun + policy.kueue_wait, since=begun)


def _is_in_doubt(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, withheld: Withheld, *, some_are_done: bool
) -> bool:
    """True if a gang that has run lacks no pods, should the objects that nobody has read ask for as few as can be.

    They ask for the pods that live. A gang that has never run is not excused: its time for that is bounded.
    """
    if not withheld.unread_pods or policy.min_available or not _has_run(record):
        return False
    absent = record.gang.pods - withheld.pods - pods.live - pods.succeeded
    at_most = replace(withheld, pods=withheld.pods + max(0, min(withheld.unread_pods, absent)))
    return _shortage(record, policy, pods, 0, at_most, some_are_done=some_are_done) is None


def unmade_pods(
    record: Record,
    policy: LifecyclePolicy,
    pods: PodCounts,
    done: Collection[int] = (),
    withheld: Withheld = NONE_WITHHELD,
) -> int:
    """The number of pods that the objects of a gang ask for and nobody made, until the gang has run.

    Kinds that are not known count as making none. Failed pods count: their controller makes others when it likes. While
    a pod is pending, a kind that makes pods in order may wait for it. Pods that have ended are those of the done items
    first, if there are as many: otherwise some of these are gone, and it is not known whose the others are.
    """
    if _has_run(record):
        return 0
    items = [item for index, item in enumerate(policy.items) if index not in done]
    if pods.pending and any(item.in_order for item in items):
        return 0
    asked = sum(item.asks for item in items) - withheld.pods
    ended, of_done = pods.succeeded + pods.failed, pods_of(policy.items, done)
    return max(0, asked - pods.live - (ended - of_done if ended >= of_done else ended))


class _Shortage(Struct, frozen=True):
    """Too few pods that run: the words, how long that may last, and from when on.

    The time counts `from_note`, or from the dispatch until the gang has run. It is told before its time is up if it
    `is_told`.
    """

    reason: str
    message: str
    grace: timedelta
    from_note: bool = False
    is_told: bool = False

    @property
    def is_late(self) -> bool:
        """True if the issue may begin at any time before the gang has run: a pod is made in place of another one."""
        return self.from_note and self.is_told


def _after_noted(found: _Shortage, record: Record, policy: LifecyclePolicy) -> _Shortage:
    """The shortage with regard to the noted one: a gang that had pods a moment ago may wait for others as before."""
    noted = record.unhealthy
    before = lack_in(noted.message) if noted is not None and noted.reason == found.reason else None
    if before in {None, Lack.NONE} or lack_in(found.message) is not Lack.NONE:
        return found
    counted, _, why = found.message.partition(": ")
    said = f"{counted}: {Lack.GONE}" + ("" if why.startswith(Lack.NONE) else f", {why}")
    return replace(found, message=said, grace=max(found.grace, policy.warmup_grace))


def _has_time_of_its_own(
    found: _Shortage, noted: NotedIssue, record: Record, policy: LifecyclePolicy
) -> bool:
    """True if pods that exist do not run after pods that did not exist were noted, whose time began before them.

    A gang has such a time once, however often its pods come and go; a gang whose pods are made in order, for each of
    them.
    """
    before, now = lack_in(noted.message), lack_in(found.message)
    if _has_run(record) or noted.reason != found.reason or before in {None, now} or not found.from_note:
        return False
    is_from_dispatch = noted.since <= _dispatched_at(record)
    return is_from_dispatch or (
        before in ABSENT and now in UNPLACED and any(i.in_order for i in policy.items)
    )


def _shortage_of_mcad(
    record: Record, policy: LifecyclePolicy, pods: PodCounts, unmade: int
) -> _Shortage | None:
    """Too few pods, or unschedulable pods; starting pods count as running unless the author wrote a wait."""
    minimum, run = policy.min_available or 0, running(pods)
    starting = 0 if policy.requeuing.explicit else pods.starting
    wait = policy.wait(record.requeuings)
    if run + pods.succeeded + starting < minimum:
        message = words.MIN_PODS_MESSAGE.format(minimum=minimum, running=run, completed=pods.succeeded)
        return _Shortage(words.MIN_PODS_NOT_RUNNING, message, wait, is_told=unmade > 0)
    if pods.unschedulable:
        message = words.PODS_FAILED_SCHEDULING_MESSAGE.format(failed=pods.unschedulable, running=run)
        return _Shortage(words.PODS_FAILED_SCHEDULING, message, wait)
    return None


def completed(record: Record, policy: LifecyclePolicy, pods: PodCounts, done: Collection[int]) -> int:
    """The number of completed pods: the succeeded ones, or those of the done items.

    Pods of done items count only up to the missing number: live pods of done items are counted as live.
    """
    return max(pods.succeeded, min(pods_of(policy.items, done), record.gang.pods - pods.live))


def pods_needed(record: Record, policy: LifecyclePolicy, withheld: Withheld) -> int:
    """How many pods have to run, or to have done their work, until the gang runs.

    A gang whose objects ask for fewer pods than its AppWrapper needs only these, but at least one.
    """
    asked = record.gang.pods - withheld.pods
    return record.gang.pods if policy.min_available or asked <= 0 else asked


def _shortage(
    record: Record,
    policy: LifecyclePolicy,
    pods: PodCounts,
    unmade: int,
    withheld: Withheld,
    *,
    some_are_done: bool,
) -> _Shortage | None:
    has_run, reason = _has_run(record), words.INSUFFICIENT_PODS_READY
    wanted = record.gang.pods - withheld.pods if has_run else pods_needed(record, policy, withheld)
    run = running(pods) + pods.succeeded
    # A done item may have succeeded on a second try, and its failed pods are left.
    if pods.failed and policy.has_components and not some_are_done:
        return _Shortage(words.FOUND_FAILED_PODS, f"failed pods: {pods.failed}", policy.failure_grace)
    if run >= wanted:
        return None
    message = f"{run} of {wanted} pods run"
    if not (pods.live or pods.failed or (pods.succeeded and not some_are_done)):
        if not (has_run or policy.expects_pods):
            return None
        why = withheld.why or Lack.NONE
        return _Shortage(reason, f"{message}: {why}", policy.admission_grace, is_told=not has_run)
    if _is_unhealthy(record, policy, pods):
        message = _with_unmade(_with_lost(message, pods), unmade)
        return _Shortage(reason, message, policy.warmup_grace, is_told=unmade > 0)
    if pods.unschedulable:
        failed = words.PODS_FAILED_SCHEDULING_MESSAGE.format(failed=pods.unschedulable, running=running(pods))
        return _Shortage(reason, f"{message}: {failed}", policy.warmup_grace, from_note=True)
    return None if has_run else _is_incomplete(policy, pods, unmade, message)


def _is_incomplete(policy: LifecyclePolicy, pods: PodCounts, unmade: int, message: str) -> _Shortage | None:
    """Pods of a gang that has never run which nobody made, or which do not start.

    A pod does not start if its node cannot pull its image or run its containers, a scheduling gate of another program
    stops it, or no scheduler looks at it.
    """
    reason = words.INSUFFICIENT_PODS_READY
    if unmade:
        grace = policy.warmup_grace + timedelta(seconds=policy.asks // PODS_PER_SECOND)
        in_order = any(item.in_order for item in policy.items)
        return _Shortage(reason, _with_unmade(message, unmade), grace, from_note=in_order, is_told=True)
    idle = pods.pending - pods.starting - pods.gated
    if idle <= 0:
        return None
    said = f"{message}: {Lack.UNSTARTED}: {idle}"
    return _Shortage(reason, said, policy.warmup_grace, from_note=True, is_told=True)


def _is_unhealthy(record: Record, policy: LifecyclePolicy, pods: PodCounts) -> bool:
    """True if the pods that do not run are neither starting nor scaled down, nor a growth that waits for a grant."""
    pods = replace(pods, pending=pods.pending - pods.gated)
    if policy.has_components:
        return not _has_run(record) or bool(pods.pending or pods.failed or pods.lost)
    failed = pods.failed > 0 and policy.counts_failed_pods
    if not _has_run(record):
        return bool(pods.lost or (failed and not pods.pending))
    # Fewer pods without failures: an autoscaler or a user scaled the object, or another pod is starting.
    return bool(failed or pods.lost or pods.pending > pods.starting)


def _with_lost(message: str, pods: PodCounts) -> str:
    return f"{message}, on nodes that do not answer: {pods.lost}" if pods.lost else message


def _with_unmade(message: str, unmade: int) -> str:
    return f"{message}: {Lack.UNMADE}: {unmade}" if unmade else message


def running(pods: PodCounts) -> int:
    """How many pods run on nodes that answer."""
    return max(0, pods.running - pods.lost)


def _due(record: Record, reason: str, grace: timedelta, *, from_note: bool) -> datetime | None:
    """The grace counts from the dispatch until the gang has run or an item is done, then from the note."""
    if record.unhealthy is not None and is_the_same(record.unhealthy.reason, reason):
        return record.unhealthy.since + grace
    return None if _is_under_way(record) or from_note else _dispatched_at(record) + grace


def _is_under_way(record: Record) -> bool:
    """True once the gang has run or an item is done."""
    return _has_run(record) or record.phase is Phase.RUNNING_HOLD_COMPLETION


def is_the_same(noted: str, reason: str) -> bool:
    """True if one issue goes on: too few pods and unschedulable pods are the same issue for MCAD."""
    return noted == reason or {noted, reason} <= words.REASONS_OF_MCAD


def _has_run(record: Record) -> bool:
    return record.attempt is not None and record.attempt.started_at is not None


def _dispatched_at(record: Record) -> datetime:
    """When all objects were created; without that time, when the phase began."""
    created_at = record.attempt.created_at if record.attempt else None
    return created_at or record.phase_since


def _objects(record: Record) -> tuple[ObjectRef, ...]:
    return record.attempt.objects if record.attempt else ()

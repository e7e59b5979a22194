"""When a gang that was dispatched may be left as it is: what its users are promised, and not what the code does.

A gang that is left for ever must be well, or be held for one of the reasons in `HOLDS`; one that is looked at
again later must have something that will be due by then.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from dispatcher.core.kinds.object_status import End
from dispatcher.core.lifecycle.step import ObservedState
from dispatcher.core.model.records.record import Phase, Record

SEEN_WITHIN = timedelta(seconds=5)
"""For so long what was created may be missing without being missed."""

TOLD_AFTER = timedelta(seconds=30)
"""For so long after a dispatch nobody is told that pods are not there, or do not start."""


WORDS_AFTER = timedelta(minutes=1)
"""For so long after an event of a gang its noted words may say what was, and not what is."""


def may_rest(seen: ObservedState, until: datetime | None) -> bool:
    """True if nobody is let down by doing nothing before `until` (None: ever), unless something happens."""
    if _has_failed(seen) or _has_news(seen):
        return False
    if (gone_at := _is_queued_again_at(seen)) is not None:
        return until == min([gone_at, *_limits(seen)])
    dues, patience = _dues(seen), _end_of_patience(seen)
    if until is not None and until == _told_at(seen) and until <= min([*dues, until]):
        return True
    if until is not None and until == _words_follow_at(seen) and until <= min([*dues, patience or until]):
        return True
    is_held = _is_told_right(seen) and (is_well(seen) or bool(reasons_to_hold(seen)))
    if is_held and until == min(dues, default=None):
        return True
    return patience is not None and until == min([patience, *dues])


def reasons_to_hold(seen: ObservedState) -> set[str]:
    """Say why a gang that is not well is left as it is."""
    return set() if is_well(seen) else {reason for reason, applies in HOLDS.items() if applies(seen)}


def is_well(seen: ObservedState) -> bool:
    """True if as many pods as were asked for run on nodes that answer, or have succeeded, and no other one fails."""
    pods = seen.objects.pods
    if _is_done(seen):
        return False
    if seen.policy.min_available and pods.unschedulable:
        return False
    if seen.policy.has_components and not seen.policy.min_available and pods.failed and not _done(seen):
        return False
    return _run(seen) + pods.succeeded >= _wanted(seen)


# --- reasons to hold -------------------------------------------------------------------------------------


def _only_its_pods_live_on(seen: ObservedState) -> bool:
    return _is_done(seen) and seen.objects.pods.live > 0


def _what_is_done_needs_no_pods(seen: ObservedState) -> bool:
    """They may be cleaned up by now; but those that live are no reason to overlook what the rest is short of."""
    return _is_enough_without_what_is_done(seen) and not _is_in_trouble(seen)


def _is_enough_without_what_is_done(seen: ObservedState) -> bool:
    pods, policy = seen.objects.pods, seen.policy
    if _is_done(seen) or (policy.min_available and pods.unschedulable):
        return False
    return bool(_done(seen)) and _run(seen) + max(pods.succeeded, _pods_of_done(seen)) >= _wanted(seen)


def _is_in_trouble(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    return bool(pods.lost or (_has_run(seen) and pods.pending > pods.starting))


def _its_first_pods_are_coming(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    if _has_run(seen) or _asks_for_pods(seen) or pods.lost or pods.unschedulable:
        return False
    if _unmade(seen) or _do_not_start(seen):
        return False
    try_again = all(item.ends for item in seen.policy.items if item.pods)
    return pods.live > 0 and bool(pods.pending or not pods.failed or try_again)


def _its_pods_start_and_nobody_said_how_long_that_may_take(seen: ObservedState) -> bool:
    pods, policy = seen.objects.pods, seen.policy
    if not policy.min_available or policy.requeuing.explicit or pods.unschedulable:
        return False
    come = _run(seen) + max(pods.succeeded, _pods_of_done(seen)) + pods.starting
    return pods.starting > 0 and come >= policy.min_available


def _it_was_scaled_down(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    if not _has_run(seen) or seen.policy.min_available or pods.lost or not pods.live:
        return False
    others = pods.pending if seen.policy.has_components else pods.pending - pods.starting
    return not others and not pods.failed


def _its_jobs_try_again(seen: ObservedState) -> bool:
    """A Job whose pod failed makes another one, and says itself when it gives up."""
    pods = seen.objects.pods
    if _asks_for_pods(seen) or not pods.failed or pods.lost:
        return False
    stuck = _has_run(seen) and pods.pending > pods.starting
    return not stuck and all(item.ends for item in seen.policy.items if item.pods)


def _nobody_knows_whether_it_makes_pods(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    return not (
        seen.policy.expects_pods or _has_run(seen) or _asks_for_pods(seen) or pods.live or pods.failed
    )


HOLDS: dict[str, Callable[[ObservedState], bool]] = {
    "all is done, and its capacity is held until its last pod is over": _only_its_pods_live_on,
    "the rest runs, and what is done needs no pods": _what_is_done_needs_no_pods,
    "its first pods are coming, and nobody said how soon": _its_first_pods_are_coming,
    "its images are pulled, and nobody wrote a wait": _its_pods_start_and_nobody_said_how_long_that_may_take,
    "it was scaled down after it ran": _it_was_scaled_down,
    "its pods failed, and its jobs try again": _its_jobs_try_again,
    "its kind is unknown, and may make no pods at all": _nobody_knows_whether_it_makes_pods,
}
"""Each is a promise kept: to do more would disturb a gang that nothing is wrong with."""


# --- what may not be left as it is -----------------------------------------------------------------------


def _has_failed(seen: ObservedState) -> bool:
    states = seen.objects.states
    return any(state is not None and state.end in {End.FAILED, End.EVICTED} for state in states)


def _is_told_right(seen: ObservedState) -> bool:
    """True if it is said to have no other trouble than that somebody has edited it, and that if somebody has."""
    noted = _record(seen).unhealthy
    if any(ref.item not in _done(seen) for ref in seen.objects.unserved):
        return noted is not None and noted.reason == "KindNotInstalled"
    told = noted and (noted.reason, noted.message)
    return told == (("Drifted", seen.objects.drift) if seen.objects.drift else None)


def _is_queued_again_at(seen: ObservedState) -> datetime | None:
    """When a gang is queued again of which an object went with its kind; None without one, and before it is told."""
    noted, lost = _record(seen).unhealthy, {ref.item for ref in seen.objects.absent} - _done(seen)
    if not lost or noted is None or noted.reason != "KindNotInstalled":
        return None
    return noted.since + seen.policy.admission_grace


def _has_news(seen: ObservedState) -> bool:
    """True if it runs or more of it is done than is noted."""
    pods, record = seen.objects.pods, _record(seen)
    if record.phase is Phase.DISPATCHED and _run(seen) + pods.succeeded >= record.gang.pods:
        return True
    says_done = {
        index
        for index, (item, state) in enumerate(zip(seen.policy.items, seen.objects.states, strict=True))
        if state is not None
        and (state.conditions & set(item.words) if item.words else item.ends and state.end is End.SUCCEEDED)
    }
    return not says_done <= _done(seen)


def _dues(seen: ObservedState) -> list[datetime]:
    """When it has run for as long as it may, and when an object that is gone and not done is missed."""
    is_missed = bool({ref.item for ref in seen.objects.absent} - _done(seen))
    return [*_limits(seen), *([_created_at(seen) + SEEN_WITHIN] if is_missed else [])]


def _limits(seen: ObservedState) -> list[datetime]:
    return [] if seen.policy.limit is None else [_created_at(seen) + seen.policy.limit]


def _end_of_patience(seen: ObservedState) -> datetime | None:
    """When what is wrong will have lasted too long: since it was noted, or since the dispatch if it never ran."""
    record, policy = _record(seen), seen.policy
    if _is_done(seen) and not _goes_on(seen):
        return None
    noted = record.unhealthy
    since = noted.since if noted and noted.reason not in {"Drifted", "KindNotInstalled"} else None
    if since is None and not (_has_run(seen) or record.phase is Phase.RUNNING_HOLD_COMPLETION):
        since = _created_at(seen)
    if since is None:
        return None
    return since + (policy.wait(record.requeuings) if policy.min_available else _grace(seen))


def _grace(seen: ObservedState) -> timedelta:
    pods, policy = seen.objects.pods, seen.policy
    if pods.failed and policy.has_components and not _done(seen):
        return policy.failure_grace
    is_new = _is_none(seen) and not _had_pods_that_did_not_run(seen)
    return policy.admission_grace if is_new else policy.warmup_grace


def _is_none(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    return not (pods.live or pods.failed or (pods.succeeded and not _done(seen)))


def _had_pods_that_did_not_run(seen: ObservedState) -> bool:
    """True if it is noted that pods were there: it has as long for new ones as it had for these."""
    noted = _record(seen).unhealthy
    return noted is not None and noted.message.endswith(("1 of 2 pods run", "there is none any more"))


def _words_follow_at(seen: ObservedState) -> datetime | None:
    """When the words of a gang are noted anew of which it is noted that pods do not run, and that has other trouble."""
    record, pods = _record(seen), seen.objects.pods
    if is_well(seen) or record.unhealthy is None or record.unhealthy.message != "1 of 2 pods run":
        return None
    has_other_trouble = (
        _is_none(seen) or pods.lost or pods.unschedulable or _unmade(seen) or _do_not_start(seen)
    )
    return (record.last_event_at or record.phase_since) + WORDS_AFTER if has_other_trouble else None


def _told_at(seen: ObservedState) -> datetime | None:
    """When it will be told that a gang that never ran lacks pods; None if that is not so, or told already."""
    noted = _record(seen).unhealthy
    told = (
        {"MinPodsNotRunning", "PodsFailedScheduling"}
        if seen.policy.min_available
        else {"InsufficientPodsReady"}
    )
    if _has_run(seen) or is_well(seen) or (noted is not None and noted.reason in told):
        return None
    is_none = not seen.objects.pods.live
    return _created_at(seen) + TOLD_AFTER if is_none or _unmade(seen) or _do_not_start(seen) else None


def _unmade(seen: ObservedState) -> int:
    """How many pods its objects make that are not there, and never were."""
    pods, policy = seen.objects.pods, seen.policy
    asked = sum(item.asks for index, item in enumerate(policy.items) if index not in _done(seen))
    return 0 if _has_run(seen) else max(0, asked - pods.live - pods.succeeded - pods.failed)


def _do_not_start(seen: ObservedState) -> bool:
    pods = seen.objects.pods
    return pods.pending > pods.starting + pods.gated


def _record(seen: ObservedState) -> Record:
    assert seen.record is not None
    return seen.record


def _created_at(seen: ObservedState) -> datetime:
    attempt = _record(seen).attempt
    assert attempt is not None
    assert attempt.created_at is not None
    return attempt.created_at


def _has_run(seen: ObservedState) -> bool:
    attempt = _record(seen).attempt
    return attempt is not None and attempt.started_at is not None


def _goes_on(seen: ObservedState) -> bool:
    """True if it has not had its first pod, though its objects go on, whatever their author calls done."""
    if _has_run(seen) or seen.objects.pods.succeeded:
        return False
    return any(state is not None and state.end is End.OPEN for state in seen.objects.states)


def _done(seen: ObservedState) -> set[int]:
    attempt = _record(seen).attempt
    return {ref.item for ref in attempt.objects if ref.done} if attempt else set()


def _is_done(seen: ObservedState) -> bool:
    """True if all is done; each of the items in these worlds is one to wait for."""
    return _done(seen) == set(range(len(seen.policy.items)))


def _pods_of_done(seen: ObservedState) -> int:
    return sum(seen.policy.items[index].pods for index in _done(seen))


def _run(seen: ObservedState) -> int:
    return seen.objects.pods.running - seen.objects.pods.lost


def _wanted(seen: ObservedState) -> int:
    return seen.policy.min_available or _record(seen).gang.pods


def _asks_for_pods(seen: ObservedState) -> bool:
    """True if its author asked to have its pods looked after: by `minAvailable`, or by v1beta2's components."""
    return bool(seen.policy.min_available) or seen.policy.has_components

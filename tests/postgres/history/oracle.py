"""What the views of history have to say, from plain facts and the sentences that promise it; no SQL was read for this.

Each function gives rows by column, in no order; `now` is the time at which the view was asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import Phase
from tests.postgres.history.attempts import (
    CAME_TO_NOTHING,
    REQUEUED,
    amounts,
    charges,
    eligible,
    ended,
    first,
    held_hours,
    in_units,
    seconds,
    stays,
    submitted,
    tries,
    user,
)
from tests.postgres.history.facts import Fact, Life

Row = dict[str, object]
Lives = Mapping[str, Life]

HOUR = timedelta(hours=1)


def attempt_history(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        cpu, memory, gpu = amounts(life)
        for each in tries(life):
            cpu_h, memory_h, gpu_h = held_hours(life, each, now)
            yield {
                "uid": life.record.uid,
                "namespace": life.record.namespace,
                "name": life.record.name,
                "queue": each.queue,
                "user_name": user(life),
                "attempt": each.number,
                "cluster": each.cluster,
                "decided_at": each.decided,
                "created_at": each.created,
                "started_at": each.started,
                "ended_at": each.ended,
                "outcome": each.outcome,
                "preempted_by": each.preempted_by or None,
                "error_class": each.why,
                "held_s": seconds(each.held(now)),
                "run_s": seconds(each.ran(now)),
                "cpu": cpu,
                "memory_gib": memory,
                "gpu": gpu,
                "cpu_h": cpu_h,
                "memory_gib_h": memory_h,
                "gpu_h": gpu_h,
                "demand": dict(life.record.gang.demand),
            }


def waited(life: Life, now: datetime) -> timedelta | None:
    """From eligible to the first start; without one as long as there was something to wait for."""
    since, made = eligible(life), tries(life)
    started = first(each.started for each in made)
    if since is None or (started is not None and started < since):
        return None
    done = first(each.created for each in made if each.outcome == "completed")
    return (started or done or _stopped_waiting(life, now)) - since


def _stopped_waiting(life: Life, now: datetime) -> datetime:
    over, last = ended(life), life.facts[-1]
    if over is not None:
        return over.at
    return _since(life) if last.phase is Phase.SUSPENDED else now


def _since(life: Life) -> datetime:
    """Since when it is in the phase it is in."""
    return next(fact.at for fact in reversed(life.facts) if fact.source != fact.phase)


def job_history(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        record, made, over, last = life.record, tries(life), ended(life), life.facts[-1]
        dispatched, started = first(each.decided for each in made), first(each.started for each in made)
        since, (cpu, memory, gpu) = eligible(life), amounts(life)
        cpu_h, memory_h, gpu_h = (
            sum((held_hours(life, each, now)[index] for each in made), start=0.0) for index in range(3)
        )
        is_known = since is not None and not (dispatched and dispatched < since)
        lost = [each for each in made if each.outcome in CAME_TO_NOTHING]
        yield {
            "uid": record.uid,
            "api_group": record.group,
            "namespace": record.namespace,
            "name": record.name,
            "kinds": ",".join(sorted({kind for _, kind in record.requirements.kinds})),
            "queue": record.queue,
            "user_name": user(life),
            "user_groups": list(record.groups),
            "priority": last.priority,
            "submitted_at": submitted(life),
            "eligible_at": since,
            "first_dispatched_at": dispatched,
            "first_started_at": started,
            "ended_at": over.at if over else None,
            "deleted_at": last.at if last.phase is Phase.DELETED else None,
            "state": str(last.phase),
            "outcome": over.phase.lower() if over else "",
            "reason": last.pending.reason if last.pending else last.reason,
            "message": last.pending.message if last.pending else last.message,
            "last_cluster": made[-1].cluster if made else None,
            "attempts": made[-1].number if made else 0,
            "evictions": sum(each.outcome == "evicted" for each in made),
            "requeues": sum(
                each.outcome in REQUEUED and (not over or each.ended != over.at) for each in made
            ),
            "pods": record.gang.pods,
            "cpu": cpu,
            "memory_gib": memory,
            "gpu": gpu,
            "wait_s": seconds(waited(life, now)),
            "queue_s": (
                ((dispatched or _stopped_waiting(life, now)) - submitted(life)).total_seconds()
                if is_known
                else None
            ),
            "startup_s": seconds(started - dispatched) if started and dispatched else None,
            "run_s": sum((each.ran(now).total_seconds() for each in made), start=0.0),
            "lost_s": sum((each.held(now).total_seconds() for each in lost), start=0.0),
            "cpu_h": cpu_h,
            "memory_gib_h": memory_h,
            "gpu_h": gpu_h,
        }


def state_intervals(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        for fact, left in stays(life):
            is_out = fact.phase in (Phase.QUEUED, Phase.SUSPENDED)
            yield {
                "uid": life.record.uid,
                "namespace": life.record.namespace,
                "name": life.record.name,
                "queue": fact.queue,
                "attempt": 0 if is_out else fact.attempt,
                "state": str(fact.phase),
                "cluster": "" if is_out else fact.cluster,
                "entered_at": fact.at,
                "left_at": left,
                "seconds": seconds((left or now) - fact.at),
            }


def pending_reasons(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        spells: dict[tuple[str, str, str], list[tuple[datetime, datetime, str]]] = defaultdict(list)
        rounds: dict[tuple[str, str, str], int] = defaultdict(int)
        ends = [*(fact.at for fact in life.facts[1:]), now]
        known: tuple[str, str, str] | None = None
        for fact, end in zip(life.facts, ends, strict=True):
            told = fact.pending
            about = (told.reason, told.resource, told.cluster) if told else None
            if told and about:
                spells[about].append((fact.at, end, told.message))
                rounds[about] += about != known
            known = about
        for (reason, resource, cluster), times in spells.items():
            yield {
                "uid": life.record.uid,
                "namespace": life.record.namespace,
                "name": life.record.name,
                "reason": reason,
                "resource": resource,
                "cluster": cluster,
                "message": times[-1][2],
                "first_seen": times[0][0],
                "last_seen": times[-1][1],
                "rounds": rounds[reason, resource, cluster],
                "seconds": sum((end - begin).total_seconds() for begin, end, _ in times),
            }


def wait_stats_daily(lives: Lives, now: datetime) -> Iterator[Row]:
    groups: dict[tuple[object, ...], list[tuple[float, bool]]] = defaultdict(list)
    for life in lives.values():
        wait, since = waited(life, now), eligible(life)
        if wait is not None and since is not None:
            started = any(each.started for each in tries(life))
            waits = not started and not ended(life) and life.facts[-1].phase is not Phase.SUSPENDED
            key = (
                since.astimezone(UTC).date(),
                life.record.queue,
                life.record.namespace,
                gpu_class(amounts(life)[2]),
            )
            groups[key].append((wait.total_seconds(), waits))
    for (day, queue, namespace, gpus), found in groups.items():
        waits_s = sorted(wait for wait, _ in found)
        yield {
            "day": day,
            "queue": queue,
            "namespace": namespace,
            "gpu_class": gpus,
            "n": len(found),
            "p50_s": percentile(waits_s, 0.5),
            "p90_s": percentile(waits_s, 0.9),
            "p95_s": percentile(waits_s, 0.95),
            "p99_s": percentile(waits_s, 0.99),
            "max_s": waits_s[-1],
            "still_waiting": sum(still for _, still in found),
            "oldest_wait_s": max((wait for wait, still in found if still), default=None),
        }


def gpu_class(gpus: Decimal) -> str:
    bounds = {0: "0", 1: "1", 2: "2", 4: "3-4", 8: "5-8", 16: "9-16"}
    return next((word for most, word in bounds.items() if gpus <= most), "17+")


def percentile(ordered: list[float], share: float) -> float:
    """Between the two that are nearest, in proportion."""
    place = share * (len(ordered) - 1)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    return low + (high - low) * (place - int(place))


UsageKey = tuple[datetime, str, str, str, str]
"""Hour, queue, namespace, user, cluster."""


def usage_hourly(lives: Lives, now: datetime) -> Iterator[Row]:
    groups: dict[UsageKey, list[tuple[tuple[Decimal, ...], timedelta]]] = defaultdict(list)
    running: dict[UsageKey, float] = defaultdict(float)
    for life in lives.values():
        for each in tries(life):
            whose = each.queue, life.record.namespace, user(life), each.cluster
            for amount, begin, end in charges(life, each, now):
                for hour, length in _clipped(begin, end):
                    groups[hour, *whose].append((in_units(amount), length))
            for hour, length in _clipped(each.decided, each.ended or now):
                running[hour, *whose] += length / (min(hour + HOUR, now) - hour)
    for key, held in groups.items():
        hour, queue, namespace, name, cluster = key
        cpu_h, memory_h, gpu_h = (
            sum(float(amount[index]) * length.total_seconds() / 3600 for amount, length in held)
            for index in range(3)
        )
        yield {
            "hour": hour,
            "queue": queue,
            "namespace": namespace,
            "user_name": name,
            "cluster": cluster,
            "cpu_h": cpu_h,
            "memory_gib_h": memory_h,
            "gpu_h": gpu_h,
            "running_avg": running[key],
        }


def _clipped(begin: datetime, end: datetime) -> Iterator[tuple[datetime, timedelta]]:
    """Each hour in which there was something of it, and how much."""
    hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end:
        length = min(end, hour + HOUR) - max(begin, hour)
        if length > timedelta():
            yield hour, length
        hour += HOUR


def evictions(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        for each in tries(life):
            if each.outcome == "evicted":
                yield {
                    "at": each.ended,
                    "uid": life.record.uid,
                    "namespace": life.record.namespace,
                    "name": life.record.name,
                    "queue": each.queue,
                    "by_uid": None,
                    "by_name": None,
                    "by_queue": None,
                    "cluster": each.cluster,
                    "attempt": each.number,
                    "ran_s": seconds(each.ran(now)),
                    "gpu_h_lost": held_hours(life, each, now)[2],
                    "reason": each.why,
                }


def preemptions(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        for each in tries(life):
            other = lives.get(each.preempted_by)
            if each.outcome == "preempted":
                yield {
                    "at": each.ended,
                    "uid": life.record.uid,
                    "namespace": life.record.namespace,
                    "name": life.record.name,
                    "queue": each.queue,
                    "by_uid": each.preempted_by or None,
                    "by_name": other.record.name if other else None,
                    "by_queue": other.record.queue if other else None,
                    "cluster": each.cluster,
                    "attempt": each.number,
                    "ran_s": seconds(each.ran(now)),
                    "gpu_h_lost": held_hours(life, each, now)[2],
                    "reason": each.why,
                    "by_namespace": other.record.namespace if other else None,
                }


def failures_daily(lives: Lives, now: datetime) -> Iterator[Row]:
    groups: dict[tuple[date, str, str, str], list[float]] = defaultdict(list)
    for life in lives.values():
        for each in tries(life):
            if each.ended and each.outcome in (*REQUEUED, "failed") and each.outcome != "missed":
                day = each.ended.astimezone(UTC).date()
                wasted = held_hours(life, each, now)[2]
                groups[day, each.queue, each.cluster, each.why].append(wasted)
    for (day, queue, cluster, why), wastes in groups.items():
        yield {
            "day": day,
            "queue": queue,
            "cluster": cluster,
            "error_class": why,
            "n": len(wastes),
            "gpu_h_wasted": sum(wastes),
        }


def dispatch_latency(lives: Lives, now: datetime) -> Iterator[Row]:
    for life in lives.values():
        for each in tries(life):
            yield {
                "at": each.decided,
                "uid": life.record.uid,
                "namespace": life.record.namespace,
                "name": life.record.name,
                "cluster": each.cluster,
                "attempt": each.number,
                "create_s": seconds(each.created - each.decided) if each.created else None,
                "start_s": seconds(each.started - each.created) if each.created and each.started else None,
                "outcome": each.outcome,
                "error": each.why,
            }


# --- who passed by whom ------------------------------------------------------------------------------


def overtakes(lives: Lives, now: datetime) -> Iterator[Row]:
    """Who stood in a queue when another one of it, submitted later, was dispatched; moved ones where they are now."""
    sent = [(life, fact) for life in lives.values() for fact in life.facts if fact.cause is Cause.DISPATCHED]
    for later, fact in sent:
        for earlier in lives.values():
            since = _queued_since(earlier, fact.at)
            is_same = earlier.record.queue == fact.queue
            if since is None or not is_same or submitted(earlier) >= submitted(later):
                continue
            yield {
                "uid": earlier.record.uid,
                "namespace": earlier.record.namespace,
                "name": earlier.record.name,
                "queue": earlier.record.queue,
                "overtaken_by": later.record.uid,
                "overtaken_by_namespace": later.record.namespace,
                "overtaken_by_name": later.record.name,
                "at": fact.at,
                "cluster": fact.cluster,
                "why": _why(earlier, later, fact),
                "waited_s": seconds(fact.at - since),
            }


def _queued_since(life: Life, at: datetime) -> datetime | None:
    """Since when it stood in the queue at a moment at which it neither came nor went."""
    for stay, left in stays(life):
        if stay.phase is Phase.QUEUED and stay.at < at and (left is None or at < left):
            return stay.at
    return None


def _why(earlier: Life, later: Life, fact: Fact) -> str:
    known = [each for each in earlier.facts if each.at <= fact.at][-1]
    if _urgency(fact, fact.at) > _urgency(known, fact.at):
        return "priority"
    is_younger = known.age_begins_at > fact.age_begins_at
    if is_younger or (known.eligible_at is not None and known.eligible_at > fact.at):
        return "not_eligible"
    told = known.pending.reason if known.pending else ""
    for each in known.pending.clusters if known.pending else ():
        if each.cluster == fact.cluster:
            told = each.reason
    if told in ("InsufficientResources", "ReservedForAnother", "LargerThanCluster", "AwaitingRelease"):
        return "backfill"
    if told == "AwaitingApproval":
        return "not_eligible"
    if told in ("InsufficientQuota", "QueueStopped"):
        return "quota"
    return "fits_elsewhere" if told in ("ClusterNotSelected", "ClusterCordoned") else "unexplained"


def _urgency(fact: Fact, at: datetime) -> float:
    return fact.priority + fact.slope * (at - fact.age_begins_at).total_seconds()

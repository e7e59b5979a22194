"""Estimated starts follow order, demand and stated durations; a start that does not follow from them is unknown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.approvals import pending_without
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.queue import (
    Order,
    Preemption,
    Queue,
    QueueingStrategy,
    Quota,
    Reclaim,
    StopPolicy,
)
from dispatcher.core.scheduling.explain.estimate_words import why_unknown
from dispatcher.core.scheduling.explain.estimates import (
    Estimate,
    Estimates,
    UnknownStart,
    Why,
    estimated_starts,
)
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, SchedulingRules, world_of
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from tests.builders import NOW, at, attempt_of, make_awaiting, make_core_node, make_gang, make_record

GPU = "nvidia.com/gpu"


def running(name: str, since: float = 0, phase: Phase = Phase.RUNNING, **fields: Any) -> Record:  # noqa: ANN401
    """A gang on `hub` since so many seconds after `NOW`; two GPUs unless `gpu` says otherwise."""
    gpu = fields.pop("gpu", 2)
    record = make_record(phase, name, uid=name, gang=make_gang(gpu=gpu), **fields)
    return replace(record, attempt=replace(attempt_of(record), decided_at=at(since)))


def queued(name: str, since: float = 0, **fields: Any) -> Record:  # noqa: ANN401
    """A gang that was submitted so many seconds after `NOW`; two GPUs unless `gpu` says otherwise."""
    gpu = fields.pop("gpu", 2)
    return make_record(name=name, uid=name, created_at=at(since), gang=make_gang(gpu=gpu), **fields)


def world(*records: Record, gpu: int = 2, now: datetime = NOW, **rules: Any) -> World:  # noqa: ANN401
    """The world of one node with these GPUs."""
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", gpu=gpu),)), rules=SchedulingRules(**rules))
    return world_of([facts], records, (), now)


def found(*records: Record, most_work: int = 10**6, **fields: Any) -> Estimates:  # noqa: ANN401
    waiting = [each.uid for each in records if each.phase is Phase.QUEUED]
    return estimated_starts(
        world(*records, **fields), {each.uid: each for each in records}, waiting, most_work
    )


def starts(*records: Record, **fields: Any) -> dict[str, Estimate]:  # noqa: ANN401
    return dict(found(*records, **fields).starts)


def unknown(why: Why, reason: str = "", resource: str = "", *gangs: str) -> UnknownStart:
    return UnknownStart(why, reason, resource, gangs)


def test_gang_that_awaits_its_capacity_holds_none_that_another_lacks() -> None:
    awaiting = make_awaiting(make_record(name="w", uid="w", gang=make_gang(gpu=4)))
    estimate = starts(running("r"), awaiting, queued("q"))["q"]
    assert isinstance(estimate, UnknownStart)
    assert estimate.gangs == ("r",)


def test_gangs_that_need_the_same_devices_start_one_after_the_other() -> None:
    queue = [queued(f"q{n}", n, expected_seconds=60) for n in range(3)]
    assert starts(running("r", expected_seconds=100), *queue) == {
        "q0": at(100),
        "q1": at(160),
        "q2": at(220),
    }


def test_gangs_start_together_where_both_fit_and_by_priority_before_age() -> None:
    queue = [queued("old", 0), queued("young", 1, expected_seconds=9), queued("urgent", 2, priority=1, gpu=4)]
    queue[2] = replace(queue[2], expected_seconds=50)
    ends = running("a", expected_seconds=30), running("b", expected_seconds=40)
    assert starts(
        *ends, *queue, gpu=4, starvation_bound=timedelta(0), policy=QueueingStrategy.STRICT_FIFO
    ) == {
        "urgent": at(40),
        "old": at(90),
        "young": at(90),
    }


def test_gang_that_fits_now_starts_now_and_holds_its_capacity_from_then() -> None:
    assert starts(queued("a", expected_seconds=60), queued("b", 1)) == {"a": NOW, "b": at(60)}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"expected_seconds": 200}, at(200)),
        ({"limit_seconds": 300}, at(300)),
        ({"expected_seconds": 200, "limit_seconds": 300}, at(200)),
        ({"expected_seconds": 50, "limit_seconds": 300}, at(300)),
        ({"expected_seconds": 50}, unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "r")),
        ({}, unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "r")),
    ],
    ids=["expected", "limit", "expected-before-limit", "past-expected", "past-all", "none"],
)
def test_end_of_a_running_gang_is_its_expected_end_or_its_limit(
    fields: dict[str, Any], start: Estimate
) -> None:
    assert starts(running("r", **fields), queued("q"), now=at(100)) == {"q": start}


def test_start_of_a_gang_that_lacks_approvals_is_unknown_and_delays_no_other() -> None:
    gated = queued("gated", pending=pending_without(["budget"]))
    records = (running("r", expected_seconds=100), gated, queued("q", 1, expected_seconds=60))
    assert starts(*records) == {"gated": unknown(Why.APPROVALS), "q": at(100)}
    assert why_unknown(unknown(Why.APPROVALS), {}) == "it lacks approvals"


def test_gang_without_a_duration_makes_the_start_of_later_gangs_unknown() -> None:
    queue = queued("first", 0), queued("second", 1), queued("third", 2)
    never = unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "first")
    assert starts(running("r", expected_seconds=100), *queue) == {
        "first": at(100),
        "second": never,
        "third": never,
    }


def test_gang_that_is_being_removed_has_no_known_end() -> None:
    leaving = running("r", phase=Phase.DELETING, expected_seconds=100)
    assert starts(leaving, queued("q"))["q"] == unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "r")


def test_gangs_without_a_known_end_are_named_with_the_largest_holder_first() -> None:
    cpu = replace(running("cpu"), gang=make_gang(cpu=1))
    held = running("a", gpu=1), running("b", gpu=3), running("ends", gpu=1, expected_seconds=9)
    found_start = starts(*held, cpu, queued("q", gpu=4), gpu=5)["q"]
    assert found_start == unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "b", "a")


def test_gang_that_grew_holds_more_than_its_demand() -> None:
    def grown(name: str, gpu: int) -> Record:
        record = running(name, gpu=1)
        return run_changes.note_growth(record, make_gang(gpu=gpu).demand, at(1)).after

    held = grown("one", 1), grown("three", 3), running("two")
    found_start = starts(*held, queued("q", gpu=6), gpu=6, now=at(2))["q"]
    assert found_start == unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "three", "two", "one")
    sentence = why_unknown(unknown(Why.NO_KNOWN_END, "", GPU, "three"), {"three": held[1]})
    assert sentence == f"no end is known for {held[1].key} ({GPU} 3, no dispatchDuration)"


def test_equal_ones_without_a_known_end_are_in_the_order_of_their_names() -> None:
    held = replace(running("1"), name="tune"), replace(running("2"), name="sweep")
    found_start = starts(*held, queued("q", gpu=4), gpu=4)["q"]
    assert found_start == unknown(Why.NO_KNOWN_END, "InsufficientResources", GPU, "2", "1")


def test_small_gang_starts_before_a_large_gang_that_has_to_wait() -> None:
    queue = queued("large", 0, gpu=4), queued("small", 1, expected_seconds=30)
    assert starts(running("r", expected_seconds=100), *queue, gpu=4) == {"large": at(100), "small": NOW}


def test_starved_gang_keeps_its_capacity_from_later_gangs() -> None:
    ends = running("a", expected_seconds=100), running("b", expected_seconds=300)
    large = queued("large", 0, gpu=4, blocked_since=at(0), expected_seconds=60)
    small = queued("small", 1, expected_seconds=900)
    bound = timedelta(seconds=50)
    assert starts(*ends, large, small, gpu=4, starvation_bound=bound) == {"large": at(300), "small": at(360)}
    assert starts(*ends, large, small, gpu=4) == {"large": at(1000), "small": at(100)}


def test_gang_that_becomes_the_head_later_starves_later() -> None:
    queue = (
        queued("head", 0, expected_seconds=900),
        queued("large", 1, gpu=4, expected_seconds=60),
        queued("one", 2, gpu=1, expected_seconds=300),
        queued("other", 3, gpu=1, expected_seconds=100),
        queued("small", 4, expected_seconds=2000),
    )
    ends = running("r", gpu=4, expected_seconds=100)
    assert starts(ends, *queue, gpu=4, starvation_bound=timedelta(seconds=50)) == {
        "head": at(100),
        "one": at(100),
        "other": at(100),
        "large": at(1000),
        "small": at(1060),
    }


def test_strict_queue_stops_at_a_head_whose_start_is_unknown() -> None:
    queue = queued("head", gpu=4), queued("small", 1, gpu=1)
    strict = starts(running("r"), *queue, gpu=4, policy=QueueingStrategy.STRICT_FIFO)
    assert strict["small"] == unknown(Why.BEHIND_HEAD, "AwaitingHeadOfLine", "", "head")


def test_postponed_gang_starts_when_it_may() -> None:
    assert starts(queued("q", eligible_at=at(70))) == {"q": at(70)}


def test_gang_that_is_too_large_never_starts_and_delays_no_gang() -> None:
    assert starts(queued("large", gpu=9), queued("q", 1)) == {
        "large": unknown(Why.TOO_LARGE, "LargerThanCluster"),
        "q": NOW,
    }


def test_closed_cluster_promises_nothing() -> None:
    cordoned = Cluster("hub", (make_core_node("n", gpu=2),), closed=Closed("ClusterCordoned", "new racks"))
    cluster = world_of([ClusterFacts(cordoned)], [queued("q")], (), NOW)
    assert estimated_starts(cluster, {}, ["q"]).starts == {"q": unknown(Why.STILL_WAITS, "ClusterCordoned")}


def test_estimate_that_takes_too_much_work_is_unknown() -> None:
    queue = [queued(f"q{n}", n, expected_seconds=60) for n in range(9)]
    cut = starts(*queue, most_work=12)
    assert (cut["q0"], cut["q8"]) == (NOW, unknown(Why.TOO_FAR))


def test_work_of_an_estimate_grows_with_the_running_gangs() -> None:
    ends = [running(f"r{n:03}", gpu=1, expected_seconds=100 + n) for n in range(200)]
    all_of_it = queued("q", gpu=200)
    assert starts(*ends, all_of_it, gpu=200) == {"q": at(299)}
    assert starts(*ends, all_of_it, gpu=200, most_work=5000) == {"q": unknown(Why.TOO_FAR)}


def test_start_that_no_calendar_has_is_unknown() -> None:
    queue = [queued(f"q{n:03}", n, expected_seconds=2**31 - 1) for n in range(150)]
    far = starts(*queue, policy=QueueingStrategy.STRICT_FIFO)
    assert far["q002"] == at(2 * (2**31 - 1))
    assert far["q149"] == unknown(Why.TOO_FAR)


def test_estimates_hold_until_the_next_known_end() -> None:
    assert found(running("r", expected_seconds=100), queued("q")).until == at(100)
    assert found(running("r"), queued("q")).until is None


# --- queues -------------------------------------------------------------------------------------------------

QUOTA = Queue("team", resources={GPU: Quota(2)})


def test_quota_of_a_queue_delays_its_gangs_and_no_others() -> None:
    queue = [queued(f"q{n}", n, queue="team", expected_seconds=60) for n in range(2)]
    other = queued("other", 5)
    held = running("r", queue="team", expected_seconds=100)
    assert starts(held, *queue, other, gpu=8, queues=(QUOTA,)) == {
        "q0": at(100),
        "q1": at(160),
        "other": NOW,
    }


def test_quota_that_a_gang_without_a_known_end_uses_is_named_and_no_gang_of_another_tree() -> None:
    held = running("r", queue="team"), running("other", gpu=4)
    assert starts(*held, queued("q", queue="team"), gpu=8, queues=(QUOTA,))["q"] == unknown(
        Why.NO_KNOWN_END, "InsufficientQuota", GPU, "r"
    )


def test_estimates_end_at_the_first_preemption() -> None:
    root = Queue("root", resources={GPU: Quota(4)})
    mine = Queue("mine", "root", {GPU: Quota(2)}, preemption=Preemption(reclaim=Reclaim.ANY))
    other = Queue("other", "root", {GPU: Quota(2)})
    held = running("r", queue="other", gpu=4, expected_seconds=100)
    later = queued("later", 1, queue="other")
    queues = (root, mine, other)
    assert starts(held, queued("q", queue="mine"), later, gpu=4, queues=queues) == {
        "q": unknown(Why.PREEMPTION),
        "later": unknown(Why.PREEMPTION),
    }


def test_estimates_end_at_the_drain_of_a_queue() -> None:
    queues = Queue("drained", stop_policy=StopPolicy.HOLD_AND_DRAIN), Queue("other")
    held = running("r", queue="drained", gpu=4, expected_seconds=100)
    assert starts(held, queued("q", queue="other"), gpu=4, queues=queues) == {"q": unknown(Why.DRAIN)}


def test_gang_not_evaluated_for_the_head_of_another_tree_names_that_head() -> None:
    """The gangs are in queues of their own, and in one strict queue of another tree, whose quota is used up."""
    strict = Queue("tree", resources={GPU: Quota(2)}, strategy=QueueingStrategy.STRICT_FIFO)
    queues = Queue("a"), Queue("b"), strict
    in_tree = ("tree",)
    held = running("r", queue="a", more_queues=in_tree)
    head = queued("head", queue="a", more_queues=in_tree)
    behind = queued("behind", 1, queue="b", more_queues=in_tree)
    assert starts(held, queued("other", queue="b", gpu=9), head, behind, gpu=8, queues=queues)[
        "behind"
    ] == unknown(Why.BEHIND_HEAD, "AwaitingHeadOfLine", "", "head")


@pytest.mark.parametrize("queues", [(), (QUOTA,)], ids=["clusters", "queues"])
def test_gangs_without_a_known_end_are_found_once_for_all_that_wait_for_them(
    queues: tuple[Queue, ...],
) -> None:
    waiting = [queued(f"q{n}", n, queue="team") for n in range(3)]
    found_starts = starts(running("r", queue="team"), *waiting, queues=queues)
    gangs = {id(each.gangs) for each in found_starts.values() if isinstance(each, UnknownStart)}
    assert (len(found_starts), len(gangs)) == (3, 1)


def test_gangs_that_hold_a_quota_of_pods_without_a_known_end_are_told() -> None:
    of_pods = Queue("team", None, {"pods": Quota(1)})
    found_starts = starts(running("r", queue="team"), queued("q", queue="team"), gpu=8, queues=(of_pods,))
    assert found_starts == {"q": unknown(Why.NO_KNOWN_END, "InsufficientQuota", "pods", "r")}


def test_gang_that_its_queue_does_not_take_waits_for_no_capacity() -> None:
    assert starts(queued("q", queue="ghost"), queues=(QUOTA,)) == {
        "q": unknown(Why.IN_NO_QUEUE, "QueueNotFound")
    }


def test_nothing_is_estimated_where_a_queue_orders_by_recent_use() -> None:
    by_use = replace(QUOTA, order=Order.USAGE)
    assert starts(queued("q", queue="team"), queues=(by_use,)) == {"q": unknown(Why.RECENT_USE)}


def test_queue_that_dispatches_nothing_has_no_known_end() -> None:
    stopped = replace(QUOTA, stop_policy=StopPolicy.HOLD)
    assert starts(queued("q", queue="team"), queues=(stopped,)) == {
        "q": unknown(Why.STILL_WAITS, "QueueStopped")
    }


# --- words --------------------------------------------------------------------------------------------------

GANGS = {
    each.uid: each
    for each in (
        running("sweep", gpu=8, namespace="red"),
        running("late", namespace="red", expected_seconds=9),
        running("gone", namespace="red", phase=Phase.FAILING),
        queued("next", namespace="red"),
        running("theirs", namespace="blue"),
        running("also", namespace="blue"),
    )
}


@pytest.mark.parametrize(
    ("reason", "namespace", "words"),
    [
        (
            unknown(Why.NO_KNOWN_END, "", GPU, "sweep"),
            "",
            "no end is known for red/sweep (nvidia.com/gpu 8, no dispatchDuration)",
        ),
        (
            unknown(Why.NO_KNOWN_END, "", GPU, "late", "theirs", "gone"),
            "red",
            "no end is known for late (nvidia.com/gpu 2, past its dispatchDuration), "
            "gone (nvidia.com/gpu 2, being removed) and 1 AppWrapper of other namespaces",
        ),
        (
            unknown(Why.NO_KNOWN_END, "", "", "next", "sweep", "late", "gone", "also", "theirs"),
            "red",
            "no end is known for next (no dispatchDuration), sweep (no dispatchDuration), "
            "late (past its dispatchDuration), 1 AppWrapper more and 2 AppWrappers of other namespaces",
        ),
        (
            unknown(Why.NO_KNOWN_END, "", GPU, "theirs", "also"),
            "red",
            "no end is known for 2 AppWrappers of other namespaces",
        ),
        (
            unknown(Why.BEHIND_HEAD, "", "", "next"),
            "red",
            "its queue stops at next, whose start is unknown",
        ),
        (
            unknown(Why.BEHIND_HEAD, "", "", "theirs"),
            "red",
            "its queue stops at an AppWrapper of another namespace, whose start is unknown",
        ),
        (
            unknown(Why.BEHIND_HEAD, "", "", "theirs"),
            "",
            "its queue stops at blue/theirs, whose start is unknown",
        ),
        (
            unknown(Why.NO_KNOWN_END, "", "pods", "sweep"),
            "red",
            "no end is known for sweep (pods 1, no dispatchDuration)",
        ),
        (
            unknown(Why.IN_NO_QUEUE, "QueueNotFound"),
            "red",
            "it waits for a queue that takes it, not for capacity",
        ),
        (unknown(Why.TOO_LARGE, "LargerThanQuota"), "red", "it would not start if nothing else ran"),
        (
            unknown(Why.STILL_WAITS, "ClusterCordoned"),
            "red",
            "after all known ends it still waits: ClusterCordoned",
        ),
        (unknown(Why.STILL_WAITS), "red", "after all known ends it still waits"),
        (
            unknown(Why.PREEMPTION),
            "",
            "a preemption comes before it, and the preempted AppWrappers are queued again",
        ),
        (
            unknown(Why.DRAIN),
            "",
            "the drain of a queue comes before it, and the evicted AppWrappers are queued again",
        ),
        (unknown(Why.RECENT_USE), "", "a queue orders by recent use, which changes before it starts"),
        (unknown(Why.TOO_FAR), "", "too many AppWrappers start or end before it"),
    ],
)
def test_unknown_start_says_why_and_names_no_gang_of_another_namespace(
    reason: UnknownStart, namespace: str, words: str
) -> None:
    assert why_unknown(reason, GANGS, namespace) == words


def test_status_does_not_change_with_the_number_of_many_gangs() -> None:
    """Else one gang that begins or ends changes the statuses of all gangs with an exact position in any queue."""
    many = [f"g{n}" for n in range(40)]
    gangs = {
        each: replace(running(each), namespace="blue" if n % 2 else "red") for n, each in enumerate(many)
    }

    def words(count: int, namespace: str) -> str:
        return why_unknown(unknown(Why.NO_KNOWN_END, "", "", *many[:count]), gangs, namespace)

    assert (
        words(40, "green")
        == words(21, "green")
        == "no end is known for more than 20 AppWrappers of other namespaces"
    )
    assert words(20, "green") == "no end is known for 20 AppWrappers of other namespaces"
    assert words(40, "red").endswith(" and 20 AppWrappers of other namespaces")
    gangs |= {each: running(each) for each in many}
    assert words(40, gangs["g0"].namespace).endswith(" and more than 20 other AppWrappers")
    assert words(40, "").endswith(" and 37 AppWrappers more")

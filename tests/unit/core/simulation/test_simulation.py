"""Traces on virtual time: who starts when, and what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.simulation.measures import Part, Waits
from tests.unit.core.simulation.runs import GPU, cluster, document, gang, run, simulation_of

OWNER_AND_GUEST = [
    {"name": "root"},
    {
        "name": "owner",
        "parent": "root",
        "resources": {GPU: {"nominalQuota": 8}},
        "preemption": {"reclaim": "Any"},
    },
    {"name": "guest", "parent": "root", "resources": {GPU: {"nominalQuota": 0, "borrowingLimit": 8}}},
]
"""The guest borrows all that the owner has, and the owner takes it back."""


def waits(*seconds: float) -> Waits:
    """The waits of gangs."""
    return Waits.of([round(each * 10**6) for each in seconds])


def test_gang_waits_until_the_one_before_it_ends() -> None:
    found = run(document(gang("a", 0, 100), gang("b", 10, 50)))
    assert found.all == Part(2, 0, waits(0, 90))
    assert (found.makespan, found.utilisation) == (150.0, 1.0)


def test_small_gang_passes_a_large_one_unless_the_queue_is_strict() -> None:
    gangs = gang("a", 0, 100, 4), gang("large", 10, 50, 8), gang("small", 20, 30, 4)
    best, strict = run(document(*gangs)), run(document(*gangs, policy={"queueing": "StrictFIFO"}))
    assert best.by_size == {"3-4": Part(2, 0, waits(0, 0)), "5-8": Part(1, 0, waits(90))}
    assert strict.by_size == {"3-4": Part(2, 0, waits(0, 130)), "5-8": Part(1, 0, waits(90))}


def test_gang_of_higher_priority_goes_first() -> None:
    found = run(document(gang("a", 0, 100), gang("b", 10, 50), gang("c", 20, 50, priority=1)))
    assert found.all.wait == waits(0, 140, 80)


def test_starved_gang_gets_the_capacity_that_small_gangs_would_take() -> None:
    """A gang of one GPU arrives each minute and runs for an hour, so the node is never empty by itself."""
    small = [gang(f"s{index}", 60 * index, 3600, 1) for index in range(300)]
    large = gang("large", 61, 60, 8)
    listed = sorted([*small, large], key=lambda each: each["arrival"])
    served = run(document(*listed, policy={"starvationBoundSeconds": 600})).by_size["5-8"]
    assert served.left == 0
    patient = run(document(*listed, policy={"starvationBoundSeconds": 10**9})).by_size["5-8"]
    assert (served.wait.mean or 0) < (patient.wait.mean or 0)


def test_gang_goes_to_any_cluster_or_to_that_of_the_trace() -> None:
    clusters = [{**cluster("east"), "labels": {"gpu": "a"}}, {**cluster("west"), "labels": {"gpu": "b"}}]
    gangs = gang("a", 0, 100, clusterSelector="gpu=a"), gang("b", 10, 100, clusterSelector="gpu=a")
    assert run(document(*gangs, clusters=clusters)).all.wait == waits(0, 90)
    assert run(document(*gangs, clusters=clusters, policy={"cluster": "any"})).all.wait == waits(0, 0)


def test_preempted_gang_begins_anew_and_its_work_is_lost() -> None:
    gangs = gang("g", 0, 3600, queue="guest"), gang("o", 1800, 600, queue="owner")
    found = run(document(*gangs, queues=OWNER_AND_GUEST, policy={"removalSeconds": 30}))
    assert (found.preemptions, found.gpu_hours_lost) == (1, 4.0)
    assert found.by_queue["owner"].wait == waits(30)
    # The guest leaves at 1830 s, when the owner starts; it runs again from 2430 s to 6030 s.
    assert found.by_queue["guest"].wait == waits(600)
    assert found.makespan == 6030.0


def test_preempted_gang_that_is_queued_when_its_first_run_would_have_ended_runs_from_the_beginning() -> None:
    gangs = gang("g", 0, 3600, queue="guest"), gang("o", 1800, 6000, queue="owner")
    found = run(document(*gangs, queues=OWNER_AND_GUEST, policy={"removalSeconds": 30}))
    assert (found.preemptions, found.all.left, found.makespan) == (1, 0, 1830 + 6000 + 3600)


def test_quota_bounds_a_queue() -> None:
    queues = [{"name": "half", "resources": {GPU: {"nominalQuota": 4}}}]
    gangs = [gang(name, 0, 100, 4, queue="half") for name in ("a", "b")]
    assert run(document(*gangs, queues=queues)).all.wait == waits(0, 100)


def test_running_and_pending_gangs_of_the_file_take_part() -> None:
    pods = [{"requests": {GPU: 8}}]
    found = run(
        document(
            gang("b", 10, 50),
            running=[{"name": "r", "cluster": "east", "ran": 40, "duration": 100, "pods": pods}],
            pending=[{"name": "p", "age": 5, "duration": 20, "pods": pods}],
        )
    )
    assert found.all == Part(2, 0, waits(65, 70))
    assert found.makespan == 130.0


def test_gang_that_never_gets_room_is_left() -> None:
    found = run(document(gang("a", 0, None), gang("b", 10, 50)))
    assert found.all == Part(2, 1, waits(0))


def test_allocated_share_is_measured_when_gangs_first_request_so_much() -> None:
    gangs = gang("a", 0, 100, 5), gang("b", 10, 100, 5), gang("c", 20, 100, 1)
    found = run(document(*gangs))
    assert found.allocated == {100: 0.625, 130: 0.75}


def test_measures_may_be_asked_before_the_end() -> None:
    simulation = simulation_of(document(gang("a", 0, 100), gang("b", 10, 50), gang("c", 20, 50)))
    for _ in range(2):
        assert simulation.advance()
    found = simulation.measured()
    assert (simulation.arrived, simulation.gangs) == (2, 3)
    assert found.all == Part(2, 1, waits(0))


def test_same_file_gives_the_same_answer() -> None:
    gangs = [gang(f"g{index}", index * 7 % 50 + index, 20 + index % 13, 1 + index % 8) for index in range(60)]
    gangs.sort(key=lambda each: each["arrival"])
    one, other = (run(document(*gangs)).as_document("run") for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"trace": None}, "trace: is required. Add the trace that is to be run"),
        ({"trace": {"format": "pbs"}}, 'trace.format: must be one of list, philly, muri, swf, not "pbs"'),
        ({"trace": {"format": "swf"}}, "trace.file: is required"),
        (
            {"trace": {"format": "list", "file": "a"}},
            "trace.file: has no effect with format list; known are format, gangs",
        ),
        ({"policy": {"queuing": "x"}}, "policy.queuing: is unknown here; known are name,"),
        ({"policy": {"removalSeconds": 0}}, "policy.removalSeconds: must be more than 0"),
        ({"pending": [{"name": "p", "duration": -1}]}, "pending[0].duration: must be seconds from 0"),
    ],
    ids=str,
)
def test_wrong_key_is_named_with_its_place(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        run(document(**keys))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("gangs", "problem"),
    [
        (
            [gang("a", 5, 1), gang("b", 4, 1)],
            "trace.gangs[1].arrival: it arrives before the gang above, at 5 s",
        ),
        ([gang("a", 0, -1)], "trace.gangs[0].duration: must be seconds from 0"),
        ([gang("a", 0, 1, 9)], "trace.gangs[0]: is larger than everything: it fits no cluster"),
        ([gang("a", 0, 1, queue="x")], "trace.gangs[0].queue: there is no queue x"),
        ([gang("a", 0, 1), gang("a", 1, 1)], 'trace.gangs[1].name: "a" names another one, too'),
        ([gang("a", 0, 1, colour="red")], "trace.gangs[0].colour: is unknown here"),
    ],
    ids=str,
)
def test_wrong_gang_of_a_list_is_named(gangs: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        run(document(*gangs))
    assert problem in str(caught.value)


# --- what a simulation would decide otherwise than the leader is refused --------------------------------------

RUNNING = {"name": "old", "cluster": "east", "ran": 60, "pods": [{"requests": {GPU: 8}}]}
QUEUE = {"name": "vision", "resources": {GPU: {"nominalQuota": 8}}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(
            document(queues=[{**QUEUE, "order": "Usage"}]),
            "queues: queue vision is in the order of past use, which is not simulated",
            id="past-use",
        ),
        pytest.param(
            document(gang("a", 0, 5, queue="vision"), queues=[{**QUEUE, "approvals": ["legal"]}]),
            "trace.gangs[0]: awaits approvals, which are not simulated",
            id="approvals",
        ),
        pytest.param(
            document(gang("a", 0, 5, age=7)),
            "trace.gangs[0].age: has no meaning for a gang that arrives",
            id="age-of-an-arrival",
        ),
        pytest.param(
            document(policy={"queue": "vision"}),
            'policy.queue: there is no queue "vision"',
            id="queue-of-the-policy",
        ),
        pytest.param(
            document(running=[{**RUNNING, "ending": True, "duration": 9}]),
            "running[0].duration: has no meaning for a gang that is ending",
            id="ending-with-a-duration",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        simulation_of(given)
    assert str(caught.value) == problem


def test_run_in_which_nothing_ends_has_neither_makespan_nor_utilisation() -> None:
    measured = run(document(gang("a", 0, None)))
    assert (measured.makespan, measured.utilisation) == (None, None)
    assert measured.all.gangs == 1

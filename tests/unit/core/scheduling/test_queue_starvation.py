"""A large gang of an owner under streams of small gangs, in its queue and in others: how long small gangs delay it.

The promise is about a gang of a BestEffortFIFO queue that is the head of the queue from its first cycle on, may be
preempted, and fits the nominal quota of its queue, the limits of the queues above and an empty cluster. Once it has
been the head for the starvation bound of its queue, own or inherited, no gang that is dispatched later delays it. It
is dispatched at the latest in the first cycle after the end of all gangs that held capacity when the bound was over:
within the bound, the longest run and the longest removal of a victim. The promise holds for each sharing and `reclaim`.

The rules of starved gangs promise less in these cases, which the random worlds of this test leave out:
- Starved gangs are decided by rank. A starved gang with a higher priority goes before the large gang, and so does the
  next head of the same queue one bound later. A starved gang for which others were preempted goes first, too; here it
  counts among the gangs that the large gang waits for.
- A starved gang that is not the first by rank in its own queue is still the head there, and the bound of the first by
  rank does not begin before that starved gang is dispatched.
- A starved gang holds back quota while it lacks quota, and keeps a cluster while it lacks room, but never both. A gang
  that lacks each in turn can lose one while it waits for the other.
- For a gang that waits for `OverNominalQuota`, because nobody may preempt it, nothing is held back.
- A gang of a StrictFIFO queue is never starved: no gang of its own queue passes it by, but gangs of other queues do.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.unit.core.scheduling.queue_simulation import STEP
from tests.unit.core.scheduling.queue_streams import HIGHEST, LARGE, PLENTY, Short, Streams, random_streams
from tests.unit.core.scheduling.queue_worlds import RESOURCES, SHARINGS

Json = dict[str, Any]

FEW, MANY = range(60), range(60, 6000)
LONG = 40
"""Steps: several times the longest bound and the longest run."""


def starved(seeds: range, short: Short) -> Counter[str]:
    """How often a large gang waited beyond its bound, by sharing and by `reclaim`; it was in time in all worlds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        streams = random_streams(seed, short)
        wait = streams.wait(LONG)
        assert wait.is_in_time, f"seed {seed}: {wait}"
        if wait.starved is not None:
            preemption = streams.forest.queues[streams.queue].get("preemption", {})
            counts.update([streams.forest.sharing(streams.queue), preemption.get("reclaim", "Never")])
    return counts


@pytest.mark.parametrize("short", Short)
def test_large_gang_of_an_owner_starts_once_the_gangs_that_ran_at_its_bound_are_gone(short: Short) -> None:
    counts = starved(FEW, short)
    assert all(counts[each] for each in (*SHARINGS, "Never", "LowerPriority", "Any"))


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("short", Short)
def test_large_gang_of_an_owner_starts_in_time_in_many_worlds(short: Short) -> None:
    counts = starved(MANY, short)
    assert all(counts[each] > 25 for each in (*SHARINGS, "Never", "LowerPriority", "Any"))


@pytest.mark.parametrize(
    ("root", "leaf", "steps"),
    [
        pytest.param({}, {}, 3, id="default"),
        pytest.param({"starvationBoundSeconds": STEP}, {}, 1, id="inherited"),
        pytest.param({"starvationBoundSeconds": STEP}, {"starvationBoundSeconds": 5 * STEP}, 5, id="longer"),
        pytest.param({"starvationBoundSeconds": 5 * STEP}, {"starvationBoundSeconds": STEP}, 1, id="shorter"),
    ],
)
def test_small_gangs_start_before_a_large_gang_of_their_queue_until_its_bound(
    root: Json, leaf: Json, steps: int
) -> None:
    """Small gangs start in most steps until the bound of the queue, and never after it."""
    waits = [one_queue(seed, root, leaf).wait(LONG) for seed in range(10)]
    assert max(step for wait in waits for step in wait.passed_by) == steps - 1
    assert all(wait.is_in_time for wait in waits)


def one_queue(seed: int, root: Json, leaf: Json) -> Streams:
    """A queue whose nominal quota is what its large gang demands, in a tree with another queue, and plenty of room."""
    node = {"name": "n", "allocatable": dict.fromkeys(RESOURCES, PLENTY)}
    quota = {"resources": {each: {"nominalQuota": 12} for each in RESOURCES}}
    document = {
        "clusters": [{"name": "hub", "nodes": [node]}],
        "queues": [
            {"name": "t", **root},
            {"name": "a", "parent": "t", **quota, **leaf},
            {"name": "b", "parent": "t"},
        ],
        "running": [],
        "pending": [],
    }
    pods = [{"count": 12, "requests": dict.fromkeys(RESOURCES, 1)}]
    large = {"name": LARGE, "queue": "a", "priority": HIGHEST, "age": 1, "pods": pods}
    return Streams(document, Random(seed), large)  # noqa: S311 - repeatable


@pytest.mark.parametrize("short", Short)
def test_no_gang_of_its_queue_passes_by_the_head_of_a_strict_queue(short: Short) -> None:
    waits = [random_streams(seed, short, is_strict=True).wait(LONG // 2) for seed in range(30)]
    assert sum(wait.start != 0 for wait in waits) > 5
    assert not any(wait.passed_by for wait in waits)

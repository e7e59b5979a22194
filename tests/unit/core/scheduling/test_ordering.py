"""Who is looked at before whom."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.ordering import effective_priority, in_order
from dispatcher.core.queues.queue import Order, Queue, Quota
from dispatcher.core.scheduling.sharing.recent_use import WeightedUse, counted_resources, recent_use
from tests.builders import CREATED, NOW, at, make_record


def names(records: list[Record]) -> list[str]:
    return [record.name for record in records]


RECORDS = st.lists(
    st.builds(
        lambda index, priority, slope, age, seq: make_record(
            name=f"aw-{index}",
            priority=priority,
            priority_slope=slope,
            created_at=NOW - timedelta(seconds=age),
            enqueue_seq=seq,
        ),
        st.integers(0, 10**6),
        st.integers(-3, 3),
        st.sampled_from([0.0, 0.5, -0.5, 1.0]),
        st.integers(0, 5),
        st.integers(1, 8),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(RECORDS)
def test_order_is_effective_priority_then_creation_then_the_order_of_arrival(records: list[Record]) -> None:
    ordered = in_order(records, NOW)

    assert sorted(map(id, ordered)) == sorted(map(id, records))
    for earlier, later in pairwise(ordered):
        mine, theirs = effective_priority(earlier, NOW), effective_priority(later, NOW)
        assert mine >= theirs
        if mine == theirs:
            assert (earlier.created_at, earlier.enqueue_seq) <= (later.created_at, later.enqueue_seq)


@settings(max_examples=40, deadline=None)
@given(RECORDS, st.randoms(use_true_random=False))
def test_order_does_not_depend_on_the_order_of_asking(records: list[Record], random: Random) -> None:
    distinct = list({record.enqueue_seq: record for record in records}.values())
    shuffled = distinct[:]
    random.shuffle(shuffled)
    assert names(in_order(shuffled, NOW)) == names(in_order(distinct, NOW))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({"priority": 9}, {"priority": 8}, id="higher-priority-first"),
        pytest.param({"priority": 0}, {"priority": -1}, id="negative-priorities-come-last"),
        pytest.param({"created_at": CREATED}, {"created_at": at(5)}, id="then-the-earlier-created"),
        pytest.param(
            {"created_at": at(5)},
            {"created_at": CREATED, "aged_from": at(6)},
            id="its-age-and-not-its-creation",
        ),
        pytest.param({"enqueue_seq": 1}, {"enqueue_seq": 2}, id="then-the-earlier-taken-in"),
        pytest.param(
            {"priority": 1, "created_at": at(5), "enqueue_seq": 9},
            {"priority": 0, "created_at": CREATED, "enqueue_seq": 1},
            id="priority-before-age",
        ),
    ],
)
def test_gang_that_comes_first(first: dict[str, Any], second: dict[str, Any]) -> None:
    records = [make_record(name="second", **second), make_record(name="first", **first)]
    assert names(in_order(records, at(10))) == ["first", "second"]


def test_priority_slope_lets_an_old_gang_overtake_a_more_urgent_gang() -> None:
    patient = make_record(name="patient", priority=0, priority_slope=0.1, created_at=NOW)
    urgent = make_record(name="urgent", priority=5, created_at=at(1))

    assert names(in_order([patient, urgent], at(49))) == ["urgent", "patient"]
    assert names(in_order([patient, urgent], at(51))) == ["patient", "urgent"]


def test_effective_priority_grows_with_age_in_seconds() -> None:
    record = make_record(priority=3, priority_slope=0.25, created_at=NOW)
    assert [effective_priority(record, at(seconds)) for seconds in (0, 1, 10)] == [3.0, 3.25, 5.5]


def test_effective_priority_leaves_out_the_time_in_which_the_author_kept_a_gang_back() -> None:
    record = make_record(priority=3, priority_slope=0.25, created_at=NOW, aged_from=at(8))
    assert effective_priority(record, at(10)) == 3.5


def test_age_without_a_slope_means_nothing_even_if_the_clock_is_before_the_creation() -> None:
    assert effective_priority(make_record(priority=3, created_at=at(60)), NOW) == 3.0


def test_postponed_appwrapper_is_left_out_until_it_may_be_tried_again() -> None:
    postponed = make_record(name="postponed", eligible_at=at(5))
    other = make_record(name="other", created_at=at(1))

    assert names(in_order([postponed, other], at(4.999))) == ["other"]
    assert names(in_order([postponed, other], at(5))) == ["postponed", "other"]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.QUEUED])
def test_only_queued_appwrappers_are_in_the_pending_queue(phase: Phase) -> None:
    assert in_order([make_record(phase)], at(100)) == []


# -----------------------------------------------------------------------------------------------------------
# The recent use of namespaces: what halves in a week, in which resources it counts, and who is asked for at
# all.


GPU = "nvidia.com/gpu"
WEEK = 168.0


def use(
    amount: int, began: float, ended: float, namespace: str = "team", resource: str = GPU, queue: str = "a"
) -> WeightedUse:
    """An attempt that held an amount, from when to when in hours ago."""
    return WeightedUse(queue, namespace, resource, amount * (0.5 ** (ended / WEEK) - 0.5 ** (began / WEEK)))


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        pytest.param([use(8, 24, 0)], {("a", "team"): 182.8}, id="8 GPUs for the last 24 hours"),
        pytest.param([use(8, 192, 168)], {("a", "team"): 91.4}, id="the same a week later"),
        pytest.param([use(8, 360, 336)], {("a", "team"): 45.7}, id="the same two weeks later"),
        pytest.param([use(4, 24, 0), use(4, 24, 0)], {("a", "team"): 182.8}, id="two attempts of 4 GPUs"),
        pytest.param([use(8, 24, 12), use(8, 12, 0)], {("a", "team"): 182.8}, id="one after the other"),
        pytest.param(
            [use(4, 24, 0), use(4, 24, 0, resource="amd.com/gpu")],
            {("a", "team"): 182.8},
            id="devices of two vendors count alike",
        ),
        pytest.param([use(8000, 24, 0, resource="cpu")], {("a", "team"): 182.8}, id="8 cores"),
        pytest.param(
            [use(8, 24, 0), use(8, 24, 0, "other"), use(8, 192, 168, queue="b")],
            {("a", "team"): 182.8, ("a", "other"): 182.8, ("b", "team"): 91.4},
            id="namespaces and queues apart",
        ),
        pytest.param([use(1, 1e9, 0)], {("a", "team"): 242.4}, id="one GPU for ever"),
        pytest.param([use(8, 0, 0)], {("a", "team"): 0}, id="no time"),
        pytest.param([], {}, id="nothing"),
    ],
)
def test_use_halves_in_a_week(uses: list[WeightedUse], expected: dict[tuple[str, str], float]) -> None:
    found = recent_use(uses)
    assert {key: round(float(hours), 1) for key, hours in found.items()} == expected


def test_equal_uses_are_equal_in_whatever_order_they_were_added_up() -> None:
    parts = [use(3, 24 - each / 7, 23 - each / 7) for each in range(100)]
    (forth,), (back,) = recent_use(parts).values(), recent_use(reversed(parts)).values()
    assert sum(each.weighted for each in parts) != sum(each.weighted for each in reversed(parts))
    assert forth == back
    assert forth.denominator <= 10**6
    assert isinstance(forth, Fraction)


USAGE = Order.USAGE


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], {}, id="no queue"),
        pytest.param([Queue("a", resources={GPU: Quota(8)})], {}, id="none orders by use"),
        pytest.param(
            [
                Queue("org", order=USAGE),
                Queue("a", "org", {GPU: Quota(8), "cpu": Quota(1000)}, order=USAGE),
                Queue("b", "org", {"amd.com/gpu": Quota(8)}),
            ],
            {"a": ("amd.com/gpu", GPU)},
            id="a leaf, by all devices of its tree",
        ),
        pytest.param(
            [Queue("a", resources={"memory": Quota(8)}, order=USAGE), Queue("default", order=USAGE)],
            {"a": ("cpu",), "default": ("cpu",)},
            id="cpu without a limited device",
        ),
        pytest.param([Queue("a", "nowhere", order=USAGE)], {}, id="an invalid queue"),
    ],
)
def test_only_leaves_that_order_by_use_are_asked_for(
    queues: list[Queue], expected: dict[str, tuple[str, ...]]
) -> None:
    assert counted_resources(Forest.of(queues)) == expected

"""What one namespace may have: of the queue, and of priority; and how its other AppWrappers enter by age."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import EXPECTED_RUNTIME, MAX_PRIORITY, MAX_PRIORITY_SLOPE
from dispatcher.core.intake.namespace_bounds import (
    Ceiling,
    Deferred,
    QueueBound,
    ceiling_of,
    deferred_status,
    expected_runtime_of,
    unreadable,
)
from tests.builders import at

QUEUED: Counter[str] = Counter(full=2, used=1)


def bound_of(queued: Counter[str] = QUEUED) -> QueueBound:
    return QueueBound(2, queued.__getitem__)


def admits(bound: QueueBound, *numbers: int, namespace: str = "team") -> list[bool]:
    """Whether each of these AppWrappers is admitted; the number is its age and its uid."""
    return [bound.admits(namespace, (at(number), number), str(number)) for number in numbers]


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("team", [True, True, False]), ("used", [True, False, False]), ("full", [False, False, False])],
)
def test_as_many_are_admitted_as_the_namespace_has_room_for(namespace: str, expected: list[bool]) -> None:
    assert admits(bound_of(), 1, 2, 3, namespace=namespace) == expected


def test_deferred_appwrappers_enter_by_age_once_there_is_room() -> None:
    queued = Counter(team=2)
    bound = bound_of(queued)
    assert admits(bound, 3, 1, 2) == [False, False, False]
    assert (len(bound), bound.waits_in("team"), bound.is_deferred("1"), bound.call()) == (3, True, True, [])
    queued["team"] = 0
    assert (bound.call(), bound.is_deferred("1"), len(bound)) == (["1", "2"], False, 1)
    assert admits(bound, 1, 2) == [True, True]


def test_new_appwrapper_does_not_enter_before_deferred_appwrappers() -> None:
    queued = Counter(team=2)
    bound = bound_of(queued)
    assert admits(bound, 1) == [False]
    queued["team"] = 1
    assert admits(bound, 2) == [False]
    assert bound.call() == ["1"]


def test_admitted_appwrappers_count_until_the_count_includes_them() -> None:
    queued = Counter(team=1)
    bound = bound_of(queued)
    assert admits(bound, 1, 2) == [True, False]
    queued["team"] = 2
    bound.settle()
    assert bound.call() == []
    queued["team"] = 1
    assert bound.call() == ["2"]


def test_deferred_appwrapper_keeps_its_turn() -> None:
    queued = Counter(team=2)
    bound = bound_of(queued)
    assert admits(bound, 1, 2) == [False, False]
    queued["team"] = 1
    assert bound.call() == ["1"]
    assert admits(bound, 1) == [True]
    bound.keep_turn("team", "1")
    assert admits(bound, 3) == [False]
    assert admits(bound, 1) == [True]


def test_appwrapper_was_deferred_until_it_is_in_the_queue() -> None:
    queued = Counter(team=2)
    bound = bound_of(queued)
    admits(bound, 1, 2)
    queued["team"] = 1
    assert bound.call() == ["1"]
    admits(bound, 1)
    assert bound.was_deferred("1")
    bound.keep_turn("team", "1")
    bound.settle()
    assert bound.was_deferred("1"), "it was not taken in"
    admits(bound, 1)
    queued["team"] = 2
    bound.settle()
    assert not bound.was_deferred("1")
    bound.forget("2")
    assert not bound.was_deferred("2")
    assert not bound_of().was_deferred("3")


def test_deleted_appwrapper_takes_no_room() -> None:
    queued = Counter(team=2)
    bound = bound_of(queued)
    assert admits(bound, 1, 2) == [False, False]
    bound.forget("1")
    bound.forget("1")
    queued["team"] = 1
    assert bound.call() == ["2"]


# --- Ceilings: what counts of a priority, and what is said of the rest -------------------------------------


@pytest.mark.parametrize(
    ("ceiling", "asked", "counts"),
    [
        pytest.param(Ceiling(), (2**31 - 1, 1e12), (2**31 - 1, 1e12), id="no-bound"),
        pytest.param(Ceiling(100, 2.0), (100, 2.0), (100, 2.0), id="up-to-it"),
        pytest.param(Ceiling(100, 2.0), (101, 2.5), (100, 2.0), id="above-it"),
        pytest.param(Ceiling(100, 2.0), (-5, -2.5), (-5, -2.5), id="below-it"),
        pytest.param(Ceiling(-1), (0, 0.0), (-1, 0.0), id="below-the-default"),
        pytest.param(Ceiling(100), (0, 0.1), (0, 0.0), id="no-slope-passes-a-ceiling-of-the-priority"),
        pytest.param(Ceiling(100), (0, -0.1), (0, -0.1), id="a-falling-one-does-not-pass-it"),
        pytest.param(Ceiling(None, 2.0), (900, 3.0), (900, 2.0), id="slope-alone"),
    ],
)
def test_ceiling_lowers_the_priority_and_slope_that_count(
    ceiling: Ceiling, asked: tuple[int, float], counts: tuple[int, float]
) -> None:
    lowered = ceiling.lower(MutableSpec(*asked, suspend=True))
    assert lowered == MutableSpec(*counts, suspend=True)
    assert bool(ceiling.warning(MutableSpec(*asked), "team")) is (asked != counts)
    assert ceiling.lower(lowered) == lowered


def test_warning_of_a_ceiling_has_both_numbers() -> None:
    said = Ceiling(100).warning(MutableSpec(2**31 - 1, 0.5), "team")
    assert said == (
        "priority 2147483647 counts as 100 and priorityslope 0.5 counts as 0, the ceiling of namespace team"
    )


@pytest.mark.parametrize(
    ("annotations", "ceiling"),
    [
        pytest.param({}, Ceiling(7, 0.5), id="none"),
        pytest.param({"other": "1"}, Ceiling(7, 0.5), id="others"),
        pytest.param({MAX_PRIORITY: "100"}, Ceiling(100, 0.5), id="priority"),
        pytest.param({MAX_PRIORITY: "-3", MAX_PRIORITY_SLOPE: "1.25"}, Ceiling(-3, 1.25), id="both"),
    ],
)
def test_annotations_of_a_namespace_go_before_the_default(
    annotations: dict[str, str], ceiling: Ceiling
) -> None:
    assert ceiling_of(annotations, Ceiling(7, 0.5)) == ceiling
    assert unreadable(annotations) == ()


@pytest.mark.parametrize("value", ["", "high", "1e3", "1_000", " 5", "9" * 20, "NaN", "inf", "٣", "1\n"])
def test_ceiling_that_is_no_number_counts_as_0(value: str) -> None:
    annotations = {MAX_PRIORITY: value, MAX_PRIORITY_SLOPE: value}
    assert ceiling_of(annotations) == Ceiling(0, 0.0)
    assert unreadable(annotations) == (MAX_PRIORITY, MAX_PRIORITY_SLOPE)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("7200", 7200), ("0", 0), ("", 0), ("2h", 0), ("-5", 0), ("9" * 10, 0), ("1.5", 0)],
)
def test_expected_run_time_of_a_namespace_is_a_number_of_seconds(written: str, seconds: int) -> None:
    assert expected_runtime_of({EXPECTED_RUNTIME: written}) == seconds
    assert unreadable({EXPECTED_RUNTIME: written}) == (
        () if written in {"7200", "0"} else (EXPECTED_RUNTIME,)
    )


def test_slope_does_not_fall() -> None:
    assert ceiling_of({MAX_PRIORITY_SLOPE: "-1"}) == Ceiling(None, 0.0)


# --- Who waits outside the queue is let in by age, and forgotten when gone ---------------------------------


def test_oldest_of_a_namespace_comes_first() -> None:
    deferred = Deferred()
    for uid, second, order in [("c", 2, 1), ("b", 1, 10), ("a", 1, 9)]:
        deferred.put("team", (at(second), order), uid)
    deferred.put("other", (at(0), 0), "x")
    assert [deferred.pop("team") for _ in range(4)] == ["a", "b", "c", None]
    assert (list(deferred.namespaces()), "x" in deferred, "a" in deferred) == (["other"], True, False)


def test_status_says_what_to_wait_for_and_never_changes() -> None:
    shown = deferred_status("team", 2)
    assert (shown["state"], shown["queuejobstate"], shown["canrun"]) == ("Pending", "Init", False)
    assert shown["waiting"] == {
        "reason": "NamespaceQueueFull",
        "message": "namespace team has 2 AppWrappers in the queue or suspended, and may have no more; this one is "
        "taken in, by its age, when one of those is dispatched or deleted",
    }
    assert deferred_status("team", 2, has_components=True) == {**shown, "phase": "Suspended"}


_STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "discard", "pop"]), st.sampled_from("ab"), st.integers(0, 30)),
    max_size=300,
)


@given(_STEPS)
def test_it_is_a_sorted_list_for_each_namespace(steps: list[tuple[str, str, int]]) -> None:
    deferred, model = Deferred(), dict[str, tuple[str, int]]()
    for step, namespace, number in steps:
        uid = f"{namespace}-{number}"
        if step == "put":
            deferred.put(namespace, (at(number), 0), uid)
            model.setdefault(uid, (namespace, number))
        elif step == "discard":
            deferred.discard(uid)
            model.pop(uid, None)
        else:
            waiting = [
                (age, each) for each, (requirements, age) in model.items() if requirements == namespace
            ]
            oldest = min(waiting)[1] if waiting else None
            assert deferred.pop(namespace) == oldest
            if oldest:
                del model[oldest]
        assert len(deferred) == len(model)
        assert set(deferred.namespaces()) == {requirements for requirements, _ in model.values()}


def test_appwrappers_that_come_and_go_leave_no_memory() -> None:
    deferred = Deferred()
    deferred.put("team", (at(0), 0), "stays")
    for number in range(10_000):
        deferred.put("team", (at(1), number), f"u-{number}")
        deferred.discard(f"u-{number}")
    assert len(deferred._heaps["team"]) < 200  # noqa: SLF001  # what it costs is what it keeps
    assert deferred.pop("team") == "stays"

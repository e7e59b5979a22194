"""A namespace has at most so many AppWrappers in the queue; the others enter by age, and none loses its turn."""

from __future__ import annotations

from collections import Counter

import pytest

from dispatcher.core.intake.namespace_bounds import QueueBound
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

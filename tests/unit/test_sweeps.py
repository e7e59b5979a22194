"""Which tests a run has, and which worker runs them."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import settings

from tests.distribution import turned
from tests.sweeps import ALL, PARTS, TODAY, examples, left_out, part, profile, spread

MONDAY = date(2026, 11, 23)
SWEEPS = 2 * PARTS + 1


@pytest.fixture
def items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Two sweeps for each part and one more, and this test."""
    marked = [
        pytest.Function.from_parent(
            request.node.parent, name=f"sweep-{number}", callobj=test_every_part_has_its_day
        )
        for number in range(SWEEPS)
    ]
    for each in marked:
        each.add_marker("sweep")
    return [*marked, request.node]


def test_every_part_has_its_day() -> None:
    days = [MONDAY + timedelta(days=number) for number in range(PARTS)]
    assert {part(TODAY, day) for day in days} == set(map(str, range(1, PARTS + 1)))


def test_every_sweep_is_in_one_part_and_other_tests_in_each(items: list[pytest.Item]) -> None:
    kept = [[item for item in items if item not in left_out(items, str(each + 1))] for each in range(PARTS)]
    assert Counter(item.name for each in kept for item in each[:-1]) == Counter(
        f"sweep-{n}" for n in range(SWEEPS)
    )
    assert {each[-1] for each in kept} == {items[-1]}


def test_all_leaves_nothing_out(items: list[pytest.Item]) -> None:
    assert left_out(items, part(ALL, MONDAY)) == []


@pytest.mark.parametrize("option", ["0", str(PARTS + 1), "tomorrow", ""])
def test_part_that_there_is_not_is_refused(option: str) -> None:
    with pytest.raises(pytest.UsageError, match="choose all, today, or a number from 1 to 24"):
        part(option, MONDAY)


@pytest.mark.parametrize(("chosen", "examples"), [(ALL, 100), ("3", 40)], ids=["all", "part-3"])
def test_a_run_of_a_part_tries_fewer_of_the_same_examples(chosen: str, examples: int) -> None:
    loaded = settings.get_profile(profile(chosen))
    assert (loaded.max_examples, loaded.derandomize, loaded.deadline) == (examples, True, None)


@pytest.mark.parametrize(("chosen", "tried"), [(ALL, 150), ("3", 60)], ids=["all", "part-3"])
def test_a_test_with_a_number_of_its_own_tries_as_large_a_share(chosen: str, tried: int) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile(chosen))
    try:
        assert examples(150) == tried
    finally:
        settings.load_profile(before)


def test_seeds_that_are_spread_are_all_tried_and_the_first_each_day() -> None:
    found = spread(range(5, 30), 10)
    assert [seeds for each in found for (seeds,) in [each.values]] == [
        range(5, 15),
        range(15, 25),
        range(25, 30),
    ]
    assert [[mark.name for mark in each.marks] for each in found] == [[], ["sweep"], ["sweep"]]


# --- How the workers of a run share what each of them needs ------------------------------------------------


FILES = [Path(f"test_{number}.py") for number in range(10)]


@pytest.mark.parametrize("workers", [1, 3, 4, 20])
def test_each_worker_imports_all_modules_from_another_one_on(workers: int) -> None:
    orders = [turned(FILES, worker, workers) for worker in range(workers)]
    assert all(sorted(order) == FILES for order in orders)
    assert len({order[0] for order in orders}) == min(workers, len(FILES))

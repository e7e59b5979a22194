"""What the collector of garbage looks at again, and what no more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count

import pytest

from dispatcher.controller.scheduling.garbage import (
    collect_after,
    look_at_all_again,
    no_collections,
    short_collections,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_survivors_of_a_long_collection_are_frozen() -> None:
    clock, others = count(), list(gc.callbacks)
    with short_collections(lambda: float(next(clock))):
        kept = [[number] for number in range(1000)]
        before = gc.get_freeze_count()
        gc.collect()
        assert gc.get_freeze_count() >= before + len(kept)
    assert (gc.get_freeze_count(), gc.callbacks) == (0, others)


def test_survivors_of_a_short_collection_are_not_frozen() -> None:
    with short_collections(lambda: 0.0):
        kept = [[number] for number in range(1000)]
        before = gc.get_freeze_count()
        gc.collect()
        assert gc.get_freeze_count() < before + len(kept)


@pytest.mark.parametrize(("slices", "generation"), [(1, 0), (9, 0), (10, 2), (11, 0), (20, 2)])
def test_each_slice_ends_with_a_collection_of_new_objects_and_every_tenth_of_all_objects(
    slices: int, generation: int
) -> None:
    collected = list[int]()

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collected.append(info["generation"])

    gc.callbacks.append(watch)
    collect_after(slices)
    gc.callbacks.remove(watch)
    assert collected == [generation]


def test_no_slice_collects_while_nothing_is_to_be_collected() -> None:
    collected = list[str]()

    def watch(phase: str, _info: dict[str, int]) -> None:
        collected.append(phase)

    with no_collections():
        gc.callbacks.append(watch)
        collect_after(10)
        gc.callbacks.remove(watch)
    assert collected == []


def test_values_that_take_the_place_of_others_do_not_pile_up_until_one_long_collection() -> None:
    with short_collections(lambda: 0.0):
        kept = [[number] for number in range(5000)]
        gc.collect()
        largest = 0
        for slices in range(50):
            for index in range(slices * 100, (slices + 1) * 100):
                kept[index] = [index]
            largest = max(largest, len(gc.get_objects(generation=0)))
            collect_after(slices + 1)
    assert largest < 1000


def test_nothing_is_collected_while_much_is_made_nor_looked_at_afterwards() -> None:
    with no_collections():
        assert not gc.isenabled()
        kept = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(kept)
    look_at_all_again()
    assert gc.get_freeze_count() == 0


def test_collections_are_of_little_until_the_leader_steps_down() -> None:
    before = gc.get_threshold()
    with short_collections(lambda: 0.0):
        newest, younger, oldest = gc.get_threshold()
        assert newest * (younger + 1) * (oldest + 1) < 25_000
    assert gc.get_threshold() == before

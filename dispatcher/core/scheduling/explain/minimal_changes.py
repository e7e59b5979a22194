"""Searches for the smallest number or set that suffices, where one question costs a plan of the whole world.

Each search takes a function that answers whether a number or a set goes. The answers need not grow with the number or
the set: a search returns only a number or set that goes where one less does not, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations
from math import comb


def first_that_goes(most: int, goes: Callable[[int], bool], first: int = 1) -> tuple[int, int] | None:
    """The last number tried that fails and the first that goes, of `first`, its double and so on up to `most`.

    0 fails.
    """
    low, high = 0, min(first, most)
    while not goes(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    return low, high


def boundary(
    low: int, high: int, goes: Callable[[int], bool], cheap: Collection[int] = ()
) -> tuple[int, int]:
    """Two neighbours from `low`, which fails, to `high`, which goes: the first fails and the second goes.

    The numbers in `cheap` are tried first, because their plans are known.
    """
    while high - low > 1:
        half = (low + high) // 2
        within = [each for each in cheap if low < each < high]
        middle = min(within, key=lambda each: abs(2 * each - low - high), default=half)
        low, high = (low, middle) if goes(middle) else (middle, high)
    return low, high


def least_sufficient(most: int, guesses: Collection[int], goes: Callable[[int], bool]) -> int | None:
    """A number of at most `most` that goes where one less does not; None if none is found. 0 fails.

    The guesses, of at least 1, are tried first.
    """
    likely = {each for each in guesses if each <= most}
    largest = max(likely, default=0)
    bounds = (0, largest) if likely and goes(largest) else first_that_goes(most, goes, max(1, 2 * largest))
    if bounds is None:
        return None
    _, suffices = boundary(*bounds, goes, {each - less for each in likely for less in (0, 1)})
    return suffices


def smallest_by_size(
    items: Sequence[str], goes: Callable[[Iterable[str]], bool], most: int
) -> tuple[int, tuple[str, ...]]:
    """The size up to which all sets were tried, and the first of them that goes; empty if none does.

    At most `most` sets are tried.
    """
    tried = 0
    for size in range(1, len(items) + 1):
        tried += comb(len(items), size)
        if tried > most:
            return size - 1, ()
        for each in combinations(items, size):
            if goes(each):
                return size, each
    return len(items), ()


def beginning(order: Sequence[str], goes: Callable[[Iterable[str]], bool]) -> list[str]:
    """A beginning of the order that goes where one item less does not; empty if none is found."""
    bounds = first_that_goes(len(order), lambda count: goes(order[:count])) if order else None
    if bounds is None:
        return []
    _, length = boundary(*bounds, lambda count: goes(order[:count]))
    return list(order[:length])


def minimal(items: Sequence[str], goes: Callable[[Iterable[str]], bool]) -> list[str]:
    """A minimal part of a set that goes: the part goes, and without any one of its items it does not."""
    left, index, needed = list(items), 0, 0
    while needed < len(left):
        fewer = [*left[:index], *left[index + 1 :]]
        if fewer and goes(fewer):
            left, needed = fewer, 0
        else:
            index, needed = index + 1, needed + 1
        index %= len(left)
    return left

"""The report of circles of preemptions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.scheduling.sharing.loops import WINDOW, Circle, Preempted, circles
from tests.builders import NOW


def preempted(*pairs: str) -> list[Preempted]:
    """`ab`: a was preempted for b."""
    return [Preempted(pair[0], pair[1], NOW - timedelta(hours=1)) for pair in pairs]


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        pytest.param((), [], id="nothing"),
        pytest.param(("ab", "bc", "ac"), [], id="no circle"),
        pytest.param(("ab", "ba"), [("a", "b")], id="a pair"),
        pytest.param(("ba", "ab", "ab", "ba"), [("a", "b")], id="a pair, twice"),
        pytest.param(("bc", "ca", "ab", "xa", "cy"), [("a", "b", "c")], id="three, and others beside them"),
        pytest.param(
            ("ab", "ba", "cd", "dc", "bc"), [("a", "b"), ("c", "d")], id="two circles with a way between"
        ),
        pytest.param(
            ("ab", "bc", "ca", "ba"), [("a", "b"), ("a", "b", "c")], id="two circles through one gang"
        ),
    ],
)
def test_circles_are_named_in_the_order_of_preemption(pairs: tuple[str, ...], expected: list[Circle]) -> None:
    assert circles(preempted(*pairs), NOW) == expected


def test_only_the_last_24_hours_count() -> None:
    old = Preempted("b", "a", NOW - WINDOW)
    assert circles([*preempted("ab"), old], NOW) == [("a", "b")]
    assert circles([*preempted("ab"), old], NOW + timedelta(seconds=1)) == []


def test_a_long_circle_is_found_without_recursion() -> None:
    names = [f"{number:05}" for number in range(400)]
    edges = zip(names, [*names[1:], names[0]], strict=True)
    assert circles([Preempted(victim, by, NOW) for victim, by in edges], NOW)[0] == tuple(names)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(
            lambda pair: pair[0] != pair[1]
        )
    )
)
def test_a_gang_is_in_a_circle_if_the_preemptions_lead_back_to_it(pairs: list[tuple[str, str]]) -> None:
    found = circles([Preempted(victim, preemptor, NOW) for victim, preemptor in pairs], NOW)
    reachable = set(pairs)
    for middle in "abcdef":
        reachable |= {
            (first, last) for first, one in reachable for other, last in reachable if one == other == middle
        }
    assert {name for circle in found for name in circle} == {
        name for name in "abcdef" if (name, name) in reachable
    }
    for circle in found:
        assert all(edge in pairs for edge in zip(circle, [*circle[1:], circle[0]], strict=True))

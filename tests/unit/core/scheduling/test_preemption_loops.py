"""The circles of preemptions that a preemption closes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.scheduling.preemption.loops import Circle, Preempted, by_victim, closed_circle


def preempted(*pairs: str) -> list[Preempted]:
    """`ab`: a was preempted for b."""
    return [Preempted(pair[0], pair[1], f"red/{pair[0]}") for pair in pairs]


def gangs_of(circle: Circle) -> str:
    """The gangs of a circle in order; checks that each was preempted for the next."""
    names = "".join(each.victim for each in circle)
    assert [each.preemptor for each in circle] == list(names[1:] + names[:1])
    return names


@pytest.mark.parametrize(
    ("newest", "others", "expected"),
    [
        pytest.param("ab", (), "", id="nothing else"),
        pytest.param("ab", ("bc", "ac"), "", id="no circle"),
        pytest.param("ab", ("ba",), "ab", id="a pair"),
        pytest.param("ba", ("ab",), "ba", id="begins with the newest victim"),
        pytest.param("ab", ("ba", "ab", "ba"), "ab", id="a pair, twice"),
        pytest.param("ca", ("bc", "ab", "xa", "cy"), "cab", id="three, and others beside them"),
        pytest.param("bc", ("ab", "ba", "cd", "dc"), "", id="a way between two circles"),
        pytest.param("ax", ("ab", "ba"), "", id="an older circle of the victim that this one does not close"),
        pytest.param("xa", ("ab", "ba"), "", id="a way to a circle"),
        pytest.param("ab", ("bc", "ca", "ba"), "ab", id="the shortest"),
        pytest.param("aa", (), "a", id="itself"),
    ],
)
def test_a_preemption_closes_a_circle_if_others_lead_back_to_its_victim(
    newest: str, others: tuple[str, ...], expected: str
) -> None:
    known = by_victim(preempted(*others, newest))
    circle = closed_circle(newest[0], newest[1], known)
    assert gangs_of(circle) == expected
    assert [each.key for each in circle] == [f"red/{name}" for name in expected]


def test_a_preemption_that_is_not_known_closes_nothing() -> None:
    assert closed_circle("a", "b", by_victim(preempted("ba"))) == ()


def test_a_long_circle_is_found_without_recursion() -> None:
    names = [f"{number:05}" for number in range(4000)]
    edges = zip(names, [*names[1:], names[0]], strict=True)
    known = by_victim(Preempted(victim, by, victim) for victim, by in edges)
    assert [each.victim for each in closed_circle(names[0], names[1], known)] == names


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("abcdef")).filter(
            lambda pair: pair[0] != pair[1]
        ),
        min_size=1,
    )
)
def test_it_closes_one_exactly_if_its_preemptor_leads_to_its_victim(pairs: list[tuple[str, str]]) -> None:
    known = by_victim(preempted(*map("".join, pairs)))
    (victim, preemptor), reachable = pairs[-1], set(pairs)
    for middle in "abcdef":
        reachable |= {
            (first, last) for first, one in reachable for other, last in reachable if one == other == middle
        }
    circle = closed_circle(victim, preemptor, known)
    assert bool(circle) == ((preemptor, victim) in reachable)
    if circle:
        assert gangs_of(circle)[:2] == victim + preemptor
        assert all((each.victim, each.preemptor) in pairs for each in circle)

"""Errors of a cluster: those of creations count for their namespace, and for all once several namespaces had them."""

from __future__ import annotations

from dispatcher.core.model.clusters.cluster_errors import (
    MOST_ERRORS,
    MOST_NAMESPACES,
    NO_ERRORS,
    ErrorCounts,
    RecentErrors,
)
from tests.builders import at


def errors_of(*namespaces: str) -> RecentErrors:
    found = RecentErrors()
    for second, namespace in enumerate(namespaces):
        found.note(at(second), namespace)
    return found


def test_errors_of_one_namespace_count_for_its_gangs_only() -> None:
    counts = errors_of(*["tenant"] * 50).counts(at(60))
    assert (counts.for_gangs_of("tenant"), counts.for_gangs_of("other")) == (50, 0)


def test_errors_of_two_namespaces_count_for_no_third() -> None:
    counts = errors_of("a", "b", "a").counts(at(60))
    assert [counts.for_gangs_of(each) for each in "abc"] == [2, 1, 0]


def test_errors_count_for_all_as_far_as_three_namespaces_had_as_many() -> None:
    counts = errors_of(*"aaaaabbcc").counts(at(60))
    assert counts == ErrorCounts(2, {"a": 3})
    assert [counts.for_gangs_of(each) for each in "abcd"] == [5, 2, 2, 2]


def test_errors_of_the_cluster_itself_count_for_all_at_once() -> None:
    counts = errors_of("", "a").counts(at(60))
    assert (counts.for_gangs_of("a"), counts.for_gangs_of("b")) == (2, 1)


def test_errors_count_for_ten_minutes() -> None:
    errors = errors_of("a", "")
    assert errors.counts(at(600)) == ErrorCounts(1, {"a": 1})
    assert errors.counts(at(602)) == NO_ERRORS


def test_number_of_errors_of_one_namespace_pushes_out_no_others() -> None:
    errors = errors_of("other", "", *["tenant"] * 300)
    assert errors.counts(at(300)) == ErrorCounts(1, {"other": 1, "tenant": MOST_ERRORS})


def test_number_of_remembered_namespaces_is_bounded() -> None:
    errors = errors_of(*(f"ns-{number}" for number in range(MOST_NAMESPACES + 1)), "ns-1")
    assert errors.counts(at(0)).for_gangs_of("ns-0") == errors.counts(at(0)).for_all == 1
    assert errors.counts(at(0)).for_gangs_of("ns-1") == 2

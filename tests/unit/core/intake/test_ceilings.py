"""Ceilings: what counts of a priority, and what is said of the rest."""

from __future__ import annotations

import pytest

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import MAX_PRIORITY, MAX_PRIORITY_SLOPE
from dispatcher.core.intake.namespace_bounds import Ceiling, ceiling_of, unreadable


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


def test_slope_does_not_fall() -> None:
    assert ceiling_of({MAX_PRIORITY_SLOPE: "-1"}) == Ceiling(None, 0.0)

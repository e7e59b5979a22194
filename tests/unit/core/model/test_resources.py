from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.resources import NOTHING, Resources

AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(-5, 5)).map(Resources)


def test_absent_name_is_zero_and_zero_is_absent() -> None:
    resources = Resources({"cpu": 1, "memory": 0})
    assert (resources["memory"], resources["gpu"], resources.get("gpu", 0)) == (0, 0, 0)
    assert list(resources) == ["cpu"]
    assert "memory" not in resources
    assert resources == Resources({"cpu": 1})


def test_equal_amounts_are_equal_whatever_their_order_and_origin() -> None:
    one, other = Resources({"cpu": 1, "gpu": 2}), Resources([("gpu", 2), ("cpu", 1)])
    assert one == other
    assert len({one, other}) == 1
    assert repr(one) == repr(other) == "Resources({'cpu': 1, 'gpu': 2})"
    assert one != {"cpu": 1, "gpu": 2}


def test_resources_do_not_change_with_what_they_were_made_of() -> None:
    amounts = {"cpu": 1}
    resources = Resources(amounts)
    amounts["cpu"] = 2
    assert resources == Resources({"cpu": 1})


def test_arithmetic_is_signed_and_by_name() -> None:
    one, other = Resources({"cpu": 1, "memory": 5}), Resources({"cpu": 3, "gpu": 1})
    assert one + other == Resources({"cpu": 4, "memory": 5, "gpu": 1})
    assert one - other == Resources({"cpu": -2, "memory": 5, "gpu": -1})
    assert one * 3 == Resources({"cpu": 3, "memory": 15})
    assert one * 0 == NOTHING
    assert one.highest(other) == Resources({"cpu": 3, "memory": 5, "gpu": 1})


@given(AMOUNTS)
def test_to_add_or_to_take_nothing_changes_nothing(amounts: Resources) -> None:
    assert amounts + NOTHING == amounts - NOTHING == NOTHING + amounts == amounts
    assert (NOTHING - amounts) + amounts == NOTHING


def test_positive_part_turns_no_debt_into_credit() -> None:
    assert Resources({"cpu": -2, "memory": 5}).positive_part() == Resources({"memory": 5})


def test_debt_of_a_resource_that_is_not_requested_does_not_matter() -> None:
    free = Resources({"cpu": 2, "memory": -10})
    assert Resources({"cpu": 2}).fits_in(free)
    assert NOTHING.fits_in(free)
    assert not Resources({"cpu": 2, "memory": 1}).fits_in(free)
    assert not Resources({"gpu": 1}).fits_in(free)


def test_shortfall_includes_the_debt_that_must_be_paid_first() -> None:
    demand = Resources({"cpu": 3, "memory": 1, "gpu": 1})
    assert demand.shortfall(Resources({"cpu": 2, "memory": -10, "gpu": 1})) == Resources(
        {"cpu": 1, "memory": 11}
    )


@given(AMOUNTS, AMOUNTS)
def test_subtraction_undoes_addition(one: Resources, other: Resources) -> None:
    assert one + other - other == one
    assert hash(one + other - other) == hash(one)


@given(AMOUNTS, AMOUNTS)
def test_demand_fits_exactly_if_it_has_no_shortfall(demand: Resources, free: Resources) -> None:
    shortfall = demand.shortfall(free)
    assert demand.fits_in(free) == (shortfall == NOTHING)
    assert demand.fits_in(free + shortfall)


@given(AMOUNTS, AMOUNTS)
def test_highest_is_the_least_that_covers_both_amounts(one: Resources, other: Resources) -> None:
    highest = one.highest(other)
    for name in ("cpu", "memory", "gpu"):
        assert highest[name] == max(one[name], other[name])

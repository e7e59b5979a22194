from __future__ import annotations

import sys
import time
from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.quantity import (
    LONGEST_QUANTITY,
    QuantityError,
    amount,
    check_resource_name,
    parse_quantity,
    quantity,
    resource_amounts,
)
from dispatcher.core.model.resources import LARGEST_AMOUNT, NOTHING, Resources

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        pytest.param("0", 0, id="zero"),
        pytest.param("16G", 16_000_000_000, id="giga-is-decimal"),
        pytest.param("16Gi", 17_179_869_184, id="gibi-is-binary"),
        pytest.param("1E", 10**18, id="capital-e-alone-is-exa"),
        pytest.param("1Ei", 2**60, id="exbi"),
        pytest.param("1E3", 1000, id="capital-e-with-digits-is-an-exponent"),
        pytest.param("1e3", 1000, id="small-e"),
        pytest.param("1E-3", Fraction(1, 1000), id="negative-exponent"),
        pytest.param("1e+3", 1000, id="signed-exponent"),
        pytest.param("1.5Gi", 1_610_612_736, id="fraction-of-a-binary-unit"),
        pytest.param("0.1", Fraction(1, 10), id="a-tenth-is-exactly-a-tenth"),
        pytest.param(".5", Fraction(1, 2), id="no-digit-before-the-point"),
        pytest.param("5.", 5, id="no-digit-after-the-point"),
        pytest.param("100n", Fraction(1, 10**7), id="nano"),
        pytest.param("100u", Fraction(1, 10**4), id="micro"),
        pytest.param("+2", 2, id="plus"),
        pytest.param("-2", -2, id="minus-parses"),
        pytest.param("-0", 0, id="minus-zero"),
        pytest.param("007", 7, id="leading-zeros"),
        pytest.param(3, 3, id="yaml-integer"),
        pytest.param(0.5, Fraction(1, 2), id="yaml-float"),
        pytest.param(0.1, Fraction(1, 10), id="a-float-means-what-it-prints-as"),
        pytest.param(1e16, 10**16, id="a-float-that-prints-with-an-exponent"),
    ],
)
def test_quantity_is_read_exactly(written: object, exact: Fraction) -> None:
    assert parse_quantity(written) == exact


@pytest.mark.parametrize(
    "written",
    [
        *["", " 1", "1 ", "1\n", "K", "m", ".", "+", "1K", "1ki", "1i", "1mi", "1e", "1e3.5", "1.2.3", "1,5"],
        *["1e3G", "0x10", "1_000", "٣", "--1", "NaN", "Infinity", "two", "1\0", "1" * (LONGEST_QUANTITY + 1)],
        *[float("nan"), float("inf"), True, False, None, [], {}, [10**5000], b"1"],
    ],
)
def test_text_that_is_no_quantity_is_refused_with_the_allowed_forms(written: object) -> None:
    with pytest.raises(QuantityError, match=r"allowed are numbers like 2, 0\.5, 500m, 1e3, 16G or 16Gi"):
        parse_quantity(written)


@pytest.mark.parametrize(
    ("resource", "written", "base_units"),
    [
        pytest.param("cpu", 0.5, 500, id="half-a-cpu"),
        pytest.param("cpu", "0.5", 500, id="half-a-cpu-in-quotes"),
        pytest.param("cpu", "500m", 500, id="500-milli-cpu"),
        pytest.param("cpu", 3, 3000, id="cpu-is-in-milli"),
        pytest.param("cpu", "1e3", 1_000_000, id="thousand-cpus"),
        pytest.param("cpu", "100n", 1, id="nano-cpu-rounds-up-to-one-milli"),
        pytest.param("cpu", "1.0001", 1001, id="fraction-of-a-milli-rounds-up"),
        pytest.param("memory", "16G", 16_000_000_000, id="memory-is-in-bytes"),
        pytest.param("memory", "100m", 1, id="milli-byte-rounds-up-to-a-byte"),
        pytest.param("memory", "0.1Ki", 103, id="part-of-a-kibibyte-rounds-up"),
        pytest.param("nvidia.com/gpu", "2", 2, id="device"),
        pytest.param("requests.cpu", 1, 1, id="only-cpu-itself-is-in-milli"),
        pytest.param("cpu", "1e-99", 1, id="smallest-exponent-still-rounds-up"),
        pytest.param("cpu", "0e99", 0, id="nothing-however-often"),
        pytest.param("memory", "-0", 0, id="minus-zero-is-not-negative"),
        pytest.param("memory", str(LARGEST_AMOUNT), LARGEST_AMOUNT, id="largest-amount"),
        pytest.param("cpu", f"{LARGEST_AMOUNT}m", LARGEST_AMOUNT, id="largest-amount-of-cpu"),
    ],
)
def test_amount_is_in_base_units_rounded_up(resource: str, written: object, base_units: int) -> None:
    assert amount(resource, written) == base_units


@pytest.mark.parametrize(
    ("resource", "written", "problem"),
    [
        pytest.param("cpu", "-1", "cpu: '-1' is negative", id="negative"),
        pytest.param("cpu", -1, "cpu: -1 is negative", id="negative-integer"),
        pytest.param("memory", "-1n", "memory: '-1n' is negative", id="barely-negative"),
        pytest.param("memory", "8Ei", f"at most {LARGEST_AMOUNT} units", id="one-byte-too-many"),
        pytest.param("memory", 2**63, f"at most {LARGEST_AMOUNT} units", id="integer-too-large"),
        pytest.param("cpu", 2**63 // 1000 + 1, f"at most {LARGEST_AMOUNT} milli-units", id="cpu-too-large"),
        pytest.param("memory", "1e99", "'1e99' is too large", id="exponent-in-bounds-but-too-large"),
        pytest.param("memory", "1e100", "an exponent beyond 99", id="exponent-out-of-bounds"),
        pytest.param("memory", 10**6000, "an integer of 19932 bits is too large", id="unprintably-large"),
        pytest.param("memory", 1e300, "an exponent beyond 99", id="large-float"),
        pytest.param("cpu", "abc", "cpu: 'abc' is not a quantity; allowed are", id="no-number"),
    ],
)
def test_invalid_amount_of_a_resource_is_refused_with_the_problem(
    resource: str, written: object, problem: str
) -> None:
    with pytest.raises(QuantityError) as raised:
        amount(resource, written)
    assert problem in str(raised.value)


@pytest.mark.parametrize("written", ["1e999999999", "1E-999999999", "9" * 10**6, "1e" + "9" * 10**6])
def test_absurd_quantity_is_refused_quickly(written: str) -> None:
    started = time.process_time()
    with pytest.raises(QuantityError) as raised:
        amount("cpu", written)
    assert time.process_time() - started < 0.1
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "name",
    ["cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi", "a_b.c", "x" * 63, f"{'x.' * 126}y/gpu", "A"],
)
def test_qualified_name_is_a_resource_name(name: str) -> None:
    check_resource_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "a\0", "a\n", "gpü", "NVIDIA.com/gpu", "a..b/gpu"],
        *["x" * 64, f"{'x' * 254}/gpu", f"{'x.' * 127}y/gpu", "x" * 10**6, None, 7, ("cpu",)],
    ],
)
def test_invalid_resource_name_is_refused_with_examples_of_allowed_names(name: object) -> None:
    with pytest.raises(QuantityError, match="is not a resource name; allowed are names like cpu") as raised:
        check_resource_name(name)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300


def test_amount_checks_the_name_of_its_resource() -> None:
    with pytest.raises(QuantityError, match="is not a resource name"):
        amount("gpu\0", 1)


def test_resource_list_is_read_resource_by_resource() -> None:
    assert resource_amounts({"cpu": "2", "memory": "1Ki", "nvidia.com/gpu": 0}) == Resources(
        {"cpu": 2000, "memory": 1024}
    )


@given(
    whole=st.integers(0, 10**12),
    part=st.text("0123456789", max_size=12),
    suffix=st.sampled_from([*DECIMAL, *BINARY]),
    sign=st.sampled_from(["", "+", "-"]),
)
def test_parsing_agrees_with_decimal_arithmetic(whole: int, part: str, suffix: str, sign: str) -> None:
    exact = Context(prec=100)
    factor = Decimal(BINARY[suffix]) if suffix in BINARY else exact.power(10, DECIMAL[suffix])
    expected = exact.multiply(Decimal(f"{sign}{whole}.{part}"), factor)
    assert parse_quantity(f"{sign}{whole}.{part}{suffix}") == Fraction(expected)


@given(number=st.integers(0, 10**9), exponent=st.integers(-12, 6), e=st.sampled_from("eE"))
def test_amount_is_the_smallest_that_is_not_less(number: int, exponent: int, e: str) -> None:
    written = f"{number}{e}{exponent}"
    for resource, factor in (("cpu", 1000), ("memory", 1)):
        exact = parse_quantity(written) * factor
        assert 0 <= amount(resource, written) - exact < 1


@given(value=st.just(0.0) | st.floats(1e-90, 1e15))
def test_float_quantity_equals_its_printed_form(value: float) -> None:
    assert parse_quantity(value) == Fraction(Decimal(repr(value)))


@given(
    written=st.text()
    | st.text("0123456789.+-eEnumkKMGTPi", max_size=12)
    | st.integers()
    | st.floats()
    | st.recursive(st.none() | st.booleans(), st.lists)
)
def test_anything_is_a_quantity_or_refused_in_printable_words(written: object) -> None:
    message = ""
    try:
        assert 0 <= amount("memory", written) <= LARGEST_AMOUNT
    except QuantityError as error:
        message = str(error)
    assert message.isprintable()


def test_integer_too_long_to_print_is_refused_not_printed() -> None:
    assert sys.get_int_max_str_digits() < 6000
    with pytest.raises(QuantityError, match="bits is negative"):
        amount("cpu", -(10**6000))


@pytest.mark.parametrize(
    ("resource", "base", "written"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", -2000, "-2"),
        ("nvidia.com/gpu", 2**70, str(2**70)),
        ("memory", 3 * 2**29, "1536Mi"),
        ("memory", 2**40 + 2**10, f"{2**30 + 1}Ki"),
        ("memory", 2**40 + 1, str(2**40 + 1)),
        ("ephemeral-storage", -16 * 10**9, "-16G"),
        ("hugepages-2Mi", 0, "0"),
    ],
)
def test_quantity_of_an_amount_is_exact(resource: str, base: int, written: str) -> None:
    assert quantity(resource, base) == written
    assert parse_quantity(written) * (1000 if resource == "cpu" else 1) == base


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

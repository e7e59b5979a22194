from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api import annotations
from dispatcher.api.annotations import KEYS, FaultTolerance, fault_tolerance
from dispatcher.api.conditions import LONGEST_ANNOTATION, MOST_APPROVALS, OUR_TYPES, approvals_in, granted_in
from dispatcher.api.spec_errors import SpecError

GRACES = {
    annotations.ADMISSION_GRACE: "admission_grace",
    annotations.WARMUP_GRACE: "warmup_grace",
    annotations.FAILURE_GRACE: "failure_grace",
    annotations.RETRY_PAUSE: "retry_pause",
    annotations.FORCE_DELETION_GRACE: "force_deletion_grace",
    annotations.DELETION_ON_FAILURE_GRACE: "deletion_on_failure_grace",
}
SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),
    "\u03bcs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
DIGITS = st.text("0123456789", max_size=5)
TERMS = st.tuples(DIGITS, DIGITS, st.sampled_from(sorted(SECONDS))).filter(lambda term: term[0] or term[1])


def admission_grace(text: str) -> timedelta | None:
    return fault_tolerance({annotations.ADMISSION_GRACE: text}).admission_grace


def test_nothing_written_asks_for_nothing() -> None:
    assert fault_tolerance({"app": "x"}) == FaultTolerance()


def test_every_annotation_is_read() -> None:
    durations = {key: f"{minutes}m" for minutes, key in enumerate(GRACES, start=1)}
    others = {
        annotations.SUCCESS_TTL: "48h",
        annotations.RETRY_LIMIT: "5",
        annotations.TERMINAL_EXIT_CODES: "3,10",
        annotations.RETRYABLE_EXIT_CODES: "137",
    }

    assert fault_tolerance(durations | others) == FaultTolerance(
        admission_grace=timedelta(minutes=1),
        warmup_grace=timedelta(minutes=2),
        failure_grace=timedelta(minutes=3),
        retry_pause=timedelta(minutes=4),
        force_deletion_grace=timedelta(minutes=5),
        deletion_on_failure_grace=timedelta(minutes=6),
        success_ttl=timedelta(days=2),
        retry_limit=5,
        terminal_exit_codes=frozenset({3, 10}),
        retryable_exit_codes=frozenset({137}),
    )
    assert sorted(KEYS) == sorted(durations | others)


def test_annotations_are_named_as_v1beta2_named_them() -> None:
    assert [key.removeprefix("workload.codeflare.dev.appwrapper/") for key in KEYS] == [
        "admissionGracePeriodDuration",
        "warmupGracePeriodDuration",
        "failureGracePeriodDuration",
        "retryPausePeriodDuration",
        "retryLimit",
        "forcefulDeletionGracePeriodDuration",
        "deletionOnFailureGracePeriodDuration",
        "successTTLDuration",
        "terminalExitCodes",
        "retryableExitCodes",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1.5h", timedelta(hours=1, minutes=30)),
        ("500ms", timedelta(milliseconds=500)),
        ("0", timedelta(0)),
        ("+0", timedelta(0)),
        ("-0", timedelta(0)),
        ("-0s", timedelta(0)),
        ("+5s", timedelta(seconds=5)),
        (".5s", timedelta(milliseconds=500)),
        ("5.s", timedelta(seconds=5)),
        ("1m1m", timedelta(minutes=2)),
        ("30m1h", timedelta(hours=1, minutes=30)),
        ("1\u00b5s", timedelta(microseconds=1)),
        ("1\u03bcs", timedelta(microseconds=1)),
        ("999ns", timedelta(0)),
        ("24h", timedelta(hours=24)),
        ("24h1ns", timedelta(hours=24)),
        ("2562047h47m16.854775807s", timedelta(hours=24)),
    ],
)
def test_duration_is_read_as_go_reads_it(text: str, expected: timedelta) -> None:
    assert admission_grace(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("5", id="no-unit"),
        pytest.param("s", id="no-number"),
        pytest.param(".s", id="point-alone"),
        pytest.param(".", id="point"),
        pytest.param("+", id="sign-alone"),
        pytest.param("1d", id="days"),
        pytest.param("1H", id="capital"),
        pytest.param("1 m", id="blank-within"),
        pytest.param(" 1m", id="blank-before"),
        pytest.param("1m\n", id="newline"),
        pytest.param("1m-1s", id="sign-within"),
        pytest.param("1e3s", id="exponent"),
        pytest.param("1.2.3s", id="two-points"),
        pytest.param("\u0663s", id="digits-of-another-script"),
        pytest.param("-1s", id="negative"),
        pytest.param("-1ns", id="hardly-negative"),
        pytest.param("2562047h47m16.854775808s", id="more-nanoseconds-than-go-counts"),
        pytest.param("9" * 5000 + "s", id="more-digits-than-python-reads"),
        pytest.param("0" * 5000 + "s", id="too-long"),
    ],
)
def test_text_that_is_no_duration_counts_as_absent(text: str) -> None:
    assert fault_tolerance(dict.fromkeys((*GRACES, annotations.SUCCESS_TTL), text)) == FaultTolerance()


@pytest.mark.parametrize("length", [annotations.LONGEST_TEXT - 2, 100_000])
@pytest.mark.parametrize("part", ["1h", "11h", "1.1h", ".1ms1m", "0", "1", "1.", ","])
def test_text_made_to_be_slow_to_match_counts_as_absent(part: str, length: int) -> None:
    """Ambiguous patterns take years for such a text, and the event loop with them."""
    text = part * (length // len(part)) + "x"

    assert fault_tolerance(dict.fromkeys(KEYS, text)) == FaultTolerance()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("167h59m", timedelta(hours=167, minutes=59), id="days"),
        pytest.param("169h", timedelta(days=7), id="only-shortens"),
        pytest.param("0", None, id="zero-is-no-time-to-live"),
    ],
)
def test_time_to_live_is_no_grace_period(text: str, expected: timedelta | None) -> None:
    assert fault_tolerance({annotations.SUCCESS_TTL: text}) == FaultTolerance(success_ttl=expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("3", 3),
        ("+3", 3),
        ("03", 3),
        ("2147483647", 2**31 - 1),
        ("2147483648", None),
        ("-1", None),
        ("", None),
        ("3.0", None),
        (" 3", None),
        ("three", None),
        ("\u0663", None),
    ],
)
def test_retry_limit_is_a_count(text: str, expected: int | None) -> None:
    assert fault_tolerance({annotations.RETRY_LIMIT: text}) == FaultTolerance(retry_limit=expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,2", {1, 2}),
        ("1, 2 ,2", {1, 2}),
        ("-1", {-1}),
        ("1,,x,2", {1, 2}),
        ("1;2", set()),
        ("", set()),
        ("4294967296", set()),
    ],
)
def test_exit_codes_are_the_numbers_in_the_annotation(text: str, expected: set[int]) -> None:
    both = dict.fromkeys((annotations.TERMINAL_EXIT_CODES, annotations.RETRYABLE_EXIT_CODES), text)

    assert fault_tolerance(both) == FaultTolerance(
        terminal_exit_codes=frozenset(expected), retryable_exit_codes=frozenset(expected)
    )


@given(st.lists(TERMS, min_size=1, max_size=5))
def test_duration_is_the_sum_of_its_terms(terms: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{whole}.{fraction}{unit}" for whole, fraction, unit in terms)
    exact = sum(Fraction(f"0{whole}.{fraction}0") * SECONDS[unit] for whole, fraction, unit in terms)
    read = admission_grace(text)

    assert read is not None
    lost = min(exact, Fraction(24 * 3600)) - Fraction(read // timedelta(microseconds=1), 10**6)
    assert 0 <= lost < Fraction(1, 10**6) + len(terms) * SECONDS["ns"]


@given(st.dictionaries(st.sampled_from(KEYS), st.text() | st.text("0123456789.,+- nu\u00b5msh")))
def test_whatever_annotations_hold_is_read(written: dict[str, str]) -> None:
    read = fault_tolerance(written)

    graces = [getattr(read, field) or timedelta(0) for field in GRACES.values()]
    assert timedelta(0) <= min(graces) <= max(graces) <= timedelta(hours=24)
    assert 0 <= (read.retry_limit or 0) < 2**31


# --- The annotation that names approvals, and the conditions that grant them -------------------------------


PLACE = 'metadata.annotations["dispatcher.codeflare.dev/approvals"]: '


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("", ()),
        ("  ", ()),
        ("budget", ("budget",)),
        (" data-staged ,\tbudget\n", ("data-staged", "budget")),
        ("budget,budget", ("budget",)),
        ("example.com/Budget_2.b", ("example.com/Budget_2.b",)),
        ("running", ("running",)),
        (",".join(["a" * 316] * MOST_APPROVALS), ("a" * 316,)),
        ("a,b,c,d,e,f,g,h", tuple("abcdefgh")),
    ],
)
def test_approvals_of_an_annotation(annotation: str, expected: tuple[str, ...]) -> None:
    assert approvals_in(annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        ("budget,", 'names "", which is no type of a condition'),
        (",", 'names "", which is no type of a condition'),
        ("data staged", 'names "data staged", which is no type of a condition'),
        ("a/b/c", 'names "a/b/c", which is no type of a condition'),
        ("Example.com/a", 'names "Example.com/a", which is no type of a condition'),
        ("-a", 'names "-a", which is no type of a condition'),
        ("ä", 'names "\\u00e4", which is no type of a condition'),
        ("a\nb", 'names "a\\nb", which is no type of a condition'),
        ("['budget']", "names \"['budget']\", which is no type of a condition"),
        ("a" * 317, "names an approval of 317 characters; at most 316 are allowed"),
        ("a,b,c,d,e,f,g,h,i", "names 9 approvals"),
        ("x" * (LONGEST_ANNOTATION + 1), f"has more than {LONGEST_ANNOTATION} characters"),
        *(
            (each, f"names {each}, a condition that the dispatcher writes itself")
            for each in sorted(OUR_TYPES)
        ),
    ],
)
def test_annotation_that_names_no_approvals_is_refused_with_the_reason(annotation: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        approvals_in(annotation)
    assert str(refused.value).startswith(PLACE + problem)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (None, ()),
        ("no list", ()),
        ([None, 3, {}, {"type": 3, "status": "True"}, {"type": ["a"], "status": "True"}], ()),
        ([{"type": "a", "status": "True"}, {"type": "b", "status": "False"}, {"type": "c"}], ("a",)),
        (
            [
                {"type": "a", "status": True},
                {"type": "b", "status": "true"},
                {"type": "c", "status": "Unknown"},
            ],
            (),
        ),
        ([{"type": "a", "status": "True"}, {"type": "a", "status": "False"}], ()),
        ([{"type": "a", "status": "False"}, {"type": "a", "status": "True"}], ("a",)),
    ],
)
def test_approval_is_granted_by_the_last_condition_of_its_type_if_that_is_true(
    conditions: Any,  # noqa: ANN401  # whatever somebody wrote
    expected: tuple[str, ...],
) -> None:
    assert granted_in({"conditions": conditions}) == set(expected)

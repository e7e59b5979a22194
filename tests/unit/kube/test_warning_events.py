"""Warnings of Events about objects: the newest of each object, in one line, whatever anybody wrote."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.api_calls import LONGEST_WARNING, MOST_WARNINGS, warnings_in
from dispatcher.kube.client import Json
from dispatcher.kube.objects.events import Warned, last_seen, newest_words, warned_in, words_of


def event(name: str = "j", seen: str = "2026-01-01T00:00:01Z", **fields: Any) -> Json:  # noqa: ANN401
    about = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-{name}"}
    return {
        "involvedObject": about,
        "reason": "FailedCreate",
        "message": "no quota",
        "lastTimestamp": seen,
    } | fields


def job(name: str) -> ObjectRef:
    return ObjectRef(-1, "batch/v1", "Job", "default", name, f"uid-{name}")


def test_newest_warning_of_each_object_counts_and_the_newest_object_is_first() -> None:
    old, new = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"
    found = [event("a", old, message="first"), event("b", old), event("a", new, message="second")]
    assert warned_in(found, "default") == (
        Warned(job("a"), "FailedCreate: second", new),
        Warned(job("b"), "FailedCreate: no quota", old),
    )


@pytest.mark.parametrize(
    "about",
    [
        None,
        "Job",
        [],
        {},
        {"apiVersion": "v1", "kind": "Pod", "name": "p"},
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""},
        {"apiVersion": 1, "kind": "Pod", "name": "p", "uid": "u"},
    ],
)
def test_event_about_an_unreadable_object_is_left_out(about: object) -> None:
    assert warned_in([event(involvedObject=about), event("b")], "default") == (
        Warned(job("b"), "FailedCreate: no quota", "2026-01-01T00:00:01Z"),
    )


def test_object_is_taken_to_be_in_the_namespace_that_was_asked() -> None:
    """The namespace that an Event writes about its object decides nothing."""
    about = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a", "namespace": "other"}
    (found,) = warned_in([event(involvedObject=about)], "default")
    assert found.ref == job("a")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"reason": "A", "message": "b"}, "A: b", id="both"),
        pytest.param({"reason": "A", "message": None}, "A", id="no-message"),
        pytest.param({"reason": 7, "message": ["x"]}, "", id="no-texts"),
        pytest.param(
            {"reason": "A", "message": "two\nlines\x1b[31m"}, "A: two\\nlines\\x1b[31m", id="one-line"
        ),
    ],
)
def test_words_are_one_line(fields: Json, expected: str) -> None:
    assert words_of(fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lastTimestamp": "b"}, "b"),
        ({"lastTimestamp": None, "eventTime": "c"}, "c"),
        ({"series": {"lastObservedTime": "d"}, "eventTime": "c", "lastTimestamp": "b"}, "d"),
        ({"series": "x", "eventTime": 7, "lastTimestamp": []}, ""),
        ({}, ""),
    ],
)
def test_last_time_of_any_version_of_the_api_counts(fields: Json, expected: str) -> None:
    assert last_seen(fields) == expected


EARLIER, LATER = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"


def written(seen: str, version: str | None, name: str, **fields: Any) -> Json:  # noqa: ANN401
    """An Event as an API server has it."""
    return event(seen=seen, metadata={"name": name, "resourceVersion": version}, **fields)


def in_fractions(seen: str, version: str, name: str) -> Json:
    """An Event of a client of the newer API, which writes fractions of a second."""
    return written(seen, version, name, lastTimestamp=None, eventTime=seen)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        pytest.param(written(EARLIER, "12", "b"), written(LATER, "11", "a"), id="by-the-second"),
        pytest.param(written(LATER, "11", "b"), written(LATER, "12", "a"), id="then-by-the-last-write"),
        pytest.param(written(LATER, "9", "b"), written(LATER, "10", "a"), id="which-is-a-number"),
        pytest.param(
            in_fractions("2026-01-01T00:00:02.900000Z", "11", "b"),
            written(LATER, "12", "a"),
            id="also-after-a-fraction",
        ),
        pytest.param(
            written(LATER, "11", "b"),
            in_fractions("2026-01-01T00:00:02.100000Z", "12", "a"),
            id="also-before-a-fraction",
        ),
        pytest.param(written(LATER, None, "b"), written(LATER, "1", "a"), id="after-one-without-a-version"),
        pytest.param(written(LATER, None, "a"), written(LATER, None, "b"), id="else-by-their-names"),
    ],
)
def test_of_two_warnings_one_is_the_newer_one_in_whatever_order_they_are_listed(
    older: Json, newer: Json
) -> None:
    first = older | {"message": "older", "involvedObject": event("first")["involvedObject"]}
    second = newer | {"message": "newer", "involvedObject": event("second")["involvedObject"]}
    for listed in ([first, second], [second, first]):
        assert newest_words(listed) == "FailedCreate: newer"
        assert [each.ref.name for each in warned_in(listed, "default")] == ["second", "first"]


def test_newest_words_of_no_event_are_empty() -> None:
    assert newest_words([]) == ""
    assert (
        newest_words([event(seen="1", message="old"), event(seen="2", message="new")]) == "FailedCreate: new"
    )


# -----------------------------------------------------------------------------------------------------------
# Warnings of API servers as their answers carry them: texts of any origin, a few of them, each in one line.


UNKNOWN = r'299 - "unknown field \"spec.replica\""'


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([UNKNOWN], ['unknown field "spec.replica"'], id="unknown-field"),
        pytest.param([UNKNOWN, '299 - "b"'], ['unknown field "spec.replica"', "b"], id="two-headers"),
        pytest.param(['299 - "a, b", 299 agent "c"'], ["a, b", "c"], id="two-in-one-header"),
        pytest.param([UNKNOWN, UNKNOWN], ['unknown field "spec.replica"'], id="repeated"),
        pytest.param(['299 - "a" "Mon, 23 Nov 2026 00:00:00 GMT"'], ["a"], id="with-a-date"),
        pytest.param([r'299 - "a\\b"'], [r"a\b"], id="escaped-backslash"),
        pytest.param(
            ['299 - "a\x1b[31m\u202eb\udc80"'], [r"a\x1b[31m\u202eb\udc80"], id="control-characters"
        ),
        pytest.param(['299 - ""'], [], id="empty"),
        pytest.param(['110 - "Response is stale"'], [], id="of-a-proxy"),
        pytest.param(["299 -", "nonsense", '299 - "open', '"'], [], id="malformed"),
        pytest.param(
            ['299 - "spec.token: Invalid value: \\"s3cret\\": must be short"'],
            ["spec.token: Invalid value (not shown): must be short"],
            id="value-of-a-field",
        ),
    ],
)
def test_warnings_of_an_answer(headers: list[str], expected: list[str]) -> None:
    assert warnings_in(headers) == tuple(expected)


def test_warnings_are_bounded_in_count_and_length() -> None:
    many = warnings_in(f'299 - "{number}"' for number in range(10_000))
    (long,) = warnings_in([f'299 - "{"x" * 10_000}"'])
    assert (many, len(long)) == (tuple(map(str, range(MOST_WARNINGS))), LONGEST_WARNING)

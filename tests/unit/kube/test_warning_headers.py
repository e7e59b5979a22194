"""Warnings of API servers as their answers carry them: texts of any origin, a few of them, each in one line."""

from __future__ import annotations

import pytest

from dispatcher.kube.api_calls import LONGEST_WARNING, MOST_WARNINGS, warnings_in

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

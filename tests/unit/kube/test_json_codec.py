"""JSON that is nested deeper than parsers go, and JSON that is kept."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest

from dispatcher.errors import TooLarge
from dispatcher.kube import bounds


def nested(levels: int) -> Any:  # noqa: ANN401
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [bounds.DEEPEST, 300])
def test_json_within_the_depth_is_read_unchanged(levels: int) -> None:
    assert bounds.loads_unbounded(b"[" * levels + b"null" + b"]" * levels) == nested(levels)


@pytest.mark.parametrize("levels", [1100, 9900])
def test_values_that_lie_too_deep_are_read_as_null_and_others_unchanged(levels: int) -> None:
    tricky = {"text": 'a "quoted" [ { \\', "é": [1.5, True, None]}
    raw = (
        f'{{"before":{json.dumps(tricky)},"deep":{"[" * levels}{"]" * levels},"after":{json.dumps(tricky)}}}'
    )

    read = bounds.loads_unbounded(raw.encode())

    assert read == {"before": tricky, "deep": nested(bounds.DEEPEST - 1), "after": tricky}


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":', b"<html>", b"[" * 5000, b"]" * 5000])
def test_text_that_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        bounds.loads_unbounded(raw)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        pytest.param(b'"' * 10_001, orjson.JSONDecodeError, id="nothing-is-nested"),
        pytest.param(b"[" * 2000 + b'""' * (bounds.LARGEST_DEEP // 2), TooLarge, id="larger-than-an-object"),
    ],
)
def test_junk_is_not_searched_for_values_nested_too_deep(
    raw: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search takes a microsecond for each quote, and a hostile API server may send sixteen million."""
    monkeypatch.setattr(bounds, "_without_depths", lambda _raw: pytest.fail("it was searched"))
    with pytest.raises(error):
        bounds.loads_unbounded(raw)


def test_json_cut_off_within_a_string_full_of_quotes_is_refused_at_once() -> None:
    """The annotation that `kubectl apply` writes holds JSON, and a proxy may end a watch anywhere."""
    applied = json.dumps({f"key-{number}": "value" for number in range(8000)})
    line = json.dumps({"metadata": {"annotations": {"applied": applied}}}).encode()
    with pytest.raises(orjson.JSONDecodeError):
        bounds.loads_unbounded(line[:-10])


def test_json_that_was_read_can_be_written() -> None:
    assert bounds.dumps(nested(1000)) == orjson.dumps(nested(bounds.DEEPEST))
    assert bounds.dumps({"a": [1]}) == b'{"a":[1]}'
    assert bounds.dumps({"b": 1, "a": {"d": 1, "c": 2}}, in_order=True) == b'{"a":{"c":2,"d":1},"b":1}'


def test_half_of_a_character_is_written_as_a_question_mark() -> None:
    """No parser of ours reads one, but a text that is written must not depend on that."""
    assert bounds.dumps({"a\ud800": ["\udfff", 1, None]}) == b'{"a?":["?",1,null]}'


def test_json_that_is_kept_takes_its_own_length() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = [bounds.dumps({"number": number}) for number in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, kept)) <= after - before <= 100 * 200


@pytest.mark.parametrize(
    ("one", "another", "is_same"),
    [
        (b'{"a":1,"b":2}', b'{"a":1,"b":2}', True),
        (b'{"a":1,"b":2}', b'{"b":2.0,"a":1}', True),
        (b'{"a":1,"b":2}', b'{"a":1,"b":3}', False),
        (b"{}", b'{"a":null}', False),
    ],
)
def test_json_is_the_same_if_its_values_are(one: bytes, another: bytes, is_same: bool) -> None:
    assert bounds.is_same(one, another) is is_same

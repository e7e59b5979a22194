"""JSON that is nested deeper than parsers go, and JSON that is kept."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS, SpecSize
from dispatcher.errors import TooLarge
from dispatcher.kube import bounds
from dispatcher.kube.bounds import MOST_CONTAINERS as MOST_IN_ANSWERS
from dispatcher.kube.objects.appwrappers import LARGEST_STATUS, Unread, decode, parse
from tests.builders import make_appwrapper


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


# --- AppWrappers too large to be read: all but their spec is read, whatever is in that ---------------------


Json = dict[str, Any]

LISTS: list[Any] = [[] for _ in range(MOST_CONTAINERS + 1)]
STATUS = {"state": "Pending", "conditions": [{"type": "Init", "status": "True"}]}


def object_of(spec: Any, status: Json | None = STATUS, **metadata: Any) -> Json:  # noqa: ANN401
    raw = make_appwrapper("aw", **metadata)
    raw["spec"] = spec
    del raw["status"]
    return raw | ({} if status is None else {"status": status})


def as_go_writes(value: object) -> bytes:
    """An API server's JSON: in the order of the names, without white space, `<`, `>` and `&` as six characters."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode() + b"\n"


def line_of(raw: Json) -> bytes:
    # The event itself is a struct, in the order of its declaration.
    return b'{"type":"ADDED","object":' + as_go_writes(raw)[:-1] + b"}\n"


def read_both_ways(raw: Json) -> Json:
    """As a line of a watch, and as an object by itself: it comes to the same."""
    alone = parse(as_go_writes(raw))
    line = parse(line_of(raw))
    assert line == {"type": "ADDED", "object": alone}
    return alone


@pytest.mark.parametrize("status", [None, {}, STATUS], ids=["no-status", "empty-status", "a-status"])
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"resources": {"GenericItems": LISTS}}, id="many-lists"),
        pytest.param({"resources": {"text": "x" * LARGEST_SPEC}}, id="long-text"),
        pytest.param(
            {"a": {"b": [{"x": 1, "status": {"state": "Failed"}}]}, "z": LISTS}, id="a-status-early"
        ),
        pytest.param({"a": LISTS, "z": {"x": 1, "status": {"state": "Failed"}}}, id="a-status-at-the-end"),
        pytest.param(
            {"a": LISTS, "b": 1, "spec": {"c": 1}, "status": {"state": "Failed"}}, id="keys-of-the-object"
        ),
        pytest.param({"a": LISTS, "z": ',"status":{"state":"Failed"}}}'}, id="text-like-a-status"),
    ],
)
def test_all_but_the_spec_is_read(spec: Json, status: Json | None) -> None:
    raw = object_of(spec, status, annotations={"note": ',"spec":{"x":1}'}, labels={"spec": "x"})

    read = read_both_ways(raw)

    written = as_go_writes(spec).strip()
    assert isinstance(read["spec"], Unread)
    assert read["spec"].size == SpecSize.of(written)
    assert {**read, "spec": None} == {**raw, "spec": None}


def test_acceptable_spec_is_read() -> None:
    raw = object_of({"resources": {"GenericItems": [], "text": "x" * (LARGEST_SPEC - 100)}})
    assert read_both_ways(raw) == raw


def test_character_that_go_writes_as_six_counts_once() -> None:
    raw = object_of({"script": "2>&1 <x" * 30_000})
    assert len(as_go_writes(raw)) > 2 * LARGEST_SPEC
    assert read_both_ways(raw) == raw


def test_spec_is_read_though_the_rest_is_large() -> None:
    raw = object_of({"resources": {}}, labels={f"label-{number}": "" for number in range(50_000)})
    assert read_both_ways(raw) == raw


@pytest.mark.parametrize("spec", [{"resources": {}}, {"z": LISTS}], ids=["small-spec", "large-spec"])
@pytest.mark.parametrize(
    "forged",
    [{"x": "y" * LARGEST_STATUS}, {"x": [[] for _ in range(MOST_IN_ANSWERS)]}],
    ids=["long", "many-lists"],
)
def test_status_that_is_not_ours_is_left_out(spec: Json, forged: Json) -> None:
    read = read_both_ways(object_of(spec, forged))
    assert read.get("status") is None
    assert read["metadata"]["name"] == "aw"


def test_spec_nested_too_deep_does_not_end_a_watch() -> None:
    raw = line_of(object_of("SPEC")).replace(b'"SPEC"', b'{"a":' + b"[" * 300_000 + b"]" * 300_000 + b"}")
    read = parse(raw)
    assert read["object"]["spec"].size == SpecSize(600_006, 300_001)


def test_spec_in_an_order_that_no_api_server_has_is_read_within_the_bounds_of_any_answer() -> None:
    raw = object_of({"z": LISTS})
    reversed_keys = orjson.dumps({key: raw[key] for key in reversed(raw)})
    assert parse(reversed_keys) == raw
    with pytest.raises(TooLarge):
        parse(orjson.dumps({"spec": {"z": [[] for _ in range(MOST_IN_ANSWERS)]}, "metadata": {}}))


@pytest.mark.parametrize("raw", [b"", b"[]", b"3", b'{"metadata":{},"spec":{', b'{"spec":{"a":1},"spec":{'])
def test_json_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse(raw)


def test_line_that_was_cut_is_no_json() -> None:
    with pytest.raises((orjson.JSONDecodeError, TooLarge)):
        parse(line_of(object_of({"z": LISTS}))[:-30_000])


JSON = st.recursive(
    st.none() | st.integers(0, 9) | st.text('ab"\\{}[],:', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["a", "metadata", "name", "spec", "status", "uid"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@given(
    first=JSON, last=JSON, status=st.none() | st.dictionaries(st.sampled_from(["a", "spec", "status"]), JSON)
)
def test_no_spec_can_pass_for_the_fields_beside_it(first: Any, last: Any, status: Json | None) -> None:  # noqa: ANN401
    raw = object_of({"aa": first, "lists": LISTS, "zz": last}, status)
    read = read_both_ways(raw)
    assert isinstance(read["spec"], Unread)
    # One with many of its own kind within may be left out: then it is unknown.
    assert {"status": status, **read, "spec": None} == {"status": status, **raw, "spec": None}


# --- what becomes of it -------------------------------------------------------------------------------------


def test_view_of_an_unread_spec_has_its_size() -> None:
    view = decode(read_both_ways(object_of({"z": LISTS})))
    assert (view.spec, view.mutable_spec, view.is_ours) == (b"", None, True)
    assert view.excess == SpecSize(len(as_go_writes({"z": LISTS})) - 1, len(LISTS) + 2)


def test_view_of_an_unread_spec_in_a_list_has_the_same_size() -> None:
    raw = object_of({"z": LISTS})
    assert decode(raw).excess == decode(read_both_ways(raw)).excess
    assert decode(raw).spec == b""


@pytest.mark.parametrize(
    ("spec", "has_components"),
    [({"components": [{"template": {}}], "z": LISTS}, True), ({"components": [], "z": LISTS}, False)],
)
def test_view_says_how_its_components_are_written(spec: Json, has_components: bool) -> None:
    assert decode(read_both_ways(object_of(spec))).has_components is has_components


@pytest.mark.parametrize(
    ("manager", "is_ours"),
    [("workload.codeflare.dev/appwrapper-controller", True), ("kueue.x-k8s.io/multikueue", False)],
)
def test_appwrapper_managed_by_another_controller_is_left_alone(manager: str, is_ours: bool) -> None:
    assert decode(read_both_ways(object_of({"managedBy": manager, "z": LISTS}))).is_ours is is_ours

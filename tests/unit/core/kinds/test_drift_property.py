"""Whatever is written: more of it is no drift, and nor is another spelling; a change of any leaf is, and is named."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from dispatcher.core.kinds.drift import differences

Json = dict[str, Any]


def paths(written: object, found: object) -> tuple[str, ...]:
    """What differs in the specs of two objects of which nothing else matters."""
    return tuple(differences({"spec": written}, {"spec": found}))


KEYS = st.sampled_from(["image", "env", "spec", "x-y", "name"])
SCALARS = st.one_of(st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "1", "500m", "1Gi"]))


def named(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Json]]:
    """Entries that have names, such as containers."""
    fields = st.dictionaries(st.sampled_from(["image", "env"]), values, max_size=2)
    return st.dictionaries(st.sampled_from("abcd"), fields, min_size=1, max_size=3).map(
        lambda by_name: [{"name": name, **entry} for name, entry in by_name.items()]
    )


SPECS = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS,
        lambda values: st.one_of(
            st.dictionaries(KEYS, values, max_size=3), named(values), st.lists(SCALARS, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)
"""What somebody might write; none of it is for others to change."""

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda values: st.one_of(
        st.lists(values, max_size=3), st.dictionaries(st.text(max_size=3), values, max_size=3)
    ),
    max_leaves=10,
)


def has_names(entries: list[Any]) -> bool:
    return bool(entries) and all(isinstance(each, Mapping) and "name" in each for each in entries)


def defaulted(value: Any, draw: st.DataObject) -> Any:  # noqa: ANN401
    """As the API server, webhooks and operators may make of it: more of everything, and nothing less or other."""
    if isinstance(value, Mapping):
        more = draw.draw(st.dictionaries(st.sampled_from(["default", "other"]), SCALARS, max_size=1))
        kept = {key: each for key, each in value.items() if each not in ({}, []) or draw.draw(st.booleans())}
        return {**more, **{key: defaulted(each, draw) for key, each in kept.items()}}
    if isinstance(value, list) and has_names(value):
        entries = [defaulted(each, draw) for each in value]
        side_cars = draw.draw(st.lists(st.sampled_from(["side", "car"]), unique=True))
        for name in side_cars:
            entries.insert(draw.draw(st.integers(0, len(entries))), {"name": name})
        return entries
    return value


def leaves(value: Any, at: str) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401
    """Each leaf: its path, what it is in, and where."""
    steps = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in steps:
        path = f"{at}[{key}]" if isinstance(key, int) else f'{at}["{key}"]' if "-" in key else f"{at}.{key}"
        if isinstance(each, Mapping | list):
            yield from leaves(each, path)
        else:
            yield path, value, key


def other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 100
        case _:
            return f"{value}-changed"


@given(SPECS, st.data())
def test_defaulting_is_never_drift(spec: Json, draw: st.DataObject) -> None:
    assert paths(spec, defaulted(spec, draw)) == ()


@given(SPECS, st.data())
def test_change_of_any_leaf_is_drift_and_names_it(spec: Json, draw: st.DataObject) -> None:
    edit = copy.deepcopy(spec)
    every = list(leaves(edit, "spec"))
    assume(every)
    path, holder, key = draw.draw(st.sampled_from(every))
    holder[key] = other(holder[key])

    told = paths(spec, defaulted(edit, draw))

    if key == "name":  # then it may be another entry that stands in its place now
        entry = path.removesuffix(".name")
        assert told
        assert all(each.startswith(entry) for each in told)
    else:
        assert told == (path,)


@given(SPECS, st.data())
def test_leaf_that_is_taken_away_is_drift_unless_it_said_nothing(spec: Json, draw: st.DataObject) -> None:
    edit = copy.deepcopy(spec)
    every = [each for each in leaves(edit, "spec") if isinstance(each[1], dict) and each[2] != "name"]
    assume(every)
    path, holder, key = draw.draw(st.sampled_from(every))
    said = holder.pop(key)

    told = paths(spec, defaulted(edit, draw))

    if said:  # what it was in may be left out as well if it was all there was
        (whole,) = told
        assert path.startswith(whole)
    else:
        assert told == ()


MILLIS = st.integers(0, 10**9)


def spellings(millis: int) -> list[object]:
    """One amount as the API server and people write it."""
    whole = [millis // 1000, str(millis // 1000)] if millis % 1000 == 0 else []
    return [f"{millis}m", f"{millis}e-3", f"{millis * 1000}u", str(float(Fraction(millis, 1000))), *whole]


@given(MILLIS, st.data())
def test_another_spelling_of_a_quantity_is_no_drift(millis: int, draw: st.DataObject) -> None:
    spelling = st.sampled_from(spellings(millis))
    written, found = ({"limits": {"x": draw.draw(spelling)}} for _ in "12")
    assert paths(written, found) == ()


@given(MILLIS, MILLIS, st.data())
def test_another_quantity_is_drift_however_both_are_spelled(one: int, two: int, draw: st.DataObject) -> None:
    assume(one != two)
    written, found = ({"limits": {"x": draw.draw(st.sampled_from(spellings(each)))}} for each in (one, two))
    assert paths(written, found) == ("spec.limits.x",)


@given(ANYTHING, ANYTHING)
def test_nothing_that_is_written_or_found_is_too_odd(written: object, found: object) -> None:
    assert paths(written, written) == ()
    drift = paths(written, found)
    assert drift == () or written != found

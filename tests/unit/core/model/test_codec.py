"""Values as JSON and back: exact, in one form, and refused if they are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

import pytest

from dispatcher.core.model import codec
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.resources import Resources


def test_amounts_of_any_size_stay_exact() -> None:
    amounts = Resources({"memory": 2**80 + 1, "cpu": -(2**70), "pods": 3})
    assert codec.load(codec.dump(amounts), Resources) == amounts


def test_fractions_stay_exact() -> None:
    assert codec.load(codec.dump(Fraction(1, 3)), Fraction) == Fraction(1, 3)


def test_fields_that_say_nothing_are_left_out() -> None:
    assert codec.dump(PodSet(2, Resources({"cpu": 1}))) == b'{"count":2,"requests":{"cpu":1}}'


def test_any_mapping_is_an_object() -> None:
    value = MappingProxyType({"a": 1})
    assert codec.load(codec.dump(value), Mapping[str, int]) == {"a": 1}  # type: ignore[type-abstract]


@pytest.mark.parametrize(
    ("document", "type_"),
    [
        pytest.param(b"", int, id="nothing"),
        pytest.param(b"1.5", int, id="a-part-of-a-number"),
        pytest.param(b"[]", Resources, id="a-list-for-amounts"),
        pytest.param(b'"1/0"', Fraction, id="a-fraction-of-nothing"),
        pytest.param(b'"x"', Fraction, id="no-fraction"),
        pytest.param(b"{}", PodSet, id="a-pod-set-without-fields"),
        pytest.param(b"[" * 100_000, list, id="deep"),
    ],
)
def test_a_damaged_document_is_refused(document: bytes, type_: type) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the library's words
        codec.load(document, type_)

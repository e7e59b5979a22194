"""How large a spec may be, and what its author is told of one that is larger."""

from __future__ import annotations

import pytest

from dispatcher.api.validation import LARGEST_SPEC, MOST_CONTAINERS, SpecSize, refusal


@pytest.mark.parametrize(
    ("size", "is_acceptable"),
    [
        pytest.param(SpecSize(0, 0), True, id="empty"),
        pytest.param(SpecSize(LARGEST_SPEC, MOST_CONTAINERS), True, id="both-at-their-bounds"),
        pytest.param(SpecSize(LARGEST_SPEC + 1, 1), False, id="a-byte-too-long"),
        pytest.param(SpecSize(1, MOST_CONTAINERS + 1), False, id="an-object-too-many"),
    ],
)
def test_spec_is_acceptable_up_to_both_bounds(size: SpecSize, is_acceptable: bool) -> None:
    assert size.is_acceptable is is_acceptable


def test_size_is_counted_without_reading() -> None:
    assert SpecSize.of(b'{"a":[[],"{"]}') == SpecSize(14, 4)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            SpecSize(300_000, 9),
            "spec: has 300000 bytes of JSON; at most 262144 are taken. "
            "Keep files and data in ConfigMaps of their own, or on a volume, and mount them.",
        ),
        (
            SpecSize(250_000, 20_000),
            "spec: consists of 20000 lists and objects; at most 16384 are taken. "
            "Keep data in ConfigMaps of their own, or on a volume, and mount them.",
        ),
    ],
)
def test_refusal_of_a_large_spec_gives_the_size_the_bound_and_the_remedy(
    size: SpecSize, message: str
) -> None:
    assert str(refusal(size)) == message

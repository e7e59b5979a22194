"""Templates with the same fields have the same digest, whatever their values."""

from __future__ import annotations

import pytest

from dispatcher.core.kinds.field_paths import digest_of_paths

TEMPLATE = {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "args": ["x"]}]}}


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        pytest.param(TEMPLATE, True, id="itself"),
        pytest.param(
            {"spec": {"containers": [{"args": ["y", "z"], "name": "b"}], "parallelism": 7}, "kind": "Pod"},
            True,
            id="other-values-and-order",
        ),
        pytest.param({**TEMPLATE, "spek": 1}, False, id="a-field-more"),
        pytest.param({"kind": "Job"}, False, id="a-field-less"),
        pytest.param(
            {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "arg": ["x"]}]}},
            False,
            id="another-field-in-a-list",
        ),
        pytest.param(
            {"kind": "Job", "spec": {"parallelism": 1, "containers": [{"name": "a", "args": ["x"]}] * 2}},
            False,
            id="another-length-of-a-list-of-objects",
        ),
    ],
)
def test_digest_depends_on_the_fields_alone(other: object, is_same: bool) -> None:
    assert (digest_of_paths(TEMPLATE) == digest_of_paths(other)) is is_same


def test_place_of_an_object_in_a_list_counts() -> None:
    assert digest_of_paths([{}, 1]) != digest_of_paths([1, {}])


def test_any_depth_and_any_name_is_taken() -> None:
    deep: object = {"\ud800": 1}
    for _ in range(20_000):
        deep = [deep]
    assert len(digest_of_paths(deep)) == 32

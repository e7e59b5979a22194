from typing import Any

import pytest

from dispatcher.api.mutable_spec import MutableSpec, mutable_spec
from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR
from dispatcher.api.selector import parse_selector


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({}, MutableSpec(priority=0, priority_slope=0.0, suspend=False), id="nothing"),
        pytest.param(
            {"priority": 9, "priorityslope": 0.5, "suspend": True},
            MutableSpec(9, 0.5, suspend=True),
            id="everything",
        ),
        pytest.param(
            {"priority": -(2**31), "priorityslope": 1}, MutableSpec(-(2**31), 1.0), id="whole-slope"
        ),
        pytest.param(
            {"priority": None, "priorityslope": None, "suspend": None}, MutableSpec(), id="null-is-absent"
        ),
        pytest.param(
            {"priority": 1, "resources": "no list", "components": 3}, MutableSpec(1), id="others-mistakes"
        ),
    ],
)
def test_mutable_fields_are_read_as_written(spec: dict[str, Any], expected: MutableSpec) -> None:
    assert mutable_spec(spec, {}) == expected


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"priority": "9"}, id="priority-in-quotes"),
        pytest.param({"priority": 0.5}, id="half-a-priority"),
        pytest.param({"priority": True}, id="true-is-no-number"),
        pytest.param({"priority": 2**31}, id="beyond-int32"),
        pytest.param({"priorityslope": "1"}, id="slope-in-quotes"),
        pytest.param({"priorityslope": False}, id="false-is-no-slope"),
        pytest.param({"priorityslope": float("inf")}, id="endless-slope"),
        pytest.param({"suspend": "true"}, id="suspend-in-quotes"),
        pytest.param({"suspend": 1}, id="one-is-not-true"),
    ],
)
def test_mutable_fields_that_a_schema_would_refuse_count_as_absent(spec: dict[str, Any]) -> None:
    assert mutable_spec(spec, {}) is None


EAST = parse_selector("zone=east", "annotation")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({CLUSTER_SELECTOR: "zone=east"}, MutableSpec(selector=EAST), id="selector"),
        pytest.param({CLUSTER_PREFERENCE: "zone=east"}, MutableSpec(prefers=EAST), id="preference"),
        pytest.param(
            {CLUSTER_SELECTOR: "zone="}, MutableSpec(selector=parse_selector("zone=", "")), id="empty-value"
        ),
        pytest.param({CLUSTER_SELECTOR: "=="}, MutableSpec(selector=None), id="no-selector"),
        pytest.param(
            {CLUSTER_PREFERENCE: "(", CLUSTER_SELECTOR: "zone=east"},
            MutableSpec(selector=EAST, prefers=None),
            id="no-preference",
        ),
    ],
)
def test_where_it_asks_to_go_is_read_as_annotated(annotations: dict[str, str], expected: MutableSpec) -> None:
    assert mutable_spec({}, annotations) == expected

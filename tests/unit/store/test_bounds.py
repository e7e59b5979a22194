"""Every bound of the database is one of the CRD and of intake: what passes those can be stored."""

from __future__ import annotations

import re
from typing import Final

import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, Numeric

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.mutable_spec import mutable_spec
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.resources import LARGEST_AMOUNT
from dispatcher.store import tables
from tests.builders import make_template
from tests.crd_fields import bounds, fields
from tests.unit.api.test_crds import VERSIONS

INT32: Final = (-(2**31), 2**31 - 1)
INT64: Final = (-(2**63), 2**63 - 1)

WRITTEN_BY_USERS: Final = {
    "priority": "spec.priority",
    "priority_slope": "spec.priorityslope",
    "requeuing_seconds": "spec.schedulingSpec.requeuing.timeInSeconds",
    "expected_seconds": "spec.schedulingSpec.dispatchDuration.expected",
    "limit_seconds": "spec.schedulingSpec.dispatchDuration.limit",
}
"""Columns that hold what a field says, and the field."""

COUNTED_BY_US: Final = {
    "version",
    "enqueue_seq",
    "attempts",
    "attempt",
    "requeuings",
    "retries",
    "provisioning_failures",
}
"""Columns that go up by one with a step: nobody makes two thousand million of them."""

SUMMED_UP: Final = {"pods"}
"""Columns that hold a sum of what fields say; intake bounds the sum."""


def bounds_of(column: Column[object], checks: str) -> tuple[float, float] | None:
    """The least and the greatest value that a column takes; None if it holds no number, or any number."""
    told = re.search(rf"\b{column.name} BETWEEN (\S+) AND (\S+)", checks)
    if told:
        return float(told[1]), float(told[2])
    match column.type:
        case BigInteger():
            return INT64
        case Integer():
            return INT32
        case Double() | Numeric():
            raise AssertionError(f"{column.name} takes any number: nothing can be held against it")
    return None


def bounded() -> dict[str, tuple[float, float]]:
    """The bounds of every number in the row of an AppWrapper."""
    table = tables.appwrapper
    checks = " ".join(str(each.sqltext) for each in table.constraints if isinstance(each, CheckConstraint))
    found = {column.name: bounds_of(column, checks) for column in table.columns}
    return {name: limits for name, limits in found.items() if limits}


def test_it_is_known_of_every_bound_what_keeps_it() -> None:
    assert bounded().keys() == WRITTEN_BY_USERS.keys() | COUNTED_BY_US | SUMMED_UP


@pytest.mark.parametrize(("column", "field"), WRITTEN_BY_USERS.items())
@pytest.mark.parametrize("version", VERSIONS)
def test_crd_and_intake_let_nothing_through_that_the_database_refuses(
    column: str, field: str, version: str
) -> None:
    spec = VERSIONS[version]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    least, most = bounded()[column]
    low, high = bounds(fields(spec)[field])
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    assert least <= low <= high <= most


def spec_with(**fields: object) -> dict[str, object]:
    return {"resources": {"GenericItems": [{"generictemplate": make_template()}]}, **fields}


@pytest.mark.parametrize("slope", [1e12, -1e12, 0.1, 0, 5e-324])
def test_slope_that_can_be_stored_is_taken(slope: float) -> None:
    assert parse_spec(spec_with(priorityslope=slope), namespace="default").priority_slope == slope
    told = mutable_spec({"priorityslope": slope}, {})
    assert told is not None
    assert told.priority_slope == slope


@pytest.mark.parametrize(
    "slope", [1.0000001e12, -1e13, 1e308, float("inf"), float("-inf"), float("nan"), 10**400]
)
def test_slope_that_cannot_be_stored_is_refused_with_its_place(slope: float) -> None:
    with pytest.raises(SpecError, match=r"^spec\.priorityslope: "):
        parse_spec(spec_with(priorityslope=slope), namespace="default")
    assert mutable_spec({"priorityslope": slope}, {}) is None


def test_sums_are_bounded_at_intake_by_what_can_be_stored() -> None:
    assert {bounded()[column][1] for column in SUMMED_UP} == {LARGEST_AMOUNT}

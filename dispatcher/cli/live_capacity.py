"""The capacity of clusters as the hub has it now, in place of the last sample.

The leader samples capacity every five minutes, and writes the statuses of MemberClusters every few seconds while it
leads. A status has no time, so it counts only while a dispatcher leads, and only for clusters that answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.resources import gpus
from dispatcher.store.reports import Report

Json = dict[str, Any]

LIVE: Final = "live"
AS_OF: Final = "as_of"
"""A column for the age of free capacity: the time of its sample, or `LIVE`."""

_GIB: Final = 2**30


def with_age(report: Report, members: Json) -> Report:
    """The clusters of the database with the column `AS_OF`, and the live capacity of the `members` that have one.

    `members` is the list of MemberClusters as the API server gives it; an empty one leaves all samples.
    """
    live = dict(_capacities(members))
    rows = ({**row, AS_OF: row["sampled_at"], **live.get(str(row["cluster"]), {})} for row in report)
    columns = (*report.columns, AS_OF)
    return replace(report, columns=columns, rows=tuple(tuple(row[name] for name in columns) for row in rows))


def _capacities(members: Json) -> Iterator[tuple[str, dict[str, object]]]:
    for each in members.get("items") or ():
        status = each.get("status") or {}
        conditions = {found["type"]: found["status"] for found in status.get("conditions") or ()}
        if status.get("allocatable") and conditions.get("Reachable") == "True":
            whole, free = _amounts(status["allocatable"]), _amounts(status.get("free") or {})
            found = {**_columns(whole, ""), **_columns(free, "_free"), AS_OF: LIVE}
            yield each["metadata"]["name"], found


def _columns(amounts: Mapping[str, int], suffix: str) -> dict[str, object]:
    """Amounts in the units and columns of the view."""
    return {
        f"cpu{suffix}": Decimal(amounts.get("cpu", 0)) / 1000,
        f"memory_gib{suffix}": Decimal(amounts.get("memory", 0)) / _GIB,
        f"gpu{suffix}": gpus(amounts),
    }


def _amounts(written: Json) -> dict[str, int]:
    found = {}
    for name, quantity in written.items():
        try:
            found[name] = amount(name, str(quantity))
        except QuantityError:
            continue
    return found

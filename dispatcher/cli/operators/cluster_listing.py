"""How `dispatcher clusters` shows clusters: from history; or, as `list`, MemberClusters as `kubectl get mcl` does.

The leader samples capacity every five minutes, and writes the statuses of MemberClusters every few seconds while it
leads. A status has no time, so it counts only while a dispatcher leads, and only for clusters that answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.cli.options import as_typed
from dispatcher.cli.screens.output import Column, plain, text
from dispatcher.cli.screens.tables import Heading, age, table
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.core.model.resources import gpus
from dispatcher.store.readers.reports import Report, Row

Json = dict[str, Any]

HEADINGS: Final = (
    Heading("NAME"),
    Heading("REACHABLE"),
    Heading("CORDONED", 2),
    Heading("CPU FREE"),
    Heading("GPU FREE"),
    Heading("MEMORY FREE", 1),
    Heading("RUNNING"),
    Heading("REASON"),
    Heading("AGE", 3),
)
WIDE_HEADINGS: Final = (*HEADINGS, Heading("DRAINING"), Heading("LABELS"), Heading("MESSAGE"))
LIVE: Final = "live"
AS_OF: Final = "as_of"
"""A column for the age of free capacity: the time of its sample, or `LIVE`."""
_GIB: Final = 2**30
NOTHING_HELD: Final = dict.fromkeys(("cpu_held", "memory_gib_held", "gpu_held"), Decimal(0))
FREE: Final = ("cpu", "nvidia.com/gpu", "memory")
NO_CLUSTERS: Final = "No clusters: no dispatcher has led yet, or the members were removed."
CLUSTERS_WIDE: Final = (
    plain("SAMPLED", "sampled_at"),
    plain("CPU HELD", "cpu_held"),
    plain("GIB HELD", "memory_gib_held"),
    plain("GPU HELD", "gpu_held"),
    plain("CORDONED", "is_cordoned"),
    plain("DRAINING", "is_draining"),
    plain("WHY", "event_message"),
)


def _free_of(name: str, row: Row) -> str:
    """What is free, of what there is."""
    return f"{text(row[f'{name}_free'])}/{text(row[name])}" if row[name] is not None else ""


CLUSTERS: Final = (
    plain("CLUSTER", "cluster"),
    plain("REACHABLE", "is_reachable"),
    plain("SINCE", "since", 3),
    plain("CLOSED", "closed_reason"),
    plain("RUNNING", "running"),
    *(
        Column(Heading(heading), partial(_free_of, name))
        for heading, name in (("CPU FREE", "cpu"), ("GIB FREE", "memory_gib"), ("GPU FREE", "gpu"))
    ),
    plain("AS OF", AS_OF),
    plain("LAST EVENT", "event", 1),
    plain("AT", "event_at", 2),
)


def no_members() -> str:
    """The sentence about a hub without member clusters."""
    declare = as_typed("clusters add NAME --member-kubeconfig FILE")
    return (
        "No member clusters: every gang goes to the hub itself, ten minutes after the last one was removed. "
        f"Declare one with: {declare}"
    )


def as_table(members: Sequence[Json], now: datetime, width: int | None) -> str:
    """One line for each, in at most `width` columns; without any, a sentence that says what that means."""
    return table(HEADINGS, [_row(each, now) for each in members], width) if members else no_members()


def as_wide_table(members: Sequence[Json], now: datetime) -> str:
    """The same with more columns, as wide as it gets."""
    rows = [(*_row(each, now), *_more(each)) for each in members]
    return table(WIDE_HEADINGS, rows) if members else no_members()


def _row(member: Json, now: datetime) -> tuple[str, ...]:
    metadata, spec, status = member["metadata"], member["spec"], member.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    free = status.get("free") or {}
    return (
        metadata["name"],
        conditions.get("Reachable", ""),
        _yes_or_no(spec.get("cordoned")),
        *(free.get(resource, "") for resource in FREE),
        str(status.get("running", "")),
        status.get("reason", ""),
        age(datetime.fromisoformat(metadata["creationTimestamp"]), now),
    )


def _more(member: Json) -> tuple[str, ...]:
    labels = member["metadata"].get("labels") or {}
    return (
        _yes_or_no(member["spec"].get("drain")),
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        (member.get("status") or {}).get("message", ""),
    )


def _yes_or_no(value: object) -> str:
    return "true" if value else "false"


def with_age(report: Report, held: Report, members: Json) -> Report:
    """The clusters of the database with the column `AS_OF`, and the live capacity of the `members` that have one.

    `held` are the amounts that gangs hold now: those of the samples are some minutes old. `members` is the list of
    MemberClusters as the API server gives it; an empty one leaves all other samples. A removed cluster that runs
    nothing is left out.
    """
    from dispatcher.core.status.clusters import ClusterEvent  # which `clusters list` does not need

    live, now = dict(_capacities(members)), {str(row["cluster"]): row for row in held}
    rows = (
        {
            **row,
            **now.get(str(row["cluster"]), NOTHING_HELD),
            AS_OF: row["sampled_at"],
            **live.get(str(row["cluster"]), {}),
        }
        for row in report
        # The database has a cluster for an hour after its last sample.
        if row["running"] or row["event"] != ClusterEvent.REMOVED
    )
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

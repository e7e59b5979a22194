"""The plans by which Postgres answers a query: the tables that it reads by an index, and those that it reads whole.

Partitions count for their table. Nearly empty tables are read whole in any case, and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import psycopg

CHEAP: Final = 25.0
"""Scans below this cost are left out: an index would save nothing."""

_PARTITION: Final = re.compile(r"_(\d{4}_\d\d|default)$")

Node = dict[str, Any]
Values = Mapping[str, object]
Cursor = psycopg.AsyncCursor[Any]


@dataclass(frozen=True, slots=True)
class Access:
    """The number of partitions (or of the one table) that are read by an index, and whole."""

    by_index: int = 0
    whole: int = 0

    def __str__(self) -> str:
        counts = {"by index": self.by_index, "whole": self.whole}
        return ", ".join(f"{count} {how}" for how, count in counts.items() if count)


def explain(connection: psycopg.Connection, query: str, values: Values) -> Node:
    """The plan of a query, which does not run."""
    found = connection.execute(f"EXPLAIN (FORMAT JSON) {query}".encode(), values).fetchone()
    assert found is not None  # noqa: S101 - EXPLAIN answers with one row
    plan: Node = found[0][0]["Plan"]
    return plan


@contextmanager
def recorded() -> Iterator[dict[str, Values]]:
    """Yields the queries to any database meanwhile, with their last parameters."""
    sent: dict[str, Values] = {}
    execute = psycopg.AsyncCursor.execute

    async def noted(
        cursor: Cursor, query: str | bytes, params: Values | None = None, **options: bool
    ) -> Cursor:
        sent[query.decode() if isinstance(query, bytes) else query] = params or {}
        return await execute(cursor, query, params, **options)

    with patch.object(psycopg.AsyncCursor, "execute", noted):
        yield sent


def queries(sent: Mapping[str, Values]) -> dict[str, Values]:
    """The queries among them that read."""
    return {
        statement: values for statement, values in sent.items() if statement.startswith(("SELECT", "WITH"))
    }


def accesses(*plans: Node) -> dict[str, Access]:
    """The access to every table in these plans, by name."""
    found: dict[str, Access] = {}
    for node in (node for plan in plans for node in nodes(plan)):
        table, kind = node.get("Relation Name"), node["Node Type"]
        if table is None or (kind == "Seq Scan" and node["Total Cost"] < CHEAP):
            continue
        name = _PARTITION.sub("", table)
        so_far = found.get(name, Access())
        is_whole = int(kind == "Seq Scan")
        found[name] = Access(so_far.by_index + 1 - is_whole, so_far.whole + is_whole)
    return dict(sorted(found.items()))


def relations(plan: Node) -> set[str]:
    """The names of the tables and partitions that a plan reads."""
    return {node["Relation Name"] for node in nodes(plan) if "Relation Name" in node}


def nodes(plan: Node) -> Iterator[Node]:
    """The nodes of a plan, from the top."""
    yield plan
    for each in plan.get("Plans", ()):
        yield from nodes(each)

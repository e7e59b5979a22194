"""What people ask of the queue and its history: questions over the views of schema `history`.

Reading is unfenced and read-only, and needs no more than the role `dispatcher_reader`. What a person gives is always
bound; what columns there are is chosen from here. A report has the columns of its view, which are an interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import TextClause, text

from dispatcher.store.database import Database

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Rows under the names of their columns, no two of a name; `is_cut` if there are more than were asked for."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    is_cut: bool = False

    def __iter__(self) -> Iterator[Row]:
        """Each row by the names of its columns."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Of:
    """Whose AppWrappers are asked for; what is empty is any."""

    namespace: str = ""
    user: str = ""
    queue: str = ""


ANYBODY: Final = Of()


class Reports:
    """Answers from the views of history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def queue(self, of: Of = ANYBODY) -> Report:
        """Who waits, in the order in which they are looked at; last those that may not go yet."""
        return await self._report(_QUEUE, _bound(of))

    async def _report(self, query: TextClause, values: Mapping[str, object]) -> Report:
        async with self._database.reading() as connection:
            found = await connection.execute(query, values)
            return Report(tuple(found.keys()), tuple(tuple(row) for row in found))


def _bound(of: Of) -> dict[str, object]:
    return {"namespace": of.namespace or None, "user": of.user or None, "queue": of.queue or None}


_OF: Final = (
    "(CAST(:namespace AS text) IS NULL OR namespace = :namespace) "
    "AND (CAST(:user AS text) IS NULL OR user_name = :user) "
    "AND (CAST(:queue AS text) IS NULL OR queue = :queue)"
)
_QUEUE: Final = text(
    f"SELECT * FROM history.queue_now WHERE {_OF} ORDER BY queue, position NULLS LAST, eligible_at, uid"
)

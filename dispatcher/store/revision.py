"""The schema revision this code needs, and the check that a dispatcher makes before it runs and before it leads.

A new release migrates while the release before it still dispatches. So a migration only expands the schema: whatever
older code reads and writes stays as it was. A migration that takes something away names the oldest code that runs on
the schema after it, and the database keeps that revision (`OLDEST_CODE`).

Migrations are in `store.migrate`, which needs alembic; this module needs only the driver.
"""

from __future__ import annotations

from typing import Final

import psycopg

from dispatcher.errors import SchemaMismatch
from dispatcher.store.connections import STATEMENT_TIMEOUT, connection_parameters, milliseconds, translated

NEWEST: Final[str] = "0005"
"""The last of `migrations/versions`; revisions are numbers of four digits."""

OLDEST_CODE: Final = "the oldest dispatcher that runs on this schema is of revision "
"""With a revision, the comment on the table of revisions. A comment needs no migration of its own."""

_FOUND: Final = (
    "SELECT version_num, obj_description('alembic_version'::regclass, 'pg_class') FROM alembic_version"
)


def check_revision(url: str) -> str:
    """The revision of the database, which is `NEWEST` or a later one on which this code runs.

    Raises `SchemaMismatch` for any other.
    """
    current, oldest_code = _read(url)
    if current is None:
        raise SchemaMismatch("the database has no tables of the dispatcher yet; run: dispatcher migrate")
    if current < NEWEST:
        raise SchemaMismatch(f"the database is at revision {current}, not {NEWEST}; run: dispatcher migrate")
    if current > NEWEST and not (oldest_code and oldest_code <= NEWEST):
        raise SchemaMismatch(
            f"the database is at revision {current}, on which this version does not run (its own is {NEWEST}): "
            "it was migrated by a newer dispatcher; run that one"
        )
    return current


def current_revision(url: str) -> str | None:
    """The revision of a database; None before the first migration."""
    return _read(url)[0]


def _read(url: str) -> tuple[str | None, str | None]:
    """The revision, and the oldest revision whose code runs on it; None if it is not known."""
    parameters = connection_parameters(url, statement_timeout=milliseconds(STATEMENT_TIMEOUT))
    with translated(), psycopg.connect(**parameters) as connection:  # type: ignore[arg-type]  # libpq's own names
        if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
            return None, None
        current, comment = connection.execute(_FOUND).fetchone() or (None, None)
    said = str(comment or "")
    return current, said.removeprefix(OLDEST_CODE) if said.startswith(OLDEST_CODE) else None

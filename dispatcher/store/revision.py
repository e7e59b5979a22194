"""The schema revision this code needs, and the check that a dispatcher makes before it runs.

Migrations are in `store.migrate`, which needs alembic; this module needs only the driver.
"""

from __future__ import annotations

from typing import Final

import psycopg

from dispatcher.errors import SchemaMismatch
from dispatcher.store.connections import STATEMENT_TIMEOUT, connection_parameters, milliseconds, translated

NEWEST: Final = "0018"
"""The last of `migrations/versions`; revisions are numbers of four digits."""


def check_revision(url: str) -> None:
    """Raise `SchemaMismatch` unless the database is at `NEWEST`."""
    current = current_revision(url)
    if current == NEWEST:
        return
    if current is None:
        raise SchemaMismatch("the database has no tables of the dispatcher yet; run: dispatcher migrate")
    if current > NEWEST:
        raise SchemaMismatch(
            f"the database is at revision {current}, which this version does not know (its own is {NEWEST}): "
            "it was migrated by a newer dispatcher; run that one"
        )
    raise SchemaMismatch(f"the database is at revision {current}, not {NEWEST}; run: dispatcher migrate")


def current_revision(url: str) -> str | None:
    """The revision of a database; None before the first migration."""
    parameters = connection_parameters(url, statement_timeout=milliseconds(STATEMENT_TIMEOUT))
    with translated(), psycopg.connect(**parameters) as connection:  # type: ignore[arg-type]  # libpq's own names
        if connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,):
            return None
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(found[0]) if found else None

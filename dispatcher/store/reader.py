"""The reader roles of history, and their limits.

`dispatcher_reader` sees every namespace, through the views of the schemas `history` and `scheduling`. Members of
`dispatcher_tenant` see the namespaces granted to them, through the views of schema `tenant`. Both share a server with
the queue. So they get few connections, no temporary tables, no large objects, no advisory locks and bounded temporary
files: they can neither fill the disk nor hold the queue's locks. They can lift their own timeouts, so the leader ends
overdue sessions (`store.overdue`).

`set_up` returns, as SQL, the statements that its account may not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, LiteralString

import psycopg
from msgspec import Struct
from psycopg import sql

from dispatcher.store.connections import connection_parameters

READER: Final = "dispatcher_reader"
TENANT: Final = "dispatcher_tenant"

MOST_CONNECTIONS: Final = 20
"""Connections of the reader at once: a dashboard and some people, and a fifth of Postgres' default."""

TEMP_FILES: Final = "2GB"
"""Temporary files of one session: a year of reports sorts in less."""

IDLE_SECONDS: Final = 60
"""Longest silence in a transaction. The role's own timeout is the same, and ends the session with a clearer error."""

LOCK_TIMEOUT: Final = "15s"
"""Longest wait of a migration for another migration, or for a table in use."""


class Step(Struct, frozen=True):
    """One property of the roles: a query that tells whether it holds, and the statement that makes it hold."""

    is_so: LiteralString
    statement: LiteralString


def set_up(url: str) -> tuple[str, ...]:
    """Set up the roles; return the statements that another account must run. Safe to repeat."""
    parameters = connection_parameters(url, lock_timeout=LOCK_TIMEOUT)
    with psycopg.connect(**parameters, autocommit=True) as connection:  # type: ignore[arg-type]  # libpq's own names
        return tuple(_left(connection))


def _left(connection: psycopg.Connection) -> Iterator[str]:
    for step in STEPS:
        if _is_so(connection, step):
            continue
        statement = _written(connection, step.statement)
        try:
            # A failed statement is harmless if another session has made the property hold meanwhile: the query decides.
            connection.execute(statement)
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _NOT_DONE:
                raise
        if not _is_so(connection, step):
            yield statement.as_string(connection)


_NOT_DONE: Final = ("42", "XX", "23", "55")
"""SQLSTATE classes: not allowed, changed concurrently, exists, in use."""


def _is_so(connection: psycopg.Connection, step: Step) -> bool:
    (is_so,) = connection.execute(step.is_so).fetchone() or (False,)
    return bool(is_so)


def _written(connection: psycopg.Connection, statement: LiteralString) -> sql.Composed:
    database, me = connection.execute("SELECT current_database(), current_user").fetchone() or ("", "")
    return sql.SQL(statement).format(database=sql.Identifier(database), me=sql.Identifier(me))


_HELD: Final = (
    "p.pronamespace = 'pg_catalog'::regnamespace AND "
    "p.proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*)$'"
)
"""Functions of large objects, which fill the disk, and of advisory locks, which fill the lock table."""

STEPS: Final = (
    Step(
        f"SELECT count(*) = 1 FROM pg_roles WHERE rolname = '{READER}'",
        f"CREATE ROLE {READER} LOGIN",
    ),
    Step(
        f"SELECT count(*) = 1 FROM pg_roles WHERE rolname = '{TENANT}'",
        f"CREATE ROLE {TENANT} NOLOGIN",
    ),
    Step(
        "SELECT coalesce(bool_and(has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, "
        "'SELECT')), false) FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid, pg_roles AS r "
        f"WHERE n.nspname = 'tenant' AND c.relkind = 'v' AND r.rolname = '{TENANT}'",
        f"GRANT USAGE ON SCHEMA tenant TO {TENANT}; GRANT SELECT ON ALL TABLES IN SCHEMA tenant TO {TENANT}",
    ),
    Step(
        "SELECT coalesce(bool_and(has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_table_privilege(r.oid, c.oid, "
        "'SELECT')), false) FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid, pg_roles AS r "
        f"WHERE n.nspname = 'scheduling' AND c.relkind = 'v' AND r.rolname = '{READER}'",
        f"GRANT USAGE ON SCHEMA scheduling TO {READER}; GRANT SELECT ON ALL TABLES IN SCHEMA scheduling TO {READER}",
    ),
    Step(
        f"SELECT coalesce(bool_and(rolconnlimit >= 0), false) FROM pg_roles WHERE rolname = '{READER}'",
        f"ALTER ROLE {READER} CONNECTION LIMIT {MOST_CONNECTIONS}",
    ),
    Step(
        f"SELECT coalesce(bool_or(rolconfig::text LIKE '%temp_file_limit=%'), false) FROM pg_roles "
        f"WHERE rolname = '{READER}'",
        f"ALTER ROLE {READER} SET temp_file_limit = '{TEMP_FILES}'",
    ),
    Step(
        "SELECT NOT has_database_privilege('public', current_database(), 'TEMPORARY')",
        "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC",
    ),
    Step(
        f"SELECT NOT bool_or(has_function_privilege('public', p.oid, 'EXECUTE')) FROM pg_proc AS p WHERE {_HELD}",
        # Migrations take an advisory lock; no other session needs these functions.
        "DO $$ DECLARE each regprocedure; owner name; BEGIN "
        "SELECT pg_get_userbyid(datdba) INTO owner FROM pg_database WHERE datname = current_database(); "
        f"FOR each IN SELECT p.oid::regprocedure FROM pg_proc AS p WHERE {_HELD} LOOP "
        "EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I, %I', each, owner, current_user); "
        "EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', each); END LOOP; END $$",
    ),
    Step(
        "SELECT count(*) > 0 FROM pg_proc WHERE proname = 'answer' AND pronamespace = 'history'::regnamespace",
        f"""
        GRANT {READER} TO {{me}};
        GRANT CREATE ON SCHEMA history TO {READER};
        CREATE FUNCTION history.answer(query text, most bigint) RETURNS SETOF record
        LANGUAGE plpgsql SECURITY DEFINER SET search_path = history, pg_temp AS $$
        DECLARE
            found record;
            told bigint := 0;
        BEGIN
            FOR found IN EXECUTE query LOOP
                EXIT WHEN told = most;
                told := told + 1;
                RETURN NEXT found;
            END LOOP;
        END
        $$;
        REVOKE EXECUTE ON FUNCTION history.answer(text, bigint) FROM PUBLIC;
        ALTER FUNCTION history.answer(text, bigint) OWNER TO {READER};
        REVOKE CREATE ON SCHEMA history FROM {READER}
        """,
    ),
)

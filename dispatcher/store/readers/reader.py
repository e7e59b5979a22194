"""The reader roles of history, and their limits; and the role of the notifier.

`dispatcher_reader` sees every namespace, through the views of the schemas `history` and `scheduling`. Members of
`dispatcher_tenant` see the namespaces granted to them, through the views of schema `tenant`. Both share a server with
the queue. So they get few connections, no temporary tables, no large objects, no advisory locks, no notifications in
bulk and bounded temporary files: they can neither fill the disk nor hold the queue's locks. They can lift their own
timeouts, so the leader ends overdue sessions (`store.readers.overdue`). Nothing in Postgres bounds the memory and the
processor time of a session: whoever must not have them reads a replica.

`dispatcher_notifier` is for `dispatcher notify` alone: it reads the views of schema `notify`, and writes the tables
there and nothing else.

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
NOTIFIER: Final = "dispatcher_notifier"

MOST_CONNECTIONS: Final = 20
"""Connections of the reader at once: a dashboard and some people, and a fifth of Postgres' default."""

MEMBERS_CONNECTIONS: Final = 5
"""Connections at once of a role made by an operator, if its operator has set no limit."""

TEMP_FILES: Final = "2GB"
"""Temporary files of one session: a year of reports sorts in less."""

IDLE_SECONDS: Final = 60
"""Longest silence in a transaction. The role's own timeout is the same, and ends the session with a clearer error."""

IDLE_SESSION_SECONDS: Final = 600
"""Longest silence of a session between two queries."""

MOST_NOTIFICATIONS: Final = 0.01
"""Share of the queue of notifications from which a reader's open transaction ends early. Full, it has 8 GB on disk."""

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
    "p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*"
    "|pg_notify|pg_logical_emit_message|txid_current|pg_current_xact_id)$'"
)
"""Functions that a reader could use to harm others.

They fill the disk with large objects, notifications or write-ahead log, the lock table with advisory locks, and use up
transaction ids.
"""

_MEMBERS: Final = (
    "FROM pg_roles AS r, pg_database AS d WHERE d.datname = current_database() AND r.rolcanlogin AND NOT r.rolsuper "
    f"AND r.rolname <> '{READER}' AND NOT pg_has_role(r.oid, d.datdba, 'MEMBER') "
    "AND NOT pg_has_role(r.oid, current_user, 'MEMBER') AND EXISTS (SELECT FROM pg_roles AS g "
    f"WHERE g.rolname IN ('{READER}', '{TENANT}') AND pg_has_role(r.oid, g.oid, 'MEMBER'))"
)
"""The roles that operators have made for readers and tenants; no limit is inherited by them."""

_UNLIMITED: Final = f"{_MEMBERS} AND r.rolconnlimit < 0"
_UNBOUNDED: Final = f"{_MEMBERS} AND NOT coalesce(r.rolconfig::text LIKE '%temp_file_limit=%', false)"

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
        f"SELECT count(*) = 1 FROM pg_roles WHERE rolname = '{NOTIFIER}'",
        f"CREATE ROLE {NOTIFIER} LOGIN",
    ),
    Step(
        f"SELECT coalesce(bool_and(rolconnlimit >= 0), false) FROM pg_roles WHERE rolname = '{NOTIFIER}'",
        f"ALTER ROLE {NOTIFIER} CONNECTION LIMIT {MEMBERS_CONNECTIONS}",
    ),
    Step(
        # By ids: an account without rights to the schema may not look up a name in it.
        "SELECT has_schema_privilege(r.oid, n.oid, 'USAGE') AND (SELECT bool_and(has_table_privilege(r.oid, c.oid, "
        "'SELECT') AND (c.relkind = 'v' OR has_table_privilege(r.oid, c.oid, 'INSERT') AND has_table_privilege(r.oid, "
        "c.oid, CASE c.relname WHEN 'cursor' THEN 'UPDATE' ELSE 'DELETE' END))) FROM pg_class AS c "
        "WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'v')) "
        "AND (SELECT bool_and(has_function_privilege(r.oid, p.oid, 'EXECUTE')) "
        "FROM pg_proc AS p WHERE p.pronamespace = n.oid) "
        f"FROM pg_namespace AS n, pg_roles AS r WHERE n.nspname = 'notify' AND r.rolname = '{NOTIFIER}'",
        f"GRANT USAGE ON SCHEMA notify TO {NOTIFIER}; GRANT SELECT ON ALL TABLES IN SCHEMA notify TO {NOTIFIER}; "
        f"GRANT INSERT, UPDATE ON notify.cursor TO {NOTIFIER}; "
        f"GRANT INSERT, DELETE ON notify.outbox, notify.told_wait, notify.alarm TO {NOTIFIER}; "
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA notify TO {NOTIFIER}",
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
        f"SELECT coalesce(bool_or(rolconfig::text LIKE '%idle_session_timeout=%'), false) FROM pg_roles "
        f"WHERE rolname = '{READER}'",
        f"ALTER ROLE {READER} SET idle_session_timeout = '{IDLE_SESSION_SECONDS}s'",
    ),
    Step(
        f"SELECT count(*) = 0 {_UNLIMITED}",
        f"DO $$ DECLARE each name; BEGIN FOR each IN SELECT r.rolname {_UNLIMITED} LOOP "
        f"EXECUTE format('ALTER ROLE %I CONNECTION LIMIT {MEMBERS_CONNECTIONS}', each); END LOOP; END $$",
    ),
    Step(
        f"SELECT count(*) = 0 {_UNBOUNDED}",
        f"DO $$ DECLARE each name; BEGIN FOR each IN SELECT r.rolname {_UNBOUNDED} LOOP "
        f"EXECUTE format('ALTER ROLE %I SET temp_file_limit = %L', each, '{TEMP_FILES}'); END LOOP; END $$",
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
        "SELECT NOT has_language_privilege('public', 'plpgsql', 'USAGE')",
        # A loop on the server makes notifications faster than statements of a client do.
        "DO $$ DECLARE owner name; BEGIN "
        "SELECT pg_get_userbyid(datdba) INTO owner FROM pg_database WHERE datname = current_database(); "
        "EXECUTE format('GRANT USAGE ON LANGUAGE plpgsql TO %I, %I', owner, current_user); "
        "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC; END $$",
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

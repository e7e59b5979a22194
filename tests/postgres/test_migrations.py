"""Up, compared with the tables in code, down, and up again; and who may run it when."""

from __future__ import annotations

import uuid
from pathlib import Path
from threading import Thread
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from dispatcher.errors import DataRefused, SchemaMismatch, StoreUnavailable
from dispatcher.store import migrate, revision
from dispatcher.store.readers import reader
from testbed.postgres import drop_database, url_of
from tests.postgres.changes import rows_of

CHECKOUT = Path(__file__).parents[2]


def test_every_revision_goes_up_down_and_up_again_and_agrees_with_the_tables_in_code(empty_url: str) -> None:
    migrate.migrate(empty_url)
    migrate.check(empty_url)
    migrate.downgrade(empty_url)
    left = rows_of(empty_url, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
    assert {name for (name,) in left} == {"alembic_version", "alembic_version_pkc"}
    migrate.migrate(empty_url)
    migrate.check(empty_url)


def test_a_difference_between_database_and_code_is_found(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE attempt ADD COLUMN surprise text")
    with pytest.raises(Exception, match="surprise"):
        migrate.check(database_url)


def test_partitions_made_as_time_goes_by_are_no_difference(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "CREATE TABLE event_2026_11 PARTITION OF event FOR VALUES FROM ('2026-11-01') TO ('2026-12-01')"
        )
    migrate.check(database_url)


def test_an_empty_database_names_the_command_that_makes_its_tables(empty_url: str) -> None:
    assert revision.current_revision(empty_url) is None
    with pytest.raises(SchemaMismatch, match="run: dispatcher migrate"):
        revision.check_revision(empty_url)
    migrate.migrate(empty_url)
    revision.check_revision(empty_url)


def test_a_database_that_does_not_store_utf8_is_refused_before_anything_is_made(postgres_url: str) -> None:
    name = f"aw_test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name)
            )
        )
    url = url_of(postgres_url, name)
    try:
        with pytest.raises(DataRefused, match="stores text as SQL_ASCII, not UTF8: create it with ENCODING"):
            migrate.migrate(url)
        assert rows_of(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    finally:
        drop_database(postgres_url, name)


def test_newest_revision_is_that_of_the_last_migration() -> None:
    scripts = sorted((CHECKOUT / "migrations" / "versions").glob("[0-9]*.py"))
    assert scripts[-1].name[:4] == revision.NEWEST
    assert f'revision = "{revision.NEWEST}"' in scripts[-1].read_text()


def test_a_database_of_an_older_dispatcher_is_to_be_migrated(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(
        SchemaMismatch, match=f"at revision 0000, not {revision.NEWEST}; run: dispatcher migrate"
    ):
        revision.check_revision(database_url)


NEWER: LiteralString = "UPDATE alembic_version SET version_num = '9999'"


@pytest.mark.parametrize(
    "said", ["NULL", f"'{revision.OLDEST_CODE}9998'", "'by somebody else'"], ids=["nothing", "newer", "other"]
)
def test_schema_of_a_newer_dispatcher_that_took_something_away_is_refused(
    database_url: str, said: LiteralString
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(NEWER)
        connection.execute(f"COMMENT ON TABLE alembic_version IS {said}")
    with pytest.raises(SchemaMismatch, match="on which this version does not run"):
        revision.check_revision(database_url)
    with pytest.raises(SchemaMismatch, match="on which this version does not run"):
        migrate.migrate(database_url)


def test_schema_that_a_newer_dispatcher_only_expanded_is_run_on(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(NEWER)
    assert revision.check_revision(database_url) == "9999"
    assert migrate.migrate(database_url) == ()
    assert revision.current_revision(database_url) == "9999"


def test_migrating_twice_keeps_the_identity_of_the_hub(database_url: str) -> None:
    before = rows_of(database_url, "SELECT id FROM hub")
    migrate.migrate(database_url)
    assert rows_of(database_url, "SELECT id FROM hub") == before


def test_there_is_one_hub_in_a_database(database_url: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute("INSERT INTO hub (singleton) VALUES (false)")
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute("INSERT INTO hub DEFAULT VALUES")


def test_migrations_started_at_once_run_one_after_the_other(empty_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate.migrate(empty_url)
        except BaseException as error:  # noqa: BLE001 - reported by the assertion
            failures.append(error)

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    revision.check_revision(empty_url)


def test_a_migration_gives_up_on_another_that_does_not_end(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LOCK_TIMEOUT", "100ms")
    with psycopg.connect(empty_url) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [migrate.LOCK])
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            migrate.migrate(empty_url)
    assert revision.current_revision(empty_url) is None


def test_every_column_of_the_views_for_people_has_a_comment(database_url: str) -> None:
    silent = rows_of(
        database_url,
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE c.relnamespace = 'history'::regnamespace AND col_description(c.oid, a.attnum) IS NULL",
    )
    assert silent == []


def test_an_owner_who_may_not_make_roles_migrates_all_the_same(postgres_url: str, empty_url: str) -> None:
    owner = f"aw_owner_{uuid.uuid4().hex[:8]}"
    database = empty_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        name = sql.Identifier(owner)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(database), name))
        try:
            migrate.migrate(with_user(empty_url, owner))
            revision.check_revision(empty_url)
            assert rows_of(empty_url, "SELECT count(*) FROM history.job_history") == [(0,)]
        finally:
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
            admin.execute(sql.SQL("DROP ROLE {}").format(name))


def with_user(url: str, user: str) -> str:
    """The same database for somebody else."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{user}@{rest.partition('@')[2]}"

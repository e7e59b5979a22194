"""A migration only expands the schema, or names the oldest code that runs on it; and it is done whole or not at all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from alembic.script import Script, ScriptDirectory
from psycopg.rows import TupleRow

from dispatcher.errors import SchemaMismatch, StoreUnavailable
from dispatcher.store import migrate, revision
from dispatcher.store.database import Database
from dispatcher.store.leadership import Leadership, holder_name, revision_of
from testbed.proxy import Fault
from testbed.proxy_postgres import Commit, PostgresProxy
from tests.postgres.changes import forget_replay, rows_of

SCRIPTS = Path(__file__).parents[2] / "migrations"
FOLLOWING = [
    script
    for script in reversed(list(ScriptDirectory(str(SCRIPTS)).walk_revisions()))
    if script.down_revision
]
"""The migrations after the first, before which there was no schema."""
NONE_FOLLOWS = pytest.param(
    None,
    id="none",
    marks=pytest.mark.skip(reason=f"{migrate.FIRST} is the only revision: nothing was before it"),
)

NEXT = f"{int(revision.NEWEST) + 1:04}"
"""The revision of the next release."""
NEXT_MIGRATION = f"""
from alembic import op

revision = "{NEXT}"
down_revision = "{revision.NEWEST}"


def upgrade() -> None:
    op.execute("ALTER TABLE hub ADD COLUMN more integer")


def downgrade() -> None:
    op.execute("ALTER TABLE hub DROP COLUMN more")
"""


@pytest.fixture
def next_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code of the next release, with a migration more, which only expands."""
    folder = shutil.copytree(SCRIPTS, tmp_path / "migrations")
    script = folder / "versions" / f"{NEXT}_more.py"
    script.write_text(NEXT_MIGRATION)
    monkeypatch.setattr(migrate, "_scripts", lambda: folder)
    monkeypatch.setattr(revision, "NEWEST", NEXT)
    return script


COLUMNS: LiteralString = """
SELECT c.oid::regclass::text, a.attname, format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.atthasdef OR a.attidentity <> ''
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
  AND c.relnamespace::regnamespace::text IN ('public', 'history', 'tenant', 'scheduling')
"""
RULES: LiteralString = """
SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid <> 0 AND connamespace = 'public'::regnamespace AND conparentid = 0 AND contype <> 'n'
UNION
SELECT i.indrelid::regclass::text, pg_get_indexdef(i.indexrelid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
"""
FUNCTIONS: LiteralString = """
SELECT p.oid::regprocedure::text, pg_get_function_result(p.oid) FROM pg_proc AS p
WHERE p.pronamespace::regnamespace::text IN ('public', 'history', 'tenant', 'scheduling')
"""


class Schema:
    """What older code may use of a schema."""

    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
        found = connection.execute(COLUMNS).fetchall()
        self.columns = {(table, column): type_ for table, column, type_, _, _ in found}
        self.not_null = {(table, column) for table, column, _, is_not_null, _ in found if is_not_null}
        self.required = self.not_null - {
            (table, column) for table, column, _, _, has_default in found if has_default
        }
        self.tables = {table for table, _ in self.columns}
        self.rules = set(connection.execute(RULES).fetchall())
        self.functions = set(connection.execute(FUNCTIONS).fetchall())

    def taken_away_in(self, later: Schema) -> list[str]:
        """What code that was written for this schema misses in a later one, or is newly bound to."""
        required = {name for name in later.required - self.required if name[0] in self.tables}
        not_null = {name for name in later.not_null - self.not_null if name in self.columns}
        return [
            *(
                f"{'.'.join(name)} {type_}"
                for name, type_ in sorted(self.columns.items() - later.columns.items())
            ),
            *(f"{'.'.join(name)} is required" for name in sorted(required | not_null)),
            *(f"{table}: {rule}" for table, rule in sorted(self.rules ^ later.rules) if table in self.tables),
            *(name for name, _ in sorted(self.functions - later.functions)),
        ]


@pytest.mark.parametrize("script", FOLLOWING or [NONE_FOLLOWS], ids=lambda script: script.revision)
def test_a_migration_expands_the_schema_or_names_the_oldest_code_that_runs_on_it(
    database_url: str, script: Script
) -> None:
    forget_replay(database_url)
    previous = str(script.down_revision)
    migrate.downgrade(database_url, previous)
    with psycopg.connect(database_url) as connection:
        before = Schema(connection)
    migrate.migrate(database_url, script.revision)
    with psycopg.connect(database_url) as connection:
        taken_away = before.taken_away_in(Schema(connection))
    if migrate.oldest_code(script.revision) <= previous:
        assert taken_away == []


@pytest.mark.parametrize(
    ("change", "taken_away"),
    [
        ("CREATE TABLE more (a int PRIMARY KEY)", []),
        ("ALTER TABLE hub ADD COLUMN more int", []),
        ("ALTER TABLE hub ADD COLUMN more int NOT NULL DEFAULT 0", []),
        ("CREATE INDEX ON attempt (cluster)", []),
        ("ALTER TABLE attempt ADD COLUMN more int NOT NULL", ["attempt.more is required"]),
        ("ALTER TABLE event ALTER COLUMN reason DROP DEFAULT", ["event.reason is required"]),
        (
            "ALTER TABLE leader_lease RENAME COLUMN holder TO led_by",
            ["leader_lease.holder text", "leader_lease.led_by is required"],
        ),
        ("ALTER TABLE leader_epoch ALTER COLUMN epoch TYPE integer", ["leader_epoch.epoch bigint"]),
        ("ALTER TABLE attempt ADD CHECK (number > 1) NOT VALID", ["attempt: CHECK ((number > 1)) NOT VALID"]),
        ("ALTER TABLE attempt ALTER COLUMN ended_at SET NOT NULL", ["attempt.ended_at is required"]),
        (
            "DROP VIEW history.queue_specs",
            [
                "history.queue_specs.position integer",
                "history.queue_specs.queue text",
                "history.queue_specs.spec jsonb",
                "history.queue_specs.valid_from timestamp with time zone",
                "history.queue_specs.valid_to timestamp with time zone",
            ],
        ),
    ],
)
def test_parts_that_a_migration_takes_away_are_found(
    database_url: str, change: LiteralString, taken_away: list[str]
) -> None:
    with psycopg.connect(database_url) as connection:
        before = Schema(connection)
        connection.execute(change)
        assert before.taken_away_in(Schema(connection)) == taken_away
        connection.rollback()


@pytest.mark.usefixtures("next_migration")
def test_the_database_names_the_oldest_code_that_runs_on_its_schema(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SchemaMismatch, match="run: dispatcher migrate"):
        revision.check_revision(database_url)
    migrate.migrate(database_url)
    assert rows_of(database_url, "SELECT obj_description('alembic_version'::regclass)") == [
        (f"the oldest dispatcher that runs on this schema is of revision {migrate.FIRST}",)
    ]
    monkeypatch.setattr(revision, "NEWEST", migrate.FIRST)
    assert revision.check_revision(database_url) == NEXT
    monkeypatch.setattr(revision, "NEWEST", "0000")
    with pytest.raises(SchemaMismatch, match="on which this version does not run"):
        revision.check_revision(database_url)


@pytest.mark.parametrize(
    ("leader", "is_refused"),
    [
        ("a-host-1-cafe", True),
        (holder_name("a-host-1-cafe", revision.NEWEST), True),
        (holder_name("a", NEXT), False),
    ],
)
async def test_migration_that_takes_something_away_waits_for_older_leaders_to_stop(
    database_url: str, next_migration: Path, leader: str, is_refused: bool
) -> None:
    await asyncio.to_thread(next_migration.write_text, f'{NEXT_MIGRATION}\n\nOLDEST_CODE = "{NEXT}"\n')
    before = revision.current_revision(database_url)
    database = Database(database_url)
    await Leadership(database, leader).acquire()
    await database.close()
    if is_refused:
        with pytest.raises(SchemaMismatch, match=f"the dispatcher {leader} leads, .* stop all dispatchers"):
            await asyncio.to_thread(migrate.migrate, database_url)
        assert revision.current_revision(database_url) == before
    else:
        await asyncio.to_thread(migrate.migrate, database_url)
        assert revision.current_revision(database_url) == NEXT


def test_holder_of_a_lease_tells_the_revision_of_its_code() -> None:
    assert revision_of(holder_name("host@home-1", "0018")) == "0018"
    assert revision_of("a-host-1-cafe") == ""


@pytest.mark.usefixtures("next_migration")
async def test_a_migration_that_is_cut_off_at_its_end_changes_nothing(database_url: str) -> None:
    at, before = revision.current_revision(database_url), rows_of(database_url, COLUMNS)
    async with PostgresProxy(database_url) as proxy:

        async def cut() -> None:
            proxy.cut()

        proxy.rules.on(reaches_the_newest_revision, Fault(before=cut, forward=False))
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(migrate.migrate, proxy.url)
    assert revision.current_revision(database_url) == at
    assert sorted(rows_of(database_url, COLUMNS)) == sorted(before)
    await asyncio.to_thread(migrate.migrate, database_url)
    assert revision.current_revision(database_url) == NEXT


def reaches_the_newest_revision(commit: Commit) -> bool:
    return any(
        statement.startswith("UPDATE alembic_version") and revision.NEWEST in statement
        for statement in commit.statements
    )

"""The columns of the views are an interface: what was once there stays, in its place and of its type."""

from __future__ import annotations

from pathlib import Path

from tests.postgres.changes import rows_of

GOLDEN = Path(__file__).parents[1] / "golden" / "history-columns.txt"
"""One line a column: view, column, type. New ones are added behind the last of their view; no line is ever removed."""

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'history'::regnamespace AND c.relkind = 'v' AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""


def test_columns_of_the_views_equal_the_published_interface(database_url: str) -> None:
    found = [" ".join(row) for row in rows_of(database_url, COLUMNS)]
    assert found == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_view_that_was_promised_can_be_read_by_the_reader(database_url: str) -> None:
    views = {line.split()[0] for line in GOLDEN.read_text(encoding="utf-8").splitlines()}
    readable = rows_of(
        database_url,
        "SELECT relname FROM pg_class WHERE relnamespace = 'history'::regnamespace "
        "AND has_table_privilege('dispatcher_reader', oid, 'SELECT')",
    )
    assert {name for (name,) in readable} == views


def test_reader_role_delays_no_writer_for_long(database_url: str) -> None:
    settings = rows_of(
        database_url, "SELECT unnest(rolconfig) FROM pg_roles WHERE rolname = 'dispatcher_reader' ORDER BY 1"
    )
    assert [setting for (setting,) in settings] == [
        "default_transaction_read_only=on",
        "idle_in_transaction_session_timeout=60s",
        "idle_session_timeout=600s",
        "lock_timeout=1s",
        "max_parallel_workers_per_gather=0",
        "search_path=history",
        "statement_timeout=30s",
        "temp_file_limit=2GB",
    ]

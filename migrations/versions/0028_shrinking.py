"""Attempts keep the surplus pods that a gang gives up for another one, until these pods are gone.

`shrinking` is `{"pods": [{"namespace": …, "name": …, "uid": …}, …], "growth": {…}, "preempted_by": …}`; null while the
gang gives up no pods. It is a state and not a sum, so history has it in its events, and past attempts have none.
"""

from typing import Any

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE attempt ADD COLUMN shrinking jsonb"
NO_COLUMN = "ALTER TABLE attempt DROP COLUMN shrinking"

# The server's definition is patched, so its other parts stay unchanged. A view cannot lose columns, so the way back
# makes it anew.
GANGS_END = "\n   FROM (appwrapper a"
GANGS_MORE = ",\n    t.shrinking"
GANGS = """
DO $$
DECLARE
    known text := pg_get_viewdef('scheduling.gangs'::regclass);
    patched text := replace(known, {end}, {more} || {end});
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'scheduling.gangs is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW scheduling.gangs AS ' || patched;
END
$$
"""
OLDER_GANGS = """
DO $$
DECLARE
    known text := pg_get_viewdef('scheduling.gangs'::regclass);
    meaning text := obj_description('scheduling.gangs'::regclass);
BEGIN
    DROP VIEW scheduling.gangs;
    EXECUTE 'CREATE VIEW scheduling.gangs AS ' || replace(known, {more}, '');
    EXECUTE format('COMMENT ON VIEW scheduling.gangs IS %L', meaning);
END
$$
"""


def upgrade() -> None:
    _run(COLUMN, GANGS.format(end=_literal(GANGS_END), more=_literal(GANGS_MORE)))


def downgrade() -> None:
    _run(OLDER_GANGS.format(more=_literal(GANGS_MORE)), NO_COLUMN)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""Attempts know the capacity that they requested, and AppWrappers which clusters failed to provide it.

`provisioning` has the class that is asked, the uid of the ProvisioningRequest, what the class said last, and when the
capacity was there. It is null for an attempt that needs no request, as nearly all.
"""

from typing import Any

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE attempt ADD COLUMN provisioning jsonb;
ALTER TABLE past_attempt ADD COLUMN provisioning jsonb;
ALTER TABLE appwrapper ADD COLUMN unprovisioned jsonb NOT NULL DEFAULT '[]';
ALTER TABLE appwrapper ADD COLUMN provisioning_failures integer NOT NULL DEFAULT 0
"""
NO_COLUMNS = """
ALTER TABLE attempt DROP COLUMN provisioning;
ALTER TABLE past_attempt DROP COLUMN provisioning;
ALTER TABLE appwrapper DROP COLUMN unprovisioned;
ALTER TABLE appwrapper DROP COLUMN provisioning_failures
"""

# The server's definition is patched, so its other parts stay unchanged. A view cannot lose columns, so the way back
# makes it anew.
GANGS_END = "\n   FROM (appwrapper a"
GANGS_MORE = ",\n    a.unprovisioned,\n    t.provisioning"
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
    _run(COLUMNS, GANGS.format(end=_literal(GANGS_END), more=_literal(GANGS_MORE)))


def downgrade() -> None:
    _run(OLDER_GANGS.format(more=_literal(GANGS_MORE)), NO_COLUMNS)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

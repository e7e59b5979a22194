"""Attempts know the capacity that they requested, and AppWrappers which clusters failed to provide it.

`provisioning` has the class that is asked, the uid of the ProvisioningRequest, what the class said last, and when the
capacity was there. It is null for an attempt that needs no request, as nearly all.
"""

from collections.abc import Iterator
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

ADVICE = {
    "AwaitingProvisioning": "Wait: its capacity is requested in a cluster, and the message has what the class says.",
    "ProvisioningClassMissing": "Ask the operator: its queue names another provisioning class than the clusters.",
    "ProvisioningFailed": "Wait: the capacity is requested again; the message says why no cluster provided it.",
}
"""Advice for the new pending reasons."""

# Each is a view or a function, a text in its definition as the server has it, and the text instead.
ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (
    (
        "history.overtakes",
        "ARRAY['NoCluster'::text",
        "ARRAY['NoCluster'::text, 'ProvisioningFailed'::text, 'ProvisioningClassMissing'::text",
    ),
)
ADDITION = " ".join(f"WHEN '{reason}'::text THEN '{advice}'::text" for reason, advice in ADVICE.items())
PATCH_VIEW = """
DO $$
DECLARE
    known text := pg_get_viewdef({name}::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION '% is not as earlier revisions made it', {name}; END IF;
    EXECUTE format('CREATE OR REPLACE VIEW %s AS ', {name}) || patched;
END
$$
"""
PATCH_ADVICE = """
DO $$
DECLARE
    known text := pg_get_functiondef('waiting_advice(text)'::regprocedure);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'waiting_advice is not as earlier revisions made it'; END IF;
    EXECUTE patched;
END
$$
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
    _run(COLUMNS, GANGS.format(end=_literal(GANGS_END), more=_literal(GANGS_MORE)), *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), OLDER_GANGS.format(more=_literal(GANGS_MORE)), NO_COLUMNS)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        old, new = (after, before) if back else (before, after)
        yield PATCH_VIEW.format(name=_literal(name), old=_literal(old), new=_literal(new))
    # The server lays out an addition anew, so it is taken out by itself.
    old, new = (ADDITION, "") if back else (ADVISED, f"{ADDITION} {ADVISED}")
    yield PATCH_ADVICE.format(old=_literal(old), new=_literal(new))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""AppWrappers know which approvals they lack; one that lacks any has no position in its queue.

An AppWrapper without all approvals takes part in no cycle, so the positions of others leave it out, and a dispatch past
it says that it was not eligible.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE appwrapper ADD COLUMN pending_approvals jsonb NOT NULL DEFAULT '[]'"
NO_COLUMN = "ALTER TABLE appwrapper DROP COLUMN pending_approvals"

ADVICE = (
    "Ask those who approve: the message names the missing approvals, conditions that they set in its status."
)

# Each is a view or a function, a text in its definition as the server has it, and the text instead. The server lays out
# additions anew, so they are single lists or whole branches, which are taken out by themselves.
SWAPS = (
    (
        "history.queue_now",
        "ARRAY['LargerThanCluster'::text, 'LargerThanQuota'::text]",
        "ARRAY['LargerThanCluster'::text, 'LargerThanQuota'::text, 'AwaitingApproval'::text]",
    ),
)
ADDITIONS = (
    (
        "history.overtakes",
        "WHEN (told.reason = ANY (ARRAY['NoCluster'::text",
        "WHEN (told.reason = 'AwaitingApproval'::text) THEN 'not_eligible'::text",
    ),
    (
        "waiting_advice(text)",
        "WHEN 'NameTaken'::text THEN",
        f"WHEN 'AwaitingApproval'::text THEN '{ADVICE}'::text",
    ),
)
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
PATCH_FUNCTION = """
DO $$
DECLARE
    known text := pg_get_functiondef({name}::regprocedure);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION '% is not as earlier revisions made it', {name}; END IF;
    EXECUTE patched;
END
$$
"""
PATCH_COMMENT = """
DO $$
DECLARE
    view regclass := '{schema}.queue_now'::regclass;
    number smallint := (SELECT attnum FROM pg_attribute WHERE attrelid = view AND attname = 'position');
BEGIN
    EXECUTE format('COMMENT ON COLUMN {schema}.queue_now.position IS %L',
                   replace(col_description(view, number), {old}, {new}));
END
$$
"""
COMMENT = "its clusters or its quota."
NEW_COMMENT = "its clusters or its quota, or lacks approvals."


def upgrade() -> None:
    _run(COLUMN, *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), NO_COLUMN)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        yield _patch(name, after, before) if back else _patch(name, before, after)
    for name, place, added in ADDITIONS:
        yield _patch(name, added, "") if back else _patch(name, place, f"{added} {place}")
    old, new = (NEW_COMMENT, COMMENT) if back else (COMMENT, NEW_COMMENT)
    for schema in ("history", "tenant"):
        yield PATCH_COMMENT.format(schema=schema, old=_literal(old), new=_literal(new))


def _patch(name: str, old: str, new: str) -> str:
    form = PATCH_FUNCTION if "(" in name else PATCH_VIEW
    return form.format(name=_literal(name), old=_literal(old), new=_literal(new))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

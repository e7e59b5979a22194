"""`hub.members_seen` has the MemberClusters that a leader saw: the next one knows of a member that is being replaced.

A hub without members in this column has none until one is listed; with some, their absence must last before the hub
takes gangs in their place. The members of before are the declared ones.

The reason of that wait has advice. In `history.overtakes` it is one for which later gangs go first: it blocks no gang.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE hub ADD COLUMN members_seen text[] NOT NULL DEFAULT '{}'"
KNOWN = "UPDATE hub SET members_seen = ARRAY(SELECT name FROM member_cluster WHERE is_declared ORDER BY name)"
NO_COLUMN = "ALTER TABLE hub DROP COLUMN members_seen"

ADVICE = {
    "ClusterRemoved": "Wait, or ask the operator: a member was removed, and the hub does not take its place yet.",
}
"""Advice for the new pending reason."""

ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (("history.overtakes", "'InternalError'::text", "'ClusterRemoved'::text, 'InternalError'::text"),)
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


def upgrade() -> None:
    _run(COLUMN, KNOWN, *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), NO_COLUMN)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        old, new = (after, before) if back else (before, after)
        yield PATCH_VIEW.format(name=_literal(name), old=_literal(old), new=_literal(new))
    old, new = (ADDITION, "") if back else (ADVISED, f"{ADDITION} {ADVISED}")
    yield PATCH_ADVICE.format(old=_literal(old), new=_literal(new))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""Pools of clusters whose nodes did not come for a gang on trust: how often in a row, and until when none is trusted.

A pool without failures has no row.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE pool_failures (
    cluster text NOT NULL,
    pool text NOT NULL,
    count integer NOT NULL,
    distrusted_until timestamptz NOT NULL,
    CONSTRAINT pk_pool_failures PRIMARY KEY (cluster, pool)
)
"""
NO_TABLE = "DROP TABLE pool_failures"

ADVICE = {
    "NeedsPotentialNodes": "Wait, or ask the operator to add nodes: the message says of which pool, and until when it "
    "is not trusted.",
}
"""Advice for the new pending reason."""

ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (
    (
        "history.overtakes",
        "'ProvisioningFailed'::text",
        "'NeedsPotentialNodes'::text, 'ProvisioningFailed'::text",
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


def upgrade() -> None:
    _run(TABLE, *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), NO_TABLE)


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

"""Two pending reasons have advice: a gang whose search was not decided, and one whose decision raised an exception.

In `history.overtakes` both are reasons for which later gangs go first, as they block no other gang.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

ADVICE = {
    "InternalError": "Tell the operator: the log of the dispatcher has the error. The gang is decided again later.",
    "NotDecided": "Give pods of one size one pod set, or split the gang: its search for nodes ended at a bound.",
}
"""Advice for the new pending reasons."""

ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (
    (
        "history.overtakes",
        "'NeedsPotentialNodes'::text, 'ProvisioningFailed'::text",
        "'InternalError'::text, 'NeedsPotentialNodes'::text, 'NotDecided'::text, 'ProvisioningFailed'::text",
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
    _run(*_patches())


def downgrade() -> None:
    _run(*_patches(back=True))


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

"""An AppWrapper that its queue does not take has no position there, and the positions of others do not count it.

Any user can name any queue in a label, so the positions in a queue count only AppWrappers that it takes.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

# A text in the definition of the view as the server has it, and in the comments on its columns, and the text instead.
REASONS = "'AwaitingApproval'::text]"
MORE_REASONS = (
    "'AwaitingApproval'::text, 'NamespaceNotAllowed'::text, 'QueueNotFound'::text, 'QueueNotLeaf'::text]"
)
COMMENT = "its clusters or its quota, or lacks approvals."
MORE_COMMENT = "its clusters or its quota, lacks approvals, or is in no queue, as its queue does not take it."
PATCH_VIEW = """
DO $$
DECLARE
    known text := pg_get_viewdef('history.queue_now'::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'queue_now is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW history.queue_now AS ' || patched;
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


def upgrade() -> None:
    _run(*_patches((REASONS, MORE_REASONS), (COMMENT, MORE_COMMENT)))


def downgrade() -> None:
    _run(*_patches((MORE_REASONS, REASONS), (MORE_COMMENT, COMMENT)))


def _patches(reasons: tuple[str, str], comment: tuple[str, str]) -> Iterator[str]:
    old, new = map(_literal, reasons)
    yield PATCH_VIEW.format(old=old, new=new)
    old, new = map(_literal, comment)
    for schema in ("history", "tenant"):
        yield PATCH_COMMENT.format(schema=schema, old=old, new=new)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""Statements with which a migration changes a part of a view, of a column's comment, or of `waiting_advice`.

The server's own definition is patched, so its other parts stay as earlier revisions made them. A statement fails if the
definition lacks the part. These texts never change, because migrations that have run consist of them.
"""

from __future__ import annotations

from typing import Any, Final

from alembic import op

_PATCH_VIEW: Final = """
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
_PATCH_ADVICE: Final = """
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
_PATCH_COMMENT: Final = """
DO $$
DECLARE
    number smallint := (SELECT attnum FROM pg_attribute WHERE attrelid = {name}::regclass AND attname = {column});
BEGIN
    EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', {name}, {column},
                   replace(col_description({name}::regclass, number), {old}, {new}));
END
$$
"""


def patch_view(name: str, old: str, new: str) -> str:
    """The statement that replaces a text in a view; both as the server lays out definitions."""
    return _PATCH_VIEW.format(name=_literal(name), old=_literal(old), new=_literal(new))


def patch_comment(name: str, column: str, old: str, new: str) -> str:
    """The statement that replaces a text in the comment on a column of a view."""
    return _PATCH_COMMENT.format(
        name=_literal(name), column=_literal(column), old=_literal(old), new=_literal(new)
    )


def patch_advice(old: str, new: str) -> str:
    """The statement that replaces a text in `waiting_advice`."""
    return _PATCH_ADVICE.format(old=_literal(old), new=_literal(new))


def run(*statements: str) -> None:
    """Run statements, several of them in one text if need be, in the transaction of the migration."""
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""How a life goes on after its dispatch: requeuings, ailments, what is done, what is kept after the end.

Every column has a default, so adding it rewrites no table and locks it for a moment only.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = {
    "appwrapper": (
        "reason text NOT NULL DEFAULT ''",
        "unhealthy_reason text",
        "unhealthy_message text",
        "unhealthy_since timestamptz",
        "requeuings integer NOT NULL DEFAULT 0",
        "requeuing_seconds integer NOT NULL DEFAULT 0",
        "expected_seconds integer NOT NULL DEFAULT 0",
        "kept_until timestamptz",
    ),
    "attempt_object": ("done boolean NOT NULL DEFAULT false",),
}


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        added = ", ".join(f"ADD COLUMN {column}" for column in columns)
        op.execute(f"ALTER TABLE {table} {added}")
    # Before, nothing else could make one fail.
    op.execute("UPDATE appwrapper SET reason = 'ItemCreationFailure.' WHERE phase IN ('Failing', 'Failed')")


def downgrade() -> None:
    for table, columns in COLUMNS.items():
        dropped = ", ".join(f"DROP COLUMN {column.partition(' ')[0]}" for column in columns)
        op.execute(f"ALTER TABLE {table} {dropped}")

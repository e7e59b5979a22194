"""Where a database lives, so that one that was restored is told from one that was only restarted.

Every column has a default or may be null, so adding it rewrites no table.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = {
    # Server, timeline, database and table that this row was last seen in. Any other word says that it was restored.
    "fingerprint": "text NOT NULL DEFAULT ''",
    # When that was noticed, which also adds one to `incarnation`; null if it never was.
    "restored_at": "timestamptz",
    # When the clusters had been searched for what a restored database missed; null while that goes on.
    "settled_at": "timestamptz",
}


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN {column} {type_}" for column, type_ in COLUMNS.items())
    op.get_bind().exec_driver_sql(f"ALTER TABLE hub {added}")


def downgrade() -> None:
    dropped = ", ".join(f"DROP COLUMN {column}" for column in COLUMNS)
    op.get_bind().exec_driver_sql(f"ALTER TABLE hub {dropped}")

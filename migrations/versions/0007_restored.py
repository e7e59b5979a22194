"""The place where a database lives, which distinguishes a restore from a restart.

Every column has a default or may be null, so adding it rewrites no table.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = {
    # Server, timeline, database and table in which this row was last seen. Any other value means a restore.
    "fingerprint": "text NOT NULL DEFAULT ''",
    # When the restore was detected, which also adds one to `incarnation`; null without a restore.
    "restored_at": "timestamptz",
    # When the clusters had been searched for what a restored database lacks; null until then.
    "settled_at": "timestamptz",
}


def upgrade() -> None:
    added = ", ".join(f"ADD COLUMN {column} {type_}" for column, type_ in COLUMNS.items())
    op.get_bind().exec_driver_sql(f"ALTER TABLE hub {added}")


def downgrade() -> None:
    dropped = ", ".join(f"DROP COLUMN {column}" for column in COLUMNS)
    op.get_bind().exec_driver_sql(f"ALTER TABLE hub {dropped}")

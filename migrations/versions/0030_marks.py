"""A database has a key, by which created objects prove the attempt that they belong to.

The first leader makes the key (`store.seal_key`). `sealed_since` is when it did: AppWrappers that are older may have
objects without a seal.
"""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE hub ADD COLUMN seal_key bytea, ADD COLUMN sealed_since timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE hub DROP COLUMN seal_key, DROP COLUMN sealed_since")

"""Cluster requirements of AppWrappers, and the time since when each cluster is unreachable.

Every column has a default, so adding it rewrites no table. AppWrappers queued before have no requirements.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE appwrapper ADD COLUMN cluster_selector text NOT NULL DEFAULT '', "
        "ADD COLUMN cluster_preference text NOT NULL DEFAULT '', "
        "ADD COLUMN kinds jsonb NOT NULL DEFAULT '[]', "
        "ADD COLUMN ruled_out jsonb NOT NULL DEFAULT '[]', "
        "ADD COLUMN pending_clusters jsonb NOT NULL DEFAULT '[]'"
    )
    op.execute("ALTER TABLE member_cluster ADD COLUMN unreachable_since timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE member_cluster DROP COLUMN unreachable_since")
    op.execute(
        "ALTER TABLE appwrapper DROP COLUMN cluster_selector, DROP COLUMN cluster_preference, "
        "DROP COLUMN kinds, DROP COLUMN ruled_out, DROP COLUMN pending_clusters"
    )

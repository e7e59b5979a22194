"""The time of the last event in the row of an AppWrapper, so that no later event has an earlier time.

A new leader, whose clock may be behind the former leader's, reads it there. The column is null until the next event of
an AppWrapper, so adding it rewrites no table.
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE appwrapper ADD COLUMN last_event_at timestamptz")


def downgrade() -> None:
    op.execute("ALTER TABLE appwrapper DROP COLUMN last_event_at")

"""`hub.priority_classes_seen` has the last values of the priority classes that a leader saw.

The next leader knows by it the value of a class that is just being replaced. It is null until a leader has seen
complete lists for as long as an absence has to last: until then an earlier leader may have seen others.
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE hub ADD COLUMN priority_classes_seen jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE hub DROP COLUMN priority_classes_seen")

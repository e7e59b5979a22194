"""`hub.queues_seen` has the queues that a leader saw: the next one knows of a queue that is just being replaced.

A DispatchQueue is there by its name, one of MCAD's trees by its name and a slash. A hub without queues in this column
has none until one is listed; with some, their absence must last. The queues of before are those of `queue_spec`, in
which the queue `default` always is, declared or not.
"""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE hub ADD COLUMN queues_seen text[] NOT NULL DEFAULT '{}'"
KNOWN = """
UPDATE hub SET queues_seen = ARRAY(
    SELECT DISTINCT CASE WHEN queue LIKE '%/%' THEN split_part(queue, '/', 1) || '/' ELSE queue END AS key
    FROM queue_spec WHERE valid_to IS NULL AND queue <> 'default' ORDER BY key
)
"""
NO_COLUMN = "ALTER TABLE hub DROP COLUMN queues_seen"


def upgrade() -> None:
    op.execute(COLUMN)
    op.execute(KNOWN)


def downgrade() -> None:
    op.execute(NO_COLUMN)

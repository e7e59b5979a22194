"""AppWrappers that wait know the queue that their pending reason is about, its quota, and the gangs they preempt.

Until its next pending reason is committed, an AppWrapper has none of these.
"""

from typing import Any

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE appwrapper
    ADD COLUMN pending_queue text NOT NULL DEFAULT '',
    ADD COLUMN pending_quota jsonb,
    ADD COLUMN pending_preempting jsonb NOT NULL DEFAULT '[]'
"""

NO_COLUMNS = """
ALTER TABLE appwrapper
    DROP COLUMN pending_queue, DROP COLUMN pending_quota, DROP COLUMN pending_preempting
"""


def upgrade() -> None:
    _run(COLUMNS)


def downgrade() -> None:
    _run(NO_COLUMNS)


def _run(statement: str) -> None:
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(statement)

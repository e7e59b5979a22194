"""AppWrappers know the limit of their run, from which starts of others are estimated.

An AppWrapper from before has none here: its run is still ended at its limit, and no estimate counts on it.
"""

from typing import Any

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE appwrapper ADD COLUMN limit_seconds integer NOT NULL DEFAULT 0"
NO_COLUMN = "ALTER TABLE appwrapper DROP COLUMN limit_seconds"

GANGS = """
CREATE OR REPLACE VIEW scheduling.gangs AS
SELECT a.uid, a.api_group, a.namespace, a.name, a.user_name, a.queue, a.phase, a.phase_since, a.priority,
       a.priority_slope, a.created_at, a.enqueue_seq, a.demand, a.pods, a.pod_sets, a.cluster_selector,
       a.cluster_preference, a.kinds, a.ruled_out, a.eligible_at, a.blocked_since, a.expected_seconds, a.reason,
       a.message, a.pending_reason, a.pending_message, a.updated_at, t.number, t.cluster, t.decided_at, t.assignment,
       a.more_queues, a.is_preempting, a.preempted_at{more}
FROM public.appwrapper AS a LEFT JOIN public.attempt AS t ON t.uid = a.uid AND t.number = a.attempt
"""
MORE = ", a.limit_seconds"
GANGS_COMMENT = """
COMMENT ON VIEW scheduling.gangs IS 'AppWrappers with their demand and requirements, and their current attempt.'
"""


def upgrade() -> None:
    _run(COLUMN, GANGS.format(more=MORE))


def downgrade() -> None:
    _run("DROP VIEW scheduling.gangs")  # a view cannot lose columns
    _run(GANGS.format(more=""), GANGS_COMMENT, NO_COLUMN)


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""The leader's last snapshot of each cluster, and views of schema `scheduling` on it and on the gangs.

Commands such as `explain` read these views. They are for commands of the same release, and no interface as the views of
schema `history` are.
"""

from typing import Any

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# A document is compressed already, so Postgres need not try.
UP = """
CREATE TABLE cluster_snapshot (
    cluster text NOT NULL,
    taken_at timestamptz NOT NULL,
    body bytea NOT NULL,
    CONSTRAINT pk_cluster_snapshot PRIMARY KEY (cluster)
);
ALTER TABLE cluster_snapshot ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE SCHEMA scheduling;
COMMENT ON SCHEMA scheduling IS 'What the next scheduling cycle decides on; for commands of the same release.';
CREATE VIEW scheduling.clusters AS
SELECT cluster, taken_at, body,
       EXISTS (SELECT FROM public.leader_lease WHERE expires_at > clock_timestamp()) AS has_leader
FROM public.cluster_snapshot;
COMMENT ON VIEW scheduling.clusters IS 'The last snapshot of each cluster: its nodes, pods and rules, compressed.';
CREATE VIEW scheduling.gangs AS
SELECT a.uid, a.api_group, a.namespace, a.name, a.user_name, a.queue, a.phase, a.phase_since, a.priority,
       a.priority_slope, a.created_at, a.enqueue_seq, a.demand, a.pods, a.pod_sets, a.cluster_selector,
       a.cluster_preference, a.kinds, a.ruled_out, a.eligible_at, a.blocked_since, a.expected_seconds, a.reason,
       a.message, a.pending_reason, a.pending_message, a.updated_at, t.number, t.cluster, t.decided_at, t.assignment
FROM public.appwrapper AS a LEFT JOIN public.attempt AS t ON t.uid = a.uid AND t.number = a.attempt;
COMMENT ON VIEW scheduling.gangs IS 'AppWrappers with their demand and requirements, and their current attempt.'
"""

DOWN = """
DROP SCHEMA scheduling CASCADE;
DROP TABLE cluster_snapshot
"""


def upgrade() -> None:
    _run(UP)


def downgrade() -> None:
    _run(DOWN)


def _run(statements: str) -> None:
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(statements)

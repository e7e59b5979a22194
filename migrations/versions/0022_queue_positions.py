"""`history.queue_now` counts positions over all queue labels while no queue is declared, as statuses do.

Without declared queues, one queue without limits serves all AppWrappers, and a label that names a queue has no effect.
`queue_spec` has a row that is valid now for each declared queue.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# As of revision 0020, but for the queue within which positions are counted.
QUEUE_NOW = """
CREATE OR REPLACE VIEW history.queue_now AS
SELECT queue,
       CASE WHEN eligible THEN row_number() OVER (
           PARTITION BY {counted_in}, eligible ORDER BY effective_priority DESC, created_at, enqueue_seq
       ) END AS position,
       namespace, name, uid, priority, effective_priority, created_at,
       statement_timestamp() - created_at AS waited,
       demand, pods, pending_reason AS reason, pending_message AS message, eligible_at,
       coalesce(nullif(user_name, ''), namespace) AS user_name,
       submitted_at,
       extract(epoch FROM statement_timestamp() - submitted_at)::double precision AS waited_s,
       public.cores(demand) AS cpu,
       public.gibibytes(demand) AS memory_gib,
       public.gpus(demand) AS gpu,
       public.waiting_advice(pending_reason) AS advice,
       blocking_clusters,
       NULL::timestamptz AS est_start
FROM (
    SELECT queue, namespace, name, uid, priority, created_at, enqueue_seq, demand, pods, pending_reason,
           pending_message, eligible_at, user_name,
           coalesce(eligible_at <= statement_timestamp(), true)
               AND coalesce(pending_reason, '') NOT IN ('LargerThanCluster', 'LargerThanQuota') AS eligible,
           public.effective_priority(priority, priority_slope, created_at, statement_timestamp())
               AS effective_priority,
           least(created_at, taken_in_at) AS submitted_at,
           CASE WHEN pending_clusters <> '[]' THEN (
                    SELECT jsonb_object_agg(reason, clusters)
                    FROM (
                        SELECT each ->> 'reason' AS reason, count(*) AS clusters
                        FROM jsonb_array_elements(pending_clusters) AS each GROUP BY 1
                    ) AS counted)
                WHEN pending_cluster <> '' THEN jsonb_build_object(pending_reason, 1)
           END AS blocking_clusters
    FROM public.appwrapper
    WHERE phase = 'Queued'
    OFFSET 0
) AS queued
"""
DECLARED_QUEUE = "CASE WHEN EXISTS (SELECT FROM public.queue_spec WHERE valid_to IS NULL) THEN queue END"

MEANING = (
    "Place in the queue, from 1; null while it may not be dispatched yet (eligible_at), and while it is larger than "
    "its clusters or its quota. Without declared queues, all AppWrappers are in one queue, whatever their labels."
)
MEANING_BEFORE = (
    "Place in the queue, from 1; null while it may not be dispatched yet (eligible_at), and while it is larger "
    "than its clusters or its quota."
)


def upgrade() -> None:
    _run(QUEUE_NOW.format(counted_in=DECLARED_QUEUE), *_comments(MEANING))


def downgrade() -> None:
    _run(QUEUE_NOW.format(counted_in="queue"), *_comments(MEANING_BEFORE))


def _comments(meaning: str) -> Iterator[str]:
    for schema in ("history", "tenant"):
        yield f"COMMENT ON COLUMN {schema}.queue_now.position IS '{meaning}'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

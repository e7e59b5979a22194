"""The current state of each cluster: its last sample, its reachability, its last event."""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# A recursive query steps through the index of the samples to find the clusters and resources.
CLUSTERS_NOW = """
CREATE VIEW history.clusters_now AS
WITH RECURSIVE kinds AS (
    (SELECT cluster, resource FROM public.capacity_sample ORDER BY cluster, resource LIMIT 1)
    UNION ALL
    SELECT following.cluster, following.resource
    FROM kinds CROSS JOIN LATERAL (
        SELECT cluster, resource FROM public.capacity_sample AS s
        WHERE (s.cluster, s.resource) > (kinds.cluster, kinds.resource) ORDER BY cluster, resource LIMIT 1
    ) AS following
), sampled AS (
    SELECT cluster, at,
           public.cores(jsonb_object_agg(resource, capacity)) AS cpu,
           public.gibibytes(jsonb_object_agg(resource, capacity)) AS memory_gib,
           public.gpus(jsonb_object_agg(resource, capacity)) AS gpu,
           public.cores(jsonb_object_agg(resource, held)) AS cpu_held,
           public.gibibytes(jsonb_object_agg(resource, held)) AS memory_gib_held,
           public.gpus(jsonb_object_agg(resource, held)) AS gpu_held,
           public.cores(jsonb_object_agg(resource, other)) AS cpu_other,
           public.gibibytes(jsonb_object_agg(resource, other)) AS memory_gib_other,
           public.gpus(jsonb_object_agg(resource, other)) AS gpu_other,
           public.cores(jsonb_object_agg(resource, free)) AS cpu_free,
           public.gibibytes(jsonb_object_agg(resource, free)) AS memory_gib_free,
           public.gpus(jsonb_object_agg(resource, free)) AS gpu_free
    FROM (
        SELECT kinds.cluster, kinds.resource, newest.at, newest.capacity, newest.held, newest.other, newest.free,
               max(newest.at) OVER (PARTITION BY kinds.cluster) AS last_at
        FROM kinds CROSS JOIN LATERAL (
            SELECT at, capacity, held, other, free FROM public.capacity_sample AS s
            WHERE (s.cluster, s.resource) = (kinds.cluster, kinds.resource) ORDER BY at DESC LIMIT 1
        ) AS newest
    ) AS each
    -- A resource that is no more was sampled before the others were.
    WHERE at = last_at
    GROUP BY cluster, at
), running AS (
    SELECT cluster, count(*)::integer AS running FROM public.attempt WHERE ended_at IS NULL GROUP BY cluster
)
SELECT there.cluster, m.unreachable_since IS NULL AS is_reachable,
       coalesce(m.unreachable_since, answered.at) AS since,
       coalesce(m.is_cordoned, false) AS is_cordoned, coalesce(m.is_draining, false) AS is_draining,
       coalesce(m.closed_reason, '') AS closed_reason, coalesce(running.running, 0) AS running,
       sampled.at AS sampled_at,
       cpu, cpu_held, cpu_other, cpu_free, memory_gib, memory_gib_held, memory_gib_other, memory_gib_free,
       gpu, gpu_held, gpu_other, gpu_free,
       happened.event, happened.at AS event_at, happened.reason AS event_reason, happened.message AS event_message
FROM (
    SELECT name AS cluster FROM public.member_cluster WHERE is_declared
    UNION SELECT cluster FROM sampled WHERE at > statement_timestamp() - interval '1 hour'
    UNION SELECT cluster FROM running
) AS there
LEFT JOIN public.member_cluster AS m ON m.name = there.cluster
LEFT JOIN sampled ON sampled.cluster = there.cluster
LEFT JOIN running ON running.cluster = there.cluster
LEFT JOIN LATERAL (
    SELECT at FROM public.cluster_event AS e
    WHERE e.cluster = there.cluster AND event IN ('joined', 'reachable') ORDER BY at DESC, id DESC LIMIT 1
) AS answered ON true
LEFT JOIN LATERAL (
    SELECT event, at, reason, message FROM public.cluster_event AS e
    WHERE e.cluster = there.cluster ORDER BY at DESC, id DESC LIMIT 1
) AS happened ON true
"""

MEANING = "Each cluster as it is now; capacity as it was sampled last, at most five minutes ago while somebody leads."
COLUMNS = {
    "cluster": "Name of the cluster.",
    "is_reachable": "False while its API server does not answer: nobody knows how it is.",
    "since": "Since when it answers, or does not; null if that was not noted.",
    "is_cordoned": "Whether nothing new is dispatched there because an operator said so.",
    "is_draining": "Whether it is being emptied.",
    "closed_reason": "Why nothing new is dispatched there, a word for machines; empty if it is open.",
    "running": "How many AppWrappers hold capacity there, now.",
    "sampled_at": "When capacity was sampled; null if it never was.",
    "cpu": "Cores of its usable nodes.",
    "cpu_held": "Cores that AppWrappers hold.",
    "cpu_other": "Cores that the pods of others take.",
    "cpu_free": "Cores that a gang could still take; less than 0 if more is held than there is.",
    "memory_gib": "Memory of its usable nodes, in GiB.",
    "memory_gib_held": "GiB of memory that AppWrappers hold.",
    "memory_gib_other": "GiB of memory that the pods of others take.",
    "memory_gib_free": "GiB of memory that a gang could still take; may be less than 0.",
    "gpu": "Whole GPUs of its usable nodes; slices of devices are not counted.",
    "gpu_held": "GPUs that AppWrappers hold.",
    "gpu_other": "GPUs that the pods of others take.",
    "gpu_free": "GPUs that a gang could still take; may be less than 0.",
    "event": "What happened to it last; null if nothing was noted.",
    "event_at": "When that was.",
    "event_reason": "Why, a word for machines; may be empty.",
    "event_message": "Why, a sentence for people; may be empty.",
}


def upgrade() -> None:
    _run(CLUSTERS_NOW, *_comments())


def downgrade() -> None:
    _run("DROP VIEW history.clusters_now")


def _comments() -> Iterator[str]:
    yield f"COMMENT ON VIEW history.clusters_now IS {_quoted(MEANING)}"
    for column, sentence in COLUMNS.items():
        yield f"COMMENT ON COLUMN history.clusters_now.{column} IS {_quoted(sentence)}"


def _quoted(sentence: str) -> str:
    return "'" + sentence.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""AppWrappers know the limit of their run, and `history.queue_now` estimates no starts from earlier waits any more.

Starts are estimated from what AppWrappers state, by the leader and by commands; a view cannot do that. The column
`est_start` stays, because a migration takes nothing away, and is always null. An AppWrapper from before has no limit
here: its run is still ended at its limit, and no estimate counts on it.
"""

from collections.abc import Iterator
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


# Wide or costly columns are computed before the rows are sorted for their positions, because there may be 50,000 rows.
QUEUE_NOW = """
CREATE OR REPLACE VIEW history.queue_now AS
SELECT queue,
       CASE WHEN eligible THEN row_number() OVER (
           PARTITION BY queue, eligible ORDER BY effective_priority DESC, created_at, enqueue_seq
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

# As the server writes what 0006, 0015 and 0019 made of it: the revisions before look for parts of this text.
QUEUE_NOW_BEFORE = """
CREATE OR REPLACE VIEW history.queue_now AS
SELECT queue, CASE WHEN eligible THEN row_number() OVER (PARTITION BY queue, eligible ORDER BY effective_priority
DESC, created_at, enqueue_seq) ELSE NULL::bigint END AS "position", namespace, name, uid, priority,
effective_priority, created_at, (statement_timestamp() - created_at) AS waited, demand, pods, pending_reason AS
reason, pending_message AS message, eligible_at, COALESCE(NULLIF(user_name, ''::text), namespace) AS user_name,
submitted_at, (EXTRACT(epoch FROM (statement_timestamp() - submitted_at)))::double precision AS waited_s,
cores(demand) AS cpu, gibibytes(demand) AS memory_gib, gpu, waiting_advice(pending_reason) AS advice,
blocking_clusters, est_start FROM ( SELECT one.queue, one.eligible, one.namespace, one.name, one.uid, one.priority,
one.effective_priority, one.created_at, one.enqueue_seq, one.demand, one.pods, one.pending_reason,
one.pending_message, one.eligible_at, one.user_name, one.submitted_at, one.gpu, CASE WHEN (one.pending_clusters <>
'[]'::jsonb) THEN ( SELECT jsonb_object_agg(counted.reason, counted.clusters) AS jsonb_object_agg FROM ( SELECT
(each.value ->> 'reason'::text) AS reason, count(*) AS clusters FROM jsonb_array_elements(one.pending_clusters)
each(value) GROUP BY (each.value ->> 'reason'::text)) counted) WHEN (one.pending_cluster <> ''::text) THEN
jsonb_build_object(one.pending_reason, 1) ELSE NULL::jsonb END AS blocking_clusters, CASE WHEN
(((cardinality(recent.waits) - place.shorter) >= 5) AND (row_number() OVER (PARTITION BY one.queue,
(gpu_class(one.gpu)), (one.eligible AND (COALESCE(one.pending_reason, ''::text) = ANY (ARRAY[''::text,
'InsufficientResources'::text, 'ReservedForAnother'::text, 'AwaitingHeadOfLine'::text, 'CreationPostponed'::text,
'ClusterLost'::text, 'InsufficientQuota'::text, 'OverNominalQuota'::text, 'AwaitingRelease'::text]))) ORDER BY
one.effective_priority DESC, one.created_at, one.enqueue_seq) = 1)) THEN (one.waits_since + ('00:00:01'::interval *
((recent.waits[(place.shorter + (((cardinality(recent.waits) - place.shorter) + 1) / 2))] +
recent.waits[(place.shorter + (((cardinality(recent.waits) - place.shorter) + 2) / 2))]) / (2)::double precision)))
ELSE NULL::timestamp with time zone END AS est_start FROM ((( SELECT appwrapper.uid, appwrapper.api_group,
appwrapper.namespace, appwrapper.name, appwrapper.queue, appwrapper.phase, appwrapper.phase_since,
appwrapper.version, appwrapper.priority, appwrapper.priority_slope, appwrapper.created_at, appwrapper.enqueue_seq,
appwrapper.spec_hash, appwrapper.demand, appwrapper.pods, appwrapper.pod_sets, appwrapper.conditions,
appwrapper.message, appwrapper.pending_reason, appwrapper.pending_message, appwrapper.pending_resource,
appwrapper.pending_cluster, appwrapper.eligible_at, appwrapper.blocked_since, appwrapper.attempts,
appwrapper.attempt, appwrapper.cluster, appwrapper.updated_at, appwrapper.reason, appwrapper.unhealthy_reason,
appwrapper.unhealthy_message, appwrapper.unhealthy_since, appwrapper.requeuings, appwrapper.retries,
appwrapper.requeuing_seconds, appwrapper.expected_seconds, appwrapper.kept_until, appwrapper.cluster_selector,
appwrapper.cluster_preference, appwrapper.kinds, appwrapper.ruled_out, appwrapper.pending_clusters,
appwrapper.user_name, appwrapper.user_groups, appwrapper.taken_in_at, appwrapper.first_queued_at,
appwrapper.ended_at, appwrapper.outcome, (COALESCE((appwrapper.eligible_at <= statement_timestamp()), true) AND
(COALESCE(appwrapper.pending_reason, ''::text) <> ALL (ARRAY['LargerThanCluster'::text, 'LargerThanQuota'::text])))
AS eligible, effective_priority(appwrapper.priority, appwrapper.priority_slope, appwrapper.created_at,
statement_timestamp()) AS effective_priority, LEAST(appwrapper.created_at, appwrapper.taken_in_at) AS submitted_at,
CASE WHEN (appwrapper.first_queued_at > appwrapper.taken_in_at) THEN appwrapper.first_queued_at ELSE
LEAST(appwrapper.created_at, appwrapper.taken_in_at) END AS waits_since, gpus(appwrapper.demand) AS gpu FROM
appwrapper WHERE (appwrapper.phase = 'Queued'::text) OFFSET 0) one LEFT JOIN recent_waits recent ON (((recent.queue
= one.queue) AND (recent.gpu_class = gpu_class(one.gpu)) AND one.eligible AND (COALESCE(one.pending_reason,
''::text) = ANY (ARRAY[''::text, 'InsufficientResources'::text, 'ReservedForAnother'::text,
'AwaitingHeadOfLine'::text, 'CreationPostponed'::text, 'ClusterLost'::text, 'InsufficientQuota'::text,
'OverNominalQuota'::text, 'AwaitingRelease'::text])) AND (NOT ((one.attempts > 0) AND (EXISTS ( SELECT FROM attempt
t WHERE ((t.uid = one.uid) AND (t.started_at IS NOT NULL))))))))) CROSS JOIN LATERAL ( SELECT
width_bucket((EXTRACT(epoch FROM (statement_timestamp() - one.waits_since)))::double precision, recent.waits) AS
shorter) place) OFFSET 0) queued
"""

MEANING = (
    "Always null: kubectl aw queue and the statuses estimate starts from the order, the demand and the durations that "
    "AppWrappers state."
)
MEANING_BEFORE = (
    "When it may start, by what others waited: of those of its queue and class of GPUs that started in the last 7 "
    "days, the median of those that waited longer than it has by now. Null, unknown, if they are fewer than 5, if "
    "it may not go yet, if waiting alone does not help, if it has run before, or if another of its queue and class "
    "that waiting helps is ahead of it."
)


def upgrade() -> None:
    _run(COLUMN, GANGS.format(more=MORE), QUEUE_NOW, *_comments(MEANING))


def downgrade() -> None:
    _run(QUEUE_NOW_BEFORE, *_comments(MEANING_BEFORE))
    _run("DROP VIEW scheduling.gangs")  # a view cannot lose columns
    _run(GANGS.format(more=""), GANGS_COMMENT, NO_COLUMN)


def _comments(meaning: str) -> Iterator[str]:
    for schema in ("history", "tenant"):
        yield f"COMMENT ON COLUMN {schema}.queue_now.est_start IS '{meaning}'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

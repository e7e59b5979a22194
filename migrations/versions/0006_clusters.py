"""Views of the pending queue, of the running AppWrappers and of the clusters.

`history.queue_now` gains columns at its end. The estimated start is a median of what similar AppWrappers waited: the
sample is sorted once for each queue and class, and each AppWrapper looks up its place in it.
"""

from collections.abc import Mapping
from typing import Any

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# The advice for the author of a queued AppWrapper; a test keeps these reasons equal to the code's.
ADVICE = """
CREATE FUNCTION waiting_advice(reason text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE coalesce(reason, '')
    WHEN '' THEN 'Wait: it has not been looked at yet.'
    WHEN 'InsufficientResources' THEN
        'Wait: it goes when enough is free; asking for less or a higher priority brings that nearer.'
    WHEN 'ReservedForAnother' THEN 'Wait: it goes after the one for which capacity is kept.'
    WHEN 'LargerThanCluster' THEN
        'Ask for less, or ask the operator for larger clusters: it would not fit if all were free.'
    WHEN 'AwaitingHeadOfLine' THEN 'Wait: those before it go first; a higher priority puts it ahead of them.'
    WHEN 'NoCluster' THEN 'Wait a moment; if it lasts, ask the operator: no cluster has reported its capacity.'
    WHEN 'ClusterNotSelected' THEN
        'Change the cluster selector: no cluster that could take it has the labels it asks for.'
    WHEN 'ClusterNotConnected' THEN 'Ask the operator to mend the kubeconfig of the cluster.'
    WHEN 'ClusterNotReported' THEN
        'Wait a moment; if it lasts, ask the operator: the cluster has not reported its nodes and pods.'
    WHEN 'ClusterUnreachable' THEN 'Wait, or ask the operator to look after the cluster: it does not answer.'
    WHEN 'ClusterCredentialsRefused' THEN 'Ask the operator to renew the credentials for the cluster.'
    WHEN 'ClusterIsAnother' THEN 'Ask the operator to correct the kubeconfig: it leads to another cluster.'
    WHEN 'ClusterCordoned' THEN 'Wait, or ask the operator when the cluster opens; another selector may help.'
    WHEN 'ClusterDraining' THEN
        'Ask the operator when the cluster is back: it is being emptied; another selector may help.'
    WHEN 'KindNotInstalled' THEN 'Ask the operator to install in the cluster the kinds that it wraps.'
    WHEN 'NamespaceMissing' THEN 'Ask the operator to make its namespace in the cluster.'
    WHEN 'NameTaken' THEN
        'Rename its wrapped object and submit it again, or have the other one of that name removed.'
    WHEN 'CreationPostponed' THEN
        'Wait: it is tried again by itself; if a quota is used up, free some of it or ask for less.'
    WHEN 'PreemptionTriggered' THEN
        'Look at the message: it did not run as it should; it is tried again by itself.'
    WHEN 'ClusterLost' THEN 'Wait: the cluster it was on is lost; it goes to another one that fits.'
END;
COMMENT ON FUNCTION waiting_advice(text) IS 'What to do about a reason to wait, one sentence; null if unknown.'
"""

# Waiting times until the first start, sorted: binary search finds the place of a wait among them.
RECENT_WAITS = """
CREATE VIEW recent_waits AS
SELECT queue, gpu_class, array_agg(wait_s ORDER BY wait_s) AS waits
FROM (
    SELECT a.queue, public.gpu_class(public.gpus(a.demand)) AS gpu_class,
           extract(epoch FROM first.started_at
               - CASE WHEN a.first_queued_at > a.taken_in_at THEN a.first_queued_at
                      ELSE least(a.created_at, a.taken_in_at) END)::double precision AS wait_s
    FROM (
        SELECT uid, min(started_at) AS started_at FROM public.attempt WHERE started_at IS NOT NULL GROUP BY uid
    ) AS first JOIN public.appwrapper AS a USING (uid)
    WHERE first.started_at >= statement_timestamp() - interval '7 days' AND a.first_queued_at <= first.started_at
    UNION ALL
    SELECT queue, public.gpu_class(gpu), wait_s FROM public.past_appwrapper
    WHERE first_started_at >= statement_timestamp() - interval '7 days' AND eligible_at <= first_started_at
      AND ended_at >= statement_timestamp() - interval '7 days'  -- so that older partitions are left alone
) AS started
GROUP BY queue, gpu_class
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
       gpu,
       public.waiting_advice(pending_reason) AS advice,
       blocking_clusters,
       est_start
FROM (
    SELECT one.queue, eligible, namespace, name, uid, priority, effective_priority, created_at, enqueue_seq,
           demand, pods, pending_reason, pending_message, eligible_at, user_name, submitted_at, gpu,
           CASE WHEN pending_clusters <> '[]' THEN (
                    SELECT jsonb_object_agg(reason, clusters)
                    FROM (
                        SELECT each ->> 'reason' AS reason, count(*) AS clusters
                        FROM jsonb_array_elements(pending_clusters) AS each GROUP BY 1
                    ) AS counted)
                WHEN pending_cluster <> '' THEN jsonb_build_object(pending_reason, 1)
           END AS blocking_clusters,
           CASE WHEN cardinality(waits) - shorter >= 5 THEN
               waits_since + interval '1 second'
                   * ((waits[shorter + (cardinality(waits) - shorter + 1) / 2]
                       + waits[shorter + (cardinality(waits) - shorter + 2) / 2]) / 2)
           END AS est_start
    FROM (
        SELECT *,
               coalesce(eligible_at <= statement_timestamp(), true) AS eligible,
               public.effective_priority(priority, priority_slope, created_at, statement_timestamp())
                   AS effective_priority,
               least(created_at, taken_in_at) AS submitted_at,
               CASE WHEN first_queued_at > taken_in_at THEN first_queued_at
                    ELSE least(created_at, taken_in_at) END AS waits_since,
               public.gpus(demand) AS gpu
        FROM public.appwrapper
        WHERE phase = 'Queued'
        OFFSET 0
    ) AS one
    LEFT JOIN public.recent_waits AS recent
        ON recent.queue = one.queue AND recent.gpu_class = public.gpu_class(gpu)
        AND eligible
        AND coalesce(pending_reason, '') IN ('', 'InsufficientResources', 'ReservedForAnother',
                                             'AwaitingHeadOfLine', 'CreationPostponed', 'ClusterLost')
        AND NOT (attempts > 0 AND EXISTS (
            SELECT FROM public.attempt AS t WHERE t.uid = one.uid AND t.started_at IS NOT NULL))
    CROSS JOIN LATERAL (
        SELECT width_bucket(
            extract(epoch FROM statement_timestamp() - waits_since)::double precision, waits) AS shorter
    ) AS place
    OFFSET 0
) AS queued
"""

RUNNING_NOW = """
CREATE VIEW history.running_now AS
SELECT a.namespace, a.name, a.uid, a.queue,
       coalesce(nullif(a.user_name, ''), a.namespace) AS user_name,
       t.cluster, t.number AS attempt, a.phase,
       t.decided_at AS dispatched_at, t.started_at,
       extract(epoch FROM statement_timestamp() - t.started_at)::double precision AS elapsed_s,
       extract(epoch FROM statement_timestamp() - t.decided_at)::double precision AS held_s,
       public.cores(t.demand) AS cpu, public.gibibytes(t.demand) AS memory_gib, public.gpus(t.demand) AS gpu,
       a.pods, a.unhealthy_reason, a.unhealthy_message,
       m.unreachable_since IS NULL AS is_cluster_reachable,
       CASE WHEN a.expected_seconds > 0 THEN t.started_at + a.expected_seconds * interval '1 second' END
           AS expected_end
FROM public.attempt AS t
JOIN public.appwrapper AS a ON a.uid = t.uid
LEFT JOIN public.member_cluster AS m ON m.name = t.cluster
WHERE t.ended_at IS NULL
"""

# Hour by hour, so that a query about a week reads a week. A recursive query steps through the index of the samples to
# find the clusters and resources.
UTILISATION_HOURLY = """
CREATE FUNCTION seconds_within(known tstzmultirange, since timestamptz, until timestamptz) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (
    SELECT coalesce(sum(extract(epoch FROM upper(part) - lower(part))), 0)::double precision
    FROM unnest(known * tstzmultirange(tstzrange(since, greatest(since, until)))) AS part
);
CREATE VIEW history.utilisation_hourly AS
WITH RECURSIVE kinds AS (
    (SELECT cluster, resource FROM public.capacity_sample ORDER BY cluster, resource LIMIT 1)
    UNION ALL
    SELECT following.cluster, following.resource
    FROM kinds CROSS JOIN LATERAL (
        SELECT cluster, resource FROM public.capacity_sample AS s
        WHERE (s.cluster, s.resource) > (kinds.cluster, kinds.resource) ORDER BY cluster, resource LIMIT 1
    ) AS following
)
SELECT hour, cluster, resource,
       capacity / unit AS capacity_h, allocated / unit AS allocated_h, reserved / unit AS reserved_h,
       other / unit AS other_h, greatest(capacity - allocated - reserved - other, 0) / unit AS idle_h,
       down / unit AS down_h, 100 * allocated / nullif(capacity, 0) AS percent, known_s
FROM (
    SELECT date_trunc('hour', min(oldest.at), 'UTC') AS began
    FROM kinds CROSS JOIN LATERAL (
        SELECT at FROM public.capacity_sample AS s
        WHERE (s.cluster, s.resource) = (kinds.cluster, kinds.resource) ORDER BY at LIMIT 1
    ) AS oldest
) AS first
CROSS JOIN LATERAL generate_series(first.began, statement_timestamp(), interval '1 hour') AS every(hour)
CROSS JOIN LATERAL (
    SELECT s.cluster, s.resource, capacity, other, down, known_s,
           3600::double precision * CASE s.resource WHEN 'cpu' THEN 1000 WHEN 'memory' THEN 1073741824 ELSE 1 END
               AS unit,
           coalesce(sum(amount * CASE WHEN NOT is_whole THEN public.seconds_within(known, runs_since, ended_at)
               ELSE greatest(extract(epoch FROM least(ended_at, next_hour) - greatest(runs_since, hour)), 0) END), 0)
               AS allocated,
           coalesce(sum(amount * CASE WHEN NOT is_whole THEN public.seconds_within(known, decided_at, runs_since)
               ELSE greatest(extract(epoch FROM least(runs_since, next_hour) - greatest(decided_at, hour)), 0) END), 0)
               AS reserved
    FROM (SELECT hour + interval '1 hour' AS next_hour) AS following
    CROSS JOIN LATERAL (
        SELECT kinds.cluster, kinds.resource, whole.*, known @> tstzrange(hour, next_hour) AS is_whole
        FROM kinds CROSS JOIN LATERAL (
            SELECT sum(capacity * seconds)::double precision AS capacity,
                   sum(other * seconds)::double precision AS other,
                   coalesce(sum(capacity * seconds) FILTER (WHERE NOT is_reachable), 0)::double precision AS down,
                   sum(seconds)::double precision AS known_s, range_agg(tstzrange(since, until)) AS known
            FROM (
                SELECT *, extract(epoch FROM until - since) AS seconds
                FROM (
                    SELECT capacity, other, is_reachable, greatest(at, hour) AS since,
                           least(lead(at) OVER (ORDER BY at), at + interval '10 minutes', next_hour,
                                 statement_timestamp()) AS until
                    FROM public.capacity_sample AS c
                    WHERE c.cluster = kinds.cluster AND c.resource = kinds.resource
                      AND at > hour - interval '10 minutes' AND at < next_hour
                ) AS sample
                WHERE until > since
            ) AS sample
        ) AS whole
        WHERE known_s > 0
    ) AS s
    LEFT JOIN LATERAL (
        SELECT cluster, decided_at, least(started_at, until) AS runs_since, until AS ended_at, demand
        FROM public.attempt CROSS JOIN LATERAL (SELECT coalesce(ended_at, statement_timestamp()) AS until) AS held
        WHERE decided_at < next_hour AND coalesce(ended_at, 'infinity') > hour
          AND next_hour > (SELECT min(decided_at) FROM public.attempt)  -- so that older hours do not look here
        UNION ALL
        SELECT cluster, decided_at, least(started_at, ended_at), ended_at, demand FROM public.past_attempt
        WHERE tstzrange(decided_at, ended_at) && tstzrange(hour, next_hour)
    ) AS held ON held.cluster = s.cluster
    CROSS JOIN LATERAL (SELECT (held.demand ->> s.resource)::double precision AS amount) AS asked
    GROUP BY s.cluster, s.resource, capacity, other, down, known_s
) AS used
"""

QUEUE_DEPTH = """
CREATE VIEW history.queue_depth_5m AS
SELECT at, queue, queued, queued_cpu, queued_memory AS queued_memory_gib, queued_gpu,
       running, running_cpu, running_memory AS running_memory_gib, running_gpu
FROM public.queue_sample
"""

CLUSTER_EVENTS = """
CREATE VIEW history.cluster_events AS
SELECT at, cluster, event, reason, message, actor,
       extract(epoch FROM lead(at) OVER (PARTITION BY cluster ORDER BY at, id) - at)::double precision AS seconds
FROM public.cluster_event
"""

COMMENTS = {
    "recent_waits": (
        "What AppWrappers waited until their first start, of those first started in the last 7 days.",
        {
            "queue": "Name of the queue.",
            "gpu_class": "Class by number of GPUs, as gpu_class() has it.",
            "waits": "Seconds from being queued to the first start, ascending.",
        },
    ),
    "history.queue_now": (
        "Who waits now, in the order in which they are looked at, and what may be done about it.",
        {
            "user_name": "Who submitted it; its namespace where nobody vouches for a user.",
            "submitted_at": "When it was created or taken in, whichever was first.",
            "waited_s": "Seconds since it was submitted.",
            "cpu": "What the whole gang asks for, in cpu cores.",
            "memory_gib": "What the whole gang asks for, in GiB of memory.",
            "gpu": "What the whole gang asks for, in GPU devices; slices are not counted.",
            "advice": "What to do about it, a sentence for its user.",
            "blocking_clusters": (
                "Number of clusters by the reason why each does not take it, as of when its reason was found; without "
                "member clusters its one reason, if that is about a cluster; null if no cluster is in its way."
            ),
            "est_start": (
                "When it may start, by what others waited: of those of its queue and class of GPUs that started in "
                "the last 7 days, the median of those that waited longer than it has by now. Null, unknown, if they "
                "are fewer than 5, if it may not go yet, if waiting alone does not help, or if it has run before."
            ),
        },
    ),
    "history.running_now": (
        "Who holds capacity now, from the dispatch until all that lived of it is confirmed gone.",
        {
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "uid": "The AppWrapper's metadata.uid.",
            "queue": "Name of the queue.",
            "user_name": "Who submitted it; its namespace where nobody vouches for a user.",
            "cluster": "The cluster where it is.",
            "attempt": "Number of the attempt, from 1.",
            "phase": "Where it is in its life, Dispatching to Deleting.",
            "dispatched_at": "When the attempt was decided; from then on it holds capacity.",
            "started_at": "When all the pods it needs ran; null if they have not yet.",
            "elapsed_s": "Seconds since started_at; null before.",
            "held_s": "Seconds since dispatched_at.",
            "cpu": "What it holds, in cpu cores.",
            "memory_gib": "What it holds, in GiB of memory.",
            "gpu": "What it holds, in GPU devices; slices are not counted.",
            "pods": "How many pods the gang needs to be running.",
            "unhealthy_reason": "What is wrong with it, a word for machines; null if nothing.",
            "unhealthy_message": "What is wrong with it, a sentence; null if nothing.",
            "is_cluster_reachable": (
                "False while the API server of its cluster does not answer: nobody knows how it is."
            ),
            "expected_end": (
                "started_at and as long as its user expects it to run; null, unknown, if nobody said or it has not "
                "started."
            ),
        },
    ),
    "history.utilisation_hourly": (
        "What became of each cluster's capacity, hour by hour, while it was known: a sample stands until the next one "
        "of its cluster and resource, for 10 minutes at most, and what no sample stands for counts nowhere. Cpu is in "
        "core-hours, memory in GiB-hours, all else in devices or units times hours.",
        {
            "hour": "The hour that begins then, by UTC.",
            "cluster": "Name of the cluster.",
            "resource": "Name of the resource, as Kubernetes has it.",
            "capacity_h": "What its usable nodes had, times hours; while it was unreachable, what they had before.",
            "allocated_h": (
                "What AppWrappers held there from their start to their end, times hours, to the second. Of those "
                "deleted for long only cpu, memory and GPUs are known, and all GPUs count as one kind."
            ),
            "reserved_h": "What AppWrappers held there from their dispatch to their start, times hours; else as above.",
            "other_h": "What pods of others took, times hours.",
            "idle_h": "The rest of capacity_h that nobody held, never below 0.",
            "down_h": "How much of capacity_h was of times when the cluster could not be reached.",
            "percent": "allocated_h in percent of capacity_h; null if there was no capacity.",
            "known_s": "How many seconds of the hour samples stand for: 3600 if nothing is missing.",
        },
    ),
    "history.queue_depth_5m": (
        "How long each queue was, and how much ran of it, every 5 minutes.",
        {
            "at": "When it was looked at.",
            "queue": "Name of the queue.",
            "queued": "How many waited.",
            "queued_cpu": "What those asked for together, in cpu cores.",
            "queued_memory_gib": "What those asked for together, in GiB of memory.",
            "queued_gpu": "What those asked for together, in GPU devices.",
            "running": "How many held capacity, dispatched or running.",
            "running_cpu": "What those held together, in cpu cores.",
            "running_memory_gib": "What those held together, in GiB of memory.",
            "running_gpu": "What those held together, in GPU devices.",
        },
    ),
    "history.cluster_events": (
        "What happened to clusters: joined, closed, opened, cordoned, became unreachable, and so on.",
        {
            "at": "When it happened, by the database's clock as the dispatcher follows it.",
            "cluster": "Name of the cluster.",
            "event": "What happened, a word for machines.",
            "reason": "Why, a word for machines; may be empty.",
            "message": "Why, a sentence for people; may be empty.",
            "actor": "Who made it happen; empty if that is the dispatcher, or nobody knows.",
            "seconds": "Seconds until the next event of that cluster; null for its newest.",
        },
    ),
}

DOWN = """
DROP VIEW history.cluster_events, history.queue_depth_5m, history.utilisation_hourly, history.running_now,
    history.queue_now, recent_waits;
DROP FUNCTION seconds_within(tstzmultirange, timestamptz, timestamptz), waiting_advice(text)
"""

# The view of revision 0001, with its columns listed: a view with `*` would depend on columns added later.
QUEUE_NOW_OF_0001 = """
CREATE VIEW history.queue_now AS
SELECT queue,
       CASE WHEN eligible THEN row_number() OVER (
           PARTITION BY queue, eligible ORDER BY effective_priority DESC, created_at, enqueue_seq
       ) END AS position,
       namespace, name, uid, priority, effective_priority, created_at,
       statement_timestamp() - created_at AS waited,
       demand, pods, pending_reason AS reason, pending_message AS message, eligible_at
FROM (
    SELECT queue, namespace, name, uid, priority, created_at, enqueue_seq, demand, pods, pending_reason,
           pending_message, eligible_at,
           coalesce(eligible_at <= statement_timestamp(), true) AS eligible,
           public.effective_priority(priority, priority_slope, created_at, statement_timestamp())
               AS effective_priority
    FROM public.appwrapper
    WHERE phase = 'Queued'
) AS queued
"""


def upgrade() -> None:
    views = (RECENT_WAITS, QUEUE_NOW, RUNNING_NOW, UTILISATION_HOURLY, QUEUE_DEPTH, CLUSTER_EVENTS)
    _run(ADVICE, *views, *_comments(COMMENTS))


def downgrade() -> None:
    _run(DOWN, QUEUE_NOW_OF_0001)
    first: Any = op.get_context().script.get_revision("0001").module  # type: ignore[union-attr]  # always there
    _run(*_comments({"history.queue_now": first.COMMENTS["queue_now"]}))


def _comments(of: Mapping[str, tuple[str, Mapping[str, str]]]) -> list[str]:
    statements = []
    for view, (meaning, columns) in of.items():
        statements.append(f"COMMENT ON VIEW {view} IS {_quoted(meaning)}")
        for column, sentence in columns.items():
            statements.append(f"COMMENT ON COLUMN {view}.{column} IS {_quoted(sentence)}")
    return statements


def _quoted(sentence: str) -> str:
    return "'" + sentence.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""History of AppWrappers and their attempts: one view for each question that users ask of a batch system.

`job_live` and `attempt_live` have the AppWrappers that exist. The leader moves the rows of AppWrappers deleted long ago
into `past_appwrapper` and `past_attempt`, which have the same columns in the same order. The views `job_history` and
`attempt_history` have both; all counts and sums are made from them. States, pending reasons and overtakes are folded
from events, which outlast the AppWrapper.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# An attempt holds its demand from the decision until its pods are confirmed gone at its end.
LIVE = """
CREATE VIEW attempt_live AS
SELECT t.uid, a.namespace, a.name, a.queue, coalesce(nullif(a.user_name, ''), a.namespace) AS user_name,
       t.number AS attempt, t.cluster, t.decided_at, t.created_at, t.started_at, t.ended_at, t.outcome,
       NULL::text AS preempted_by, t.reason AS error_class, h.held_s, h.run_s, d.cpu, d.memory_gib, d.gpu,
       d.cpu::double precision * h.held_s / 3600 AS cpu_h,
       d.memory_gib::double precision * h.held_s / 3600 AS memory_gib_h,
       d.gpu::double precision * h.held_s / 3600 AS gpu_h,
       t.demand
FROM attempt AS t JOIN appwrapper AS a USING (uid)
CROSS JOIN LATERAL (
    SELECT greatest(extract(epoch FROM coalesce(t.ended_at, statement_timestamp()) - t.decided_at), 0)
               ::double precision AS held_s,
           coalesce(greatest(extract(epoch FROM coalesce(t.ended_at, statement_timestamp()) - t.started_at), 0), 0)
               ::double precision AS run_s
    OFFSET 0
) AS h
CROSS JOIN LATERAL (
    -- OFFSET 0: reckoned once for each attempt, however often it is made use of.
    SELECT cores(t.demand) AS cpu, gibibytes(t.demand) AS memory_gib, gpus(t.demand) AS gpu OFFSET 0
) AS d;

CREATE VIEW job_live AS
SELECT a.uid, a.api_group, a.namespace, a.name,
       coalesce((SELECT string_agg(DISTINCT kind ->> 1, ',' ORDER BY kind ->> 1)
                 FROM jsonb_array_elements(a.kinds) AS kind), '') AS kinds,
       a.queue, coalesce(nullif(a.user_name, ''), a.namespace) AS user_name, a.user_groups, a.priority,
       s.submitted_at, s.eligible_at, t.first_dispatched_at, t.first_started_at, a.ended_at,
       CASE WHEN a.phase = 'Deleted' THEN a.phase_since END AS deleted_at,
       a.phase AS state, a.outcome, coalesce(a.pending_reason, a.reason) AS reason,
       coalesce(a.pending_message, a.message) AS message, a.cluster AS last_cluster,
       a.attempts, t.preemptions, t.requeues, a.pods,
       cores(a.demand) AS cpu, gibibytes(a.demand) AS memory_gib, gpus(a.demand) AS gpu,
       CASE WHEN s.eligible_at <= coalesce(t.first_started_at, 'infinity') THEN greatest(extract(epoch FROM
           coalesce(t.first_started_at, t.done_since, s.waits_until) - s.eligible_at), 0) END
           ::double precision AS wait_s,
       CASE WHEN s.eligible_at <= coalesce(t.first_dispatched_at, 'infinity') THEN greatest(extract(epoch FROM
           coalesce(t.first_dispatched_at, s.waits_until) - s.submitted_at), 0) END
           ::double precision AS queue_s,
       extract(epoch FROM t.first_started_at - t.first_dispatched_at)::double precision AS startup_s,
       t.run_s, t.lost_s, t.cpu_h, t.memory_gib_h, t.gpu_h
FROM appwrapper AS a
CROSS JOIN LATERAL (
    SELECT least(a.created_at, a.taken_in_at) AS submitted_at,
           -- Queued at once: it would have been earlier, had a dispatcher been there.
           CASE WHEN a.first_queued_at = a.taken_in_at THEN least(a.created_at, a.taken_in_at)
                ELSE a.first_queued_at END AS eligible_at,
           coalesce(a.ended_at, CASE WHEN a.phase = 'Suspended' THEN a.phase_since END, statement_timestamp())
               AS waits_until
) AS s
CROSS JOIN LATERAL (
    SELECT min(each.decided_at) AS first_dispatched_at, min(each.started_at) AS first_started_at,
           min(each.created_at) FILTER (WHERE each.outcome = 'completed') AS done_since,
           count(*) FILTER (WHERE each.outcome = 'preempted')::integer AS preemptions,
           count(*) FILTER (WHERE each.outcome IN ('preempted', 'postponed', 'withdrawn', 'lost', 'missed')
                            AND each.ended_at IS DISTINCT FROM a.ended_at)::integer AS requeues,
           coalesce(sum(each.run_s), 0) AS run_s,
           coalesce(sum(each.held_s) FILTER (
               WHERE each.outcome IN ('preempted', 'postponed', 'withdrawn', 'lost', 'missed')), 0) AS lost_s,
           coalesce(sum(each.cpu_h), 0) AS cpu_h, coalesce(sum(each.memory_gib_h), 0) AS memory_gib_h,
           coalesce(sum(each.gpu_h), 0) AS gpu_h
    FROM attempt_live AS each WHERE each.uid = a.uid
) AS t
"""

PAST = """
CREATE TABLE past_appwrapper (
    uid                 text             NOT NULL,
    api_group           text             NOT NULL,
    namespace           text             NOT NULL,
    name                text             NOT NULL,
    kinds               text             NOT NULL,
    queue               text             NOT NULL,
    user_name           text             NOT NULL,
    user_groups         jsonb            NOT NULL,
    priority            integer          NOT NULL,
    submitted_at        timestamptz      NOT NULL,
    eligible_at         timestamptz,
    first_dispatched_at timestamptz,
    first_started_at    timestamptz,
    ended_at            timestamptz,
    deleted_at          timestamptz,
    state               text             NOT NULL,
    outcome             text             NOT NULL,
    reason              text             NOT NULL,
    message             text             NOT NULL,
    last_cluster        text,
    attempts            integer          NOT NULL,
    preemptions         integer          NOT NULL,
    requeues            integer          NOT NULL,
    pods                bigint           NOT NULL,
    cpu                 numeric          NOT NULL,
    memory_gib          numeric          NOT NULL,
    gpu                 numeric          NOT NULL,
    wait_s              double precision,
    queue_s             double precision,
    startup_s           double precision,
    run_s               double precision NOT NULL,
    lost_s              double precision NOT NULL,
    cpu_h               double precision NOT NULL,
    memory_gib_h        double precision NOT NULL,
    gpu_h               double precision NOT NULL
) PARTITION BY RANGE (ended_at);
CREATE INDEX ix_past_appwrapper_uid ON past_appwrapper (uid);
CREATE INDEX ix_past_appwrapper_name ON past_appwrapper (name, namespace);
CREATE INDEX ix_past_appwrapper_life ON past_appwrapper USING gist (tstzrange(submitted_at, ended_at));
CREATE TABLE past_appwrapper_default PARTITION OF past_appwrapper DEFAULT;
CREATE TABLE past_attempt (
    uid          text             NOT NULL,
    namespace    text             NOT NULL,
    name         text             NOT NULL,
    queue        text             NOT NULL,
    user_name    text             NOT NULL,
    attempt      integer          NOT NULL,
    cluster      text             NOT NULL,
    decided_at   timestamptz      NOT NULL,
    created_at   timestamptz,
    started_at   timestamptz,
    ended_at     timestamptz,
    outcome      text             NOT NULL,
    preempted_by text,
    error_class  text             NOT NULL,
    held_s       double precision NOT NULL,
    run_s        double precision NOT NULL,
    cpu          numeric          NOT NULL,
    memory_gib   numeric          NOT NULL,
    gpu          numeric          NOT NULL,
    cpu_h        double precision NOT NULL,
    memory_gib_h double precision NOT NULL,
    gpu_h        double precision NOT NULL,
    demand       jsonb            NOT NULL
) PARTITION BY RANGE (ended_at);
CREATE INDEX ix_past_attempt_uid ON past_attempt (uid);
CREATE INDEX ix_past_attempt_decided_at ON past_attempt (decided_at);
CREATE INDEX ix_past_attempt_held ON past_attempt USING gist (tstzrange(decided_at, ended_at));
CREATE TABLE past_attempt_default PARTITION OF past_attempt DEFAULT
"""

JOB_HISTORY = """
CREATE VIEW history.job_history AS SELECT * FROM job_live UNION ALL SELECT * FROM past_appwrapper
"""

ATTEMPT_HISTORY = """
CREATE VIEW history.attempt_history AS SELECT * FROM attempt_live UNION ALL SELECT * FROM past_attempt
"""

STATE_INTERVALS = """
CREATE VIEW history.state_intervals AS
SELECT uid, namespace, name, queue, attempt, state, cluster, entered_at, left_at,
       greatest(extract(epoch FROM coalesce(left_at, statement_timestamp()) - entered_at), 0)
           ::double precision AS seconds
FROM (
    SELECT uid, namespace, name, queue, to_phase AS state, at AS entered_at,
           CASE WHEN to_phase IN ('Queued', 'Suspended') THEN 0 ELSE attempt END AS attempt,
           CASE WHEN to_phase IN ('Queued', 'Suspended') THEN '' ELSE cluster END AS cluster,
           lead(at) OVER (PARTITION BY uid ORDER BY at, id) AS left_at
    FROM event WHERE from_phase IS DISTINCT FROM to_phase
) AS entered
WHERE state <> 'Deleted'
"""

# A pending reason holds until the next event with one; an event has all columns of it or none.
PENDING_REASONS = """
CREATE VIEW history.pending_reasons AS
SELECT uid, namespace, name, reason, resource, cluster,
       (array_agg(message ORDER BY at DESC, id DESC))[1] AS message,
       min(at) AS first_seen, max(coalesce(until, statement_timestamp())) AS last_seen,
       count(*) FILTER (WHERE is_another)::integer AS rounds,
       sum(greatest(extract(epoch FROM coalesce(until, statement_timestamp()) - at), 0))::double precision AS seconds
FROM (
    SELECT uid, namespace, name, id, at, change ->> 'pending_reason' AS reason,
           change ->> 'pending_resource' AS resource, change ->> 'pending_cluster' AS cluster,
           change ->> 'pending_message' AS message, lead(at) OVER told AS until,
           lag(jsonb_build_array(change -> 'pending_reason', change -> 'pending_resource', change -> 'pending_cluster'))
               OVER told IS DISTINCT FROM
               jsonb_build_array(change -> 'pending_reason', change -> 'pending_resource', change -> 'pending_cluster')
               AS is_another
    FROM event WHERE change ? 'pending_reason'
    WINDOW told AS (PARTITION BY uid ORDER BY at, id)
) AS told
WHERE reason IS NOT NULL
GROUP BY uid, namespace, name, reason, resource, cluster
"""

WAIT_STATS_DAILY = """
CREATE VIEW history.wait_stats_daily AS
SELECT (eligible_at AT TIME ZONE 'UTC')::date AS day, queue, namespace, gpu_class(gpu) AS gpu_class,
       count(*)::integer AS n,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_s) AS p50_s,
       percentile_cont(0.9) WITHIN GROUP (ORDER BY wait_s) AS p90_s,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY wait_s) AS p95_s,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY wait_s) AS p99_s,
       max(wait_s) AS max_s,
       count(*) FILTER (WHERE is_waiting)::integer AS still_waiting,
       max(wait_s) FILTER (WHERE is_waiting) AS oldest_wait_s
FROM (
    SELECT *, first_started_at IS NULL AND ended_at IS NULL AND state <> 'Suspended' AS is_waiting
    FROM history.job_history WHERE wait_s IS NOT NULL
) AS waited
GROUP BY 1, 2, 3, 4
"""

# A year of attempts is looked up hour by hour, by index. Live attempts are few and change: they are spread over their
# hours without an index, so that no dispatch pays for one.
USAGE_HOURLY = """
CREATE VIEW history.usage_hourly AS
SELECT hour, queue, namespace, user_name, cluster,
       sum(cpu::double precision * seconds / 3600) AS cpu_h,
       sum(memory_gib::double precision * seconds / 3600) AS memory_gib_h,
       sum(gpu::double precision * seconds / 3600) AS gpu_h,
       sum(seconds / extract(epoch FROM least(hour + interval '1 hour', statement_timestamp()) - hour)
           ::double precision) AS running_avg
FROM (
    SELECT hour, queue, namespace, user_name, cluster, cpu, memory_gib, gpu, decided_at,
           coalesce(ended_at, statement_timestamp()) AS until
    FROM attempt_live CROSS JOIN LATERAL generate_series(
        date_trunc('hour', decided_at, 'UTC'), coalesce(ended_at, statement_timestamp()), '1 hour') AS hour
    UNION ALL
    SELECT hour, queue, namespace, user_name, cluster, cpu, memory_gib, gpu, decided_at, ended_at
    FROM generate_series(date_trunc('hour', (SELECT min(decided_at) FROM past_attempt), 'UTC'),
                         statement_timestamp(), '1 hour') AS hour
    JOIN past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(hour, hour + interval '1 hour')
) AS held
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM least(until, hour + interval '1 hour') - greatest(decided_at, hour))
               ::double precision AS seconds
    OFFSET 0
) AS clipped
WHERE seconds > 0
GROUP BY hour, queue, namespace, user_name, cluster
"""

PREEMPTIONS = """
CREATE VIEW history.preemptions AS
SELECT ended_at AS at, uid, namespace, name, queue, preempted_by AS by_uid, NULL::text AS by_name,
       NULL::text AS by_queue, cluster, attempt, run_s AS ran_s, gpu_h AS gpu_h_lost, error_class AS reason
FROM history.attempt_history WHERE outcome = 'preempted'
"""

FAILURES_DAILY = """
CREATE VIEW history.failures_daily AS
SELECT (ended_at AT TIME ZONE 'UTC')::date AS day, queue, cluster, error_class, count(*)::integer AS n,
       sum(gpu_h) AS gpu_h_wasted
FROM history.attempt_history
WHERE outcome IN ('failed', 'preempted', 'postponed', 'withdrawn', 'lost')
GROUP BY 1, 2, 3, 4
"""

DISPATCH_LATENCY = """
CREATE VIEW history.dispatch_latency AS
SELECT decided_at AS at, uid, namespace, name, cluster, attempt,
       extract(epoch FROM created_at - decided_at)::double precision AS create_s,
       extract(epoch FROM started_at - created_at)::double precision AS start_s,
       outcome, error_class AS error
FROM history.attempt_history
"""

# The rejection by that very cluster if there is one, else the pending reason. The reasons are those of
# core.scheduling.cycle and core.scheduling.cluster_filters: the former name a missing resource, the latter exclude
# clusters.
OVERTAKES = """
CREATE INDEX ix_event_dispatched_at ON event (at) WHERE cause = 'dispatched';
CREATE VIEW history.overtakes AS
WITH life AS NOT MATERIALIZED (
    SELECT uid, namespace, name, queue, priority, ended_at, least(created_at, taken_in_at) AS submitted_at
    FROM appwrapper
    UNION ALL
    SELECT uid, namespace, name, queue, priority, ended_at, submitted_at FROM past_appwrapper
)
SELECT a.uid, a.namespace, a.name, a.queue, b.uid AS overtaken_by, b.namespace AS overtaken_by_namespace,
       b.name AS overtaken_by_name, d.at, d.cluster,
       CASE WHEN effective_priority(coalesce(went.priority, b.priority), coalesce(went.slope, 0),
                                    coalesce(went.created_at, b.submitted_at), d.at)
               > effective_priority(coalesce(stood.priority, a.priority), coalesce(stood.slope, 0),
                                    coalesce(stood.created_at, a.submitted_at), d.at) THEN 'priority'
            WHEN stood.eligible_at > d.at THEN 'not_eligible'
            WHEN told.reason IN ('InsufficientResources', 'ReservedForAnother', 'LargerThanCluster') THEN 'backfill'
            WHEN told.reason IN ('NoCluster', 'ClusterNotSelected', 'ClusterNotConnected', 'ClusterNotReported',
                                 'ClusterUnreachable', 'ClusterCredentialsRefused', 'ClusterIsAnother',
                                 'ClusterCordoned', 'ClusterDraining', 'KindNotInstalled', 'NamespaceMissing',
                                 'NameTaken') THEN 'fits_elsewhere'
            ELSE 'unexplained' END AS why,
       extract(epoch FROM d.at - queued.since)::double precision AS waited_s
FROM event AS d
JOIN life AS b ON b.uid = d.uid
-- IS TRUE: not to be joined by queue, of which there are few, but by time, for which there is an index.
JOIN life AS a ON (a.queue = d.queue) IS TRUE AND a.submitted_at < b.submitted_at
              AND d.at BETWEEN a.submitted_at AND coalesce(a.ended_at, 'infinity')
              AND tstzrange(a.submitted_at, a.ended_at) @> d.at
JOIN LATERAL (
    SELECT e.to_phase, e.at AS since FROM event AS e
    WHERE e.uid = a.uid AND e.at <= d.at AND e.from_phase IS DISTINCT FROM e.to_phase
    ORDER BY e.at DESC, e.id DESC LIMIT 1
) AS queued ON queued.to_phase = 'Queued' AND queued.since < d.at
CROSS JOIN LATERAL (
    SELECT (newest -> 'priority')::integer AS priority, (newest -> 'priority_slope')::double precision AS slope,
           (newest ->> 'created_at')::timestamptz AS created_at, (newest ->> 'eligible_at')::timestamptz AS eligible_at,
           newest ->> 'pending_reason' AS reason, newest -> 'pending_clusters' AS clusters
    FROM (
        SELECT jsonb_object_agg(column_name, value ORDER BY e.at, e.id) AS newest
        FROM event AS e CROSS JOIN LATERAL jsonb_each(e.change) AS each(column_name, value)
        WHERE e.uid = a.uid AND e.at <= d.at AND column_name IN
            ('priority', 'priority_slope', 'created_at', 'eligible_at', 'pending_reason', 'pending_clusters')
    ) AS folded
) AS stood
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT of_cluster ->> 'reason' FROM jsonb_array_elements(stood.clusters) AS of_cluster
                     WHERE of_cluster ->> 'cluster' = d.cluster), stood.reason) AS reason
) AS told
CROSS JOIN LATERAL (
    SELECT (newest -> 'priority')::integer AS priority, (newest -> 'priority_slope')::double precision AS slope,
           (newest ->> 'created_at')::timestamptz AS created_at
    FROM (
        SELECT jsonb_object_agg(column_name, value ORDER BY e.at, e.id) AS newest
        FROM event AS e CROSS JOIN LATERAL jsonb_each(e.change) AS each(column_name, value)
        WHERE e.uid = b.uid AND e.at <= d.at AND column_name IN ('priority', 'priority_slope', 'created_at')
    ) AS folded
) AS went
WHERE d.cause = 'dispatched'
"""

COMMENTS = {
    "job_history": (
        "Every AppWrapper there ever was, one row each, those that wait or run included.",
        {
            "uid": "The AppWrapper's metadata.uid.",
            "api_group": "API group of the AppWrapper.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper; a successor of the same name has another uid.",
            "kinds": "Kinds of its wrapped objects, each once, by name, with commas between.",
            "queue": "Name of the queue.",
            "user_name": "Who submitted it; its namespace where nobody vouches for that.",
            "user_groups": "Groups of who submitted it, a list; empty where nobody vouches for that.",
            "priority": "Its static priority, as it was last.",
            "submitted_at": (
                "When it was created by the API server's clock, or taken in, whichever was first."
            ),
            "eligible_at": (
                "Since when it might have gone: when it was first queued, or submitted if it was queued "
                "as soon as it was seen; null if it never was queued."
            ),
            "first_dispatched_at": "When it was first committed to a cluster; null if never.",
            "first_started_at": (
                "When all pods of its gang ran for the first time; null if that was never seen."
            ),
            "ended_at": "When it was completed, failed, or gone; null while it has not ended.",
            "deleted_at": "When nothing of it was left after its deletion; null before.",
            "state": "Its phase now, or its last one.",
            "outcome": "How it ended first: completed, failed or deleted; empty while it has not ended.",
            "reason": (
                "Why it waits, else why it failed or was last taken from a cluster, a word for machines; "
                "may be empty."
            ),
            "message": "The same as a sentence for people; may be empty.",
            "last_cluster": "Where it is or was last; null if it was nowhere.",
            "attempts": (
                "How often it was dispatched; one that was found running counts on from the number found."
            ),
            "preemptions": (
                "How often it was taken from its cluster because it did not run as it should, or that was "
                "drained."
            ),
            "requeues": (
                "How many attempts were preempted, postponed, withdrawn or lost, and did not end it."
            ),
            "pods": "How many pods its gang needs to be running.",
            "cpu": "Cores its gang asks for.",
            "memory_gib": "Memory its gang asks for, in GiB.",
            "gpu": "Whole GPUs its gang asks for; slices of devices are not counted.",
            "wait_s": (
                "Seconds from eligible_at to the first start; where there was none, until its objects "
                "were created if it was completed, else until its end, else until it was held back if it "
                "is Suspended, else up to now. Null if it never was queued, or had started before."
            ),
            "queue_s": (
                "Seconds from submitted_at to the first dispatch, or as wait_s where there was none. Null "
                "if it never was queued, or was dispatched before."
            ),
            "startup_s": "Seconds from the first dispatch to the first start; null before.",
            "run_s": "Seconds for which all attempts ran, up to now.",
            "lost_s": (
                "Seconds for which capacity was held by attempts that came to nothing: preempted, "
                "postponed, withdrawn or lost."
            ),
            "cpu_h": "Core hours held by all attempts, up to now.",
            "memory_gib_h": "GiB hours held by all attempts, up to now.",
            "gpu_h": "GPU hours held by all attempts, up to now.",
        },
    ),
    "attempt_history": (
        (
            "Every dispatch of every AppWrapper to a cluster, one row each. It holds its demand from "
            "decided_at to ended_at."
        ),
        {
            "uid": "The AppWrapper's metadata.uid.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "queue": "Name of the queue.",
            "user_name": "Who submitted it; its namespace where nobody vouches for that.",
            "attempt": "Number of the attempt, from 1.",
            "cluster": "The cluster it was dispatched to.",
            "decided_at": "When it was committed to the cluster: from then on capacity is held.",
            "created_at": "When every wrapped object was created; null if that did not happen.",
            "started_at": "When all pods of the gang ran; null if that was not seen.",
            "ended_at": "When it held nothing more; null while it does.",
            "outcome": (
                "completed, failed, suspended, preempted, postponed, withdrawn, lost or deleted; empty "
                "while it lives."
            ),
            "preempted_by": (
                "The uid of the AppWrapper it had to make room for; always null: none has to yet."
            ),
            "error_class": "Why it came to nothing, a word for machines; empty if it did not.",
            "held_s": "Seconds for which it held capacity, up to now.",
            "run_s": "Seconds from its start to its end, up to now; 0 if it never started.",
            "cpu": "Cores it holds.",
            "memory_gib": "Memory it holds, in GiB.",
            "gpu": "Whole GPUs it holds; slices of devices are not counted.",
            "cpu_h": "Core hours held, up to now.",
            "memory_gib_h": "GiB hours held, up to now.",
            "gpu_h": "GPU hours held, up to now.",
            "demand": "What the whole gang asked for: exact integers by resource, cpu in thousandths.",
        },
    ),
    "state_intervals": (
        "From when to when each AppWrapper was in each of its states, one row each time. Deleted is none.",
        {
            "uid": "The AppWrapper's metadata.uid.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "queue": "Name of the queue.",
            "attempt": "Number of the attempt; 0 while it waits or is held back, and if there was none.",
            "state": "The phase.",
            "cluster": "The cluster of the attempt; empty if there is no attempt.",
            "entered_at": "When it came into the state.",
            "left_at": "When it left the state; null if it is in it still.",
            "seconds": "Seconds in the state, up to now.",
        },
    ),
    "pending_reasons": (
        "Why each AppWrapper waited, one row for each reason it was ever told (since revision 0004).",
        {
            "uid": "The AppWrapper's metadata.uid.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "reason": "Why it waited, a word for machines.",
            "resource": "The resource it lacked; empty if it was none.",
            "cluster": "The cluster that came nearest; empty if it was none.",
            "message": "The newest sentence that was told.",
            "first_seen": "When it was told for the first time.",
            "last_seen": "Until when it was so; now, if it is so still.",
            "rounds": "How often it came to this.",
            "seconds": "Seconds for which it was so altogether, up to now.",
        },
    ),
    "wait_stats_daily": (
        (
            "How long AppWrappers waited for their first start, by the day they became eligible. Nothing is hidden: "
            "those that wait still count with what they waited so far, those that ended without a start until then. "
            "Those that never were queued do not count."
        ),
        {
            "day": "The day, in UTC, on which they became eligible.",
            "queue": "Name of the queue.",
            "namespace": "Namespace of the AppWrappers.",
            "gpu_class": "How many GPUs the gang asks for: 0, 1, 2, 3-4, 5-8, 9-16 or 17+.",
            "n": "How many AppWrappers.",
            "p50_s": "Median of seconds waited.",
            "p90_s": "Nine of ten waited no longer, in seconds.",
            "p95_s": "95 of a hundred waited no longer, in seconds.",
            "p99_s": "99 of a hundred waited no longer, in seconds.",
            "max_s": "The longest wait, in seconds.",
            "still_waiting": "How many of them wait still: not started, not ended, not held back by their users.",
            "oldest_wait_s": "The longest wait of these so far, in seconds; null if none waits.",
        },
    ),
    "usage_hourly": (
        "What was held in each hour, by whom and where: every attempt, clipped to the hour, running ones up to now.",
        {
            "hour": "Begin of the hour, in UTC.",
            "queue": "Name of the queue.",
            "namespace": "Namespace of the AppWrappers.",
            "user_name": "Who submitted them; their namespace where nobody vouches for that.",
            "cluster": "The cluster.",
            "cpu_h": "Core hours held in this hour.",
            "memory_gib_h": "GiB hours held in this hour.",
            "gpu_h": "GPU hours held in this hour; slices of devices are not counted.",
            "running_avg": "How many attempts held capacity on average, in an hour not yet over so far.",
        },
    ),
    "preemptions": (
        "Every attempt that was taken from its cluster to be queued again, and what it cost.",
        {
            "at": "When its capacity was free again.",
            "uid": "The AppWrapper's metadata.uid.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "queue": "Name of its queue.",
            "by_uid": "The uid of the AppWrapper it had to make room for; always null: none has to yet.",
            "by_name": "The name of that one; always null.",
            "by_queue": "The queue of that one; always null.",
            "cluster": "The cluster it was taken from.",
            "attempt": "Number of the attempt.",
            "ran_s": "Seconds it had run.",
            "gpu_h_lost": "GPU hours it had held.",
            "reason": "Why, a word for machines.",
        },
    ),
    "failures_daily": (
        "What came to nothing: attempts that failed, or were preempted, postponed, withdrawn or lost. Those that a "
        "restored database missed are left out: nobody knows how they ended.",
        {
            "day": "The day, in UTC, on which they ended.",
            "queue": "Name of the queue.",
            "cluster": "The cluster.",
            "error_class": "Why, a word for machines.",
            "n": "How many attempts.",
            "gpu_h_wasted": "GPU hours they had held.",
        },
    ),
    "dispatch_latency": (
        "How long clusters took for what was dispatched to them, one row per attempt.",
        {
            "at": "When it was committed to the cluster.",
            "uid": "The AppWrapper's metadata.uid.",
            "namespace": "Namespace of the AppWrapper.",
            "name": "Name of the AppWrapper.",
            "cluster": "The cluster.",
            "attempt": "Number of the attempt.",
            "create_s": "Seconds until all of its objects were created; null if they were not.",
            "start_s": "Seconds from then until all pods of the gang ran; null if they did not.",
            "outcome": "How the attempt ended; empty while it lives.",
            "error": "Why it came to nothing, a word for machines; empty if it did not.",
        },
    ),
    "overtakes": (
        (
            "Who stood in a queue when another one of it, submitted later, was dispatched, and why that was. "
            "Fast by uid, by overtaken_by, or for some minutes of at."
        ),
        {
            "uid": "The uid of the one that waited.",
            "namespace": "Its namespace.",
            "name": "Its name.",
            "queue": "Name of the queue.",
            "overtaken_by": "The uid of the one that was dispatched.",
            "overtaken_by_namespace": "Its namespace.",
            "overtaken_by_name": "Its name.",
            "at": "When it was dispatched.",
            "cluster": "Where to.",
            "why": (
                "priority: that one's was higher. not_eligible: the one that waited had to let others go first. "
                "backfill: it had been told that the cluster lacks room for it. fits_elsewhere: it may not go to "
                "the cluster. Else unexplained. Each as of that moment."
            ),
            "waited_s": "Seconds it had stood in the queue by then, since it came there last.",
        },
    ),
}

DOWN = """
DROP VIEW history.overtakes, history.dispatch_latency, history.failures_daily, history.preemptions,
    history.usage_hourly, history.wait_stats_daily;
DROP VIEW history.pending_reasons, history.state_intervals, history.attempt_history, history.job_history;
DROP INDEX ix_event_dispatched_at;
DROP TABLE past_attempt, past_appwrapper;
DROP VIEW job_live, attempt_live
"""


def upgrade() -> None:
    _run(LIVE, PAST, JOB_HISTORY, ATTEMPT_HISTORY, STATE_INTERVALS, PENDING_REASONS)
    _run(WAIT_STATS_DAILY, USAGE_HOURLY, PREEMPTIONS, FAILURES_DAILY, DISPATCH_LATENCY, OVERTAKES)
    _run(*_comments())


def downgrade() -> None:
    _run(DOWN)


def _comments() -> Iterator[str]:
    for view, (meaning, columns) in COMMENTS.items():
        yield f"COMMENT ON VIEW history.{view} IS {_quoted(meaning)}"
        for column, sentence in columns.items():
            yield f"COMMENT ON COLUMN history.{view}.{column} IS {_quoted(sentence)}"


def _quoted(sentence: str) -> str:
    return "'" + sentence.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

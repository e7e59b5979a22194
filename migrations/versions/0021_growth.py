"""Attempts keep what their pods held beyond the demand, from when to when, and usage counts it.

`growth` is a list of changes in the order of time, `[{"at": …, "amounts": {…}}, …]`: the amounts beyond the demand from
`at` to the next change, or to the end of the attempt. It is null for an attempt that never held more than its demand,
so that those, nearly all, cost the views no more than before.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE attempt ADD COLUMN growth jsonb;
ALTER TABLE past_attempt ADD COLUMN growth jsonb;
CREATE INDEX ix_attempt_growth ON attempt (uid) WHERE growth IS NOT NULL;
CREATE INDEX ix_past_attempt_growth ON past_attempt USING gist (tstzrange(decided_at, ended_at))
    WHERE growth IS NOT NULL
"""

NO_COLUMNS = """
ALTER TABLE attempt DROP COLUMN growth;
ALTER TABLE past_attempt DROP COLUMN growth
"""

# `grown` has amounts times hours, by resource, so that cores(), gibibytes() and gpus() apply to it as to a demand.
FUNCTIONS = """
CREATE FUNCTION growth_spans(growth jsonb, ends_at timestamptz)
RETURNS TABLE (since timestamptz, until timestamptz, amounts jsonb)
LANGUAGE sql STABLE STRICT PARALLEL SAFE ROWS 4
BEGIN ATOMIC
    SELECT (step.value ->> 'at')::timestamptz,
           coalesce(lead((step.value ->> 'at')::timestamptz) OVER (ORDER BY step.place), growth_spans.ends_at),
           step.value -> 'amounts'
    FROM jsonb_array_elements(growth_spans.growth) WITH ORDINALITY AS step(value, place);
END;
CREATE FUNCTION grown(growth jsonb, ends_at timestamptz) RETURNS jsonb
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN (
    SELECT coalesce(jsonb_object_agg(resource, hours), '{}') FROM (
        SELECT resource, sum(amount::numeric * greatest(extract(epoch FROM until - since), 0)) / 3600 AS hours
        FROM growth_spans(grown.growth, grown.ends_at)
        CROSS JOIN LATERAL jsonb_each_text(amounts) AS each(resource, amount)
        GROUP BY resource
    ) AS summed
)
"""

NO_FUNCTIONS = "DROP FUNCTION grown(jsonb, timestamptz); DROP FUNCTION growth_spans(jsonb, timestamptz)"

# The server's definition is patched, so its other parts stay unchanged.
PATCH = """
DO $$
DECLARE
    known text := pg_get_viewdef('{view}'::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION '{view} is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW {view} AS ' || patched;
END
$$
"""
HELD_HOURS = "(((d.{amount})::double precision * h.held_s) / (3600)::double precision)"
GROWN_HOURS = (
    "({demand} + ({unit}(grown(t.growth, COALESCE(t.ended_at, statement_timestamp()))))::double precision)"
)
UNITS = (("cpu", "cores"), ("memory_gib", "gibibytes"), ("gpu", "gpus"))
"""The amounts in the views, and the function that gives each."""

# As of revision 0005, with a place for growth. Only attempts count as running.
USAGE_HOURLY = """
CREATE OR REPLACE VIEW history.usage_hourly AS
SELECT hour, queue, namespace, user_name, cluster,
       sum(cpu::double precision * seconds / 3600) AS cpu_h,
       sum(memory_gib::double precision * seconds / 3600) AS memory_gib_h,
       sum(gpu::double precision * seconds / 3600) AS gpu_h,
       sum({seconds} / extract(epoch FROM least(hour + interval '1 hour', statement_timestamp()) - hour)
           ::double precision) AS running_avg
FROM (
    SELECT hour, queue, namespace, user_name, cluster, cpu, memory_gib, gpu, decided_at,
           coalesce(ended_at, statement_timestamp()) AS until{is_attempt}
    FROM attempt_live CROSS JOIN LATERAL generate_series(
        date_trunc('hour', decided_at, 'UTC'), coalesce(ended_at, statement_timestamp()), '1 hour') AS hour
    UNION ALL
    SELECT hour, queue, namespace, user_name, cluster, cpu, memory_gib, gpu, decided_at, ended_at{is_attempt}
    FROM generate_series(date_trunc('hour', (SELECT min(decided_at) FROM past_attempt), 'UTC'),
                         statement_timestamp(), '1 hour') AS hour
    JOIN past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(hour, hour + interval '1 hour'){growth}
) AS held
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM least(until, hour + interval '1 hour') - greatest(decided_at, hour))
               ::double precision AS seconds
    OFFSET 0
) AS clipped
WHERE seconds > 0
GROUP BY hour, queue, namespace, user_name, cluster
"""
USAGE_OF_GROWTH = """
    UNION ALL
    SELECT hour, l.queue, l.namespace, l.user_name, l.cluster, cores(amounts), gibibytes(amounts), gpus(amounts),
           since, until, false
    FROM attempt AS t JOIN attempt_live AS l ON l.uid = t.uid AND l.attempt = t.number
    CROSS JOIN LATERAL growth_spans(t.growth, coalesce(t.ended_at, statement_timestamp()))
    CROSS JOIN LATERAL generate_series(date_trunc('hour', since, 'UTC'), until, '1 hour') AS hour
    WHERE t.growth IS NOT NULL
    UNION ALL
    SELECT hour, queue, namespace, user_name, cluster, cores(amounts), gibibytes(amounts), gpus(amounts),
           since, until, false
    FROM generate_series(date_trunc('hour', (SELECT min(decided_at) FROM past_attempt), 'UTC'),
                         statement_timestamp(), '1 hour') AS hour
    JOIN past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(hour, hour + interval '1 hour')
        AND growth IS NOT NULL
    CROSS JOIN LATERAL growth_spans(growth, ended_at)"""

# As of revision 0006. Growth was reserved while its attempt did not run, as the demand is.
UTILISATION_HOURLY = """
CREATE OR REPLACE VIEW history.utilisation_hourly AS
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
        WHERE tstzrange(decided_at, ended_at) && tstzrange(hour, next_hour){growth}
    ) AS held ON held.cluster = s.cluster
    CROSS JOIN LATERAL (SELECT (held.demand ->> s.resource)::double precision AS amount) AS asked
    GROUP BY s.cluster, s.resource, capacity, other, down, known_s
) AS used
"""
UTILISATION_BY_GROWTH = """
        UNION ALL
        SELECT cluster, since, CASE WHEN started_at < until THEN greatest(started_at, since) ELSE until END, until,
               amounts
        FROM public.attempt
        CROSS JOIN LATERAL public.growth_spans(growth, coalesce(ended_at, statement_timestamp()))
        WHERE growth IS NOT NULL AND since < next_hour AND until > greatest(since, hour)
        UNION ALL
        SELECT cluster, since, CASE WHEN started_at < until THEN greatest(started_at, since) ELSE until END, until,
               amounts
        FROM public.past_attempt CROSS JOIN LATERAL public.growth_spans(growth, ended_at)
        WHERE growth IS NOT NULL AND tstzrange(decided_at, ended_at) && tstzrange(hour, next_hour)
          AND until > since"""

# As of revision 0016.
FAIRNESS_DAILY = """
CREATE OR REPLACE VIEW history.fairness_daily AS
SELECT (at AT TIME ZONE 'UTC')::date AS day, queue, resource,
       (array_agg(weight ORDER BY valid_from DESC) FILTER (WHERE weight IS NOT NULL))[1] AS weight,
       coalesce(sum(used), 0) / (3600 * CASE resource WHEN 'cpu' THEN 1000 ELSE 1 END) AS used_h,
       sum(entitled) / (3600 * CASE resource WHEN 'cpu' THEN 1000 ELSE 1 END) AS entitled_h
FROM (
    SELECT at, queue, resource, weight, valid_from, NULL::double precision AS used,
           (nominal ->> resource)::double precision * extract(epoch FROM until - since)::double precision AS entitled
    FROM public.queue_declaration
    CROSS JOIN LATERAL generate_series(
        date_trunc('day', greatest(valid_from, (
            SELECT (to_date(nullif(history_dropped_month, ''), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC'
            FROM public.hub)), 'UTC'),
        coalesce(valid_to, statement_timestamp()), interval '24 hours') AS at
    CROSS JOIN LATERAL (
        SELECT greatest(valid_from, at) AS since,
               least(valid_to, at + interval '24 hours', statement_timestamp()) AS until
    ) AS clipped
    CROSS JOIN LATERAL (
        SELECT resource FROM jsonb_object_keys(nominal) AS resource WHERE resource LIKE '%/%'
        UNION ALL
        SELECT 'cpu' WHERE NOT EXISTS (
            SELECT FROM jsonb_object_keys(nominal) AS resource WHERE resource LIKE '%/%')
    ) AS counted
    WHERE until > since
    UNION ALL
    SELECT at, queue, resource, NULL, NULL,
           amount::double precision * extract(epoch FROM
               least(until, at + interval '24 hours') - greatest(decided_at, at))::double precision,
           NULL
    FROM (
        SELECT at, coalesce(t.queues, jsonb_build_array(a.queue) || a.more_queues) AS queues, t.demand, t.decided_at,
               coalesce(t.ended_at, statement_timestamp()) AS until
        FROM public.attempt AS t JOIN public.appwrapper AS a USING (uid)
        CROSS JOIN LATERAL generate_series(date_trunc('day', t.decided_at, 'UTC'),
                                           coalesce(t.ended_at, statement_timestamp()), interval '24 hours') AS at
        UNION ALL
        SELECT at, coalesce(queues, jsonb_build_array(queue)), demand, decided_at, ended_at
        FROM generate_series(date_trunc('day', (SELECT min(decided_at) FROM public.past_attempt), 'UTC'),
                             statement_timestamp(), interval '24 hours') AS at
        JOIN public.past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(at, at + interval '24 hours'){growth}
    ) AS held
    CROSS JOIN LATERAL jsonb_array_elements_text(queues) AS queue
    CROSS JOIN LATERAL jsonb_each_text(demand) AS asked(resource, amount)
    WHERE (resource = 'cpu' OR resource LIKE '%/%')
      AND least(until, at + interval '24 hours') > greatest(decided_at, at)
) AS found
GROUP BY 1, 2, 3
HAVING count(weight) > 0
"""
FAIRNESS_OF_GROWTH = """
        UNION ALL
        SELECT at, coalesce(t.queues, jsonb_build_array(a.queue) || a.more_queues), amounts, since, until
        FROM public.attempt AS t JOIN public.appwrapper AS a USING (uid)
        CROSS JOIN LATERAL public.growth_spans(t.growth, coalesce(t.ended_at, statement_timestamp()))
        CROSS JOIN LATERAL generate_series(date_trunc('day', since, 'UTC'), until, interval '24 hours') AS at
        WHERE t.growth IS NOT NULL
        UNION ALL
        SELECT at, coalesce(queues, jsonb_build_array(queue)), amounts, since, until
        FROM generate_series(date_trunc('day', (SELECT min(decided_at) FROM public.past_attempt), 'UTC'),
                             statement_timestamp(), interval '24 hours') AS at
        JOIN public.past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(at, at + interval '24 hours')
            AND growth IS NOT NULL
        CROSS JOIN LATERAL public.growth_spans(growth, ended_at)"""

# As of revision 0006; of a gang that grew, its last growth counts.
RUNNING_AMOUNT = "{unit}(t.demand)"
RUNNING_HELD = "({unit}(t.demand) + {unit}(((t.growth -> '-1'::integer) -> 'amounts'::text)))"

# Commands plan with the records of this view. A view cannot lose columns, so the way back makes it anew.
GANGS_END = "\n   FROM (appwrapper a"
GANGS_MORE = ",\n    t.growth"
OLDER_GANGS = """
DO $$
DECLARE
    known text := pg_get_viewdef('scheduling.gangs'::regclass);
    meaning text := obj_description('scheduling.gangs'::regclass);
BEGIN
    DROP VIEW scheduling.gangs;
    EXECUTE 'CREATE VIEW scheduling.gangs AS ' || replace(known, {more}, '');
    EXECUTE format('COMMENT ON VIEW scheduling.gangs IS %L', meaning);
END
$$
"""

COMMENTS = (
    ("cpu", "Cores it holds.", "Cores of its demand."),
    ("memory_gib", "Memory it holds, in GiB.", "Memory of its demand, in GiB."),
    (
        "gpu",
        "Whole GPUs it holds; slices of devices are not counted.",
        "Whole GPUs of its demand; slices of devices are not counted.",
    ),
    (
        "cpu_h",
        "Core hours held, up to now.",
        "Core hours held, up to now, with what its pods held beyond the demand.",
    ),
)
"""Column of `attempt_history`, the comment until now, and the new one. Those of schema tenant are the same."""


def upgrade() -> None:
    _run(COLUMNS, FUNCTIONS, *_hours(), *_running(), *_comments())
    _run(_patch("scheduling.gangs", GANGS_END, GANGS_MORE + GANGS_END))
    _run(
        USAGE_HOURLY.format(
            seconds="CASE WHEN is_attempt THEN seconds ELSE 0 END",
            is_attempt=", true AS is_attempt",
            growth=USAGE_OF_GROWTH,
        ),
        UTILISATION_HOURLY.format(growth=UTILISATION_BY_GROWTH),
        FAIRNESS_DAILY.format(growth=FAIRNESS_OF_GROWTH),
    )


def downgrade() -> None:
    _run(
        USAGE_HOURLY.format(seconds="seconds", is_attempt="", growth=""),
        UTILISATION_HOURLY.format(growth=""),
        FAIRNESS_DAILY.format(growth=""),
    )
    _run(OLDER_GANGS.format(more=_literal(GANGS_MORE)), *_comments(back=True))
    _run(*_running(back=True), *_hours(back=True), NO_FUNCTIONS, NO_COLUMNS)


def _hours(*, back: bool = False) -> Iterator[str]:
    """The hours of an attempt, by its demand alone and with what it grew by."""
    for amount, unit in UNITS:
        demand = HELD_HOURS.format(amount=amount)
        yield _patch("public.attempt_live", demand, GROWN_HOURS.format(demand=demand, unit=unit), back=back)


def _running(*, back: bool = False) -> Iterator[str]:
    for _, unit in UNITS:
        demand, held = RUNNING_AMOUNT.format(unit=unit), RUNNING_HELD.format(unit=unit)
        yield _patch("history.running_now", demand, held, back=back)


def _patch(view: str, old: str, new: str, *, back: bool = False) -> str:
    if back:
        old, new = new, old
    return PATCH.format(view=view, old=_literal(old), new=_literal(new))


def _comments(*, back: bool = False) -> Iterator[str]:
    for column, before, after in COMMENTS:
        for schema in ("history", "tenant"):
            meaning = _literal(before if back else after)
            yield f"COMMENT ON COLUMN {schema}.attempt_history.{column} IS {meaning}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

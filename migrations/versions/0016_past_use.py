"""Attempts keep the queues that they are charged in, and `history.fairness_daily` compares use with declared quotas.

A requeued AppWrapper may be moved to another queue; its earlier attempts now stay where they were charged. Attempts
from before this revision, and those of an earlier release that still runs, count in the queue of their AppWrapper.

`queue_declaration` has the weight and the nominal quota of each leaf, as the leader saw them, from when to when.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE attempt ADD COLUMN queues jsonb;
ALTER TABLE past_attempt ADD COLUMN queues jsonb;
UPDATE attempt AS t SET queues = jsonb_build_array(a.queue) || a.more_queues FROM appwrapper AS a WHERE a.uid = t.uid
"""

NO_COLUMNS = """
ALTER TABLE attempt DROP COLUMN queues;
ALTER TABLE past_attempt DROP COLUMN queues
"""

# `nominal` has base units by resource, for each limited resource of the tree.
DECLARATIONS = """
CREATE TABLE queue_declaration (
    queue      text        NOT NULL,
    weight     numeric     NOT NULL,
    nominal    jsonb       NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to   timestamptz,
    CONSTRAINT pk_queue_declaration PRIMARY KEY (queue, valid_from)
);
CREATE UNIQUE INDEX uq_queue_declaration_valid ON queue_declaration (queue) WHERE valid_to IS NULL
"""

# Days are in UTC and have 24 hours, in every time zone of a session. Declarations and attempts are grouped together, so
# that a condition on the day reaches both. Earlier attempts are looked up by index, day by day. Live ones are few and
# change: they are spread over their days without an index, so that no dispatch pays for one. Attempts that ended in a
# dropped month are missing in its days, so these days are left out.
FAIRNESS_DAILY = """
CREATE VIEW history.fairness_daily AS
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
        JOIN public.past_attempt ON tstzrange(decided_at, ended_at) && tstzrange(at, at + interval '24 hours')
    ) AS held
    CROSS JOIN LATERAL jsonb_array_elements_text(queues) AS queue
    CROSS JOIN LATERAL jsonb_each_text(demand) AS asked(resource, amount)
    WHERE (resource = 'cpu' OR resource LIKE '%/%')
      AND least(until, at + interval '24 hours') > greatest(decided_at, at)
) AS found
GROUP BY 1, 2, 3
HAVING count(weight) > 0
"""

NO_FAIRNESS = "DROP VIEW history.fairness_daily; DROP TABLE queue_declaration"

MEANING = (
    "What each queue used on each day, and what its quota came to. A row for each device that its tree limits, or for "
    "cpu if it limits none. A queue has rows for the days on which it was declared and took gangs."
)
MEANINGS = {
    "day": "The day, in UTC.",
    "queue": "Name of the queue.",
    "resource": "A device that the tree of the queue limits; cpu if it limits none.",
    "weight": "The weight of the queue, as it was declared last on that day.",
    "used_h": "Hours of devices, or core hours, held in the queue on that day, up to now.",
    "entitled_h": (
        "Hours of its nominal quota on that day, up to now: exact over changes of the quota, and 0 while the queue had "
        "none. Null if its tree does not limit the resource."
    ),
}

QUEUE_MEANINGS = (
    ("attempt_history", "queue", "Name of the queue.", "Name of the queue that it was charged in."),
    ("usage_hourly", "queue", "Name of the queue.", "Name of the queue that the capacity was charged in."),
    ("failures_daily", "queue", "Name of the queue.", "Name of the queue that the attempt was charged in."),
    ("evictions", "queue", "Name of its queue.", "Name of the queue that it was charged in."),
    ("preemptions", "queue", "Name of its queue.", "Name of the queue that it was charged in."),
)
"""View, column, the comment until now, and the new one. Those of schema tenant are the same, where it has the view."""

# The server's definition is patched, so its other parts stay unchanged.
QUEUE_OF_APPWRAPPER = "a.queue"
QUEUE_OF_ATTEMPT = "COALESCE((t.queues ->> 0), a.queue) AS queue"
PATCH = """
DO $$
DECLARE
    known text := pg_get_viewdef('public.attempt_live'::regclass);
    patched text := replace(known, '{old},', '{new},');
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'attempt_live is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW public.attempt_live AS ' || patched;
END
$$
"""
COMMENT = """
DO $$
BEGIN
    IF to_regclass('{view}') IS NOT NULL THEN COMMENT ON COLUMN {view}.{column} IS {meaning}; END IF;
END
$$
"""


def upgrade() -> None:
    _run(COLUMNS, PATCH.format(old=QUEUE_OF_APPWRAPPER, new=QUEUE_OF_ATTEMPT))
    _run(DECLARATIONS, FAIRNESS_DAILY, *_meanings(), *_queue_meanings())


def downgrade() -> None:
    _run(NO_FAIRNESS, *_queue_meanings(back=True))
    _run(PATCH.format(old=QUEUE_OF_ATTEMPT, new=QUEUE_OF_APPWRAPPER), NO_COLUMNS)


def _meanings() -> Iterator[str]:
    yield f"COMMENT ON VIEW history.fairness_daily IS {_literal(MEANING)}"
    for column, meaning in MEANINGS.items():
        yield f"COMMENT ON COLUMN history.fairness_daily.{column} IS {_literal(meaning)}"


def _queue_meanings(*, back: bool = False) -> Iterator[str]:
    for view, column, before, after in QUEUE_MEANINGS:
        for schema in ("history", "tenant"):
            meaning = _literal(before if back else after)
            yield COMMENT.format(view=f"{schema}.{view}", column=column, meaning=meaning)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

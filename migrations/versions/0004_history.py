"""History beyond events: submitters, times of begin and end, samples of clusters and queues.

`event.change` has a step's changes to its AppWrapper's row: folded in order, they give the row. Older events have none,
so the last event of each AppWrapper gets its current row.

Samples and events of clusters are append-only and partitioned by month, like `event`. The reader role belongs to the
whole server; without the right to create roles, the migration says so and goes on.
"""

from typing import Any

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE appwrapper
    ADD COLUMN user_name       text  NOT NULL DEFAULT '',
    ADD COLUMN user_groups     jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN taken_in_at     timestamptz,
    ADD COLUMN first_queued_at timestamptz,
    ADD COLUMN ended_at        timestamptz,
    ADD COLUMN outcome         text  NOT NULL DEFAULT '';
ALTER TABLE attempt ADD COLUMN reason text NOT NULL DEFAULT '';
ALTER TABLE member_cluster
    ADD COLUMN is_declared boolean NOT NULL DEFAULT true,
    ADD COLUMN is_cordoned boolean NOT NULL DEFAULT false,
    ADD COLUMN is_draining boolean NOT NULL DEFAULT false,
    ADD COLUMN closed_reason text NOT NULL DEFAULT '';
ALTER TABLE event ADD COLUMN change jsonb NOT NULL DEFAULT '{}'
"""

# One pass over the events; an AppWrapper without events begins at its creation.
FILL = """
UPDATE appwrapper AS a
SET taken_in_at = coalesce(e.taken_in_at, a.created_at), first_queued_at = e.first_queued_at,
    ended_at = e.ended_at, outcome = coalesce(e.outcome, '')
FROM appwrapper AS every LEFT JOIN (
    SELECT uid, min(at) AS taken_in_at, min(at) FILTER (WHERE to_phase = 'Queued') AS first_queued_at,
           min(at) FILTER (WHERE to_phase IN ('Completed', 'Failed', 'Deleted')) AS ended_at,
           lower((array_agg(to_phase ORDER BY at, id)
                  FILTER (WHERE to_phase IN ('Completed', 'Failed', 'Deleted')))[1]) AS outcome
    FROM event GROUP BY uid
) AS e USING (uid)
WHERE a.uid = every.uid
"""

WHAT_IS_SO = """
UPDATE event AS e
SET change = to_jsonb(a) - ARRAY['uid', 'api_group', 'namespace', 'name', 'enqueue_seq', 'updated_at',
                                 'taken_in_at', 'first_queued_at', 'ended_at', 'outcome']
FROM appwrapper AS a
WHERE e.uid = a.uid AND e.id = (SELECT max(last.id) FROM event AS last WHERE last.uid = a.uid)
"""

TABLES = """
ALTER TABLE appwrapper ALTER COLUMN taken_in_at SET NOT NULL;
CREATE INDEX ix_appwrapper_deleted ON appwrapper (phase_since) WHERE phase = 'Deleted';
CREATE INDEX ix_appwrapper_spec_hash ON appwrapper (spec_hash);
CREATE TABLE cluster_event (
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    cluster     text        NOT NULL,
    event       text        NOT NULL,
    reason      text        NOT NULL DEFAULT '',
    message     text        NOT NULL DEFAULT '',
    actor       text        NOT NULL DEFAULT '',
    epoch       bigint      NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX ix_cluster_event_cluster_at ON cluster_event (cluster, at);
CREATE TABLE cluster_event_default PARTITION OF cluster_event DEFAULT;
CREATE TABLE capacity_sample (
    at           timestamptz NOT NULL,
    cluster      text        NOT NULL,
    resource     text        NOT NULL,
    capacity     numeric     NOT NULL,
    held         numeric     NOT NULL,
    other        numeric     NOT NULL,
    free         numeric     NOT NULL,
    is_reachable boolean     NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX ix_capacity_sample_cluster_resource_at ON capacity_sample (cluster, resource, at);
CREATE TABLE capacity_sample_default PARTITION OF capacity_sample DEFAULT;
CREATE TABLE queue_sample (
    at             timestamptz NOT NULL,
    queue          text        NOT NULL,
    queued         integer     NOT NULL,
    queued_cpu     numeric     NOT NULL,
    queued_memory  numeric     NOT NULL,
    queued_gpu     numeric     NOT NULL,
    running        integer     NOT NULL,
    running_cpu    numeric     NOT NULL,
    running_memory numeric     NOT NULL,
    running_gpu    numeric     NOT NULL
) PARTITION BY RANGE (at);
CREATE INDEX ix_queue_sample_queue_at ON queue_sample (queue, at);
CREATE TABLE queue_sample_default PARTITION OF queue_sample DEFAULT
"""

# Amounts in the units that people use. A slice of a device (nvidia.com/mig-1g.5gb) does not count as a device.
FUNCTIONS = """
CREATE FUNCTION cores(demand jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((demand ->> 'cpu')::numeric / 1000, 0);
CREATE FUNCTION gibibytes(demand jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((demand ->> 'memory')::numeric / 1073741824, 0);
CREATE FUNCTION gpus(demand jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (
    SELECT coalesce(sum(amount::numeric), 0) FROM jsonb_each_text(demand) AS each(resource, amount)
    WHERE resource LIKE '%/gpu' OR resource LIKE 'gpu.intel.com/%'
);
CREATE FUNCTION gpu_class(gpu numeric) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN gpu < 1 THEN '0' WHEN gpu < 2 THEN '1' WHEN gpu < 3 THEN '2' WHEN gpu < 5 THEN '3-4'
            WHEN gpu < 9 THEN '5-8' WHEN gpu < 17 THEN '9-16' ELSE '17+' END
"""

READER = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'dispatcher_reader') THEN
        CREATE ROLE dispatcher_reader LOGIN;
    END IF;
    -- Each guards the queue: who reads for long keeps Postgres from clearing up behind the dispatcher.
    ALTER ROLE dispatcher_reader SET statement_timeout = '30s';
    ALTER ROLE dispatcher_reader SET idle_in_transaction_session_timeout = '60s';
    ALTER ROLE dispatcher_reader SET lock_timeout = '1s';
    -- One process for each who asks: the queue needs a core, too.
    ALTER ROLE dispatcher_reader SET max_parallel_workers_per_gather = 0;
    ALTER ROLE dispatcher_reader SET default_transaction_read_only = on;
    ALTER ROLE dispatcher_reader SET search_path = history;
    -- So that the dispatcher's own account can put on this role for `dispatcher sql`.
    IF NOT pg_has_role(current_user, 'dispatcher_reader', 'MEMBER') THEN
        EXECUTE format('GRANT dispatcher_reader TO %I', current_user);
    END IF;
EXCEPTION
    -- Another database of this server was migrated at this moment.
    WHEN duplicate_object OR unique_violation OR internal_error THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'there is no role dispatcher_reader: % may not make roles', current_user;
END
$$
"""

GRANTS = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'dispatcher_reader') THEN
        GRANT USAGE ON SCHEMA history TO dispatcher_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA history TO dispatcher_reader;
        ALTER DEFAULT PRIVILEGES IN SCHEMA history GRANT SELECT ON TABLES TO dispatcher_reader;
    END IF;
END
$$
"""

REVOKES = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'dispatcher_reader') THEN
        ALTER DEFAULT PRIVILEGES IN SCHEMA history REVOKE SELECT ON TABLES FROM dispatcher_reader;
        REVOKE ALL ON ALL TABLES IN SCHEMA history FROM dispatcher_reader;
        REVOKE ALL ON SCHEMA history FROM dispatcher_reader;
    END IF;
END
$$
"""

DOWN = """
DROP FUNCTION gpu_class(numeric), gpus(jsonb), gibibytes(jsonb), cores(jsonb);
DROP TABLE queue_sample, capacity_sample, cluster_event;
ALTER TABLE event DROP COLUMN change;
ALTER TABLE attempt DROP COLUMN reason;
ALTER TABLE member_cluster DROP COLUMN is_declared, DROP COLUMN is_cordoned, DROP COLUMN is_draining,
    DROP COLUMN closed_reason;
DROP INDEX ix_appwrapper_deleted, ix_appwrapper_spec_hash;
ALTER TABLE appwrapper DROP COLUMN user_name, DROP COLUMN user_groups, DROP COLUMN taken_in_at,
    DROP COLUMN first_queued_at, DROP COLUMN ended_at, DROP COLUMN outcome
"""


def upgrade() -> None:
    _run(COLUMNS, FILL, WHAT_IS_SO, TABLES, FUNCTIONS, READER, GRANTS)


def downgrade() -> None:
    _run(REVOKES, DOWN)


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

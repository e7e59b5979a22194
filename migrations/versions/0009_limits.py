"""Limits of readers, views for tenants, and the last dropped month of history.

The schema `tenant` has the views of `history` that have a namespace, each reduced to the namespaces that
`history_grant` gives to the querying role or to a role it is a member of. The views are security barriers: no function
of a query sees a row before this filter. `dispatcher.store.reader` sets up the roles on every `dispatcher migrate`,
because roles belong to the server, and privileges may be granted later.

An attempt that ended before it began, because a clock was turned back, counts as having lasted no time.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE hub
    ADD COLUMN history_dropped_month text NOT NULL DEFAULT '',
    ADD COLUMN history_dropped_at timestamptz
"""

MEND = """
UPDATE attempt SET ended_at = decided_at WHERE ended_at < decided_at;
UPDATE appwrapper SET ended_at = least(created_at, taken_in_at) WHERE ended_at < least(created_at, taken_in_at)
"""

GRANTED = """
CREATE TABLE history_grant (
    role_name text NOT NULL,
    namespace text NOT NULL,
    CONSTRAINT pk_history_grant PRIMARY KEY (role_name, namespace)
);
COMMENT ON TABLE history_grant IS 'Which roles see which namespaces in the views of schema tenant.';
CREATE SCHEMA tenant;
COMMENT ON SCHEMA tenant IS 'History of the namespaces that the role that asks was given in public.history_grant.'
"""

VIEWS = (
    "attempt_history",
    "dispatch_latency",
    "job_history",
    "pending_reasons",
    "preemptions",
    "queue_now",
    "running_now",
    "state_intervals",
    "timeline",
    "usage_hourly",
    "wait_stats_daily",
)
"""All views with a namespace except `overtakes`, whose rows are about two AppWrappers, one of which may be another
tenant's."""

# Columns keep their comments. The rows of other tenants are removed before any part of the query is evaluated.
VIEW = """
CREATE VIEW tenant.{0} WITH (security_barrier) AS
SELECT * FROM history.{0}
WHERE namespace IN (
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
);
DO $$
DECLARE told record;
BEGIN
    FOR told IN
        SELECT a.attname, col_description(a.attrelid, a.attnum) AS meaning
        FROM pg_attribute AS a WHERE a.attrelid = 'history.{0}'::regclass AND a.attnum > 0
    LOOP
        EXECUTE format('COMMENT ON COLUMN tenant.{0}.%I IS %L', told.attname, told.meaning);
    END LOOP;
END
$$
"""

ADVICE = {
    "MembersUnknown": "Wait, or ask the operator: the dispatcher may not list the member clusters now.",
    "NamespaceNotEnabled": "Ask the operator to label its namespace in the cluster: it does not take gangs yet.",
    "NamespaceQueueFull": "Wait: its namespace has as many in the queue as it may have.",
    "ClusterAnswersTooLarge": "Ask the operator to look after the cluster: its answers are larger than is taken.",
}
"""Advice for the new pending reasons."""

ELSEWHERE = ("MembersUnknown", "NamespaceNotEnabled", "ClusterAnswersTooLarge")
"""The new pending reasons that exclude a cluster."""

# The server's definition is patched, so the parts that are not about the new reasons stay unchanged.
PATCH_ADVICE = """
DO $$
DECLARE patched text := replace(pg_get_functiondef('waiting_advice(text)'::regprocedure), {old}, {new});
BEGIN
    IF position({new} IN patched) = 0 THEN RAISE EXCEPTION 'waiting_advice is not as revision 0006 made it'; END IF;
    EXECUTE patched;
END
$$
"""
PATCH_OVERTAKES = """
DO $$
DECLARE patched text := replace(pg_get_viewdef('history.overtakes'::regclass), {old}, {new});
BEGIN
    IF position({new} IN patched) = 0 THEN RAISE EXCEPTION 'overtakes is not as revision 0005 made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW history.overtakes AS ' || patched;
END
$$
"""

DOWN = """
DROP SCHEMA tenant CASCADE;
DROP TABLE history_grant;
DROP FUNCTION IF EXISTS history.answer(text, bigint);
ALTER TABLE hub DROP COLUMN history_dropped_month, DROP COLUMN history_dropped_at;
DO $$
BEGIN
    -- The older code keeps `dispatcher sql` to the reader's rights by a temporary function of the reader.
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO PUBLIC', current_database());
END
$$
"""


def upgrade() -> None:
    _run(COLUMNS, MEND, GRANTED, *_views(), *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), DOWN)


def _patches(*, back: bool = False) -> Iterator[str]:
    known = "WHEN 'ClusterLost'::text THEN"
    told = "".join(f"WHEN '{reason}'::text THEN '{advice}'::text " for reason, advice in ADVICE.items())
    taken = "'NameTaken'::text"
    others = "".join(f", '{reason}'::text" for reason in ELSEWHERE)
    for patch, old, new in (
        (PATCH_ADVICE, known, told + known),
        (PATCH_OVERTAKES, taken, taken + others),
    ):
        if back:
            old, new = new, old
        yield patch.format(old=_literal(old), new=_literal(new))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _views() -> Iterator[str]:
    for view in VIEWS:
        yield VIEW.format(view)


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

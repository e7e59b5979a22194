"""AppWrappers know all their queues and their preemptions, and attempts the AppWrapper that they made room for."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE appwrapper
    ADD COLUMN more_queues jsonb NOT NULL DEFAULT '[]',
    ADD COLUMN is_preempting boolean NOT NULL DEFAULT false,
    ADD COLUMN preempted_at jsonb NOT NULL DEFAULT '[]';
ALTER TABLE attempt ADD COLUMN preempted_by text NOT NULL DEFAULT ''
"""

NO_COLUMNS = """
ALTER TABLE attempt DROP COLUMN preempted_by;
ALTER TABLE appwrapper DROP COLUMN more_queues, DROP COLUMN is_preempting, DROP COLUMN preempted_at
"""

GANGS = """
CREATE OR REPLACE VIEW scheduling.gangs AS
SELECT a.uid, a.api_group, a.namespace, a.name, a.user_name, a.queue, a.phase, a.phase_since, a.priority,
       a.priority_slope, a.created_at, a.enqueue_seq, a.demand, a.pods, a.pod_sets, a.cluster_selector,
       a.cluster_preference, a.kinds, a.ruled_out, a.eligible_at, a.blocked_since, a.expected_seconds, a.reason,
       a.message, a.pending_reason, a.pending_message, a.updated_at, t.number, t.cluster, t.decided_at, t.assignment
       {more}
FROM public.appwrapper AS a LEFT JOIN public.attempt AS t ON t.uid = a.uid AND t.number = a.attempt
"""
MORE = ", a.more_queues, a.is_preempting, a.preempted_at"

COMMENT = "AppWrappers with their demand and requirements, and their current attempt."

# The server's definition is patched, so the other parts of the view stay unchanged.
ATTEMPTS = """
DO $$
DECLARE
    known text := pg_get_viewdef('attempt_live'::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN
        RAISE EXCEPTION 'attempt_live is not as earlier revisions made it';
    END IF;
    EXECUTE 'CREATE OR REPLACE VIEW attempt_live AS ' || patched;
END
$$
"""
NOBODY = "'NULL::text AS preempted_by'"
SOMEBODY = "'NULLIF(t.preempted_by, ''''::text) AS preempted_by'"


def upgrade() -> None:
    _run(COLUMNS)
    _run(GANGS.format(more=MORE))
    _run(ATTEMPTS.format(old=NOBODY, new=SOMEBODY))


def downgrade() -> None:
    _run(ATTEMPTS.format(old=SOMEBODY, new=NOBODY))
    _run("DROP VIEW scheduling.gangs")  # a view cannot lose columns
    _run(GANGS.format(more=""))
    _run(f"COMMENT ON VIEW scheduling.gangs IS '{COMMENT}'")
    _run(NO_COLUMNS)


def _run(statements: str) -> None:
    for statement in statements.split(";\n") if "$$" not in statements else [statements]:
        op.execute(statement)

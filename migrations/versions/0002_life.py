"""Life after the dispatch: requeuings, health issues, finished objects, objects kept after the end.

Every column has a default, so adding it rewrites no table and locks it for a moment only.

A downgrade refuses AppWrappers in one of the new phases. The code of revision 0001 cannot load them, and none of its
own phases means the same: it would run finished and suspended AppWrappers again.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = {
    "appwrapper": (
        "reason text NOT NULL DEFAULT ''",
        "unhealthy_reason text",
        "unhealthy_message text",
        "unhealthy_since timestamptz",
        "requeuings integer NOT NULL DEFAULT 0",
        "retries integer NOT NULL DEFAULT 0",
        "requeuing_seconds integer NOT NULL DEFAULT 0",
        "expected_seconds integer NOT NULL DEFAULT 0",
        "kept_until timestamptz",
    ),
    "attempt_object": ("done boolean NOT NULL DEFAULT false",),
}

REFUSE_LATER_PHASES = """
DO $$
DECLARE
    found text;
BEGIN
    SELECT string_agg(number || ' ' || phase, ', ' ORDER BY phase) INTO found
    FROM (
        SELECT phase, count(*) AS number FROM appwrapper
        WHERE phase IN ('Suspended', 'Suspending', 'RunningHoldCompletion', 'Completed')
        GROUP BY phase
    ) AS later;
    IF found IS NOT NULL THEN
        RAISE check_violation USING
            MESSAGE = 'revision 0001 has no such phases: ' || found,
            DETAIL = 'delete these AppWrappers while this version runs, or restore a backup from before the upgrade';
    END IF;
END
$$
"""


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        added = ", ".join(f"ADD COLUMN {column}" for column in columns)
        op.execute(f"ALTER TABLE {table} {added}")
    # Before this revision an AppWrapper could fail for no other reason.
    op.execute("UPDATE appwrapper SET reason = 'ItemCreationFailure.' WHERE phase IN ('Failing', 'Failed')")


def downgrade() -> None:
    # Locked first, so that no AppWrapper enters such a phase after the check.
    op.execute("LOCK TABLE appwrapper IN ACCESS EXCLUSIVE MODE")
    op.execute(REFUSE_LATER_PHASES)
    for table, columns in COLUMNS.items():
        dropped = ", ".join(f"DROP COLUMN {column.partition(' ')[0]}" for column in columns)
        op.execute(f"ALTER TABLE {table} {dropped}")

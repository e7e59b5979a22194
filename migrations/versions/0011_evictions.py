"""An attempt removed from its cluster for its own trouble, or for a drain, is evicted; it was called preempted before.

Preemption means that a running gang makes room for another. So `history.preemptions` becomes `history.evictions`, and
the column of `history.job_history` and the stored values follow. `preempted_by` stays.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

STORED = (
    "UPDATE attempt SET outcome = '{new}' WHERE outcome = '{old}'",
    "UPDATE past_attempt SET outcome = '{new}' WHERE outcome = '{old}'",
    "UPDATE event SET cause = '{new}' WHERE cause = '{old}'",
    """
    UPDATE event SET change = replace(change::text, '"{old}"', '"{new}"')::jsonb WHERE change::text LIKE '%"{old}"%'
    """,
)

# The server's definition is patched, so the parts that do not contain this word stay unchanged.
VIEWS = """
DO $$
DECLARE shown record;
BEGIN
    FOR shown IN
        SELECT c.oid::regclass AS name, pg_get_viewdef(c.oid) AS definition
        FROM pg_class AS c
        WHERE c.relnamespace IN ('public'::regnamespace, 'history'::regnamespace) AND c.relkind = 'v'
          AND position('''{old}''' IN pg_get_viewdef(c.oid)) > 0
    LOOP
        EXECUTE format('CREATE OR REPLACE VIEW %s AS ', shown.name)
            || replace(shown.definition, '''{old}''', '''{new}''');
    END LOOP;
END
$$
"""

COMMENTS = """
DO $$
DECLARE told record;
BEGIN
    FOR told IN
        SELECT c.oid::regclass AS name, d.objsubid AS number, a.attname,
               replace(d.description, '{old}', '{new}') AS said
        FROM pg_description AS d
        JOIN pg_class AS c ON d.classoid = 'pg_class'::regclass AND d.objoid = c.oid
        LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
        WHERE c.relnamespace IN ('history'::regnamespace, 'tenant'::regnamespace)
          AND position('{old}' IN d.description) > 0
    LOOP
        IF told.number = 0 THEN
            EXECUTE format('COMMENT ON VIEW %s IS %L', told.name, told.said);
        ELSE
            EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', told.name, told.attname, told.said);
        END IF;
    END LOOP;
END
$$
"""

NAMES = (
    "ALTER TABLE past_appwrapper RENAME COLUMN {old} TO {new}",
    "ALTER VIEW job_live RENAME COLUMN {old} TO {new}",
    "ALTER VIEW history.job_history RENAME COLUMN {old} TO {new}",
    "ALTER VIEW tenant.job_history RENAME COLUMN {old} TO {new}",
    "ALTER VIEW history.{old} RENAME TO {new}",
    "ALTER VIEW tenant.{old} RENAME TO {new}",
)


def upgrade() -> None:
    _change(("preempted", "evicted"), ("preemptions", "evictions"))


def downgrade() -> None:
    _change(("evicted", "preempted"), ("evictions", "preemptions"))


def _change(word: tuple[str, str], name: tuple[str, str]) -> None:
    for statement in (*STORED, VIEWS, COMMENTS):
        op.execute(statement.format(old=word[0], new=word[1]))
    for statement in NAMES:
        op.execute(statement.format(old=name[0], new=name[1]))

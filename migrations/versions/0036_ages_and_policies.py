"""AppWrappers know from when their age counts, and since when it stands still because their author keeps them back.

`aged_from` is null while the age counts from the creation. `history.queue_now` orders by the age, as the leader does.
In `history.overtakes` a gang that is older by its creation and younger by its age was not eligible for long enough.

AppWrappers know, too, whether their pods or the class that their labels name have the preemption policy `Never`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE appwrapper
    ADD COLUMN aged_from timestamptz, ADD COLUMN age_stopped_at timestamptz,
    ADD COLUMN pods_never_preempt boolean NOT NULL DEFAULT false,
    ADD COLUMN class_never_preempts boolean NOT NULL DEFAULT false
"""
NO_COLUMNS = """
ALTER TABLE appwrapper
    DROP COLUMN aged_from, DROP COLUMN age_stopped_at, DROP COLUMN pods_never_preempt, DROP COLUMN class_never_preempts
"""

# Texts in the definitions as the server has them, and the texts instead, as the server lays them out. Before Postgres
# 16 it names the table of a column also where there is only one: `~` stands for that.
OF_QUEUE = (
    (
        "ORDER BY ~effective_priority DESC, ~created_at, ~enqueue_seq)",
        "ORDER BY ~effective_priority DESC, ~age_begins_at, ~enqueue_seq)",
    ),
    (
        "            appwrapper.enqueue_seq,\n",
        "            COALESCE(appwrapper.aged_from, appwrapper.created_at) AS age_begins_at,\n"
        "            appwrapper.enqueue_seq,\n",
    ),
    (
        "appwrapper.priority_slope, appwrapper.created_at, statement_timestamp()",
        "appwrapper.priority_slope, COALESCE(appwrapper.aged_from, appwrapper.created_at), statement_timestamp()",
    ),
)
OF_OVERTAKES = (
    (
        "((folded.newest ->> 'created_at'::text))::timestamp with time zone AS created_at",
        "(COALESCE((folded.newest ->> 'aged_from'::text), (folded.newest ->> 'created_at'::text)))"
        "::timestamp with time zone AS created_at",
    ),
    ("'created_at'::text, 'eligible_at'::text", "'created_at'::text, 'aged_from'::text, 'eligible_at'::text"),
    (
        "'priority_slope'::text, 'created_at'::text]",
        "'priority_slope'::text, 'created_at'::text, 'aged_from'::text]",
    ),
    (
        "WHEN (stood.eligible_at > d.at) THEN",
        "WHEN ((stood.eligible_at > d.at) OR "
        "(COALESCE(stood.created_at, a.submitted_at) > COALESCE(went.created_at, b.submitted_at))) THEN",
    ),
)
PATCH_VIEW = """
DO $$
DECLARE
    known text := pg_get_viewdef({name}::regclass);
    patched text;
    swaps text[] := ARRAY[{swaps}];
    names text := CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'queued.' ELSE '' END;
BEGIN
    FOR i IN 1 .. array_length(swaps, 1) LOOP
        patched := replace(known, replace(swaps[i][1], '~', names), replace(swaps[i][2], '~', names));
        IF patched = known THEN RAISE EXCEPTION '% is not as earlier revisions made it', {name}; END IF;
        known := patched;
    END LOOP;
    EXECUTE format('CREATE OR REPLACE VIEW %s AS ', {name}) || patched;
END
$$
"""

# A view cannot lose columns, so the way back makes it anew.
GANGS_END = "\n   FROM (appwrapper a"
GANGS_MORE = ",\n    a.aged_from,\n    a.pods_never_preempt,\n    a.class_never_preempts"
GANGS = """
DO $$
DECLARE
    known text := pg_get_viewdef('scheduling.gangs'::regclass);
    patched text := replace(known, {end}, {more} || {end});
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'scheduling.gangs is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW scheduling.gangs AS ' || patched;
END
$$
"""
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


def upgrade() -> None:
    _run(COLUMNS, GANGS.format(end=_literal(GANGS_END), more=_literal(GANGS_MORE)), *_patches())


def downgrade() -> None:
    _run(*_patches(back=True), OLDER_GANGS.format(more=_literal(GANGS_MORE)), NO_COLUMNS)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, swaps in (("history.queue_now", OF_QUEUE), ("history.overtakes", OF_OVERTAKES)):
        yield PATCH_VIEW.format(name=_literal(name), swaps=", ".join(map(_pair, _turned(swaps, back=back))))


def _turned(swaps: Sequence[tuple[str, str]], *, back: bool) -> Iterator[tuple[str, str]]:
    return ((new, old) if back else (old, new) for old, new in swaps)


def _pair(texts: tuple[str, str]) -> str:
    return f"[{', '.join(map(_literal, texts))}]"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

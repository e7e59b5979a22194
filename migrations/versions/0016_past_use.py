"""Attempts keep the queues that they are charged in.

A requeued AppWrapper may be moved to another queue; its earlier attempts now stay where they were charged. Attempts
from before this revision, and those of an earlier release that still runs, count in the queue of their AppWrapper.
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
    _run(*_queue_meanings())


def downgrade() -> None:
    _run(*_queue_meanings(back=True))
    _run(PATCH.format(old=QUEUE_OF_ATTEMPT, new=QUEUE_OF_APPWRAPPER), NO_COLUMNS)


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

"""`history.queue_now` has no position for gangs that are too large to ever go, and no estimates that contradict others.

An AppWrapper that is larger than its clusters or its quota blocks no other, so the positions leave it out. An estimated
start comes from earlier waits and knows nothing of the gangs ahead. So it is shown only for the first gang of a queue
and class of GPUs: later ones would start at the same time by it, with the same devices.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# Each is a text in the definition of the view as the server has it, and the text instead, laid out in the same way.
SWAPS = (
    (
        "COALESCE((appwrapper.eligible_at <= statement_timestamp()), true) AS eligible",
        "(COALESCE((appwrapper.eligible_at <= statement_timestamp()), true) AND (COALESCE(appwrapper.pending_reason,"
        " ''::text) <> ALL (ARRAY['LargerThanCluster'::text, 'LargerThanQuota'::text]))) AS eligible",
    ),
    (
        "((cardinality(recent.waits) - place.shorter) >= 5)",
        "(((cardinality(recent.waits) - place.shorter) >= 5) AND (row_number() OVER (PARTITION BY one.queue, "
        "(gpu_class(one.gpu)), (one.eligible AND (COALESCE(one.pending_reason, ''::text) = ANY (ARRAY[''::text, "
        "'InsufficientResources'::text, 'ReservedForAnother'::text, 'AwaitingHeadOfLine'::text, "
        "'CreationPostponed'::text, 'ClusterLost'::text, 'InsufficientQuota'::text, 'OverNominalQuota'::text, "
        "'AwaitingRelease'::text]))) ORDER BY one.effective_priority DESC, one.created_at, one.enqueue_seq) = 1))",
    ),
)
PATCH = """
DO $$
DECLARE
    known text := pg_get_viewdef('history.queue_now'::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION 'history.queue_now is not as earlier revisions made it'; END IF;
    EXECUTE 'CREATE OR REPLACE VIEW history.queue_now AS ' || patched;
END
$$
"""

COMMENTS = (
    (
        "position",
        "Place in the queue, from 1; null while it may not be dispatched yet (eligible_at).",
        "Place in the queue, from 1; null while it may not be dispatched yet (eligible_at), and while it is larger "
        "than its clusters or its quota.",
    ),
    (
        "est_start",
        "When it may start, by what others waited: of those of its queue and class of GPUs that started in the last 7 "
        "days, the median of those that waited longer than it has by now. Null, unknown, if they are fewer than 5, if "
        "it may not go yet, if waiting alone does not help, or if it has run before.",
        "When it may start, by what others waited: of those of its queue and class of GPUs that started in the last 7 "
        "days, the median of those that waited longer than it has by now. Null, unknown, if they are fewer than 5, if "
        "it may not go yet, if waiting alone does not help, if it has run before, or if another of its queue and class "
        "that waiting helps is ahead of it.",
    ),
)
"""Column, the comment until now, and the new one. Those of schema tenant are the same."""


def upgrade() -> None:
    _run(*(_patch(old, new) for old, new in SWAPS), *_comments())


def downgrade() -> None:
    _run(*(_patch(new, old) for old, new in SWAPS), *_comments(back=True))


def _patch(old: str, new: str) -> str:
    return PATCH.format(old=_literal(old), new=_literal(new))


def _comments(*, back: bool = False) -> Iterator[str]:
    for column, before, after in COMMENTS:
        for schema in ("history", "tenant"):
            yield f"COMMENT ON COLUMN {schema}.queue_now.{column} IS {_literal(before if back else after)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

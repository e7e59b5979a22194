"""A gang that leaves because its queue is drained is evicted; until now it was recorded as preempted.

Preemption is the removal of a running gang in favour of another one. So `history.evictions` has these attempts,
`history.preemptions` has them no longer, and they count as evictions and requeues of their AppWrappers, as the
attempts of drained clusters do. Nothing of the AppWrappers' own rows changes: the cause of an event and the outcome of
an attempt are in no such row. Messages stay as they were written.

An older release that still leads when the database is migrated records a drain as before.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

# `QueueStopped` of an event that is not about a removal is a pending reason.
STORED = (
    "UPDATE event SET cause = '{new}' WHERE cause = '{old}' AND reason = 'QueueStopped'",
    "UPDATE attempt SET outcome = '{new}' WHERE outcome = '{old}' AND reason = 'QueueStopped'",
)
PAST = """
WITH drained AS (
    UPDATE past_attempt SET outcome = '{new}' WHERE outcome = '{old}' AND error_class = 'QueueStopped'
    RETURNING uid, ended_at
), counted AS (
    SELECT a.uid, count(*) AS evictions, count(*) FILTER (WHERE d.ended_at <> a.ended_at) AS requeues
    FROM past_appwrapper AS a JOIN drained AS d ON d.uid = a.uid GROUP BY a.uid
)
UPDATE past_appwrapper SET evictions = past_appwrapper.evictions {sign} counted.evictions,
                           requeues = past_appwrapper.requeues {sign} counted.requeues
FROM counted WHERE past_appwrapper.uid = counted.uid
"""

COMMENTS = (
    (
        "attempt_history",
        "preempted_by",
        "The uid of the AppWrapper that it was preempted for; null if it was not, or if its own queue was drained.",
        "The uid of the AppWrapper that it was preempted for; null if it was not.",
    ),
    (
        "preemptions",
        "by_uid",
        "The uid of the AppWrapper that it made room for; null if its own queue was drained.",
        "The uid of the AppWrapper that it made room for.",
    ),
    (
        "preemptions",
        "reason",
        "PriorityInQueue, QuotaReclaimed, QuotaReclaimedWhileBorrowing, FairShare, or QueueStopped for a drained "
        "queue.",
        "PriorityInQueue, QuotaReclaimed, QuotaReclaimedWhileBorrowing or FairShare.",
    ),
    (
        "job_history",
        "evictions",
        "How often it was taken from its cluster because it did not run as it should, or that was drained.",
        "How often it was taken from its cluster because it did not run as it should, or because its cluster or its "
        "queue was drained.",
    ),
)
"""View, column, the comment until now, and the new one. Those of schema tenant are the same."""


def upgrade() -> None:
    _run(*_changes("preempted", "evicted", "+"), *_comments())


def downgrade() -> None:
    _run(*_changes("evicted", "preempted", "-"), *_comments(back=True))


def _changes(old: str, new: str, sign: str) -> Iterator[str]:
    for statement in (*STORED, PAST):
        yield statement.format(old=old, new=new, sign=sign)


def _comments(*, back: bool = False) -> Iterator[str]:
    for view, column, before, after in COMMENTS:
        for schema in ("history", "tenant"):
            yield f"COMMENT ON COLUMN {schema}.{view}.{column} IS {_literal(before if back else after)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

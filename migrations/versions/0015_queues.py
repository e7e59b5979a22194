"""AppWrappers know all their queues and their preemptions, and attempts the AppWrapper that they made room for.

`history.preemptions` has the attempts that were preempted. A preemption is no eviction, no requeue and no failure, but
what it held is lost. Queues bring new pending reasons, with their advice and with why others went first.
"""

from collections.abc import Iterator
from typing import Any

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
GANGS_COMMENT = """
COMMENT ON VIEW scheduling.gangs IS 'AppWrappers with their demand and requirements, and their current attempt.'
"""

PREEMPTIONS = """
CREATE VIEW history.preemptions AS
SELECT t.ended_at AS at, t.uid, t.namespace, t.name, t.queue, t.preempted_by AS by_uid, other.name AS by_name,
       other.queue AS by_queue, t.cluster, t.attempt, t.run_s AS ran_s, t.gpu_h AS gpu_h_lost,
       t.error_class AS reason, other.namespace AS by_namespace
FROM history.attempt_history AS t
LEFT JOIN LATERAL (
    SELECT a.namespace, a.name, a.queue FROM public.appwrapper AS a WHERE a.uid = t.preempted_by
    UNION ALL
    SELECT p.namespace, p.name, p.queue FROM public.past_appwrapper AS p WHERE p.uid = t.preempted_by
) AS other ON true
WHERE t.outcome = 'preempted'
"""

TENANT = """
CREATE VIEW tenant.preemptions WITH (security_barrier) AS
SELECT * FROM history.preemptions
WHERE namespace IN (
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
)
"""

NO_PREEMPTIONS = "DROP VIEW tenant.preemptions, history.preemptions"

PREEMPTIONS_MEANING = (
    "Every attempt that was taken from its cluster for the sake of another gang, and what it cost."
)
PREEMPTIONS_COLUMNS = {
    "at": "When its capacity was free again.",
    "uid": "The AppWrapper's metadata.uid.",
    "namespace": "Namespace of the AppWrapper.",
    "name": "Name of the AppWrapper.",
    "queue": "Name of its queue.",
    "by_uid": "The uid of the AppWrapper that it made room for; null if its own queue was drained.",
    "by_name": "The name of that AppWrapper; null if history does not have it any more.",
    "by_queue": "The queue of that AppWrapper.",
    "cluster": "The cluster it was taken from.",
    "attempt": "Number of the attempt.",
    "ran_s": "Seconds it had run.",
    "gpu_h_lost": "GPU hours it had held.",
    "reason": (
        "PriorityInQueue, QuotaReclaimed, QuotaReclaimedWhileBorrowing, FairShare, or QueueStopped for a drained queue."
    ),
    "by_namespace": "The namespace of that AppWrapper.",
}

COMMENTS = (
    (
        "attempt_history",
        "outcome",
        "completed, failed, suspended, evicted, postponed, withdrawn, lost or deleted; empty while it lives.",
        "completed, failed, suspended, evicted, preempted, postponed, withdrawn, lost or deleted; empty while it "
        "lives.",
    ),
    (
        "attempt_history",
        "preempted_by",
        "The uid of the AppWrapper it had to make room for; always null: none has to yet.",
        "The uid of the AppWrapper that it was preempted for; null if it was not, or if its own queue was drained.",
    ),
    (
        "evictions",
        "by_uid",
        "The uid of the AppWrapper it had to make room for; always null: none has to yet.",
        "Always null: an eviction makes room for nobody, see preemptions.",
    ),
    ("evictions", "by_name", "The name of that one; always null.", "Always null."),
    ("evictions", "by_queue", "The queue of that one; always null.", "Always null."),
    (
        "job_history",
        "lost_s",
        "Seconds for which capacity was held by attempts that came to nothing: evicted, postponed, withdrawn or lost.",
        "Seconds for which capacity was held by attempts that came to nothing: evicted, preempted, postponed, "
        "withdrawn or lost.",
    ),
)
"""View, column, the comment until now, and the new one. Those of schema tenant are the same."""

ADVICE = {
    "InsufficientQuota": "Wait: it goes when its queue has quota again; the message says who uses it.",
    "OverNominalQuota": "Wait, or lower its priority: gangs that may not be preempted use all quota of its queue.",
    "LargerThanQuota": "Ask for less, or ask for a larger quota: its queue could never have so much.",
    "PreemptedTooOften": "Wait: it was preempted so often that it goes only within the quota of its own queue.",
    "AwaitingRelease": "Wait: it goes once gangs that are leaving are gone.",
    "QueueNotFound": "Correct the label that names its queue, or ask the operator for that queue.",
    "QueueNotLeaf": "Name one of the queues below its queue: only queues without children take gangs.",
    "NamespaceNotAllowed": "Name another queue, or ask the operator: its queue does not serve its namespace.",
    "QueueStopped": "Wait, or ask the operator when its queue opens again.",
}
"""Advice for the new pending reasons."""

GOES_BY_ITSELF = ("InsufficientQuota", "OverNominalQuota", "AwaitingRelease")
"""The new pending reasons of a gang that waiting alone helps, so that its start can be estimated."""

OF_QUEUE = (
    "InsufficientQuota",
    "OverNominalQuota",
    "LargerThanQuota",
    "PreemptedTooOften",
    "QueueNotFound",
    "QueueNotLeaf",
    "NamespaceNotAllowed",
    "QueueStopped",
)
"""The new pending reasons that are about the queue of a gang, and not about room."""

WHY_COMMENT = (
    "backfill: it had been told that the cluster lacks room for it. ",
    "backfill: it had been told that the cluster lacks room for it. "
    "quota: its queue lacked quota, or did not take it. ",
)


def _texts(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'::text" for word in words)


# Each is a view or a function, a text in its definition as the server has it, and the text instead. The parts of a
# definition that are not about queues stay unchanged.
SWAPS = (
    ("public.attempt_live", "NULL::text AS preempted_by", "NULLIF(t.preempted_by, ''::text) AS preempted_by"),
    (
        "public.job_live",
        "sum(each.held_s) FILTER (WHERE (each.outcome = ANY (ARRAY['evicted'::text",
        "sum(each.held_s) FILTER (WHERE (each.outcome = ANY (ARRAY['evicted'::text, 'preempted'::text",
    ),
    (
        "history.queue_now",
        "'CreationPostponed'::text, 'ClusterLost'::text",
        f"'CreationPostponed'::text, 'ClusterLost'::text, {_texts(GOES_BY_ITSELF)}",
    ),
    (
        "history.overtakes",
        "'LargerThanCluster'::text]",
        "'LargerThanCluster'::text, 'AwaitingRelease'::text]",
    ),
    (
        "waiting_advice(text)",
        "Look at the message: it did not run as it should; it is tried again by itself.",
        "Look at the message: it did not run as it should, or made room for another; it is tried again by itself.",
    ),
)
# Each is a view or a function, the text before which something is added, and the addition. The server lays out
# additions anew, so they are taken out by themselves.
ADDITIONS = (
    (
        "history.overtakes",
        "WHEN (told.reason = ANY (ARRAY['NoCluster'::text",
        f"WHEN (told.reason = ANY (ARRAY[{_texts(OF_QUEUE)}])) THEN 'quota'::text",
    ),
    (
        "waiting_advice(text)",
        "WHEN 'NameTaken'::text THEN",
        " ".join(f"WHEN '{reason}'::text THEN '{advice}'::text" for reason, advice in ADVICE.items()),
    ),
)
PATCH_VIEW = """
DO $$
DECLARE
    known text := pg_get_viewdef({name}::regclass);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION '% is not as earlier revisions made it', {name}; END IF;
    EXECUTE format('CREATE OR REPLACE VIEW %s AS ', {name}) || patched;
END
$$
"""
PATCH_FUNCTION = """
DO $$
DECLARE
    known text := pg_get_functiondef({name}::regprocedure);
    patched text := replace(known, {old}, {new});
BEGIN
    IF patched = known THEN RAISE EXCEPTION '% is not as earlier revisions made it', {name}; END IF;
    EXECUTE patched;
END
$$
"""
PATCH_WHY = """
DO $$
DECLARE
    view regclass := 'history.overtakes'::regclass;
    number smallint := (SELECT attnum FROM pg_attribute WHERE attrelid = view AND attname = 'why');
BEGIN
    EXECUTE format(
        'COMMENT ON COLUMN history.overtakes.why IS %L', replace(col_description(view, number), {old}, {new}));
END
$$
"""


def upgrade() -> None:
    _run(COLUMNS, GANGS.format(more=MORE))
    _run(*_patches())
    _run(PREEMPTIONS, TENANT, *_comments())


def downgrade() -> None:
    _run(NO_PREEMPTIONS)
    _run(*_patches(back=True), *_comments(back=True))
    _run("DROP VIEW scheduling.gangs")  # a view cannot lose columns
    _run(GANGS.format(more=""), GANGS_COMMENT, NO_COLUMNS)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        yield _patch(name, after, before) if back else _patch(name, before, after)
    for name, place, added in ADDITIONS:
        yield _patch(name, added, "") if back else _patch(name, place, f"{added} {place}")


def _patch(name: str, old: str, new: str) -> str:
    form = PATCH_FUNCTION if "(" in name else PATCH_VIEW
    return form.format(name=_literal(name), old=_literal(old), new=_literal(new))


def _comments(*, back: bool = False) -> Iterator[str]:
    for view, column, before, after in COMMENTS:
        for schema in ("history", "tenant"):
            yield f"COMMENT ON COLUMN {schema}.{view}.{column} IS {_literal(before if back else after)}"
    before, after = reversed(WHY_COMMENT) if back else WHY_COMMENT
    yield PATCH_WHY.format(old=_literal(before), new=_literal(after))
    if back:
        return
    yield f"COMMENT ON VIEW history.preemptions IS {_literal(PREEMPTIONS_MEANING)}"
    for schema in ("history", "tenant"):
        for column, meaning in PREEMPTIONS_COLUMNS.items():
            yield f"COMMENT ON COLUMN {schema}.preemptions.{column} IS {_literal(meaning)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""What AppWrappers choose to be told, and schema `notify`: what the notifier reads, and what it keeps.

The notifier reads events in the order of their ids, which is the order of the commits: one leader writes one batch at a
time. An event is settled once no transaction that is older than its own is open, or after a minute, which no
transaction of a leader lasts; the notifier stops at the first that is not.
"""

from typing import Any

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TOLD = (
    *("pods-running", "completed", "found-completed"),
    *("rejected", "creation-refused", "provisioning-refused", "run-failed", "lost", "found-failed"),
    *("preempted", "evicted", "abandoned"),
)
"""The causes of events that somebody may be told of. Few events have one, so the index of these is small."""

LOCK = 0x61776E6F74696679
"""Key of the advisory lock that the sending notifier holds: "awnotify"."""

UNDECLARED = "(undeclared)"
"""Stands for every queue that is not declared: users choose those names, and each would be an alarm of its own."""

_CAUSES = ", ".join(f"'{each}'::text" for each in TOLD)

UP = f"""
ALTER TABLE public.appwrapper ADD COLUMN notifications text DEFAULT ''::text NOT NULL;
CREATE INDEX ix_event_told ON public.event (id) WHERE (cause = ANY (ARRAY[{_CAUSES}]));

CREATE SCHEMA notify;

CREATE TABLE notify.cursor (
    target text NOT NULL,
    event_id bigint NOT NULL,
    since timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT pk_cursor PRIMARY KEY (target)
);

CREATE TABLE notify.outbox (
    target text NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    id text NOT NULL,
    lane text NOT NULL,
    since timestamp with time zone NOT NULL,
    message text NOT NULL,
    CONSTRAINT pk_outbox PRIMARY KEY (target, number),
    CONSTRAINT uq_outbox_id UNIQUE (target, id)
);

CREATE TABLE notify.told_wait (
    target text NOT NULL,
    uid text NOT NULL,
    since timestamp with time zone NOT NULL,
    longer_than interval NOT NULL,
    CONSTRAINT pk_told_wait PRIMARY KEY (target, uid, since, longer_than)
);

CREATE TABLE notify.alarm (
    target text NOT NULL,
    alarm text NOT NULL,
    queue text NOT NULL,
    began_at timestamp with time zone NOT NULL,
    CONSTRAINT pk_alarm PRIMARY KEY (target, alarm, queue)
);

CREATE VIEW notify.hub AS SELECT id FROM public.hub;

CREATE VIEW notify.events AS
SELECT e.id, e.at, e.recorded_at, e.uid, e.namespace, e.name, e.queue, e.cause, e.from_phase, e.to_phase, e.reason,
       e.message, e.cluster, e.attempt, t.started_at, coalesce(a.notifications, '') AS notifications,
       age(e.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)
           OR e.recorded_at < statement_timestamp() - interval '1 minute' AS is_settled
FROM public.event AS e
LEFT JOIN public.appwrapper AS a ON a.uid = e.uid
LEFT JOIN public.attempt AS t ON t.uid = e.uid AND t.number = e.attempt
WHERE e.cause = ANY (ARRAY[{_CAUSES}]);

CREATE VIEW notify.waiting AS
SELECT uid, namespace, name, queue, phase_since AS since, coalesce(pending_message, '') AS message,
       coalesce(public.waiting_advice(pending_reason), '') AS advice, notifications
FROM public.appwrapper WHERE phase = 'Queued';

CREATE VIEW notify.queues AS
SELECT queue, coalesce(waiting.queued, 0) AS queued, waiting.oldest_since,
       coalesce(declared.spec ->> 'stopPolicy', 'None') AS stop_policy
FROM (SELECT queue, spec FROM public.queue_spec WHERE valid_to IS NULL) AS declared
FULL JOIN (
    SELECT CASE
               WHEN a.queue = 'default' OR EXISTS (
                   SELECT FROM public.queue_spec AS s WHERE s.queue = a.queue AND s.valid_to IS NULL
               ) THEN a.queue
               ELSE '{UNDECLARED}'
           END AS queue,
           count(*) AS queued, min(a.phase_since) AS oldest_since
    FROM public.appwrapper AS a WHERE a.phase = 'Queued' GROUP BY 1
) AS waiting USING (queue);

CREATE FUNCTION notify.lead() RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT pg_try_advisory_lock({LOCK})';
REVOKE EXECUTE ON FUNCTION notify.lead() FROM PUBLIC;

COMMENT ON SCHEMA notify IS 'For dispatcher notify alone: what it reads, and what it keeps for each target.';
COMMENT ON TABLE notify.cursor IS 'How far the events were read for each target, and since when it is declared.';
COMMENT ON TABLE notify.outbox IS 'The messages that a target has not taken yet.';
COMMENT ON TABLE notify.told_wait IS 'The waits that a target was told of, of what still waits.';
COMMENT ON TABLE notify.alarm IS 'The alarms whose begin a target was told, and whose end it was not.';
COMMENT ON VIEW notify.events IS 'The events that somebody may be told of, and what their AppWrappers choose.';
COMMENT ON VIEW notify.waiting IS 'The queued AppWrappers, and since when they are queued.';
COMMENT ON VIEW notify.queues IS 'Each declared queue, default, and all others as one: what waits, and the stopPolicy.';
COMMENT ON FUNCTION notify.lead() IS 'True if the session holds the lock of the one notifier that sends, from now on.'
"""

DOWN = """
DROP SCHEMA notify CASCADE;
DROP INDEX public.ix_event_told;
ALTER TABLE public.appwrapper DROP COLUMN notifications
"""


def upgrade() -> None:
    _run(UP)


def downgrade() -> None:
    _run(DOWN)


def _run(statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(statements)

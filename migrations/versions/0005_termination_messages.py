"""Termination messages: a column of their own on events, for fewer readers than the message of an event has.

The program in a container writes its termination message, which may hold anything, secrets too. So views of schema
`history` are without it, but for `termination_messages`, which nobody is granted. Tenants read it in schema `tenant`.
A dispatcher of revision 0004 writes the termination message to the end of the message, where it stays.
"""

from typing import Any

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TOLD = (
    *("pods-running", "completed", "found-completed"),
    *("rejected", "creation-refused", "provisioning-refused", "run-failed", "lost", "found-failed"),
    *("preempted", "evicted", "abandoned"),
)
"""The causes of events that somebody may be told of, as the index of revision 0002 has them."""

_CAUSES = ", ".join(f"'{each}'::text" for each in TOLD)


def _events(more_columns: str = "") -> str:
    """The query of `notify.events`; a view takes further columns only at its end."""
    return f"""
SELECT e.id, e.at, e.recorded_at, e.uid, e.namespace, e.name, e.queue, e.cause, e.from_phase, e.to_phase, e.reason,
       e.message, e.cluster, e.attempt, t.started_at, coalesce(a.notifications, '') AS notifications,
       age(e.xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::xid)
           OR e.recorded_at < statement_timestamp() - interval '1 minute' AS is_settled{more_columns}
FROM public.event AS e
LEFT JOIN public.appwrapper AS a ON a.uid = e.uid
LEFT JOIN public.attempt AS t ON t.uid = e.uid AND t.number = e.attempt
WHERE e.cause = ANY (ARRAY[{_CAUSES}])
"""


GRANTED = """
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
"""

UP = f"""
ALTER TABLE public.event ADD COLUMN termination_message text DEFAULT ''::text NOT NULL;

CREATE OR REPLACE VIEW notify.events AS {_events(", e.termination_message")};

CREATE VIEW history.termination_messages AS
SELECT namespace, name, uid, at, cause, cluster, attempt, termination_message, id
FROM public.event WHERE termination_message <> '';

CREATE VIEW tenant.termination_messages WITH (security_barrier) AS
SELECT * FROM history.termination_messages
WHERE namespace = ANY (ARRAY({GRANTED}));

COMMENT ON VIEW history.termination_messages IS
    'What the container that failed first wrote as its termination message: one row for each event of a failure or an '
    'eviction that has one. Nobody is granted this view but tenants, in schema tenant, for their namespaces.'
"""

MEANINGS = {
    "namespace": "Namespace of the AppWrapper.",
    "name": "Name of the AppWrapper; a successor of the same name has another uid.",
    "uid": "The AppWrapper's metadata.uid.",
    "at": "When the AppWrapper failed, or was evicted.",
    "cause": "run-failed or evicted.",
    "cluster": "The cluster of the attempt.",
    "attempt": "Number of the attempt.",
    "termination_message": "The text of the program in the container, in one line of at most 512 characters.",
    "id": "The id of the event in timeline.",
}

ROLES = "SELECT FROM pg_roles WHERE rolname"

DOWN = f"""
DROP VIEW tenant.termination_messages, history.termination_messages, notify.events;
CREATE VIEW notify.events AS {_events()};
COMMENT ON VIEW notify.events IS 'The events that somebody may be told of, and what their AppWrappers choose.';
ALTER TABLE public.event DROP COLUMN termination_message
"""


def upgrade() -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(UP)
    for schema in ("history", "tenant"):
        for column, meaning in MEANINGS.items():
            literal = meaning.replace("'", "''")
            connection.execute(f"COMMENT ON COLUMN {schema}.termination_messages.{column} IS '{literal}'")
    # By default the reader may read every new view of the schema (revision 0001).
    if connection.execute(f"{ROLES} = 'dispatcher_reader'").fetchone() is not None:
        connection.execute("REVOKE ALL ON history.termination_messages FROM dispatcher_reader")


def downgrade() -> None:
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(DOWN)
    if connection.execute(f"{ROLES} = 'dispatcher_notifier'").fetchone() is not None:
        connection.execute("GRANT SELECT ON notify.events TO dispatcher_notifier")

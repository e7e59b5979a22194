"""`history.capacity_requests`: each attempt that requested its capacity, and what the class answered."""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

REQUESTS = """
CREATE VIEW history.capacity_requests AS
SELECT t.decided_at AS at, t.uid, t.namespace, t.name, t.queue, t.user_name, t.cluster, t.attempt,
       asked.provisioning #>> '{class,className}' AS class,
       CASE
           WHEN asked.provisioned_at IS NOT NULL THEN 'provisioned'
           WHEN t.ended_at IS NULL THEN 'awaited'
           ELSE 'not provisioned'
       END AS answer,
       asked.provisioning ->> 'message' AS message, asked.provisioned_at,
       greatest(0, extract(
           epoch FROM coalesce(asked.provisioned_at, t.ended_at, statement_timestamp()) - t.decided_at
       ))::double precision AS wait_s
FROM (
    SELECT uid, number AS attempt, provisioning, (provisioning ->> 'provisioned_at')::timestamptz AS provisioned_at
    FROM public.attempt WHERE provisioning IS NOT NULL
    UNION ALL
    SELECT uid, attempt, provisioning, (provisioning ->> 'provisioned_at')::timestamptz
    FROM public.past_attempt WHERE provisioning IS NOT NULL
) AS asked
JOIN history.attempt_history AS t ON t.uid = asked.uid AND t.attempt = asked.attempt
"""

TENANT = """
CREATE VIEW tenant.capacity_requests WITH (security_barrier) AS
SELECT * FROM history.capacity_requests
WHERE namespace IN (
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
)
"""

NO_REQUESTS = "DROP VIEW tenant.capacity_requests, history.capacity_requests"

MEANING = "Every attempt that requested its capacity from a provisioning class, and what the class answered."
MEANINGS = {
    "at": "When the gang was dispatched, and its capacity was to be requested.",
    "uid": "The AppWrapper's metadata.uid.",
    "namespace": "Namespace of the AppWrapper.",
    "name": "Name of the AppWrapper.",
    "queue": "Name of the queue that it was charged in.",
    "user_name": "Who submitted it; its namespace where nobody vouches for that.",
    "cluster": "The cluster in which the capacity was requested.",
    "attempt": "Number of the attempt.",
    "class": "Name of the provisioning class.",
    "answer": (
        "provisioned, awaited while there is no answer, or not provisioned: the class refused, or the attempt ended "
        "before an answer."
    ),
    "message": "What the class said last.",
    "provisioned_at": "When the dispatcher saw that the capacity was there; null until then.",
    "wait_s": "Seconds from the dispatch until the capacity was there, the attempt ended, or now.",
}


def upgrade() -> None:
    _run(REQUESTS, TENANT, *_meanings())


def downgrade() -> None:
    _run(NO_REQUESTS)


def _meanings() -> Iterator[str]:
    for schema in ("history", "tenant"):
        view = f"{schema}.capacity_requests"
        yield f"COMMENT ON VIEW {view} IS {_literal(MEANING)}"
        for column, meaning in MEANINGS.items():
            yield f"COMMENT ON COLUMN {view}.{column} IS {_literal(meaning)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

"""`tenant.node_history` leaves out the attempts of others where they are read, and tells no moment of theirs.

Postgres checks a condition with a subquery (`namespace IN (SELECT …)`) above both places that `history.node_history`
reads: after it took the places of all attempts apart. An array of a subquery is computed first, and then checked where
each attempt is read.
"""

from typing import Any

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

GRANTED = """
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
"""

COLUMNS = """
uid, namespace, name, queue, user_name, attempt, cluster, template, node, pods, cpu, memory_gib, gpu, decided_at,
started_at, ended_at, outcome
"""

UP = f"""
CREATE OR REPLACE VIEW tenant.node_history WITH (security_barrier) AS
SELECT {COLUMNS},
       -- It is the end of an attempt of any namespace. What it means is true of the next midnight, too.
       date_trunc('day', known_from, 'UTC') + interval '24 hours' AS known_from
FROM history.node_history
WHERE namespace = ANY (ARRAY({GRANTED}))
"""

DOWN = f"""
CREATE OR REPLACE VIEW tenant.node_history WITH (security_barrier) AS
SELECT {COLUMNS}, known_from
FROM history.node_history
WHERE namespace IN ({GRANTED})
"""

KNOWN_FROM = (
    "The nodes of every attempt that ended later are kept. Of those that ended by then some are lost: an earlier "
    "release moved them to history. Null if none is lost."
)
IN_DAYS = f"{KNOWN_FROM} In schema tenant it is the next midnight in UTC."


def upgrade() -> None:
    _replace(UP, IN_DAYS)


def downgrade() -> None:
    _replace(DOWN, KNOWN_FROM)


def _replace(view: str, known_from: str) -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(view)
    for schema in ("history", "tenant"):
        connection.execute(f"COMMENT ON COLUMN {schema}.node_history.known_from IS '{known_from}'")

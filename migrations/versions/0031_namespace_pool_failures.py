"""Pools of clusters whose nodes did not come for gangs of a namespace: how often in a row, and until when it waits.

A failure is confirmed if a scheduler said of a pod that no node takes it. Until now the failures of all namespaces were
one row in `pool_failures`, by which the pods of one author kept all gangs from a pool. That table stays for a release
before this one that still leads; its rows name no namespace, so this release does not read them.
"""

from typing import Any

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE namespace_pool_failures (
    cluster text NOT NULL,
    pool text NOT NULL,
    namespace text NOT NULL,
    failures integer NOT NULL,
    distrusted_until timestamptz NOT NULL,
    is_confirmed boolean NOT NULL,
    CONSTRAINT pk_namespace_pool_failures PRIMARY KEY (cluster, pool, namespace)
)
"""
NO_TABLE = "DROP TABLE namespace_pool_failures"


def upgrade() -> None:
    _run(TABLE)


def downgrade() -> None:
    _run(NO_TABLE)


def _run(statement: str) -> None:
    # The driver's connection takes colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(statement)

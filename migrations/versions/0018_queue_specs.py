"""`queue_spec` keeps the spec of each valid queue over time, so that a decision can be planned again as it was made.

History knows the specs from the first start of a dispatcher of this revision on.
"""

from collections.abc import Iterator
from typing import Any

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

SPECS = """
CREATE TABLE queue_spec (
    queue      text        NOT NULL,
    position   integer     NOT NULL,
    spec       jsonb       NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to   timestamptz,
    CONSTRAINT pk_queue_spec PRIMARY KEY (queue, valid_from)
);
CREATE UNIQUE INDEX uq_queue_spec_valid ON queue_spec (queue) WHERE valid_to IS NULL;
CREATE VIEW history.queue_specs AS
SELECT queue, position, spec, valid_from, valid_to FROM public.queue_spec
"""

NO_SPECS = "DROP VIEW history.queue_specs; DROP TABLE queue_spec"

MEANING = (
    "The spec of each valid queue over time. A decision was made with those that were valid at decided_at."
)
MEANINGS = {
    "queue": "Name of the queue; a node of a QuotaSubtree is TREE/NODE.",
    "position": "Its place in the order of declaration, from 0.",
    "spec": "Its spec with the fields of a DispatchQueue, as a scenario file of dispatcher plan has them.",
    "valid_from": "When a leader saw it.",
    "valid_to": "When a leader saw another one or none. Null if it is valid now.",
}


def upgrade() -> None:
    _run(SPECS, *_meanings())


def downgrade() -> None:
    _run(NO_SPECS)


def _meanings() -> Iterator[str]:
    yield f"COMMENT ON VIEW history.queue_specs IS '{MEANING}'"
    for column, meaning in MEANINGS.items():
        yield f"COMMENT ON COLUMN history.queue_specs.{column} IS '{meaning}'"


def _run(*statements: str) -> None:
    # The driver's connection takes several statements at once.
    connection: Any = op.get_bind().connection.driver_connection
    for statement in statements:
        connection.execute(statement)

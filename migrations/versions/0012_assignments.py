"""Where the pods of an attempt had places at its dispatch: for each pod set, pairs of a node and a number of pods.

Until the pods are bound, they hold these places, also under the next leader. Attempts of earlier releases have none;
the dispatcher finds places for their unbound pods. The default is constant, so adding the column rewrites no table.
Resource claims are a new reason to wait, with its advice.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


BEFORE = "WHEN 'NameTaken'::text THEN"
ADVICE = (
    "WHEN 'DeviceClaimsNotCounted'::text THEN "
    "'Request devices as a resource of the nodes: nothing counts those of its resource claims.'::text "
)

# The server's definition is patched, so the parts that are not about the new reason stay unchanged.
PATCH = """
DO $$
DECLARE patched text := replace(pg_get_functiondef('waiting_advice(text)'::regprocedure), {old}, {new});
BEGIN
    IF patched = pg_get_functiondef('waiting_advice(text)'::regprocedure) THEN
        RAISE EXCEPTION 'waiting_advice is not as earlier revisions made it';
    END IF;
    EXECUTE patched;
END
$$
"""


def upgrade() -> None:
    op.execute("ALTER TABLE attempt ADD COLUMN assignment jsonb NOT NULL DEFAULT '[]'")
    _patch(BEFORE, ADVICE + BEFORE)


def downgrade() -> None:
    _patch(ADVICE, "")
    op.execute("ALTER TABLE attempt DROP COLUMN assignment")


def _patch(old: str, new: str) -> None:
    quoted = {"old": "'{}'".format(old.replace("'", "''")), "new": "'{}'".format(new.replace("'", "''"))}
    op.execute(PATCH.format(**quoted))

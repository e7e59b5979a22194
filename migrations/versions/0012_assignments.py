"""Where the pods of an attempt had places at its dispatch: for each pod set, pairs of a node and a number of pods.

Until the pods are bound, they hold these places, also under the next leader. Attempts of earlier releases have none;
the dispatcher finds places for their unbound pods. The default is constant, so adding the column rewrites no table.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE attempt ADD COLUMN assignment jsonb NOT NULL DEFAULT '[]'")


def downgrade() -> None:
    op.execute("ALTER TABLE attempt DROP COLUMN assignment")

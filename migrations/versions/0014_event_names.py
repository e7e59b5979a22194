"""The words of four events follow the vocabulary, in stored rows, in `history.clusters_now` and in its comments.

A StrictFIFO cycle leaves gangs not evaluated, the starvation bound begins when a gang is blocked at the head of the
queue, and the first event of a member cluster is its connection. An attempt that a restored database records as live
is found ended.
"""

from collections.abc import Mapping

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

CAUSES = {"lined-up": "not-evaluated", "became-head": "blocked-at-head", "found-over": "found-ended"}
CLUSTER_EVENTS = {"joined": "connected"}

# One statement for all words of a table, because each reads all partitions.
STORED = """
UPDATE {table} SET {column} = renamed.new
FROM (VALUES {words}) AS renamed (old, new)
WHERE {table}.{column} = renamed.old
"""

# The server's definition is patched, so the other parts of the view stay unchanged.
VIEW = """
DO $$
BEGIN
    EXECUTE 'CREATE OR REPLACE VIEW history.clusters_now AS '
        || replace(pg_get_viewdef('history.clusters_now'::regclass), '''{old}''', '''{new}''');
END
$$
"""

COMMENT = """
COMMENT ON VIEW history.cluster_events IS
'What happened to clusters: {word}, closed, opened, cordoned, became unreachable, and so on.'
"""


def upgrade() -> None:
    _rename(CAUSES, CLUSTER_EVENTS)


def downgrade() -> None:
    _rename(_reversed(CAUSES), _reversed(CLUSTER_EVENTS))


def _rename(causes: Mapping[str, str], cluster_events: Mapping[str, str]) -> None:
    op.execute(STORED.format(table="event", column="cause", words=_listed(causes)))
    op.execute(STORED.format(table="cluster_event", column="event", words=_listed(cluster_events)))
    for old, new in cluster_events.items():
        op.execute(VIEW.format(old=old, new=new))
        op.execute(COMMENT.format(word=new))


def _reversed(words: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in words.items()}


def _listed(words: Mapping[str, str]) -> str:
    return ", ".join(f"('{old}', '{new}')" for old, new in words.items())

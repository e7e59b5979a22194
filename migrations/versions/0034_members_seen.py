"""`hub.members_seen` has the MemberClusters that a leader saw: the next one knows of a member that is being replaced.

A hub without members in this column has none until one is listed; with some, their absence must last before the hub
takes gangs in their place. The members of before are the declared ones.

The reason of that wait has advice. In `history.overtakes` it is one for which later gangs go first: it blocks no gang.
"""

from collections.abc import Iterator

from dispatcher.store.definition_patches import patch_advice, patch_view, run

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE hub ADD COLUMN members_seen text[] NOT NULL DEFAULT '{}'"
KNOWN = "UPDATE hub SET members_seen = ARRAY(SELECT name FROM member_cluster WHERE is_declared ORDER BY name)"
NO_COLUMN = "ALTER TABLE hub DROP COLUMN members_seen"

ADVICE = {
    "ClusterRemoved": "Wait, or ask the operator: a member was removed, and the hub does not take its place yet.",
}
"""Advice for the new pending reason."""

ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (("history.overtakes", "'InternalError'::text", "'ClusterRemoved'::text, 'InternalError'::text"),)
ADDITION = " ".join(f"WHEN '{reason}'::text THEN '{advice}'::text" for reason, advice in ADVICE.items())


def upgrade() -> None:
    run(COLUMN, KNOWN, *_patches())


def downgrade() -> None:
    run(*_patches(back=True), NO_COLUMN)


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        old, new = (after, before) if back else (before, after)
        yield patch_view(name, old, new)
    old, new = (ADDITION, "") if back else (ADVISED, f"{ADDITION} {ADVISED}")
    yield patch_advice(old, new)

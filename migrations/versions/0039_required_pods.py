"""The pending reason of a gang that lacks a pod which its required affinity is about has advice.

In `history.overtakes` it is a reason for which later gangs go first, as such a gang blocks no other.
"""

from collections.abc import Iterator

from dispatcher.store.definition_patches import patch_advice, patch_view, run

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

ADVICE = (
    "Create the pods that the message names, or drop the rule of affinity: its age stands still until then."
)
ADVISED = "WHEN 'NameTaken'::text THEN"
ADDITION = f"WHEN 'RequiredPodsMissing'::text THEN '{ADVICE}'::text"
REASONS = "'NotDecided'::text, 'ProvisioningFailed'::text"
MORE_REASONS = "'NotDecided'::text, 'RequiredPodsMissing'::text, 'ProvisioningFailed'::text"


def upgrade() -> None:
    run(*_patches((REASONS, MORE_REASONS), (ADVISED, f"{ADDITION} {ADVISED}")))


def downgrade() -> None:
    run(*_patches((MORE_REASONS, REASONS), (ADDITION, "")))


def _patches(reasons: tuple[str, str], advice: tuple[str, str]) -> Iterator[str]:
    yield patch_view("history.overtakes", *reasons)
    yield patch_advice(*advice)

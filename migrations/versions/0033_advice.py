"""Two pending reasons have advice: a gang whose search was not decided, and one whose decision raised an exception.

In `history.overtakes` both are reasons for which later gangs go first, as they block no other gang.
"""

from collections.abc import Iterator

from dispatcher.store.definition_patches import patch_advice, patch_view, run

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

ADVICE = {
    "InternalError": "Tell the operator: the log of the dispatcher has the error. The gang is decided again later.",
    "NotDecided": "Give pods of one size one pod set, or split the gang: its search for nodes ended at a bound.",
}
"""Advice for the new pending reasons."""

ADVISED = "WHEN 'NameTaken'::text THEN"
SWAPS = (
    (
        "history.overtakes",
        "'NeedsPotentialNodes'::text, 'ProvisioningFailed'::text",
        "'InternalError'::text, 'NeedsPotentialNodes'::text, 'NotDecided'::text, 'ProvisioningFailed'::text",
    ),
)
ADDITION = " ".join(f"WHEN '{reason}'::text THEN '{advice}'::text" for reason, advice in ADVICE.items())


def upgrade() -> None:
    run(*_patches())


def downgrade() -> None:
    run(*_patches(back=True))


def _patches(*, back: bool = False) -> Iterator[str]:
    for name, before, after in SWAPS:
        old, new = (after, before) if back else (before, after)
        yield patch_view(name, old, new)
    old, new = (ADDITION, "") if back else (ADVISED, f"{ADDITION} {ADVISED}")
    yield patch_advice(old, new)

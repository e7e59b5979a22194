"""An AppWrapper that its queue does not take has no position there, and the positions of others do not count it.

Any user can name any queue in a label, so the positions in a queue count only AppWrappers that it takes.
"""

from collections.abc import Iterator

from dispatcher.store.definition_patches import patch_comment, patch_view, run

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

# A text in the definition of the view as the server has it, and in the comments on its columns, and the text instead.
REASONS = "'AwaitingApproval'::text]"
MORE_REASONS = (
    "'AwaitingApproval'::text, 'NamespaceNotAllowed'::text, 'QueueNotFound'::text, 'QueueNotLeaf'::text]"
)
COMMENT = "its clusters or its quota, or lacks approvals."
MORE_COMMENT = "its clusters or its quota, lacks approvals, or is in no queue, as its queue does not take it."


def upgrade() -> None:
    run(*_patches((REASONS, MORE_REASONS), (COMMENT, MORE_COMMENT)))


def downgrade() -> None:
    run(*_patches((MORE_REASONS, REASONS), (MORE_COMMENT, COMMENT)))


def _patches(reasons: tuple[str, str], comment: tuple[str, str]) -> Iterator[str]:
    yield patch_view("history.queue_now", *reasons)
    for schema in ("history", "tenant"):
        yield patch_comment(f"{schema}.queue_now", "position", *comment)

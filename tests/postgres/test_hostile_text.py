"""What members, kubelets and users write can be committed, whatever it is: no batch is refused because it quotes it."""

from __future__ import annotations

from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.record import Borrower, Pending, QuotaSummary
from dispatcher.core.model.requirements import Rejection
from dispatcher.store.queue import QueueStore
from tests.edges import EDGES, NASTY
from tests.postgres.changes import LATER, make_submit


async def test_everything_that_was_kept_of_hostile_text_is_committed_in_one_batch(queue: QueueStore) -> None:
    kept = sorted({text for edge in EDGES.values() for nasty in NASTY for text in edge(nasty)})
    records = (await queue.commit([make_submit(f"aw-{n}") for n in range(len(kept))])).accepted
    changes = []
    for record, text in zip(records, kept, strict=True):
        rejected = (Rejection("east", "NotReported", text, text),)
        quota = QuotaSummary("1", "2", borrowers=(Borrower(text, "3"),))
        pending = Pending("NotReported", text, text, "east", rejected, text, quota, (text,))
        changes.append(queue_changes.block(record, pending, LATER))
    result = await queue.commit([change for change in changes if change])
    assert (result.refused, result.stale, len(result.accepted)) == ((), (), len(kept))
    found = {record.uid: record for record in await queue.load_live()}
    for record, text in zip(records, kept, strict=True):
        pending_now = found[record.uid].pending
        assert pending_now is not None
        assert pending_now.message == text

"""What somebody has changed of the objects of a gang that was dispatched: told, never reverted.

A watch raises the suspicion, by the edition of an object; the comparison itself is made in the background, and what
it comes to is in memory only. After a restart, or when a member has come back, objects that were edited before are
compared anew, without knowing how they were made: see `core.kinds.drift.edited`.
"""

from __future__ import annotations

from dispatcher.api import conditions as words
from dispatcher.controller.intake.specs import owner_of
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.parts import Parts
from dispatcher.core.kinds.drift import message
from dispatcher.core.model.record import ObjectRef, Record
from dispatcher.kube.drift_checker import Edits, Question


def drift_of(parts: Parts, record: Record, cluster: Cluster) -> str:
    """What was changed, in a sentence, as far as is known; what was noted stands until everything is known."""
    objects = record.attempt.objects if record.attempt else ()
    edits = [(ref, _edits(parts, record, ref, cluster)) for ref in objects if ref.uid and not ref.done]
    if any(each is None for _, each in edits):
        noted = _noted(record)
        if noted:
            return noted
    return message([(ref, each or ()) for ref, each in edits])


def _noted(record: Record) -> str:
    ailment = record.unhealthy
    return ailment.message if ailment is not None and ailment.reason == words.DRIFTED else ""


def _edits(parts: Parts, record: Record, ref: ObjectRef, cluster: Cluster) -> Edits | None:
    """None while that is not known."""
    edition = cluster.objects.edition(ref)
    if edition is None:
        return None if cluster.objects.state(ref) is None else ()
    if edition.generation == 1 or edition.version == cluster.wrapped.version_made(ref.uid):
        return ()  # as it was made

    async def compare() -> Edits:
        wrapped = (await parts.specs.of(record)).wrapped[ref.item]
        return await cluster.wrapped.edits(wrapped, ref, owner_of(record, parts.hub_id))

    return cluster.comparisons.ask(Question(record.uid, ref, edition, compare))

"""Drift: the fields of a dispatched gang's objects that somebody has edited. The status shows it, nothing reverts it.

A watch raises the suspicion, by the edition of an object. A background task compares the object with the manifest; the
outcome is in memory only. After a restart, or when a member is connected again, edited objects are compared anew,
without knowing how they were created: see `core.kinds.drift.edited`.
"""

from __future__ import annotations

from dispatcher.api import conditions as words
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.kinds.drift import message
from dispatcher.core.model.record import ObjectRef, Record
from dispatcher.kube.drift_checker import Edits, Question


def drift_of(attempts: Attempts, record: Record, cluster: Cluster, lowered: str = "") -> str | None:
    """The edited fields, in a sentence; a noted drift stands until every object is compared. Empty without drift.

    `lowered` is a sentence about objects that ask for fewer pods, which a comparison of fields leaves out.

    None while a comparison is due that may find one. Objects that no watch has shown are left out: a watch may be
    refused for ever.
    """
    objects = [ref for ref in (record.attempt.objects if record.attempt else ()) if ref.uid and not ref.done]
    seen = [ref for ref in objects if cluster.objects.state(ref) is not None]
    edits = [(ref, _edits(attempts, record, ref, cluster)) for ref in seen]
    found = [(ref, each) for ref, each in edits if each is not None]
    if len(found) < len(objects) and (noted := _noted(record)):
        return noted
    said = "; ".join(filter(None, (lowered, message(found))))
    return said or (None if len(found) < len(seen) else "")


def _noted(record: Record) -> str:
    issue = record.unhealthy
    return issue.message if issue is not None and issue.reason == words.DRIFTED else ""


def _edits(attempts: Attempts, record: Record, ref: ObjectRef, cluster: Cluster) -> Edits | None:
    """The edits of one object that a watch has shown; None until it is compared."""
    edition = cluster.objects.edition(ref)
    if edition is None:
        return ()
    if edition.generation == 1 or edition.version == cluster.object_client.version_made(ref.uid):
        return ()  # unchanged since its creation

    async def compare() -> Edits:
        wrapped = (await attempts.specs.of(record)).wrapped[ref.item]
        return await cluster.object_client.edits(wrapped, ref, attempts.owner_of(record))

    return cluster.drift_checker.ask(Question(record.uid, ref, edition, compare))

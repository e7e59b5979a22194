"""What those who act on one AppWrapper work with, and the one way in which they commit a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dispatcher.controller.intake.intake import Intake
from dispatcher.controller.intake.limits import Limits
from dispatcher.controller.intake.specs import Specs, owner_of
from dispatcher.controller.members.cluster import Cluster
from dispatcher.controller.reconcile.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.reconcile.committer import Committer
from dispatcher.controller.reconcile.pacing import Pacing
from dispatcher.controller.reconcile.status_writer import StatusWriter
from dispatcher.controller.reconcile.workqueue import WorkQueue
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.kinds.manifest import reference
from dispatcher.core.lifecycle.decision import Loss
from dispatcher.core.model.record import Change, ObjectRef, Phase, Record
from dispatcher.core.model.requirements import ClusterRequirements

CONFIRM_SECONDS: Final = 0.5
"""The first pause before looking again whether something is so; events usually come first."""

LONGEST_CONFIRM_SECONDS: Final = 30.0
"""The longest such pause: what a watch does not tell of is noticed after that."""

REFUSED_SECONDS: Final = 5.0
"""Pause before another try of a step that the database did not accept; the reason is in the log."""


class Patience:
    """How long to pause before the next look at a step that is not done yet, by the uid of its AppWrapper.

    Half as long as was waited for it already, within limits: so the pauses grow however many events come in between,
    and what took a moment is noticed a moment later.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, datetime]] = {}

    def pause(self, record: Record, now: datetime) -> float:
        """Seconds until the next look; another version of the record is another step, and begins anew."""
        version, since = self._since.get(record.uid, (record.version, now))
        if version != record.version:
            since = now
        self._since[record.uid] = record.version, since
        return min(LONGEST_CONFIRM_SECONDS, max(CONFIRM_SECONDS, (now - since).total_seconds() / 2))

    def forget(self, uid: str) -> None:
        """Its step is done."""
        self._since.pop(uid, None)


def _never(_cluster: str) -> bool:
    return False


def _none(_cluster: str) -> None:
    return None


def _always(_where: ClusterRequirements) -> bool:
    return True


def _keeps(_appwrapper: str, _attempt: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything the reconciler and its acts share."""

    hub: AppWrapperInformer
    hub_id: str
    clusters: Mapping[str, Cluster]
    cache: Cache
    committer: Committer
    intake: Intake
    specs: Specs
    status_writer: StatusWriter
    queue: WorkQueue
    wake_dispatch: Callable[[], None]
    now: Callable[[], datetime]
    is_joining: Callable[[str], bool] = _never
    loss_of: Callable[[str], Loss | None] = _none
    leads_nowhere: Callable[[ClusterRequirements], bool] = _always
    note_mishap: Callable[[str], None] = _none
    is_left_alone: Callable[[str], bool] = _never
    limits: Limits = field(default_factory=Limits)
    pacing: Pacing = field(default_factory=Pacing)
    denied_namespaces: frozenset[str] = frozenset()
    removes: Callable[[str, int], bool] = _keeps
    patience: Patience = field(default_factory=Patience)

    async def commit(self, change: Change) -> bool:
        """Commit one step, and look again: the next may be due at once. False if the row had moved, or is refused."""
        record = await self.committer.commit(change)
        if record is None:
            self.queue.add_later(change.after.uid, REFUSED_SECONDS)
            return False
        self.patience.forget(record.uid)
        if record.phase is Phase.DELETED:
            self.hub.forget(record.uid)
        for cluster in self.clusters.values():
            cluster.learn(record)
        self.queue.add(change.after.uid)
        return True

    def look_again(self, record: Record, within: float = LONGEST_CONFIRM_SECONDS) -> None:
        """Have the AppWrapper looked at again, whatever happens: soon at first, then later; `within` is in seconds."""
        self.queue.add_later(record.uid, min(within, self.patience.pause(record, self.now())))

    def cluster_of(self, record: Record | None) -> Cluster | None:
        """The cluster that has objects of the AppWrapper; None if none has, or it is unknown."""
        if record is None or record.attempt is None:
            return None
        exists = record.holds_capacity or record.kept_until is not None
        return self.clusters.get(record.attempt.cluster) if exists else None

    def is_wanted(self, record: Record) -> bool:
        """False once the AppWrapper is gone, or on its way out, as far as the watch knows."""
        view = self.hub.view(record.uid)
        return view is not None and not view.deleting

    async def refs(self, record: Record) -> list[ObjectRef]:
        """Every object the attempt may have created: with its uid where the answer is known."""
        owner = owner_of(record, self.hub_id)
        known = {ref.item: ref for ref in record.attempt.objects} if record.attempt else {}
        if not record.spec_hash:
            return list(known.values())  # its spec was not stored, and its record names them all
        spec = await self.specs.of(record)
        return [known.get(wrapped.index, reference(wrapped, owner)) for wrapped in spec.wrapped]

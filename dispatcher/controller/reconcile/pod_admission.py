"""Pods of gangs that grow by grants: removes the dispatcher's scheduling gate, and deletes pods that are given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.reconcile.event_recorder import event_about
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.core.model.growth import GatedPod, PodRef
from dispatcher.core.model.record import Record
from dispatcher.core.status.events import UserEvent, pods_not_admitted, pods_not_deleted
from dispatcher.kube.events import EventAbout

MOST_TOLD: Final = 1000
"""Gangs whose last refusal is remembered; beyond that, an Event may be repeated."""

_log = log.get("pod_admission")


class PodAdmitter:
    """Removes gates; a refusal by the API server is offered as an Event, once for each attempt and message."""

    def __init__(self, attempts: Attempts, offer: Callable[[EventAbout], None]) -> None:
        self._attempts = attempts
        self._refusals = _Refusals(attempts, offer)

    async def admit(self, record: Record, pods: Sequence[GatedPod], then: Result) -> Result:
        """Removes the gate from these pods; `then` is the result once that is done. Raises `ClusterError`."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        try:
            await cluster.growth_gates.remove_from(pods)
        except errors.Forbidden as error:
            _log.warning("admission_forbidden", appwrapper=record.key, uid=record.uid, error=str(error))
            self._refusals.tell(record, pods_not_admitted(cluster.name, str(error)))
            return poll()
        self._refusals.forget(record)
        return then


class PodDeleter:
    """Deletes surplus pods; a refusal by the API server is offered as an Event, like those of `PodAdmitter`."""

    def __init__(self, attempts: Attempts, offer: Callable[[EventAbout], None]) -> None:
        self._attempts = attempts
        self._refusals = _Refusals(attempts, offer)

    async def delete(self, record: Record, pods: Sequence[PodRef], then: Result) -> Result:
        """Deletes these pods; `then` is the result once all deletions are requested. Raises `ClusterError`.

        The watch shows when the pods are gone: a pod has its own grace period.
        """
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        try:
            await cluster.surplus_pods.delete(pods)
        except errors.Forbidden as error:
            _log.warning("deletion_forbidden", appwrapper=record.key, uid=record.uid, error=str(error))
            self._refusals.tell(record, pods_not_deleted(cluster.name, str(error)))
            return poll()
        self._refusals.forget(record)
        return then


class _Refusals:
    """The refusals that have an Event already, by the uid of the AppWrapper."""

    def __init__(self, attempts: Attempts, offer: Callable[[EventAbout], None]) -> None:
        self._attempts = attempts
        self._offer = offer
        self._told: dict[str, tuple[int, UserEvent]] = {}

    def tell(self, record: Record, notice: UserEvent) -> None:
        """Offer the Event, unless it was the last one about this attempt."""
        told = record.attempts, notice
        if self._told.get(record.uid) != told:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[record.uid] = told
            self._offer(event_about(record, notice, self._attempts.now()))

    def forget(self, record: Record) -> None:
        """The API server does not refuse any more."""
        self._told.pop(record.uid, None)

"""Admits pods of gangs that grow by grants: removes the dispatcher's scheduling gate from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.intake.attempts import Attempts
from dispatcher.controller.reconcile.event_recorder import event_about
from dispatcher.controller.reconcile.result import NOTHING, Result, poll
from dispatcher.core.model.growth import GatedPod
from dispatcher.core.model.record import Record
from dispatcher.core.status.events import pods_not_admitted
from dispatcher.kube.events import EventAbout

MOST_TOLD: Final = 1000
"""Gangs whose last refusal is remembered; beyond that, an Event may be repeated."""

_log = log.get("pod_admission")


class PodAdmitter:
    """Removes gates; a refusal by the API server is offered as an Event, once for each attempt and message."""

    def __init__(self, attempts: Attempts, offer: Callable[[EventAbout], None]) -> None:
        self._attempts = attempts
        self._offer = offer
        self._told: dict[str, tuple[int, str]] = {}

    async def admit(self, record: Record, pods: Sequence[GatedPod], then: Result) -> Result:
        """Removes the gate from these pods; `then` is the result once that is done. Raises `ClusterError`."""
        cluster = self._attempts.cluster_of(record)
        if cluster is None:
            return NOTHING
        try:
            await cluster.growth_gates.remove_from(pods)
        except errors.Forbidden as error:
            self._tell(record, cluster.name, str(error))
            return poll()
        self._told.pop(record.uid, None)
        return then

    def _tell(self, record: Record, cluster: str, refusal: str) -> None:
        _log.warning("admission_forbidden", appwrapper=record.key, uid=record.uid, error=refusal)
        told = record.attempts, refusal
        if self._told.get(record.uid) != told:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[record.uid] = told
            notice = pods_not_admitted(cluster, refusal)
            self._offer(event_about(record, notice, self._attempts.now()))

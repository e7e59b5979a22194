"""What the hub says about a name that no AppWrapper has: an object beside the queue, or Events of one that is gone.

Both answer a person who has no login of the database. What may not be read is left out. Events can be written by any
user who may write them in the namespace; they are shown, and nothing follows from them. Kubernetes keeps them for an
hour.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from dispatcher import errors
from dispatcher.api.names import FIELD_MANAGER, MCAD_NAME_LABEL, NAME_LABEL
from dispatcher.cli.hub import Hub
from dispatcher.cli.options import HubOptions, as_typed
from dispatcher.cli.people.appwrapper_names import parts
from dispatcher.cli.screens.output import text
from dispatcher.cli.screens.tables import Heading, table
from dispatcher.core.model.clock import time_in
from dispatcher.kube import paths
from dispatcher.kube.user_kubeconfig import has_kubeconfig
from dispatcher.text import name_of, one_line, text_of

Json = dict[str, Any]

WORKLOADS: Final = (
    ("batch/v1", "jobs", "Job"),
    ("ray.io/v1", "rayjobs", "RayJob"),
    ("ray.io/v1", "rayclusters", "RayCluster"),
    ("ray.io/v1", "rayservices", "RayService"),
    ("kubeflow.org/v1", "pytorchjobs", "PyTorchJob"),
    ("kubeflow.org/v1", "tfjobs", "TFJob"),
    ("kubeflow.org/v1", "mpijobs", "MPIJob"),
    ("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob"),
    ("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet"),
    ("leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("v1", "pods", "Pod"),
)
"""The kinds that people submit without an AppWrapper: apiVersion, plural and kind."""
_TIMELINE: Final = (Heading("SINCE"), Heading("REASON"), Heading("MESSAGE", wraps=True))


def beside_queue(at: HubOptions, name: str, namespace: str) -> str:
    """The sentence about an object of that name that is not in the queue; empty if none can be seen."""
    if not has_kubeconfig(at.kubeconfig):
        return ""
    with contextlib.suppress(errors.DispatcherError), Hub(at) as hub:
        where, last = parts(name, namespace)
        there = where or hub.namespace
        for version, plural, kind in WORKLOADS:
            with contextlib.suppress(errors.Refused):
                found = hub.client.get(paths.item(version, plural, there, last))
                return _said_of(kind, plural, f"{there}/{last}", found)
    return ""


def _said_of(kind: str, plural: str, key: str, found: Mapping[str, Any]) -> str:
    labels = (found.get("metadata") or {}).get("labels") or {}
    namespace, _, name = key.partition("/")
    if gang := name_of(labels.get(NAME_LABEL) or labels.get(MCAD_NAME_LABEL)):
        command = as_typed(f"explain {gang} -n {namespace}")
        return one_line(f"{kind} {key} is no AppWrapper: it belongs to AppWrapper {gang}: {command}")
    one = f"{plural}/{name} -n {namespace}"
    return one_line(
        f"{kind} {key} is not in the queue: no AppWrapper wraps it, and its pods take capacity beside the queue. To "
        f"queue it: kubectl get {one} -o yaml >{name}.yaml, kubectl delete {one}, {as_typed(f'submit {name}.yaml')}"
    )


class Gone(Struct, frozen=True):
    """An AppWrapper that was deleted, and what its Events say, the oldest first; read at a moment."""

    namespace: str
    name: str
    uid: str
    events: tuple[Json, ...]
    now: datetime

    def as_value(self) -> dict[str, Any]:
        """The AppWrapper for programs."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "state": "Deleted",
            "events": [
                {"at": at and at.isoformat(), "reason": reason, "message": message}
                for at, reason, message in self._told()
            ],
        }

    def as_text(self, width: int | None, *, is_wide: bool = False) -> str:
        """The AppWrapper for people; exact times in wide output."""
        now = None if is_wide else self.now
        rows = [(text(at, now), reason, message) for at, reason, message in self._told()]
        heading = f"{self.namespace}/{self.name} is deleted. The Events about it that the hub still has:"
        return f"{heading}\n{table(_TIMELINE, rows, width)}"

    def _told(self) -> Iterator[tuple[datetime | None, str, str]]:
        for each in self.events:
            at = time_in(each.get("lastTimestamp") or each.get("eventTime"))
            yield at, name_of(each.get("reason")), text_of(each.get("message"))


def gone(at: HubOptions, name: str, namespace: str) -> Gone | None:
    """The newest AppWrapper that had the name, by the dispatcher's Events; None if there are none."""
    with contextlib.suppress(errors.DispatcherError), Hub(at) as hub:
        where, last = parts(name, namespace)
        there = where or hub.namespace
        query = {"fieldSelector": f"involvedObject.kind=AppWrapper,involvedObject.name={last}"}
        listed = hub.client.items(paths.collection("v1", "events", there), query)
        ours = [each for each in listed if (each.get("source") or {}).get("component") == FIELD_MANAGER]
        ours.sort(key=lambda each: str(each.get("lastTimestamp") or ""))
        if ours:
            uid = name_of(ours[-1]["involvedObject"].get("uid"))
            own = tuple(each for each in ours if each["involvedObject"].get("uid") == uid)
            return Gone(there, last, uid, own, datetime.now(UTC))
    return None

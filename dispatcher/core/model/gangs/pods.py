"""Pods as the dispatcher sees them: requests, node, state, and the AppWrapper that they belong to.

Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dispatcher.core.model.gangs.gang import Constraint
from dispatcher.core.model.gangs.growth import PodShape
from dispatcher.core.model.gangs.pod_terms import PodSort
from dispatcher.core.model.resources import Resources
from dispatcher.values import shown_without


class PodPhase(StrEnum):
    """The phase of a pod, as Kubernetes spells it."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """The node does not answer. Long deprecated, still in the API; such a pod may be alive."""


class PodReason(StrEnum):
    """Why a pod does not run, or why its node ended it; a pod has at most one reason."""

    NONE = "none"
    STARTING = "starting"
    """Pending on a node, while images are pulled or init containers run."""
    STUCK = "stuck"
    """Pending on a node, and a container cannot start because of its image, its configuration or its crashes."""
    UNSCHEDULABLE = "unschedulable"
    """Pending, because the scheduler found no node for it."""
    GATED = "gated"
    """Pending, because the dispatcher has not admitted it yet."""
    EVICTED = "evicted"
    """Failed, because its node evicted it or went away."""


class Unscheduled(Struct, frozen=True):
    """Why the scheduler has no node for a pod, in the scheduler's words; `since` as the API server wrote it."""

    pod: str
    message: str = ""
    since: str = ""


class Gate(Struct, frozen=True):
    """The dispatcher's scheduling gate on a pod: where the pod is, and its age as the API server wrote it."""

    namespace: str
    name: str
    created_at: str


class Pod(Struct, frozen=True):
    """The requests and the state of a pod; `node` is empty until the pod is bound.

    `owner` is the uid of its AppWrapper, confirmed by the owner chain; None means foreign, or not confirmed. `claim` is
    the uid that the pod itself names, until that is confirmed or refuted. `exit_codes` are the nonzero exit codes of a
    Failed pod's containers, ascending. `unscheduled` comes with the reason UNSCHEDULABLE. `never_ends` is true for a
    pod of a DaemonSet and for a static pod: it stays as long as its node, or returns there. `gate` is the dispatcher's
    gate; None once the pod is admitted, and for a pod that never had it. `can_be_gated` is true for a pod whose
    template has that gate, also once the pod is admitted; `template` names the template, and the base gang has
    `base_pods` of its pods. It has `hosts` pods for each replica, and `replica` is the name of the pod's one, empty if
    the pod has none. Only such a pod has `admitted_as`, the gate that it had, once it is admitted; and only such a pod
    `is_ending`, once its deletion was requested, and has a `constraint`, its conditions on nodes, and the labels by
    which it is to be `apart` from pods like it, while it has no node. `sort` is what terms about pods depend on; None
    while the pod has no node. `node_by_author` is true while the pod's author alone says its node: no scheduler has
    bound it, and no kubelet has taken it, which may be for ever if the node is down.
    """

    uid: str
    requests: Resources
    node: str = ""
    phase: PodPhase = PodPhase.PENDING
    owner: str | None = None
    claim: str | None = None
    reason: PodReason = PodReason.NONE
    exit_codes: tuple[int, ...] = ()
    unscheduled: Unscheduled | None = None
    never_ends: bool = False
    gate: Gate | None = None
    can_be_gated: bool = False
    template: str = ""
    base_pods: int = 0
    hosts: int = 1
    replica: str = ""
    admitted_as: Gate | None = None
    is_ending: bool = False
    constraint: Constraint | None = None
    apart: tuple[str, ...] = ()
    sort: PodSort | None = None
    node_by_author: bool = False

    @property
    def shape(self) -> PodShape:
        """What decides where it may be."""
        return PodShape(self.template, self.requests, self.constraint, self.apart)

    @property
    def live(self) -> bool:
        """True unless the pod is Succeeded or Failed; a pod that is being deleted is live."""
        return self.phase not in {PodPhase.SUCCEEDED, PodPhase.FAILED}

    @property
    def occupies_node(self) -> bool:
        """True while its requests are charged to its node."""
        return bool(self.node) and self.live

    @property
    def is_admitted(self) -> bool:
        """True for a live pod that the dispatcher's gate does not stop, bound or not."""
        return self.live and self.gate is None

    @property
    def is_permanent(self) -> bool:
        """True while no gang can ever have its share of the node; the pods of an AppWrapper end with the AppWrapper."""
        is_foreign = self.owner is None and self.claim is None
        return self.never_ends and self.occupies_node and is_foreign and not self.node_by_author


@shown_without("message")
class PodFailure(Struct, frozen=True, omit_defaults=True):
    """How a pod of a gang failed: its container that ended with a nonzero `exit_code`, or the pod without any such one.

    `reason` is Kubernetes' word, such as OOMKilled or Evicted. `message` is the termination message: a text of the
    gang's author, which may hold anything. It belongs into the status of its own AppWrapper, and, apart from the
    message, into the event of history that ends the attempt: `in_words` leaves it out. The container `has_restarted` if
    its failed run is not its last one.
    """

    pod: str
    container: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    has_restarted: bool = False

    @property
    def in_words(self) -> str:
        """The failure in words that conditions, Kubernetes Events, the log and the history may have."""
        whose = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        return ", ".join(filter(None, (whose, code, self.reason)))


FAILED_FIRST: Final = "failed first: "
"""Stands in messages before the words of the first failure of a pod, at their end."""
_FIRST_FAILURE: Final = re.compile(rf".*{FAILED_FIRST}(?:container ([a-z0-9-]+) of )?pod ([a-z0-9.-]+), ")


def first_failure_in(message: str) -> PodFailure | None:
    """The pod and the container whose failure ends a message; None if it names none."""
    found = _FIRST_FAILURE.match(message)
    return PodFailure(found[2], found[1] or "") if found else None


class PodCounts(Struct, frozen=True):
    """The pods of one AppWrapper by phase; every live pod that does not run is pending.

    `starting`, `unschedulable` and `gated` count pending pods; the dispatcher's own scheduling gate stops gated ones.
    `evicted` counts failed pods, `lost` counts live pods on nodes that are not Ready, and `unbound` live pods without a
    node and without that gate. `exit_codes` are those of all failed pods.
    """

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    starting: int = 0
    unschedulable: int = 0
    gated: int = 0
    lost: int = 0
    evicted: int = 0
    unbound: int = 0
    exit_codes: frozenset[int] = frozenset()

    @property
    def live(self) -> int:
        """The number of pods that are neither Succeeded nor Failed; capacity is released once it is 0."""
        return self.pending + self.running

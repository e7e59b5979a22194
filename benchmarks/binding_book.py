"""Counts bound, pending and ended pods of dispatched gangs from the events of a watch. The caller gives the times.

A dispatch is an attempt of a gang with at least one pod. A pod is pending from the first time that its condition
PodScheduled is False with reason Unschedulable, until the pod is bound or gone. A pod that kube-scheduler has not tried
yet does not count as pending, because a busy machine delays the first try.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.binding_gangs import Gang, Wrapping
from dispatcher.api.names import ATTEMPT_LABEL, NAME_LABEL

Json = Mapping[str, Any]
Plan = Sequence[Mapping[str, int]]
"""For each pod set, the number of its pods on each node."""

GPU: Final = "nvidia.com/gpu"
TERMINAL: Final = frozenset({"Succeeded", "Failed"})


@dataclass(slots=True)
class Pod:
    """One pod; times in seconds of the caller's clock. `pod_set` is the index of its set in a plan."""

    name: str
    pod_set: int
    gpus: int
    node: str = ""
    bound: float | None = None
    unschedulable: float | None = None
    """The first time that kube-scheduler found no node for the pod."""
    message: str = ""
    gone: float | None = None

    @property
    def is_on_node(self) -> bool:
        """True if the pod is bound and has not ended."""
        return self.bound is not None and self.gone is None

    def pending_seconds(self, now: float) -> float:
        """The seconds for which the pod was pending, up to `now`."""
        if self.unschedulable is None:
            return 0.0
        ends = [each for each in (self.bound, self.gone) if each is not None]
        return max(0.0, min(ends, default=now) - self.unschedulable)

    def use(self, now: float) -> float:
        """The GPU seconds of the pod from its binding, up to `now`."""
        if self.bound is None:
            return 0.0
        return self.gpus * ((now if self.gone is None else self.gone) - self.bound)


@dataclass(slots=True)
class Dispatch:
    """One attempt of a gang; `whole` is the time at which all pods of the gang were bound."""

    gang: Gang
    number: int
    seen: float
    pods: dict[str, Pod] = field(default_factory=dict)
    whole: float | None = None

    def pending_seconds(self, now: float) -> float:
        """The longest time for which one of the pods was pending, in seconds."""
        return max((each.pending_seconds(now) for each in self.pods.values()), default=0.0)

    def work(self, now: float) -> float:
        """The GPU seconds of the dispatch while all pods of the gang were bound."""
        if self.whole is None:
            return 0.0
        ends = [now if each.gone is None else each.gone for each in self.pods.values()]
        gpus = sum(each.gpus for each in self.pods.values())
        return gpus * max(0.0, min(ends) - self.whole)

    def off_plan(self, plan: Plan) -> list[Pod]:
        """The pods bound to a node that has no place left for them in the plan, in the order of their binding."""
        left = Counter(
            {(pod_set, node): pods for pod_set, places in enumerate(plan) for node, pods in places.items()}
        )
        found = []
        for pod in sorted(self.pods.values(), key=lambda each: each.bound or 0.0):
            if pod.node and left[pod.pod_set, pod.node] <= 0:
                found.append(pod)
            left[pod.pod_set, pod.node] -= 1
        return found


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of one run; times are in seconds.

    A dispatch is stuck if one of its pods was pending for longer than the settling time. `stuck` counts the stuck
    dispatches, `stuck_of_one_shape` those of gangs with equal pods, `stuck_rayclusters` those of RayClusters.
    `hesitant` counts the dispatches with a pod that was pending at all. `off_plan` counts the pods bound to another
    node than planned; None without plans. `allocated` and `working` are shares of the cluster's GPUs, averaged over the
    makespan. `working` leaves out the time before all pods of a gang were bound.
    """

    gangs: int
    dispatches: int
    of_one_shape: int
    rayclusters: int
    stuck: int
    stuck_of_one_shape: int
    stuck_rayclusters: int
    hesitant: int
    longest_pending: float
    pods: int
    off_plan: int | None
    allocated: float
    working: float
    makespan: float


class Book:
    """Every pod of every dispatch, by the events noted so far."""

    def __init__(self, gangs: Sequence[Gang]) -> None:
        self.dispatches: dict[tuple[str, int], Dispatch] = {}
        """By name of the gang and number of the attempt, in the order of their first events."""
        self._gangs = {each.name: each for each in gangs}

    def note(self, kind: str, pod: Json, now: float) -> Dispatch | None:
        """Notes an event (`ADDED`, `MODIFIED`, `DELETED`) of a pod; returns the dispatch if this binds its last pod."""
        labels = pod["metadata"].get("labels") or {}
        gang = self._gangs.get(labels.get(NAME_LABEL, ""))
        if gang is None:
            return None
        number = int(labels[ATTEMPT_LABEL])
        dispatch = self.dispatches.setdefault((gang.name, number), Dispatch(gang, number, now))
        uid = pod["metadata"]["uid"]
        known = dispatch.pods.get(uid)
        if known is None:
            known = dispatch.pods[uid] = Pod(pod["metadata"]["name"], gang.index_of(labels), _gpus(pod))
        _note_state(known, kind, pod, now)
        bound = sum(each.bound is not None for each in dispatch.pods.values())
        if dispatch.whole is None and bound == gang.size:
            dispatch.whole = now
            return dispatch
        return None

    def stuck(self, now: float, settling: float) -> list[Dispatch]:
        """The dispatches with a pod that is or was pending for longer than `settling` seconds."""
        return [each for each in self.dispatches.values() if each.pending_seconds(now) > settling]

    def is_empty(self) -> bool:
        """True if no pod is on a node."""
        return not any(pod.is_on_node for each in self.dispatches.values() for pod in each.pods.values())

    def on_nodes(self, now: float) -> dict[str, list[str]]:
        """The pods on each node, with their GPUs and the time since they were bound."""
        found: dict[str, list[str]] = {}
        for dispatch in self.dispatches.values():
            for pod in dispatch.pods.values():
                if pod.is_on_node and pod.bound is not None:
                    holder = f"{pod.name}, {pod.gpus} GPUs, for {now - pod.bound:.1f} s"
                    found.setdefault(pod.node, []).append(holder)
        return found

    def count(
        self, plans: Mapping[tuple[str, int], Plan], gpus: int, span: tuple[float, float], settling: float
    ) -> Counts:
        """The figures of a run; `span` has the times of its start and of its end."""
        _, end = span
        makespan = end - span[0]
        dispatches = list(self.dispatches.values())
        stuck = self.stuck(end, settling)
        pods = [pod for each in dispatches for pod in each.pods.values()]
        planned = {place: each for place, each in self.dispatches.items() if any(plans.get(place, ()))}
        return Counts(
            gangs=len({each.gang.name for each in dispatches}),
            dispatches=len(dispatches),
            of_one_shape=sum(each.gang.has_one_shape for each in dispatches),
            rayclusters=_rayclusters(dispatches),
            stuck=len(stuck),
            stuck_of_one_shape=sum(each.gang.has_one_shape for each in stuck),
            stuck_rayclusters=_rayclusters(stuck),
            hesitant=sum(each.pending_seconds(end) > 0 for each in dispatches),
            longest_pending=max((each.pending_seconds(end) for each in dispatches), default=0.0),
            pods=len(pods),
            off_plan=sum(len(each.off_plan(plans[place])) for place, each in planned.items())
            if planned
            else None,
            allocated=sum(each.use(end) for each in pods) / (gpus * makespan),
            working=sum(each.work(end) for each in dispatches) / (gpus * makespan),
            makespan=makespan,
        )


def _rayclusters(dispatches: Sequence[Dispatch]) -> int:
    return sum(each.gang.wrapping is Wrapping.RAY_CLUSTER for each in dispatches)


def _note_state(known: Pod, kind: str, pod: Json, now: float) -> None:
    node, status = (pod.get("spec") or {}).get("nodeName"), pod.get("status") or {}
    if node and known.bound is None:
        known.node, known.bound = node, now
    for each in status.get("conditions") or ():
        if (
            each["type"] == "PodScheduled"
            and each["status"] == "False"
            and each.get("reason") == "Unschedulable"
        ):
            known.message = each.get("message", "")
            if known.unschedulable is None:
                known.unschedulable = now
    if known.gone is None and (kind == "DELETED" or status.get("phase") in TERMINAL):
        known.gone = now


def _gpus(pod: Json) -> int:
    return sum(int(each["resources"].get("requests", {}).get(GPU, 0)) for each in pod["spec"]["containers"])

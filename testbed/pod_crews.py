"""Operators that make pods themselves: Volcano's, Spark's, and that of examples/own-kind.

A finished pod is not started again: the first failure fails the object. At the end the pods that still run are deleted.
Not included: restarts and their limits, elastic sizes, Volcano's queues, the services of the pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from testbed.operated import (
    ENDED,
    Json,
    Operated,
    Phase,
    Wish,
    child,
    conditions_of,
    find,
    has_condition,
    labelled,
    live_pods,
    phase_of,
    phase_of_all,
)

VOLCANO_PHASES: Final = {Phase.SUCCEEDED: "Completed"}
SPARK_STATES: Final = {Phase.PENDING: "SUBMITTED", Phase.SUCCEEDED: "COMPLETED"}


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a crew; the crew is done when all pods that decide are."""

    name: str
    role: str
    template: Json
    decides: bool = True


Tally = Mapping[str, Sequence[Phase]]
"""The phases of the pods by role."""


class Crew(Protocol):
    """A kind whose operator makes the pods itself."""

    def members(self, owner: Json) -> Sequence[Member]:
        """The pods that the object has while it is open."""
        ...

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """True once this status reports an end."""
        ...

    def status(self, owner: Json, phase: Phase, tally: Tally, now: str, /) -> Json:
        """The fields of the status at this phase."""
        ...


def decide(crew: Crew, owner: Json, below: Sequence[Json], now: str) -> Wish:
    """Creates the missing pods of a crew until it is over, and deletes those that still run then."""
    if crew.is_over(owner.get("status") or {}):
        return Wish(unwanted=live_pods(below))
    members = crew.members(owner)
    phases = [phase_of(find(below, "Pod", each.name)) for each in members]
    decisive = [phase for member, phase in zip(members, phases, strict=True) if member.decides]
    tally: dict[str, list[Phase]] = {}
    for member, phase in zip(members, phases, strict=True):
        tally.setdefault(member.role, []).append(phase)
    phase = phase_of_all(phases, decisive) if members else Phase.PENDING
    return Wish(
        wanted=[child(owner, "v1", "Pod", each.name, each.template) for each in members],
        status=crew.status(owner, phase, tally, now),
    )


@dataclass(frozen=True, slots=True)
class VolcanoJob:
    """Volcano's Job; the pods are left to kube-scheduler, unless they name another."""

    def members(self, owner: Json) -> Sequence[Member]:
        """`<name>-<task>-<number>`."""
        name = owner["metadata"]["name"]
        return [
            Member(
                f"{name}-{task['name']}-{number}",
                task["name"],
                labelled(
                    {**task["template"], "spec": {"restartPolicy": "Never", **task["template"]["spec"]}},
                    {"volcano.sh/job-name": name, "volcano.sh/task-spec": task["name"]},
                ),
            )
            for task in owner["spec"]["tasks"]
            for number in range(_replicas(task))
        ]

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """By the phase."""
        return (status.get("state") or {}).get("phase") in ("Completed", "Failed")

    def status(self, owner: Json, phase: Phase, tally: Tally, now: str) -> Json:
        """The phase, and counts of all pods."""
        old = (owner.get("status") or {}).get("state") or {}
        word = VOLCANO_PHASES.get(phase, phase.value)
        phases = [each for group in tally.values() for each in group]
        return {
            "state": old if old.get("phase") == word else {"phase": word, "lastTransitionTime": now},
            "minAvailable": owner["spec"].get("minAvailable", len(phases)),
            **{each.value.lower(): phases.count(each) for each in Phase},
        }


@dataclass(frozen=True, slots=True)
class SparkApplication:
    """Spark's application: one driver, and executors beside it; the driver decides."""

    def members(self, owner: Json) -> Sequence[Member]:
        """`<name>-driver` and `<name>-exec-<number>`; Spark numbers executors from 1."""
        name, spec = owner["metadata"]["name"], owner["spec"]
        executors = spec["executor"].get("instances", 1)
        return [
            Member(f"{name}-driver", "driver", _spark_template(owner, "driver")),
            *(
                Member(f"{name}-exec-{number + 1}", "executor", _spark_template(owner, "executor"), False)
                for number in range(executors)
            ),
        ]

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """By the state of the application."""
        return (status.get("applicationState") or {}).get("state") in ("COMPLETED", "FAILED")

    def status(self, owner: Json, phase: Phase, _: Tally, now: str) -> Json:
        """The state of the application."""
        return {
            "applicationState": {"state": SPARK_STATES.get(phase, phase.value.upper())},
            "driverInfo": {"podName": f"{owner['metadata']['name']}-driver"},
            **({"terminationTime": now} if phase in ENDED else {}),
        }


def _spark_template(owner: Json, role: str) -> Json:
    group = owner["spec"][role]
    memory = str(group.get("memory", "1g")).removesuffix("b").upper() + "i"  # 512m is Java's for 512Mi
    requests = {"cpu": str(group.get("coreRequest") or group.get("cores", 1)), "memory": memory}
    gpu = group.get("gpu")
    extended = {gpu["name"]: str(gpu["quantity"])} if gpu else {}
    container = {
        "name": f"spark-kubernetes-{role}",
        "image": owner["spec"].get("image", "spark"),
        "resources": {"requests": {**requests, **extended}, "limits": {"memory": memory, **extended}},
    }
    labels = {
        **(group.get("labels") or {}),
        "spark-role": role,
        "sparkoperator.k8s.io/app-name": owner["metadata"]["name"],
    }
    return {
        "metadata": {"labels": labels, "annotations": group.get("annotations") or {}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


@dataclass(frozen=True, slots=True)
class Training:
    """The kind of examples/own-kind: `spec.replicas` pods of `spec.template`."""

    def members(self, owner: Json) -> Sequence[Member]:
        """`<name>-<number>`."""
        spec = owner["spec"]
        replicas = 0 if spec.get("suspend") else _replicas(spec)
        name = owner["metadata"]["name"]
        return [Member(f"{name}-{number}", "worker", spec["template"]) for number in range(replicas)]

    def is_over(self, status: Mapping[str, Any]) -> bool:
        """By the conditions."""
        return has_condition(status, "Trained") or has_condition(status, "Aborted")

    def status(self, owner: Json, phase: Phase, _: Tally, now: str) -> Json:
        """The conditions of docs/kinds.md."""
        facts = {"Trained": phase == Phase.SUCCEEDED, "Aborted": phase == Phase.FAILED}
        return {"conditions": conditions_of(owner.get("status") or {}, facts, "Training", now)}


def _replicas(group: Json) -> int:
    return int(group.get("replicas", 1))


def _operated(version: str, kind: str, crew: Crew) -> Operated:
    return Operated(version, kind, lambda owner, below, now: decide(crew, owner, below, now))


CREWS: Final = (
    _operated("batch.volcano.sh/v1alpha1", "Job", VolcanoJob()),
    _operated("sparkoperator.k8s.io/v1beta2", "SparkApplication", SparkApplication()),
    _operated("platform.example.com/v1", "Training", Training()),
)

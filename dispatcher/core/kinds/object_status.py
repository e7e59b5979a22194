"""The state that a wrapped object reports: whether it goes on, how it ended, which conditions are true.

The state is read from the object's JSON, which may be anything: a missing or malformed field is ignored, and nothing
raises. A condition `Failed` that is True ends an object of any kind; the rows of `registry` have the other rules. A
state that can recover (a Deployment past its deadline, a RayCluster that cannot create a pod) is no end: its text is
the reason why pods are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from dispatcher.text import mapping_of, mappings_of, one_line


class End(StrEnum):
    """How far an object is."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EVICTED = "evicted"
    """A bare Pod that its node refused, evicted or lost."""


class ObjectState(Struct, frozen=True):
    """The state that an object reports; `conditions` are the types of its true conditions.

    `message` is one line: why the object failed, or why an open one makes no pods.
    """

    end: End = End.OPEN
    conditions: frozenset[str] = frozenset()
    message: str = ""


class FoundRequest(NamedTuple):
    """A ProvisioningRequest that a cluster has: its uid, the class that it names, and the state that it reports.

    The name of the class is empty if the request has no readable one.
    """

    uid: str
    class_name: str
    state: ObjectState = ObjectState()


def read(rule: Rule | None, raw: Mapping[str, Any]) -> ObjectState:
    """The state that an object reports, for any JSON; without a rule, the only end is the condition Failed."""
    status = _Status.of(raw)
    end, text = _ending(rule, status)
    return ObjectState(end, frozenset(one.type for one in status.conditions if one.is_true), one_line(text))


class _Condition(Struct, frozen=True):
    type: str
    status: str
    reason: str
    message: str

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def text(self) -> str:
        return _joined(self.reason, self.message) or self.type


class _Status(Struct, frozen=True):
    fields: Mapping[str, Any]
    conditions: tuple[_Condition, ...]

    @classmethod
    def of(cls, raw: object) -> _Status:
        fields = mapping_of(mapping_of(raw).get("status"))
        return cls(fields, tuple(map(_condition, mappings_of(fields.get("conditions")))))

    def text(self, field: str) -> str:
        return _text(self.fields.get(field))

    def reported(self) -> str:
        return _joined(self.text("reason"), self.text("message"))

    def true(self, condition_type: str) -> _Condition | None:
        return next((one for one in self.conditions if one.type == condition_type and one.is_true), None)

    def false(self, condition_type: str, *reasons: str) -> _Condition | None:
        """Find a condition that is False for one of these reasons."""
        for one in self.conditions:
            if one.type == condition_type and one.status == "False" and one.reason in reasons:
                return one
        return None


_Ending: TypeAlias = tuple[End, str]
Rule: TypeAlias = Callable[[_Status], _Ending]

_OPEN: Final[_Ending] = (End.OPEN, "")
_SUCCEEDED: Final[_Ending] = (End.SUCCEEDED, "")


def _ending(rule: Rule | None, status: _Status) -> _Ending:
    failed = status.true("Failed")
    if failed:
        return End.FAILED, failed.text
    return rule(status) if rule else _OPEN


def condition_ends(success: str) -> Rule:
    """The rule of kinds that report their completion with the condition `success`."""
    return lambda status: _SUCCEEDED if status.true(success) else _OPEN


def latest_of(*conditions: str) -> Rule:
    """The rule of kinds that do not end: the text is the message of the first of these conditions that is true."""

    def ending(status: _Status) -> _Ending:
        found = next(filter(None, map(status.true, conditions)), None)
        return (End.OPEN, found.message or found.reason) if found else _OPEN

    return ending


def conditions_end(succeeded: tuple[str, ...], failed: tuple[str, ...]) -> Rule:
    """The rule of kinds that end with one of these conditions; a failure counts before a success."""

    def ending(status: _Status) -> _Ending:
        for condition in filter(None, map(status.true, failed)):
            return End.FAILED, condition.text
        return _SUCCEEDED if any(map(status.true, succeeded)) else _OPEN

    return ending


def phase_ends(path: str, succeeded: tuple[str, ...], failed: tuple[str, ...]) -> Rule:
    """The rule of kinds whose status has one of these words at `path`, such as `status.phase`, once they end."""
    _, *parents, last = path.split(".")

    def ending(status: _Status) -> _Ending:
        parent = reduce(lambda fields, key: mapping_of(fields.get(key)), parents, status.fields)
        phase = _text(parent.get(last))
        if phase in failed:
            return End.FAILED, _joined(_text(parent.get("reason")) or phase, _text(parent.get("message")))
        return _SUCCEEDED if phase in succeeded else _OPEN

    return ending


def pod_ends(status: _Status) -> _Ending:
    """The rule of a bare Pod, which its node may evict."""
    match status.text("phase"):
        case "Succeeded":
            return _SUCCEEDED
        case "Failed":
            return (End.EVICTED if _was_evicted(status) else End.FAILED), _why_pod_failed(status)
    return _OPEN


_EVICTED: Final = frozenset(
    {
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeShutdown",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""Reasons of a kubelet or the node controller, besides `OutOf<resource>`."""


def _was_evicted(status: _Status) -> bool:
    reason = status.text("reason")
    return bool(reason in _EVICTED or reason.startswith("OutOf") or status.true("DisruptionTarget"))


def _why_pod_failed(status: _Status) -> str:
    """The pod's reason and message, else its disruption, else the container that failed."""
    disruption = status.true("DisruptionTarget")
    return (
        status.reported() or (disruption.text if disruption else "") or _failed_container(status) or "Failed"
    )


def _failed_container(status: _Status) -> str:
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in mappings_of(status.fields.get(field)):
            terminated = mapping_of(mapping_of(container.get("state")).get("terminated"))
            code = terminated.get("exitCode")
            if isinstance(code, int) and code:
                exited = f"container {_text(container.get('name'))} exited with code {code}"
                return _joined(_text(terminated.get("reason")), exited)
    return ""


def ray_job_ends(status: _Status) -> _Ending:
    """The rule of a RayJob: its deployment is Complete also after a failed job, so both statuses count."""
    deployment, job = status.text("jobDeploymentStatus"), status.text("jobStatus")
    if deployment in {"Failed", "ValidationFailed"}:
        return End.FAILED, status.reported() or deployment
    match (deployment, job):
        case ("Complete", "SUCCEEDED"):
            return _SUCCEEDED
        case ("Complete", "STOPPED"):
            return End.FAILED, _joined("Stopped", status.text("message") or "the job was cancelled")
        case ("Complete", "FAILED"):
            return End.FAILED, status.reported() or "Failed"
    return _OPEN


def volcano_job_ends(status: _Status) -> _Ending:
    """The rule of a Volcano Job: the phase of its state."""
    state = mapping_of(status.fields.get("state"))
    phase = _text(state.get("phase"))
    if phase in {"Failed", "Aborted", "Terminated"}:
        return End.FAILED, _joined(_text(state.get("reason")) or phase, _text(state.get("message")))
    return _SUCCEEDED if phase == "Completed" else _OPEN


def spark_application_ends(status: _Status) -> _Ending:
    """The rule of a SparkApplication: its state; one that its operator will try again is in another state."""
    application = mapping_of(status.fields.get("applicationState"))
    match state := _text(application.get("state")):
        case "FAILED":
            return End.FAILED, _joined(state, _text(application.get("errorMessage")))
        case "COMPLETED":
            return _SUCCEEDED
    return _OPEN


def creates_no_pods(status: _Status) -> _Ending:
    """The rule of kinds that report with a condition that they cannot create pods; they may recover."""
    failure = status.true("ReplicaFailure")
    return End.OPEN, failure.text if failure else ""


def deployment_hangs(status: _Status) -> _Ending:
    """The rule of a Deployment: it cannot create pods, or is past its deadline, and may recover."""
    problem = status.true("ReplicaFailure") or status.false("Progressing", "ProgressDeadlineExceeded")
    return End.OPEN, problem.text if problem else ""


def ray_service_gave_up(status: _Status) -> _Ending:
    """The rule of a RayService: KubeRay removes a service that did not start in time, and does not retry."""
    given_up = status.false("Ready", "InitializingTimeout", "ValidationFailed")
    return (End.FAILED, given_up.text) if given_up else _OPEN


def _condition(raw: Mapping[str, Any]) -> _Condition:
    return _Condition(
        type=_text(raw.get("type")),
        status=_text(raw.get("status")),
        reason=_text(raw.get("reason")),
        message=_text(raw.get("message")),
    )


def _joined(reason: str, message: str) -> str:
    return ": ".join(part for part in (reason.strip(), message.strip()) if part)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

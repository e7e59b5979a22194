"""What a wrapped object says of itself: whether it still goes on, how it ended, which conditions it has.

Read from the object's JSON as the API server has it, which may be anything: a missing or malformed field says nothing,
and nothing raises. A condition `Failed` that is True is the end of an object of any kind; the other rules by which a
kind ends are here, and `registry` says which kind has which. A state that can still heal (a Deployment past its
deadline, a RayCluster that cannot create a pod) is no end: its text is kept, as the reason why no pod may ever appear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from dispatcher.api.spec_errors import one_line


class End(StrEnum):
    """How far an object is."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EVICTED = "evicted"
    """A bare Pod that failed by no fault of its own: its node refused it, put it out or went away."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an object says of itself; `conditions` are the types of those that are True.

    `message` is one line: why it failed, or what keeps an open one from making its pods.
    """

    end: End = End.OPEN
    conditions: frozenset[str] = frozenset()
    message: str = ""


def read(rule: Rule | None, raw: Mapping[str, Any]) -> ObjectState:
    """Tell what an object says of itself, whatever JSON it is; without a rule only that it failed, if it says so."""
    status = _Status.of(raw)
    end, text = _told(rule, status)
    return ObjectState(end, frozenset(one.type for one in status.conditions if one.is_true), one_line(text))


@dataclass(frozen=True, slots=True)
class _Condition:
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


@dataclass(frozen=True, slots=True)
class _Status:
    fields: Mapping[str, Any]
    conditions: tuple[_Condition, ...]

    @classmethod
    def of(cls, raw: object) -> _Status:
        fields = _object(_object(raw).get("status"))
        return cls(fields, tuple(_condition(_object(one)) for one in _list(fields.get("conditions"))))

    def text(self, field: str) -> str:
        return _text(self.fields.get(field))

    def told(self) -> str:
        return _joined(self.text("reason"), self.text("message"))

    def true(self, condition_type: str) -> _Condition | None:
        return next((one for one in self.conditions if one.type == condition_type and one.is_true), None)

    def false(self, condition_type: str, *reasons: str) -> _Condition | None:
        """Find a condition that is False for one of these reasons."""
        for one in self.conditions:
            if one.type == condition_type and one.status == "False" and one.reason in reasons:
                return one
        return None


_Told: TypeAlias = tuple[End, str]
Rule: TypeAlias = Callable[[_Status], _Told]

_OPEN: Final[_Told] = (End.OPEN, "")
_SUCCEEDED: Final[_Told] = (End.SUCCEEDED, "")


def _told(rule: Rule | None, status: _Status) -> _Told:
    failed = status.true("Failed")
    if failed:
        return End.FAILED, failed.text
    return rule(status) if rule else _OPEN


def condition_ends(success: str) -> Rule:
    """Kinds that say with a condition that they are done."""
    return lambda status: _SUCCEEDED if status.true(success) else _OPEN


def pod_ends(status: _Status) -> _Told:
    """A Pod, which may have been put out by its node."""
    match status.text("phase"):
        case "Succeeded":
            return _SUCCEEDED
        case "Failed":
            return (End.EVICTED if _was_put_out(status) else End.FAILED), _why_pod_failed(status)
    return _OPEN


_PUT_OUT: Final = frozenset(
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
"""Reasons a kubelet or the node controller gives a pod; the node's refusals `OutOf<resource>` come besides."""


def _was_put_out(status: _Status) -> bool:
    reason = status.text("reason")
    return bool(reason in _PUT_OUT or reason.startswith("OutOf") or status.true("DisruptionTarget"))


def _why_pod_failed(status: _Status) -> str:
    """Say what the pod says, else what disrupted it, else which of its containers failed."""
    disruption = status.true("DisruptionTarget")
    return status.told() or (disruption.text if disruption else "") or _failed_container(status) or "Failed"


def _failed_container(status: _Status) -> str:
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in map(_object, _list(status.fields.get(field))):
            terminated = _object(_object(container.get("state")).get("terminated"))
            code = terminated.get("exitCode")
            if isinstance(code, int) and code:
                exited = f"container {_text(container.get('name'))} exited with code {code}"
                return _joined(_text(terminated.get("reason")), exited)
    return ""


def ray_job_ends(status: _Status) -> _Told:
    """A RayJob's deployment is Complete however its job ended, so both are asked."""
    deployment, job = status.text("jobDeploymentStatus"), status.text("jobStatus")
    if deployment in {"Failed", "ValidationFailed"}:
        return End.FAILED, status.told() or deployment
    match (deployment, job):
        case ("Complete", "SUCCEEDED"):
            return _SUCCEEDED
        case ("Complete", "STOPPED"):
            return End.FAILED, _joined("Stopped", status.text("message") or "the job was cancelled")
        case ("Complete", "FAILED"):
            return End.FAILED, status.told() or "Failed"
    return _OPEN


def volcano_job_ends(status: _Status) -> _Told:
    """A Job of Volcano, by the phase of its state."""
    state = _object(status.fields.get("state"))
    phase = _text(state.get("phase"))
    if phase in {"Failed", "Aborted", "Terminated"}:
        return End.FAILED, _joined(_text(state.get("reason")) or phase, _text(state.get("message")))
    return _SUCCEEDED if phase == "Completed" else _OPEN


def creates_no_pods(status: _Status) -> _Told:
    """A kind that says with a condition that it cannot create pods, and may heal."""
    failure = status.true("ReplicaFailure")
    return End.OPEN, failure.text if failure else ""


def deployment_hangs(status: _Status) -> _Told:
    """A Deployment that cannot create pods, or is past its deadline; it may heal."""
    trouble = status.true("ReplicaFailure") or status.false("Progressing", "ProgressDeadlineExceeded")
    return End.OPEN, trouble.text if trouble else ""


def ray_service_gave_up(status: _Status) -> _Told:
    """KubeRay takes down a service that did not come up in time, and never tries it again."""
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
    return ": ".join(part for part in (reason, message) if part)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

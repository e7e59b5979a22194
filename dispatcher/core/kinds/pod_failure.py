"""How the pods of a gang failed, read from pods as an API server has them.

The failure that happened first is most likely the cause of the others: a worker that runs out of memory ends the
workers that wait for it. A pod that has failed comes before a container that its node has restarted, because a
container may restart for other reasons. Nothing raises: a field of another type counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from dispatcher.core.model.clock import time_in
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.text import mapping_of, mappings_of, name_of, text_of

LONGEST_TERMINATION: Final = 1024
"""Characters kept of a termination message; the kubelet keeps four times as many bytes. Both ends are kept."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_INT32: Final = range(-(2**31), 2**31)
_VAGUE: Final = frozenset({"", "ContainerStatusUnknown", "Error"})
"""Reasons of a container that say less than the reason of its pod."""


def failure_of(raw: Mapping[str, Any]) -> PodFailure | None:
    """How a pod failed first; None for a pod that has neither failed nor restarted after a failure."""
    status = mapping_of(raw.get("status"))
    name = name_of(mapping_of(raw.get("metadata")).get("name"))
    found = min(_of_containers(name, status), key=_turn, default=None)
    if status.get("phase") != "Failed":
        return found
    reason, message = name_of(status.get("reason")), text_of(status.get("message"), LONGEST_TERMINATION)
    if found is None:
        return PodFailure(name, reason=reason or "Failed", message=message)
    if found.reason in _VAGUE and reason:
        return replace(found, reason=reason, message=found.message or message)
    return found


def by_turn(pods: Iterable[Mapping[str, Any]]) -> list[tuple[PodFailure, Mapping[str, Any]]]:
    """The failures of pods, each with its pod, in the order in which they happened; the failed pods come first."""
    found = ((failure, raw) for raw in pods if (failure := failure_of(raw)) is not None)
    return sorted(found, key=lambda each: (not has_failed(each[1]), *_turn(each[0])))


def has_failed(raw: Mapping[str, Any]) -> bool:
    """True for a pod in the phase Failed."""
    return bool(mapping_of(raw.get("status")).get("phase") == "Failed")


def _of_containers(pod: str, status: Mapping[str, Any]) -> Iterator[PodFailure]:
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in mappings_of(status.get(field)):
            for state in ("state", "lastState"):
                terminated = mapping_of(mapping_of(container.get(state)).get("terminated"))
                code = terminated.get("exitCode")
                if type(code) is int and code in _INT32 and code:
                    yield PodFailure(
                        pod,
                        name_of(container.get("name")),
                        code,
                        name_of(terminated.get("reason")),
                        text_of(terminated.get("message"), LONGEST_TERMINATION),
                        time_in(terminated.get("finishedAt")),
                        state == "lastState",
                    )


def _turn(failure: PodFailure) -> tuple[bool, datetime, str, str]:
    """The order of failures: the last run of a container before an earlier one, then by time, then by name."""
    return failure.has_restarted, failure.at or _NEVER, failure.pod, failure.container

"""Reads the answer to a ProvisioningRequest, and says it in a sentence.

Source: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/proposals/provisioning-request.md
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

from dispatcher.api.spec_errors import one_line
from dispatcher.core.kinds.object_status import ObjectState

LEAST_BETWEEN_NOTES: Final = timedelta(seconds=30)
"""Pause between two notes of what the class says: an ETA may change with every look of an autoscaler."""

LEAST_BETWEEN_REQUESTS: Final = timedelta(seconds=1)
"""Pause between a note and a request that is made again: its deletion may be repeated in a loop, and a watch may need a
moment to show a new one."""


class Answer(StrEnum):
    """The conditions of a ProvisioningRequest that decide, the first of them that is true first."""

    REVOKED = "CapacityRevoked"
    EXPIRED = "BookingExpired"
    FAILED = "Failed"
    PROVISIONED = "Provisioned"
    ACCEPTED = "Accepted"
    NONE = ""
    """The request has not been looked at."""


BROKEN: Final = frozenset({Answer.REVOKED, Answer.EXPIRED, Answer.FAILED})
"""Answers after which the capacity does not come, or is not kept."""


def answer_of(state: ObjectState | None) -> Answer:
    """The answer that the state of a request has; `state` is None while no watch has shown the request."""
    conditions = frozenset[str]() if state is None else state.conditions
    return next((each for each in Answer if each in conditions), Answer.NONE)


def sentence(state: ObjectState | None, cluster: str) -> str:
    """A sentence about the state of a request, in one line. It ends with the message of the class, if there is one."""
    answer = answer_of(state)
    said = f": {state.message}" if state is not None and state.message else ""
    if answer is Answer.NONE:
        return f"capacity is requested in cluster {cluster}, and not promised yet"
    return one_line(f"{_WORDS[answer]} in cluster {cluster}{said}")


_WORDS: Final = {
    Answer.REVOKED: "the capacity was revoked",
    Answer.EXPIRED: "the capacity was provisioned and its booking expired",
    Answer.FAILED: "the capacity cannot be provisioned",
    Answer.PROVISIONED: "the capacity is provisioned",
    Answer.ACCEPTED: "the request for capacity is accepted",
}

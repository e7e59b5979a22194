"""Condition types, reasons, messages and states, as MCAD wrote them, to the letter.

Clients parse these strings (`FrontOfQueue.` does end in a dot), so they are constants with a sentence
each and are set by `core.conditions` only. Source: MCAD's queue job controller.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ConditionType(StrEnum):
    """What can be true of an AppWrapper; also the values of `status.queuejobstate`."""

    INIT = "Init"
    """The dispatcher has seen the AppWrapper."""
    QUEUEING = "Queueing"
    """It is in the queue."""
    HEAD_OF_LINE = "HeadOfLine"
    """A cycle has evaluated it."""
    BACKOFF = "Backoff"
    """It was evaluated and must wait."""
    DISPATCHED = "Dispatched"
    """Every wrapped object was created."""
    RUNNING = "Running"
    """Its gang's pods run."""
    FAILED = "Failed"
    """It will not run; the message says why."""


class State(StrEnum):
    """MCAD's coarse word in `status.state`; clients accept no other."""

    PENDING = "Pending"
    RUNNING = "Running"
    DELETED = "Deleted"
    FAILED = "Failed"
    COMPLETED = "Completed"
    RUNNING_HOLD_COMPLETION = "RunningHoldCompletion"


AWAITING_HEAD_OF_LINE: Final = "AwaitingHeadOfLine"
"""Reason of Queueing."""
FRONT_OF_QUEUE: Final = "FrontOfQueue."
"""Reason of HeadOfLine."""
APPWRAPPER_RUNNABLE: Final = "AppWrapperRunnable"
"""Reason of Dispatched."""
APPWRAPPER_NOT_RUNNABLE: Final = "AppWrapperNotRunnable."
"""Reason of Backoff."""
PODS_RUNNING: Final = "PodsRunning"
"""Reason of Running."""
ITEM_CREATION_FAILURE: Final = "ItemCreationFailure."
"""Reason of Failed, when a wrapped object cannot be created."""

INSUFFICIENT_RESOURCES: Final = "Insufficient resources to dispatch AppWrapper."
"""Message of Backoff on a single cluster."""

SENDER_DISPATCHED: Final = "before manageQueueJob - afterEtcdDispatching"
SENDER_BACKOFF: Final = "before [backoff] - Rejoining"
SENDER_QUEUEING: Final = "before ScheduleNext - setQueueing"
SENDER_HEAD_OF_LINE: Final = "before ScheduleNext - setHOL"
SENDER_FAILED: Final = "before manageQueueJob - creationFailure"

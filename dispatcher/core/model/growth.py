"""Values of growth that waits for a grant: pods that a scheduling gate of the dispatcher stops."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dispatcher.core.model.resources import Resources


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A live pod with the dispatcher's gate, of an AppWrapper; it has no node.

    `created_at` is its creationTimestamp as the API server wrote it: in UTC and of fixed width, so it sorts by age.
    A pod `is_base` if it belongs to the gang as it was dispatched, and not to a growth.
    """

    namespace: str
    name: str
    uid: str
    requests: Resources
    created_at: str
    is_base: bool = False


@dataclass(frozen=True, slots=True)
class GrowthRequest:
    """The growth that a gang asks for and does not have: `pods` gated pods that request `amounts` in all.

    `since` is when it was first noted that the gang waits, `reason` and `message` say what for.
    """

    pods: int
    amounts: Resources
    since: datetime
    reason: str
    message: str

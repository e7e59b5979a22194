"""The first decision about an AppWrapper that was just submitted, in one line, from its status alone.

A scheduling cycle usually decides within a second of the submission. The status of a gang that waits first has the
reason alone; the leader adds the position soon after. So a decision says whether it is whole, and `first_decision`
waits for a whole one until its time is over.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from dispatcher.cli.hub import Found
from dispatcher.cli.people.following import TimeIsUp, progress, states
from dispatcher.cli.screens.explanation import missing_queue_in, position_of
from dispatcher.core.model.records.pending_reasons import NEEDS_ANOTHER_PLACE, codes
from dispatcher.core.model.records.record import Phase
from dispatcher.core.status.phases import phase_in
from dispatcher.kube.user_client import UserClient
from dispatcher.text import name_of, one_line, text_of

Json = dict[str, Any]

SECONDS: Final = 3.0
"""The longest wait for the decisions about all AppWrappers of one submission."""
NOT_DECIDED: Final = "is not decided yet, after {:g} s: kubectl aw show {} shows its state"

_WITHOUT_POSITION: Final = codes(lambda each: each.is_in_no_cycle)
_ENDS: Final = frozenset({Phase.FAILING, Phase.FAILED, Phase.DELETING, Phase.DELETED})
_HELD: Final = frozenset({Phase.SUSPENDED, Phase.SUSPENDING})


class Outcome(StrEnum):
    """What a decision means for the submission."""

    DISPATCHED = "dispatched"
    """The gang is or was dispatched."""
    QUEUED = "queued"
    """The AppWrapper is queued, or held."""
    IMPOSSIBLE = "impossible"
    """It is queued, and more free capacity would not dispatch it: it, its queue or the clusters have to change."""
    FAILED = "failed"
    """It failed, or is being deleted."""


class FirstDecision(Struct, frozen=True):
    """A decision; `sentence` follows the name of the AppWrapper. It `is_whole` if no more is to come soon.

    The sentence ends with the `missing_queue`, if the decision is that there is no such queue.
    """

    outcome: Outcome
    sentence: str
    is_whole: bool = True
    missing_queue: str = ""


def decision_in(appwrapper: Json) -> FirstDecision | None:
    """The decision that a status has; None if there is none yet."""
    status = appwrapper.get("status") or {}
    waiting = status.get("waiting") or {}
    phase = Phase.DELETING if appwrapper["metadata"].get("deletionTimestamp") else phase_in(status)
    if phase in _ENDS:
        return FirstDecision(Outcome.FAILED, progress(appwrapper))
    if phase in _HELD:
        return FirstDecision(Outcome.QUEUED, "is held: kubectl aw release queues it")
    if phase is Phase.QUEUED or phase is None:
        return _pending(waiting) if waiting else None
    if phase is Phase.COMPLETED:
        return FirstDecision(Outcome.DISPATCHED, progress(appwrapper))
    where = f"dispatched to {name_of(status.get('cluster')) or 'a cluster'}"
    return FirstDecision(Outcome.DISPATCHED, where, is_whole=phase is not Phase.DISPATCHING)


def _pending(waiting: Json) -> FirstDecision:
    reason, position = name_of(waiting.get("reason")), position_of(waiting)
    why = ": ".join(filter(None, (reason, text_of(waiting.get("message")))))
    if reason in NEEDS_ANOTHER_PLACE:
        sentence, missing = one_line(f"cannot run as it is: {why}"), missing_queue_in(waiting)
        return FirstDecision(Outcome.IMPOSSIBLE, sentence, missing_queue=missing)
    where = f"waits at position {position}" if position else "waits"
    is_whole = bool(position) or reason in _WITHOUT_POSITION
    return FirstDecision(Outcome.QUEUED, one_line(f"{where}: {why}"), is_whole)


def first_decision(client: UserClient, found: Found, ends: float) -> FirstDecision | None:
    """The decision about an AppWrapper, as whole as it is at the monotonic time `ends`; None if there is none by then.

    At that time or later the hub is asked once. Raises `ClusterError` if the hub refuses that.
    """
    if time.monotonic() >= ends:
        return decision_in(client.get(found.path))
    known: FirstDecision | None = None
    try:
        for raw in states(client, found, ends):
            known = decision_in(raw) or known
            if known is not None and known.is_whole:
                return known
    except TimeIsUp:
        return known
    return FirstDecision(Outcome.FAILED, "was deleted")

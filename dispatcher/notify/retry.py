"""What follows an attempt to send a message: the next try, or giving the message up."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=5)
LONGEST_ASKED: Final = timedelta(minutes=30)
"""The longest pause that a target may ask for."""
MOST_DOUBLINGS: Final = 10
MOST_REFUSALS: Final = 3
"""Refusals of one message, one after the other, after which it is given up: the next one may be accepted."""


class Bounds(Struct, frozen=True):
    """How long a message is kept, how many messages may wait for a target, and the time between two looks."""

    keep: timedelta = timedelta(hours=24)
    most_behind: int = 10_000
    every: timedelta = timedelta(seconds=2)


class Sent(Struct, frozen=True):
    """The target has taken the message."""


class Failed(Struct, frozen=True):
    """The target was not reached, or takes nothing now; it may ask for a pause."""

    reason: str
    pause: timedelta = timedelta()


class Refused(Struct, frozen=True):
    """The target answered that this very message is wrong."""

    reason: str


Outcome = Sent | Failed | Refused


class TryAgain(Struct, frozen=True):
    """The message is sent again after a pause."""

    pause: timedelta


class GiveUp(Struct, frozen=True):
    """The message is not sent again; `reason` is a word for metrics."""

    reason: str


TOO_OLD: Final = GiveUp("age")
REFUSED: Final = GiveUp("refused")


def after_failure(
    outcome: Failed | Refused,
    tries: int,
    refusals: int,
    begun_at: datetime,
    now: datetime,
    keep: timedelta,
    chance: float,
) -> TryAgain | GiveUp:
    """The decision after so many tries without success, of which some were refusals; `begun_at` is when it was due.

    A pause that the target asks for counts if it is longer than that of `pause_after`.
    """
    if refusals >= MOST_REFUSALS:
        return REFUSED
    pause = max(pause_after(tries, chance), asked_by(outcome))
    return TOO_OLD if now + pause - begun_at > keep else TryAgain(pause)


def pause_after(tries: int, chance: float) -> timedelta:
    """The pause after so many tries without success.

    Pauses double from 5 s to 5 minutes, each spread by `chance` (0 to 1) from its half to the whole, so that the
    targets of one server do not come back at the same moment.
    """
    whole: timedelta = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(tries - 1, MOST_DOUBLINGS))
    return whole * (0.5 + chance / 2)


def asked_by(outcome: Failed | Refused) -> timedelta:
    """The pause that the target asks for, within bounds."""
    return min(outcome.pause, LONGEST_ASKED) if isinstance(outcome, Failed) else timedelta()


def outcome_of_status(status: int, retry_after: str) -> Outcome:
    """The outcome of an answer by HTTP.

    Only what says that the body is wrong is a refusal. A missing right, or a path that is not there, is repaired at the
    target, and the message is sent again until then.
    """
    if 200 <= status < 300:
        return Sent()
    if status in _BODY_IS_WRONG:
        return Refused(f"it answered {status}")
    if 300 <= status < 400:
        return Failed(f"it answered {status}: redirections are not followed, declare the new address")
    pause = timedelta(seconds=int(retry_after)) if _is_seconds(retry_after) else timedelta()
    return Failed(f"it answered {status}", pause)


_BODY_IS_WRONG: Final = frozenset({400, 406, 411, 413, 415, 422})


def _is_seconds(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6

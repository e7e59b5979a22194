"""What a gang lacks by the words of its health issue: pods that are not there, or pods that do not run.

These health issues share one reason, which is on the wire, and the record keeps only reason, words and time. So the
words tell what was noted, also for a record of an earlier release. Words of controllers follow after a semicolon and
are not read.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from dispatcher.text import one_line


class Lack(StrEnum):
    """What is missing; the value is the beginning of its words, where it has words of its own."""

    NONE = "there is none"
    """No pod is there; the words may be those about the objects that ask for none."""
    GONE = "there is none any more"
    """No pod is there, after other pods were noted as missing or as not running."""
    UNMADE = "pods that do not exist"
    UNSCHEDULABLE = "Pods failed scheduling"
    UNSTARTED = "pods that do not start"
    NOT_RUNNING = ""
    """Pods failed, do not come back, or are on nodes that do not answer."""


ABSENT: Final = frozenset({Lack.NONE, Lack.UNMADE})
"""Pods that are not there yet."""

UNPLACED: Final = frozenset({Lack.UNSCHEDULABLE, Lack.UNSTARTED})
"""Pods that are there, and may have come at any time before."""

_COMPARED: Final = 300
"""Characters that are compared: the record cuts longer messages."""
_SHORT = re.compile(r"\d+ of \d+ pods run(?:: (?P<lack>.*)|(?P<lost>, .*))?")
_NUMBER = re.compile(r"\d+")


def lack_in(message: str) -> Lack | None:
    """What a gang lacks by the message of its health issue; None for the words of another issue."""
    found = _SHORT.fullmatch(_own(message))
    if found is None:
        return None
    said = found["lack"]
    if said is None:
        return Lack.NOT_RUNNING
    worded = (Lack.GONE, Lack.UNMADE, Lack.UNSCHEDULABLE, Lack.UNSTARTED)
    return next((each for each in worded if said.startswith(each)), Lack.NONE)


def says_otherwise(noted: str, message: str) -> bool:
    """True if a gang was noted to lack other pods than it does now; other numbers alone say nothing new."""
    if lack_in(noted) is None or lack_in(message) is None:
        return False
    return _without_numbers(noted) != _without_numbers(message)


def _own(message: str) -> str:
    return one_line(message).partition("; ")[0]


def _without_numbers(message: str) -> str:
    return _NUMBER.sub("", _own(message))[:_COMPARED]

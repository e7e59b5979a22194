"""The annotation by which users choose notifications: targets that the operator has declared, and what each is told.

`team-slack=Failed,Completed mail=Ended,Waiting:2h`: entries with blanks or semicolons between, each with the name of a
target and the events that it is told of. A target is a name and nothing else: no address comes from a user. What cannot
be read is left out and named in a sentence; it never keeps an AppWrapper from running.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from dispatcher.api.names import NOTIFY
from dispatcher.text import one_line

LONGEST_TEXT: Final = 1024
"""Characters of the annotation that are read."""
MOST_TARGETS: Final = 8
"""Targets of one AppWrapper: each event is sent to each of them."""
LEAST_WAIT: Final = timedelta(minutes=1)
LONGEST_WAIT: Final = timedelta(days=30)


class Occasion(StrEnum):
    """The occasions on which a notification is sent."""

    STARTED = "Started"
    """The pods of an attempt run."""
    COMPLETED = "Completed"
    FAILED = "Failed"
    PREEMPTED = "Preempted"
    """The gang made room for another one, and is queued again."""
    EVICTED = "Evicted"
    """The gang was removed for its own trouble, for a drain or with its cluster, and is queued again."""


WAITING: Final = "Waiting"
"""With a duration after a colon: the AppWrapper has been queued for longer than that."""

GROUPS: Final = {
    "Ended": frozenset({Occasion.COMPLETED, Occasion.FAILED}),
    "All": frozenset(Occasion),
}
"""Words for several occasions."""

KNOWN: Final = f"{', '.join(Occasion)}, {', '.join(GROUPS)} and {WAITING}:2h"
EXAMPLE: Final = "team-slack=Failed,Completed"

TARGET_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_ENTRY: Final = re.compile(r"([^=\s;]*)=([^=\s;]*)")
_WAIT: Final = re.compile(r"([0-9]{1,6})([mhd])")
_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_WORDS: Final = {word.lower(): frozenset({word}) for word in Occasion} | {
    word.lower(): occasions for word, occasions in GROUPS.items()
}


class Choice(Struct, frozen=True):
    """What one target is told: `occasions`, and waits that are `longer_than` a duration; None for no waits."""

    target: str
    occasions: frozenset[Occasion] = frozenset()
    longer_than: timedelta | None = None

    def __str__(self) -> str:
        words = [occasion for occasion in Occasion if occasion in self.occasions]
        return f"{self.target}={','.join([*words, *self._wait])}"

    @property
    def _wait(self) -> Iterator[str]:
        if self.longer_than is not None:
            unit, length = next(each for each in reversed(_UNITS.items()) if not self.longer_than % each[1])
            yield f"{WAITING}:{self.longer_than // length}{unit}"


class Choices(Struct, frozen=True):
    """The readable entries of an annotation, and a sentence about each other one."""

    entries: tuple[Choice, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The entries in the form of the annotation; reading it again gives the same entries."""
        return " ".join(map(str, self.entries))

    def of(self, target: str) -> Choice | None:
        """The entry of a target; None if it is not chosen."""
        return next((each for each in self.entries if each.target == target), None)


@lru_cache(maxsize=1024)
def choices_in(text: str) -> Choices:
    """The choices that an annotation makes; never raises."""
    if len(text) > LONGEST_TEXT:
        return Choices(problems=(f"{NOTIFY} has more than {LONGEST_TEXT} characters: it chooses nothing",))
    entries: dict[str, Choice] = {}
    problems: list[str] = []
    for written in re.split(r"[\s;]+", text.strip("; \t\r\n")) if text.strip("; \t\r\n") else ():
        try:
            choice = _choice(written)
            if choice.target not in entries and len(entries) == MOST_TARGETS:
                raise _Unreadable(f"is one target too many: an AppWrapper has at most {MOST_TARGETS}")
            entries[choice.target] = _joined(entries.get(choice.target), choice)
        except _Unreadable as error:
            problems.append(one_line(f"{NOTIFY}: {written!r} {error}", 300))
    return Choices(tuple(entries.values()), tuple(problems))


class _Unreadable(ValueError):
    """An entry that cannot be read; the message continues a sentence about it."""


def _choice(written: str) -> Choice:
    parts = _ENTRY.fullmatch(written)
    if parts is None:
        raise _Unreadable(f"is not TARGET=EVENT,EVENT, for example {EXAMPLE}")
    target, words = parts.groups()
    if not TARGET_NAME.fullmatch(target):
        raise _Unreadable("names no target: a name has small letters, digits and dashes, at most 63")
    occasions, longer_than = frozenset[Occasion](), None
    for word in filter(None, words.split(",")):
        if word.partition(":")[0].lower() == WAITING.lower():
            longer_than = _wait(word)
        elif word.lower() in _WORDS:
            occasions |= _WORDS[word.lower()]
        else:
            raise _Unreadable(f"has the unknown event {word[:40]!r}: there are {KNOWN}")
    if not occasions and longer_than is None:
        raise _Unreadable(f"has no event: there are {KNOWN}")
    return Choice(target, occasions, longer_than)


def _wait(word: str) -> timedelta:
    found = _WAIT.fullmatch(word.partition(":")[2])
    length = int(found[1]) * _UNITS[found[2]] if found else timedelta()
    if not LEAST_WAIT <= length <= LONGEST_WAIT:
        raise _Unreadable(
            f"has no duration that counts in {word[:40]!r}: {WAITING}:2h, a number and m, h or d, from 1m to 30d"
        )
    return length


def _joined(known: Choice | None, more: Choice) -> Choice:
    """Two entries of one target as one."""
    if known is None:
        return more
    longer_than = known.longer_than if more.longer_than is None else more.longer_than
    return Choice(more.target, known.occasions | more.occasions, longer_than)

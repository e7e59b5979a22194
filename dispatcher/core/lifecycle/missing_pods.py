"""Pods that a gang lacks: those that its objects do not ask for, and those that the words of its health issue name.

A user or an autoscaler lowered the scale of an object, a user or another controller suspended it, Kueue has not
admitted it, or another controller is to make its pods. Done objects withhold nothing. What an object asks for that
nobody has read is not known: it may withhold all of its pods, or none.

Health issues for want of pods share one reason, which is on the wire, and the record keeps only reason, words and time.
So the words tell what was noted. Words of controllers follow after a semicolon and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dispatcher.core.kinds.asked import Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.text import one_line

_MOST_NAMED: Final = 3
"""Objects that a sentence names."""


class Withheld(Struct, frozen=True):
    """How many `pods` the objects of a gang do not ask for any more, and sentences about them.

    `lowered` names the objects that ask for fewer pods than the AppWrapper, without those that are only scaled down by
    the autoscaler of their operator. It has no numbers that an autoscaler may change all the time. `suspended` names
    those that are suspended as the AppWrapper says, `why` all objects that keep their controller from making pods. Each
    is empty if there are none. `unread` names the objects that nobody has read, whose templates ask for `unread_pods`.

    `awaiting` names the suspended objects that Kueue is to admit; `lowered` and `suspended` do not name them. It
    `awaits_all` if no other object asks for pods.
    """

    pods: int = 0
    lowered: str = ""
    suspended: str = ""
    why: str = ""
    unread: str = ""
    unread_pods: int = 0
    awaiting: str = ""
    awaits_all: bool = False


NONE_WITHHELD: Final = Withheld()


def withheld_by(
    refs: Sequence[ObjectRef], items: Sequence[CompletionRule], asked: Sequence[Asked | None]
) -> Withheld:
    """What the objects of an attempt withhold; `items` in the order of the AppWrapper, `asked` in that of `refs`.

    What an object asks for is None while it is not read. The cost is one step for each object.
    """
    found = list(_open(refs, items, asked))
    unread = list(unread_of(refs, items, asked))
    if not unread and not any(_is_peculiar(now) or _lacking(ref, asks, now) for ref, asks, now in found):
        return NONE_WITHHELD
    return Withheld(
        pods=sum(_lacking(*each) for each in found),
        lowered=_named(_lowered(*each) for each in found),
        suspended=_named(_suspended(*each) for each in found),
        why=_named(
            _awaiting(*each) or _lowered(*each) or _suspended(*each) or _managed(*each) for each in found
        ),
        unread=_named(ref.title for ref, _ in unread),
        unread_pods=sum(item.asks for _, item in unread),
        awaiting=_named(_awaiting(*each) for each in found),
        awaits_all=not unread and _all_await(found),
    )


def _is_peculiar(asked: Asked) -> bool:
    return asked.is_suspended or bool(asked.manager)


_Open = tuple[ObjectRef, int, Asked]
"""An object that is not done, the pods that its template asks for, and what the object asks for."""


def _open(
    refs: Sequence[ObjectRef], items: Sequence[CompletionRule], asked: Sequence[Asked | None]
) -> Iterator[_Open]:
    for ref, now in zip(refs, asked, strict=False):
        if now is not None and not ref.done and ref.item < len(items):
            yield ref, items[ref.item].asks, now


def unread_of(
    refs: Sequence[ObjectRef], items: Sequence[CompletionRule], asked: Sequence[Asked | None]
) -> Iterator[tuple[ObjectRef, CompletionRule]]:
    """The open objects of which it is not read what they ask for, with their items; without those that make no pods."""
    for ref, now in zip(refs, asked, strict=False):
        if now is None and not ref.done and ref.item < len(items):
            item = items[ref.item]
            if item.asks or item.pods:
                yield ref, item


def _lacking(_: ObjectRef, asks: int, now: Asked) -> int:
    return 0 if now.pods is None else max(0, asks - now.pods)


def _all_await(found: Sequence[_Open]) -> bool:
    """True if Kueue is to admit every object that may make pods, and there is one."""
    making = [now for _, asks, now in found if asks or now.pods or now.is_suspended]
    return bool(making) and all(now.queue_of_kueue for now in making)


def _awaiting(ref: ObjectRef, _: int, now: Asked) -> str:
    if not now.queue_of_kueue:
        return ""
    return f"{ref.title} waits until Kueue admits it in queue {now.queue_of_kueue}"


def _lowered(ref: ObjectRef, asks: int, now: Asked) -> str:
    if now.queue_of_kueue or not _lacking(ref, asks, now):
        return ""
    if now.is_suspended:
        return f"{ref.title} is suspended"
    if not now.pods:
        return f"{ref.title} asks for none of its {asks} pods"
    return "" if now.is_autoscaled else f"{ref.title} asks for fewer than its {asks} pods"


def _suspended(ref: ObjectRef, asks: int, now: Asked) -> str:
    is_for_its_user = now.is_suspended and not now.queue_of_kueue
    return f"{ref.title} is suspended" if is_for_its_user and not asks else ""


def _managed(ref: ObjectRef, _: int, now: Asked) -> str:
    return f"{ref.title} is managed by {now.manager}" if now.manager else ""


def _named(sentences: Iterator[str]) -> str:
    said = [each for each in sentences if each]
    more = len(said) - _MOST_NAMED
    return ", ".join(said[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


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

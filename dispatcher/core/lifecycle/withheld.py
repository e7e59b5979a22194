"""Pods that the wrapped objects of a gang do not ask for now, although the AppWrapper does.

A user or an autoscaler lowered the scale of an object, a user or another controller suspended it, or another controller
is to make its pods. Done objects withhold nothing. What an object asks for that nobody has read is not known: it may
withhold all of its pods, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from dispatcher.core.kinds.asked import Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.model.record import ObjectRef

_MOST_NAMED: Final = 3
"""Objects that a sentence names."""


class Withheld(Struct, frozen=True):
    """How many `pods` the objects of a gang do not ask for any more, and sentences about them.

    `lowered` names the objects that ask for fewer pods than the AppWrapper, without those that are only scaled down by
    the autoscaler of their operator. It has no numbers that an autoscaler may change all the time. `suspended` names
    those that are suspended as the AppWrapper says, `why` all objects that keep their controller from making pods. Each
    is empty if there are none. `unread` names the objects that nobody has read, whose templates ask for `unread_pods`.
    """

    pods: int = 0
    lowered: str = ""
    suspended: str = ""
    why: str = ""
    unread: str = ""
    unread_pods: int = 0


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
        why=_named(_lowered(*each) or _suspended(*each) or _managed(*each) for each in found),
        unread=_named(_title(ref) for ref, _ in unread),
        unread_pods=sum(item.asks for _, item in unread),
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


def _lowered(ref: ObjectRef, asks: int, now: Asked) -> str:
    if not _lacking(ref, asks, now):
        return ""
    if now.is_suspended:
        return f"{_title(ref)} is suspended"
    if not now.pods:
        return f"{_title(ref)} asks for none of its {asks} pods"
    return "" if now.is_autoscaled else f"{_title(ref)} asks for fewer than its {asks} pods"


def _suspended(ref: ObjectRef, asks: int, now: Asked) -> str:
    return f"{_title(ref)} is suspended" if now.is_suspended and not asks else ""


def _managed(ref: ObjectRef, _: int, now: Asked) -> str:
    return f"{_title(ref)} is managed by {now.manager}" if now.manager else ""


def _title(ref: ObjectRef) -> str:
    return f"{ref.kind} {ref.namespace}/{ref.name}"


def _named(sentences: Iterator[str]) -> str:
    said = [each for each in sentences if each]
    more = len(said) - _MOST_NAMED
    return ", ".join(said[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

"""Completion of a gang: which of its items are done, and which items the gang waits for.

`completionstatus` names condition types, and an item with it is done when one of them is True: MCAD's rule, but by
whole words and only if True. An item without it is done when its kind is known to end and the object succeeded.
Callers check first whether pods still run and whether an object failed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.kinds.asked import asked_of, makes_pods_in_order
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import BUILT_IN, Kinds


class CompletionRule(Struct, frozen=True):
    """When one item is done, and whether the gang waits for it; `pods` is the number of pods it is charged for.

    `asks` is the number of pods that its template asks a known kind for; `in_order` is true if the kind may make some
    of them only once others run.

    `words` are the condition types that the author named. `ends` is true if objects of the kind end by themselves. The
    gang waits for an item that `holds`. It waits for an item that `serves` (of an unknown kind without pods) only while
    no item of the gang has `words`: an author who names some items to wait for does not wait for the others. An item
    that `exposes` pods (a Service) goes with them: the gang waits for it only while no other item ends by itself.
    """

    words: tuple[str, ...] = ()
    ends: bool = False
    holds: bool = False
    serves: bool = False
    exposes: bool = False
    pods: int = 0
    asks: int = 0
    in_order: bool = False

    def is_met_by(self, state: ObjectState | None) -> bool:
        """True if the item is done; an item without a known state, or with a failed object, is not."""
        if state is None or state.end in {End.FAILED, End.EVICTED}:
            return False
        if self.words:
            return not state.conditions.isdisjoint(self.words)
        return self.ends and state.end is End.SUCCEEDED

    def keeps_open(self, some_item_names_words: bool, some_item_ends: bool) -> bool:
        """True if the gang is complete only once this item is done."""
        if self.exposes:
            return not (some_item_names_words or some_item_ends)
        return self.holds or (self.serves and not some_item_names_words)


def completion_rule(wrapped: WrappedObject, pods: int = 0, kinds: Kinds = BUILT_IN) -> CompletionRule:
    """The completion rule of an item that makes so many pods."""
    row = kinds.row(wrapped.group, wrapped.kind)
    is_derivable = row.pods is not None
    waited_for = bool(wrapped.completion) or row.ends
    # The author of a kind that cannot be derived may declare that it makes no pods.
    makes_pods = row.may_make_pods and (is_derivable or wrapped.declared != ())
    return CompletionRule(
        words=wrapped.completion,
        ends=row.ends,
        holds=waited_for or makes_pods,
        serves=not (waited_for or makes_pods or is_derivable),
        exposes=row.serves and not waited_for,
        pods=pods,
    )


def with_asked_pods(rule: CompletionRule, wrapped: WrappedObject, kinds: Kinds = BUILT_IN) -> CompletionRule:
    """The rule of an item, with the pods that its template asks for."""
    row = kinds.row(wrapped.group, wrapped.kind)
    asks = asked_of(row, wrapped.template).pods or 0
    return replace(rule, asks=asks, in_order=asks > 0 and makes_pods_in_order(row, wrapped.template))


def pods_of(items: Sequence[CompletionRule], done: Collection[int]) -> int:
    """The number of pods that the `done` items made; the pods may be gone."""
    return sum(items[index].pods for index in done if index < len(items))


class Progress(StrEnum):
    """How much of a gang is done."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def progress(items: Sequence[CompletionRule], done: Sequence[bool]) -> Progress:
    """The progress of a gang; `done` has one flag for each item, true if the item is or was done."""
    if not any(done):
        return Progress.NONE
    named, ends = any(item.words for item in items), any(item.ends for item in items)
    left = (item for item, is_done in zip(items, done, strict=True) if not is_done)
    waits = any(item.keeps_open(named, ends) for item in left)
    return Progress.SOME if waits else Progress.ALL

"""How much of a gang has come to its end, from what its author called an end and what its objects say.

`completionstatus` names condition types, and an item that has it is done when one of them is True: MCAD's
rule, but by whole words and only if True. Items without it are done when a kind whose end is known succeeds.
Whether pods still run, and whether something failed, is for the caller to ask first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import KINDS, ends, serves


@dataclass(frozen=True, slots=True)
class CompletionRule:
    """When one item is done, and whether the gang waits for it; `pods` is how many it makes.

    `words` are the condition types its author named; `ends` says that its kind has an end of its own. The
    gang waits for an item that `holds`; for one that `serves` (a Service) only while no item of the gang
    has words, because an author who names what to wait for has said what he does not wait for.
    """

    words: tuple[str, ...] = ()
    ends: bool = False
    holds: bool = False
    serves: bool = False
    pods: int = 0

    def is_met_by(self, state: ObjectState | None) -> bool:
        """True if the item is done; one of which nothing is known, or that failed, is not."""
        if state is None or state.end in {End.FAILED, End.EVICTED}:
            return False
        if self.words:
            return not state.conditions.isdisjoint(self.words)
        return self.ends and state.end is End.SUCCEEDED

    def keeps_open(self, some_item_names_words: bool) -> bool:
        """True if the gang is not complete before this item is done."""
        return self.holds or (self.serves and not some_item_names_words)


def completion_rule(wrapped: WrappedObject, pods: int = 0) -> CompletionRule:
    """Tell what an item that makes so many pods has to reach."""
    kind, its_kind_ends = (wrapped.group, wrapped.kind), ends(wrapped.group, wrapped.kind)
    waited_for = bool(wrapped.completion) or its_kind_ends
    makes_pods = _makes_pods(wrapped)
    passive = kind in KINDS and not serves(*kind)
    return CompletionRule(
        words=wrapped.completion,
        ends=its_kind_ends,
        holds=waited_for or makes_pods,
        serves=not (waited_for or makes_pods or passive),
        pods=pods,
    )


def _makes_pods(wrapped: WrappedObject) -> bool:
    """Believe the author of a kind we do not know, who declared that it has no pods; else suppose some."""
    kind = KINDS.get((wrapped.group, wrapped.kind))
    return wrapped.declared != () if kind is None else bool(kind.rules)


def pods_of(items: Sequence[CompletionRule], done: Collection[int]) -> int:
    """How many pods the items that are done had; they may be gone by now."""
    return sum(items[index].pods for index in done if index < len(items))


class Progress(StrEnum):
    """How much of a gang is done."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def progress(items: Sequence[CompletionRule], done: Sequence[bool]) -> Progress:
    """Tell how much is done; `done` says of each item, in their order, whether it is or once was."""
    if not any(done):
        return Progress.NONE
    named = any(item.words for item in items)
    waits = any(item.keeps_open(named) for item, is_done in zip(items, done, strict=True) if not is_done)
    return Progress.SOME if waits else Progress.ALL

"""The approvals that a gang awaits: those that its annotation and its queues name, and that nobody has set True.

Anybody who may patch the status can set and withdraw an approval, also in a loop. So a gang that begins to lack one
awaits it at once, and later changes are followed after a pause that doubles with each withdrawal: its events stay few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Final

from dispatcher.api.conditions import approvals_in
from dispatcher.api.names import APPROVALS
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.records.pending_reasons import AWAITING_APPROVAL
from dispatcher.core.model.records.record import Pending
from dispatcher.core.queues.forest import Forest

LONGEST_PAUSE: Final = timedelta(minutes=5)
"""The longest pause before an approval that was withdrawn again and again is believed."""


def needed(annotation: str, leaves: Iterable[str], forest: Forest) -> tuple[str, ...]:
    """The approvals that an annotation and the queues of a gang name, each once.

    Raises `SpecError` for an annotation that cannot be read.
    """
    of_queues = (name for place in forest.places_of(leaves) for name in place.approvals)
    return tuple(dict.fromkeys((*approvals_in(annotation), *of_queues)))


def awaited(
    annotation: str, leaves: Collection[str], forest: Forest, granted: Collection[str]
) -> Pending | None:
    """The pending reason of a gang with these `granted` approvals; None if it has all.

    Nobody can grant the approvals of an annotation that cannot be read: the gang waits until it is corrected, and lacks
    what has the name of the annotation.
    """
    try:
        names = needed(annotation, leaves, forest)
    except SpecError as error:
        return Pending(AWAITING_APPROVAL, str(error), approvals=(APPROVALS,))
    return pending_without(name for name in names if name not in granted)


def lacks_its_own(annotation: str, leaves: Collection[str], forest: Forest, granted: Collection[str]) -> bool:
    """True if the gang lacks an approval that its annotation names and none of its queues: its author waits for it."""
    try:
        own = approvals_in(annotation)
    except SpecError:
        return True
    of_queues = {name for place in forest.places_of(leaves) for name in place.approvals}
    return any(name not in granted and name not in of_queues for name in own)


def pending_without(missing: Iterable[str]) -> Pending | None:
    """The pending reason of a gang that lacks these approvals; None if it lacks none."""
    names = tuple(missing)
    if not names:
        return None
    word = "approval" if len(names) == 1 else "approvals"
    return Pending(AWAITING_APPROVAL, f"it lacks the {word} {', '.join(names)}", approvals=names)


def is_withdrawal(known: Pending | None, seen: Pending | None) -> bool:
    """True if a gang lacks an approval that it did not lack before; both are pending reasons of `awaited`."""
    before = known.approvals if known is not None else ()
    return seen is not None and not set(seen.approvals) <= set(before)


def pause_after(withdrawals: int) -> timedelta:
    """How long after the last of so many withdrawals nothing is followed: not at all, then 1 s, 2 s, 4 s and so on."""
    if withdrawals < 2:
        return timedelta()
    return min(LONGEST_PAUSE, timedelta(seconds=2.0 ** min(withdrawals - 2, 20)))

"""How a plan is shown: a document of decisions for programs, and a table with the repairs for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dispatcher.cli.repairs import in_words, listed
from dispatcher.cli.tables import table
from dispatcher.core.model.record import Pending
from dispatcher.core.scheduling.advice import Advice
from dispatcher.core.scheduling.cycle import Outcome, Placed

HEADINGS: Final = ("GANG", "DECISION", "CLUSTER", "REASON")
NO_GANGS: Final = "No gang is pending."


def as_document(outcomes: Sequence[Outcome], advice: Mapping[str, Advice]) -> dict[str, Any]:
    """The plan as a JSON document; docs/plan.md has its fields. Without `advice` it has no holders and repairs."""
    return {"decisions": [_decision(each, advice) for each in outcomes], "queues": {}}


def as_text(outcomes: Sequence[Outcome], advice: Mapping[str, Advice], width: int | None = None) -> str:
    """The plan for people: a table of decisions, then for each waiting gang what would help."""
    if not outcomes:
        return NO_GANGS
    blocks = [table(HEADINGS, list(map(_row, outcomes)), width)]
    for each in outcomes:
        found = advice.get(each.record.uid, Advice())
        if not isinstance(each, Placed):
            blocks.append(
                "\n".join([f"{each.record.name} waits: {_message(each.pending, found)}", *_help(found)])
            )
    return "\n\n".join(blocks)


def _decision(outcome: Outcome, advice: Mapping[str, Advice]) -> dict[str, Any]:
    name = outcome.record.name
    if isinstance(outcome, Placed):
        placed = {"dispatch": name, "cluster": outcome.cluster}
        return {**placed, "message": outcome.message} if outcome.message else placed
    found = advice.get(outcome.record.uid, Advice())
    waiting = {"waiting": name, "reason": outcome.pending.reason, "message": _message(outcome.pending, found)}
    if outcome.record.uid not in advice:
        return waiting
    return {
        **waiting,
        "holders": list(found.holders),
        "repair": [each.as_document() for each in found.repairs],
    }


def _message(pending: Pending, advice: Advice) -> str:
    """Why the gang waits and, if no repair was found, why not."""
    return f"{pending.message}; {advice.message}" if advice.message else pending.message


def _row(outcome: Outcome) -> tuple[str, ...]:
    if isinstance(outcome, Placed):
        return outcome.record.name, "dispatch", outcome.cluster, ""
    return outcome.record.name, "waiting", "", outcome.pending.reason


def _help(advice: Advice) -> Iterator[str]:
    """The lines about one gang that waits."""
    if advice.holders:
        yield f"  its capacity is held by {listed(advice.holders)}"
    for each in advice.repairs:
        yield f"  it goes {in_words(each)}"

"""How a plan is shown: a document of decisions for programs, and a table with the repairs for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dispatcher.cli.tables import table
from dispatcher.core.model.record import Pending
from dispatcher.core.scheduling.cycle import Outcome, Placed
from dispatcher.core.scheduling.repair import AddNodes, Advice, RemoveGangs, RemoveTaints, Repair
from dispatcher.core.scheduling.scenario import write_amounts

HEADINGS: Final = ("GANG", "DECISION", "CLUSTER", "REASON")
NO_GANGS: Final = "No gang is pending."

_MOST_NAMES: Final = 10
"""Names of gangs or nodes in one line for people; JSON has them all."""


def as_document(outcomes: Sequence[Outcome], advice: Mapping[str, Advice]) -> dict[str, Any]:
    """The plan as a JSON document; docs/plan.md has its fields. Without `advice` it has no holders and repairs."""
    return {"decisions": [_decision(each, advice) for each in outcomes], "queues": {}}


def as_text(outcomes: Sequence[Outcome], advice: Mapping[str, Advice], width: int | None = None) -> str:
    """The plan for people: a table of decisions, then for each waiting gang what would help."""
    if not outcomes:
        return NO_GANGS
    blocks = [table(HEADINGS, list(map(_row, outcomes)), width)]
    for each in outcomes:
        found = advice.get(each.record.name, Advice())
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
    found = advice.get(name, Advice())
    waiting = {"waiting": name, "reason": outcome.pending.reason, "message": _message(outcome.pending, found)}
    if name not in advice:
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
        yield f"  its capacity is held by {_listed(advice.holders)}"
    for each in advice.repairs:
        yield f"  it goes {_in_words(each)}"


def _in_words(repair: Repair) -> str:
    match repair:
        case AddNodes(cluster, count, node):
            has = ", ".join(f"{name} {amount}" for name, amount in write_amounts(node.allocatable).items())
            labels = ",".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
            taints = ",".join(f"{taint}:{taint.effect}" for taint in node.taints)
            extras = [f"labels {labels}"] * bool(labels) + [f"taints {taints}"] * bool(taints)
            shape = "; ".join([has, *extras])
            return f"with {count} more node{'s' * (count > 1)} in {cluster}" + (
                f" ({shape})" if shape else ""
            )
        case RemoveGangs(gangs):
            return f"without {_listed(gangs)}"
        case RemoveTaints(cluster, nodes):
            return f"without the taints of {_listed(nodes)} in {cluster}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

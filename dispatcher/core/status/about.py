"""The part of the status for a person who reads all of it: what becomes of the AppWrapper, why, and what helps.

`kubectl describe` sorts fields by name, and a status has many that MCAD's clients need. `about` stands first, after
MCAD's `Succeeded` alone, and its texts say nothing that other fields do not say: programs read those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatcher.api.conditions import ConditionType
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.text import one_line

LONGEST: Final = 512
"""Characters of a message; `status.waiting`, `unhealthy` and the conditions have all of it."""


def about(record: Record, status: Mapping[str, Any]) -> dict[str, str]:
    """The facts in words, from the record and the other fields of its status."""
    waiting, failure = status.get("waiting") or {}, status.get("failure") or {}
    reason, message = _why(record)
    found = {
        "phase": record.phase.value,
        "cluster": str(status.get("cluster", "")),
        "reason": reason,
        "message": one_line(message, LONGEST),
        "position": _position(waiting),
        "repair": one_line(str((waiting.get("repair") or {}).get("message", "")), LONGEST),
        "failedFirst": record.failure.in_words if record.failure else "",
        "logs": str(failure.get("logs", "")),
    }
    return {word: said for word, said in found.items() if said}


def outside_queue(reason: str, message: str) -> dict[str, str]:
    """The facts about an AppWrapper without a record."""
    return {"reason": reason, "message": one_line(message, LONGEST)}


def _why(record: Record) -> tuple[str, str]:
    """Why it waits, is unhealthy or has failed: the reason and the message; empty if nothing is wrong."""
    failed = record.condition(ConditionType.FAILED)
    if record.phase is Phase.FAILED and failed is not None:
        return failed.reason, failed.message
    if record.pending is not None:
        return record.pending.reason, record.pending.message
    if record.unhealthy is not None:
        return record.unhealthy.reason, record.unhealthy.message
    return ("", "") if record.phase is not Phase.FAILING else (record.reason, record.message)


def _position(waiting: Mapping[str, Any]) -> str:
    """The position as people write it, with a plus if it is rounded down; empty without one."""
    if "position" not in waiting:
        return ""
    length = waiting.get("queueLength")
    return f"{waiting['position']} of {length}" if length is not None else f"{waiting['position']}+"

"""What the owner of an AppWrapper may change after submission, and is therefore read from the object as it is now."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dispatcher.api.written import WrittenAsked


@dataclass(frozen=True, slots=True)
class Asked:
    """How urgent an AppWrapper is at present, and whether it is held back."""

    priority: int = 0
    priority_slope: float = 0.0
    suspend: bool = False


def asked(raw_spec: Mapping[str, Any]) -> Asked | None:
    """Read what a spec asks for now; None if its fields are of types that a schema would have refused."""
    try:
        written = WrittenAsked.model_validate(raw_spec)
    except ValidationError:
        return None
    return Asked(written.priority, written.priority_slope, written.suspend)

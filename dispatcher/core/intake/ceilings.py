"""Ceilings of priority and slope: annotations of a namespace, which tenants cannot write.

Priority and slope count up to the ceiling of the namespace and no further; lower ones count as written. A ceiling
of the priority alone would be passed by any slope after a while, so without one of its own the slope's is 0 then.
A malformed number counts as 0: a typing error must not lift a bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import MAX_PRIORITY, MAX_PRIORITY_SLOPE

_PRIORITY: Final = re.compile("-?[0-9]{1,9}")
_SLOPE: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class Ceiling(Struct, frozen=True):
    """The highest priority, and the highest slope, that count; None is no bound."""

    priority: int | None = None
    slope: float | None = None

    @property
    def highest_slope(self) -> float | None:
        """The slope that is allowed at most: 0 where only the priority has a bound."""
        return 0.0 if self.slope is None and self.priority is not None else self.slope

    def lower(self, asked: MutableSpec) -> MutableSpec:
        """The fields with priority and slope lowered to the ceiling."""
        priority, slope = self.priority, self.highest_slope
        return replace(
            asked,
            priority=asked.priority if priority is None else min(asked.priority, priority),
            priority_slope=asked.priority_slope if slope is None else min(asked.priority_slope, slope),
        )

    def warning(self, asked: MutableSpec, namespace: str) -> str:
        """A sentence about lowered fields; empty if there are none."""
        lowered = self.lower(asked)
        cut = [
            f"{word} {written:.10g} counts as {counts:.10g}"
            for word, written, counts in (
                ("priority", asked.priority, lowered.priority),
                ("priorityslope", asked.priority_slope, lowered.priority_slope),
            )
            if written != counts
        ]
        return f"{' and '.join(cut)}, the ceiling of namespace {namespace}" if cut else ""


NO_CEILING: Final = Ceiling()


def ceiling_of(annotations: Mapping[str, str], default: Ceiling = NO_CEILING) -> Ceiling:
    """The ceiling that the annotations of a namespace set; what they leave out is as in `default`."""
    priority, slope = annotations.get(MAX_PRIORITY), annotations.get(MAX_PRIORITY_SLOPE)
    return Ceiling(
        default.priority if priority is None else int(priority) if _PRIORITY.fullmatch(priority) else 0,
        default.slope if slope is None else float(slope) if _SLOPE.fullmatch(slope) else 0.0,
    )


def unreadable(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The annotations that should be numbers, and are none that can be taken."""
    patterns = ((MAX_PRIORITY, _PRIORITY), (MAX_PRIORITY_SLOPE, _SLOPE))
    return tuple(
        key for key, pattern in patterns if key in annotations and not pattern.fullmatch(annotations[key])
    )

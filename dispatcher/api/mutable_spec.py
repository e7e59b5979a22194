"""The part of an AppWrapper that its owner may change after submission, read from the object as it is now."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.document import Entry
from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR
from dispatcher.api.selector import EVERYTHING, Selector, selector_of
from dispatcher.api.spec_errors import SpecError

LEAST_PRIORITY: Final = -(2**31)
STEEPEST: Final = 1e12
"""The largest priority slope, up or down: far beyond any use, and the database's bound. A priority past a double would
make the order of the whole queue unreadable."""


class MutableSpec(Struct, frozen=True):
    """Priority, suspension and cluster requirements of an AppWrapper, as written now.

    A selector is None if the annotation is invalid; then the last valid selector applies. `never_preempts` is true if
    its priority class says that it preempts no gang; the class is resolved later.
    """

    priority: int = 0
    priority_slope: float = 0.0
    suspend: bool = False
    selector: Selector | None = EVERYTHING
    prefers: Selector | None = EVERYTHING
    never_preempts: bool = False


def mutable_spec(raw_spec: Mapping[str, Any], annotations: Mapping[str, str]) -> MutableSpec | None:
    """The mutable part of an AppWrapper; None if fields have types that a schema refuses."""
    try:
        priority, slope, suspend = read_priority(Entry(raw_spec, "spec"))
    except SpecError:
        return None
    return MutableSpec(
        priority=priority,
        priority_slope=slope,
        suspend=suspend,
        selector=_selector(annotations, CLUSTER_SELECTOR),
        prefers=_selector(annotations, CLUSTER_PREFERENCE),
    )


def read_priority(spec: Entry) -> tuple[int, float, bool]:
    """The priority of a spec, its slope, and whether the spec is suspended. Raises `SpecError`."""
    return (
        spec.child("priority").integer(0, least=LEAST_PRIORITY),
        spec.child("priorityslope").number(STEEPEST),
        spec.child("suspend").flag(),
    )


def _selector(annotations: Mapping[str, str], key: str) -> Selector | None:
    try:
        return selector_of(annotations, key)
    except SpecError:
        return None

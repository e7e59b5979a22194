"""The part of an AppWrapper that its owner may change after submission, read from the object as it is now."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from pydantic import ValidationError

from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR
from dispatcher.api.schema import WrittenMutableSpec
from dispatcher.api.selector import EVERYTHING, Selector, selector_of
from dispatcher.api.spec_errors import SpecError


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
        written = WrittenMutableSpec.model_validate(raw_spec)
    except ValidationError:
        return None
    return MutableSpec(
        priority=written.priority,
        priority_slope=written.priority_slope,
        suspend=written.suspend,
        selector=_selector(annotations, CLUSTER_SELECTOR),
        prefers=_selector(annotations, CLUSTER_PREFERENCE),
    )


def _selector(annotations: Mapping[str, str], key: str) -> Selector | None:
    try:
        return selector_of(annotations, key)
    except SpecError:
        return None

"""The priority of an AppWrapper: that of its spec, or that of the class which its labels name.

A priority of 0 in the spec counts as none. Kueue's WorkloadPriorityClasses come before Kubernetes' PriorityClasses of
the same name. An unknown class counts as priority 0. No class is the default of AppWrappers that name none: the global
default of Kubernetes is for pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from dispatcher.api.names import KUEUE_PRIORITY_LABEL, PRIORITY_LABEL

PRIORITY_LABELS: Final = (KUEUE_PRIORITY_LABEL, PRIORITY_LABEL)
"""The labels of an AppWrapper that name its class, in their order of precedence."""


class ResolvedPriority(Struct, frozen=True):
    """The priority that counts; `unknown_class` says in a sentence that there is no such class, else it is empty."""

    value: int
    unknown_class: str = ""


class PriorityClasses(Struct, frozen=True):
    """The values of all classes of the hub by name."""

    of_workloads: Mapping[str, int] = field(default_factory=dict)
    of_pods: Mapping[str, int] = field(default_factory=dict)

    def resolve(self, written: int, labels: Mapping[str, str]) -> ResolvedPriority:
        """The priority of an AppWrapper with this priority in its spec."""
        key = _label_in(labels)
        if written or not key:
            return ResolvedPriority(written)
        name = labels[key]
        for values in (self.of_workloads, self.of_pods):
            if name in values:
                return ResolvedPriority(values[name])
        return ResolvedPriority(
            0, f"there is no PriorityClass {name}, which label {key} names: the priority counts as 0"
        )


def class_name(labels: Mapping[str, str]) -> str:
    """The class that the labels of an AppWrapper name; empty if they name none."""
    return labels.get(_label_in(labels), "")


def _label_in(labels: Mapping[str, str]) -> str:
    return next((key for key in PRIORITY_LABELS if labels.get(key)), "")

"""The priority of an AppWrapper: that of its spec, or that of the class which its labels name.

A priority of 0 in the spec counts as none. Kueue's WorkloadPriorityClasses come before Kubernetes' PriorityClasses of
the same name. An unknown class counts as priority 0 and as the policy `Never`: its absence frees no gang from a policy.
No class is the default of AppWrappers that name none: the global default of Kubernetes is for pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from msgspec import Struct, field

from dispatcher.api.names import KUEUE_PRIORITY_LABEL, PRIORITY_LABEL

PRIORITY_LABELS: Final = (KUEUE_PRIORITY_LABEL, PRIORITY_LABEL)
"""The labels of an AppWrapper that name its class, in their order of precedence."""


class ResolvedPriority(Struct, frozen=True):
    """The priority that counts; `unknown_class` says in a sentence that there is no such class, else it is empty.

    `never_preempts` is true if the class says that its pods preempt no others, whichever priority counts.
    """

    value: int
    unknown_class: str = ""
    never_preempts: bool = False


class PriorityClasses(Struct, frozen=True):
    """The values of all classes of the hub by name.

    `never_preempting` are the PriorityClasses with the preemption policy `Never`. Kueue's classes have no such policy.
    """

    of_workloads: Mapping[str, int] = field(default_factory=dict)
    of_pods: Mapping[str, int] = field(default_factory=dict)
    never_preempting: Set[str] = field(default_factory=frozenset)

    def resolve(self, written: int, labels: Mapping[str, str]) -> ResolvedPriority:
        """The priority of an AppWrapper with this priority in its spec."""
        key = _label_in(labels)
        if not key:
            return ResolvedPriority(written)
        name = labels[key]
        never_preempts = name in self.never_preempting and name not in self.of_workloads
        if written:
            return ResolvedPriority(written, never_preempts=never_preempts)
        for values in (self.of_workloads, self.of_pods):
            if name in values:
                return ResolvedPriority(values[name], never_preempts=never_preempts)
        said = f"there is no PriorityClass {name}, which label {key} names: the priority counts as 0, and no gang is "
        return ResolvedPriority(0, f"{said}preempted for it", never_preempts=True)


def class_name(labels: Mapping[str, str]) -> str:
    """The class that the labels of an AppWrapper name; empty if they name none."""
    return labels.get(_label_in(labels), "")


def _label_in(labels: Mapping[str, str]) -> str:
    return next((key for key in PRIORITY_LABELS if labels.get(key)), "")

"""The priority of an AppWrapper: that of its spec, or that of the class which its labels name.

A priority of 0 in the spec counts as none. Kueue's WorkloadPriorityClasses come before Kubernetes' PriorityClasses of
the same name. An unknown class counts as priority 0 and as the policy `Never`: its absence frees no gang from a policy.
A class that was there lately is not unknown: while it is replaced, its last value counts, or that of the record.
No class is the default of AppWrappers that name none: the global default of Kubernetes is for pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from msgspec import Struct, field

from dispatcher.api.names import KUEUE_PRIORITY_LABEL, PRIORITY_LABEL

PRIORITY_LABELS: Final = (KUEUE_PRIORITY_LABEL, PRIORITY_LABEL)
"""The labels of an AppWrapper that name its class, in their order of precedence."""


class ClassValue(NamedTuple):
    """The value of a priority class, and whether its pods never preempt other pods."""

    value: int
    never_preempts: bool = False


class ResolvedPriority(Struct, frozen=True):
    """The priority that counts; `unknown_class` says in a sentence that there is no such class, else it is empty.

    `never_preempts` is true if the class says that its pods preempt no others, whichever priority counts. It is
    `is_unsure` while a class that is not there may be gone for a moment only: what a record says of it counts then.
    """

    value: int
    unknown_class: str = ""
    never_preempts: bool = False
    is_unsure: bool = False


class PriorityClasses(Struct, frozen=True):
    """The values of all classes of the hub by name.

    `never_preempting` are the PriorityClasses with the preemption policy `Never`. Kueue's classes have no such policy.
    `are_all` is false while there may be others, which were there before and are not surely gone.
    """

    of_workloads: Mapping[str, int] = field(default_factory=dict)
    of_pods: Mapping[str, int] = field(default_factory=dict)
    never_preempting: Set[str] = field(default_factory=frozenset)
    are_all: bool = True

    def resolve(self, written: int, labels: Mapping[str, str]) -> ResolvedPriority:
        """The priority of an AppWrapper with this priority in its spec."""
        key = _label_in(labels)
        if not key:
            return ResolvedPriority(written)
        name = labels[key]
        never_preempts = name in self.never_preempting and name not in self.of_workloads
        is_unsure = not (self.are_all or name in self.of_workloads or name in self.of_pods)
        if written:
            return ResolvedPriority(written, never_preempts=never_preempts, is_unsure=is_unsure)
        for values in (self.of_workloads, self.of_pods):
            if name in values:
                return ResolvedPriority(values[name], never_preempts=never_preempts)
        said = f"there is no PriorityClass {name}, which label {key} names: the priority counts as 0, and no gang is "
        return ResolvedPriority(0, f"{said}preempted for it", never_preempts=True, is_unsure=is_unsure)


class ChangedClasses(Struct, frozen=True):
    """The names of classes that have changed; if `all_but` is given, also every name that is not among these."""

    names: frozenset[str]
    all_but: frozenset[str] | None = None

    def concern(self, name: str) -> bool:
        """True if the priority of an AppWrapper that names this class may be another; false for an empty name."""
        return bool(name) and (name in self.names or (self.all_but is not None and name not in self.all_but))


def class_name(labels: Mapping[str, str]) -> str:
    """The class that the labels of an AppWrapper name; empty if they name none."""
    return labels.get(_label_in(labels), "")


def _label_in(labels: Mapping[str, str]) -> str:
    return next((key for key in PRIORITY_LABELS if labels.get(key)), "")

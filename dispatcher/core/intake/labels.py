"""What the labels of an AppWrapper and its namespace name: its queues, and the class that gives its priority.

The first label of a queue that is there counts: of the AppWrapper, then of its namespace, each time ours before Kueue's
and KAI's. Kueue's label names a LocalQueue, which means another queue in each namespace. So where the namespace names a
queue, a LocalQueue whose name no queue has is not one of ours, and the label of the namespace counts.
Whether the queue serves the namespace is decided later (`core.queues.access`).
In MCAD's trees the key of a label is the name of the tree, which can be any name without a slash.

The priority is that of the spec, or that of the class. A priority of 0 in the spec counts as none. Kueue's
WorkloadPriorityClasses come before Kubernetes' PriorityClasses of the same name. An unknown class counts as priority 0
and as the policy `Never`: its absence frees no gang from a policy. A class that was there lately is not unknown: while
it is replaced, its last value counts, or that of the record. No class is the default of AppWrappers that name none: the
global default of Kubernetes is for pods.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from typing import Final, NamedTuple

from msgspec import Struct, field

from dispatcher.api.names import (
    DEFAULT_QUEUE,
    KUEUE_PRIORITY_LABEL,
    KUEUE_QUEUE_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
)
from dispatcher.core.queues.access import QUEUE_LABELS, queue_name
from dispatcher.core.queues.quota_subtrees import leaves_of
from dispatcher.text import name_of

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


MOST_LABELS: Final = 64
"""Labels without a prefix that are kept of one AppWrapper, in the order of their names; any user can write many."""

_NO_LABELS: Final[Mapping[str, str]] = {}


def queues_of(
    labels: Mapping[str, str],
    of_namespace: Mapping[str, str],
    trees: Iterable[str],
    names: Container[str] | None = None,
) -> tuple[str, ...]:
    """The names of the queues in which an AppWrapper is charged: its own queue, then one in each of MCAD's trees.

    They need not exist. `names` are the queues that do: only the name of a LocalQueue depends on them, and counts as
    that of a queue where they are not known.
    """
    own, bound = queue_name(labels), queue_name(of_namespace)
    if bound and names is not None and own not in names and names_local_queue(labels):
        own = ""
    return (own or bound or DEFAULT_QUEUE, *leaves_of(labels, trees))


def names_local_queue(labels: Mapping[str, str]) -> bool:
    """True if Kueue's label is the one that names the queue of these labels."""
    return bool(not labels.get(QUEUE_LABEL) and labels.get(KUEUE_QUEUE_LABEL))


def naming_queues(namespaces: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The labels that name queues, of each namespace that has any, by its name."""
    found = {
        name: {key: labels[key] for key in QUEUE_LABELS if key in labels}
        for name, labels in namespaces.items()
    }
    return {name: labels for name, labels in found.items() if labels}


def kept_labels(labels: Mapping[str, object]) -> Mapping[str, str]:
    """The labels of an AppWrapper that may name a queue or a priority class, each value a printable line."""
    if not labels:
        return _NO_LABELS
    plain = sorted(key for key in labels if "/" not in key)[:MOST_LABELS]
    kept = (*plain, *(key for key in (*QUEUE_LABELS, *PRIORITY_LABELS) if key in labels))
    return {key: name_of(labels[key]) for key in kept} or _NO_LABELS

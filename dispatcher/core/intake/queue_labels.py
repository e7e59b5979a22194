"""The queues of an AppWrapper, by its labels and those of its namespace.

The first label that is there counts: of the AppWrapper, then of its namespace, each time ours before Kueue's and KAI's.
Kueue's label names a LocalQueue, which means another queue in each namespace. So where the namespace names a queue, a
LocalQueue whose name no queue has is not one of ours, and the label of the namespace counts.
Whether the queue serves the namespace is decided later (`core.queues.access`).
In MCAD's trees the key of a label is the name of the tree, which can be any name without a slash.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from dispatcher.api.names import DEFAULT_QUEUE, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.intake.priority_classes import PRIORITY_LABELS
from dispatcher.core.queues.access import QUEUE_LABELS, queue_name
from dispatcher.core.queues.quota_subtrees import leaves_of
from dispatcher.text import name_of

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

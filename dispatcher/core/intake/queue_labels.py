"""The queues of an AppWrapper, by its labels and those of its namespace.

The first label that is there counts: of the AppWrapper, then of its namespace, each time ours before Kueue's and KAI's.
In MCAD's trees the key of a label is the name of the tree, which can be any name without a slash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.api.names import DEFAULT_QUEUE, KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.intake.priority_classes import PRIORITY_LABELS
from dispatcher.core.queues.quota_subtrees import leaves_of
from dispatcher.text import name_of

QUEUE_LABELS: Final = (QUEUE_LABEL, KUEUE_QUEUE_LABEL, KAI_QUEUE_LABEL)
"""The labels that name a queue, in their order of precedence."""

MOST_LABELS: Final = 64
"""Labels without a prefix that are kept of one AppWrapper, in the order of their names; any user can write many."""

_NO_LABELS: Final[Mapping[str, str]] = {}


def queues_of(
    labels: Mapping[str, str], of_namespace: Mapping[str, str], trees: Iterable[str]
) -> tuple[str, ...]:
    """The names of the queues in which an AppWrapper is charged: its own queue, then one in each of MCAD's trees.

    They need not exist.
    """
    named = queue_name(labels) or queue_name(of_namespace) or DEFAULT_QUEUE
    return (named, *leaves_of(labels, trees))


def queue_name(labels: Mapping[str, str]) -> str:
    """The queue that these labels name; empty if they name none."""
    return next(filter(None, (labels.get(key) for key in QUEUE_LABELS)), "")


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

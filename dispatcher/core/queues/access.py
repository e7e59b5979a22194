"""Which namespaces a queue serves, by its selectors and by the labels of the namespaces.

Any user can write a label of an AppWrapper, so it opens no queue. An operator opens one: by a `namespaceSelector` of
the queue or of one above it, or by a label of the namespace that names the queue. A selector that does not match closes
the queue to a namespace even if the namespace names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.api.names import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, QUEUE_LABEL
from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.forest import Forest, Place

QUEUE_LABELS: Final = (QUEUE_LABEL, KUEUE_QUEUE_LABEL, KAI_QUEUE_LABEL)
"""The labels that name a queue, in their order of precedence."""


def queue_name(labels: Mapping[str, str]) -> str:
    """The queue that these labels name; empty if they name none."""
    return next(filter(None, (labels.get(key) for key in QUEUE_LABELS)), "")


def why_not_served(place: Place, namespace: str, labels: Mapping[str, str]) -> str:
    """Why a queue does not serve a namespace with these labels, in a sentence; empty if it does."""
    for name, selector in place.namespace_selectors:
        if not selector.matches(labels):
            return f"queue {name} serves namespaces with {selector}, and {namespace} is none"
    if not place.is_selective or queue_name(labels) == place.name:
        return ""
    return (
        f"queue {place.name} has no namespaceSelector, and namespace {namespace} has no label {QUEUE_LABEL} that names "
        "it: an operator writes one of them"
    )


def are_there(record: Record, forest: Forest) -> bool:
    """True if all queues are there in which a gang waits."""
    return all(leaf in forest.places for leaf in forest.queues_of(record.leaves))


def take(forest: Forest, leaves: Iterable[str], namespace: str, labels: Mapping[str, str]) -> bool:
    """True if all of these queues take gangs of a namespace with these labels; a held one by its last declaration."""
    for leaf in leaves:
        place = forest.places.get(leaf) or forest.for_quota.places.get(leaf)
        if place is None or not place.is_leaf or why_not_served(place, namespace, labels):
            return False
    return True


def counted_in(record: Record, forest: Forest) -> tuple[str, ...]:
    """The queues in which a waiting gang counts: its own, as far as they take it.

    A queue that is not valid now may take it later. So a gang that waits for one counts there, and in no other queue.
    """
    if record.pending is None or not record.pending.is_in_no_queue:
        return record.leaves
    return tuple(leaf for leaf in record.leaves if leaf not in forest.places)


def open_to_all(places: Iterable[Place]) -> list[str]:
    """The queues that serve every namespace only because the dispatcher's setting says so, in order of their names.

    A queue with an empty `namespaceSelector` on its way to the root is open on purpose and is left out.
    """
    return sorted(
        place.name for place in places if place.is_leaf and not (place.is_selective or place.is_opened)
    )


def to_be_named(places: Iterable[Place]) -> list[str]:
    """The queues that serve only namespaces whose own label names them, in the order of their names."""
    return sorted(place.name for place in places if place.is_leaf and place.is_selective)

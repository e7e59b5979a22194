"""What the labels of AppWrappers and of their namespaces ask for, with the facts of the hub that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dispatcher.core.intake.queue_labels import queues_of
from dispatcher.kube.appwrappers import AppWrapperView


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return {}


def _no_trees() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class LabelResolver:
    """Resolves labels. `labels_of` are the labels of a namespace, `trees` the names of MCAD's trees."""

    labels_of: Callable[[str], Mapping[str, str]] = _no_labels
    trees: Callable[[], tuple[str, ...]] = _no_trees

    def queues_of(self, view: AppWrapperView) -> tuple[str, ...]:
        """The names of the queues that an AppWrapper asks for now; they need not exist."""
        return queues_of(view.labels, self.labels_of(view.namespace), self.trees())

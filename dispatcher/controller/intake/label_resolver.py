"""What the labels of AppWrappers and of their namespaces ask for, with the facts of the hub that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.intake.priority_classes import PriorityClasses
from dispatcher.core.intake.queue_labels import queues_of
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.kube.appwrappers import AppWrapperView


class LabelResolver(Struct, frozen=True):
    """Resolves labels.

    `labels_of` are the labels of a namespace, `queues` the declared queues, `classes` the hub's priority classes.
    """

    labels_of: Callable[[str], Mapping[str, str]]
    queues: Callable[[], DeclaredQueues]
    classes: Callable[[], PriorityClasses]

    def queues_of(self, view: AppWrapperView) -> tuple[str, ...]:
        """The names of the queues that an AppWrapper asks for now; they need not exist."""
        declared = self.queues()
        return queues_of(view.labels, self.labels_of(view.namespace), declared.trees, declared.names)

    def prioritised(self, view: AppWrapperView, asked: MutableSpec) -> MutableSpec:
        """The mutable spec of an AppWrapper with the priority of its class, if it names one instead of a priority.

        The preemption policy of the class counts with any priority.
        """
        found = self.classes().resolve(asked.priority, view.labels)
        return replace(asked, priority=found.value, never_preempts=found.never_preempts)

    def unknown_class(self, view: AppWrapperView, asked: MutableSpec) -> str:
        """A sentence that there is no class of the name that counts; empty if there is, or if no name counts."""
        return self.classes().resolve(asked.priority, view.labels).unknown_class

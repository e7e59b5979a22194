"""What the labels of AppWrappers and of their namespaces ask for, with the facts of the hub that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.conditions import ConditionType
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.intake.priority_classes import PriorityClasses, ResolvedPriority
from dispatcher.core.intake.queue_labels import queues_of
from dispatcher.core.lifecycle.record_change import noted_warning
from dispatcher.core.model.record import Record
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

    def prioritised(
        self, view: AppWrapperView, asked: MutableSpec, record: Record | None = None
    ) -> MutableSpec:
        """The mutable spec of an AppWrapper with the priority of its class, if it names one instead of a priority.

        The preemption policy of the class counts with any priority. While it is not sure that the class is gone, its
        priority and policy are those of the `record`.
        """
        found = self.classes().resolve(asked.priority, view.labels)
        if record is not None and _is_kept(found, record):
            priority = asked.priority or record.priority
            return replace(asked, priority=priority, never_preempts=record.class_never_preempts)
        return replace(asked, priority=found.value, never_preempts=found.never_preempts)

    def unknown_class(self, view: AppWrapperView, asked: MutableSpec, record: Record | None = None) -> str:
        """A sentence that there is no class of the name that counts; empty if there is, or if no name counts."""
        found = self.classes().resolve(asked.priority, view.labels)
        return "" if record is not None and _is_kept(found, record) else found.unknown_class


def _is_kept(found: ResolvedPriority, record: Record) -> bool:
    """True if a record knew the class, which is not surely gone: a record says so if its class was unknown."""
    return found.is_unsure and not noted_warning(record, ConditionType.PRIORITY_CLASS_UNKNOWN)

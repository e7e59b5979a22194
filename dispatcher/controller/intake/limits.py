"""The rules of intake for a namespace: for declared demand, its labels, priority ceilings and the queue bound."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import log
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.conditions import granted_in
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.controller.intake.label_resolver import LabelResolver
from dispatcher.core.intake.namespace_bounds import Ceiling, QueueBound
from dispatcher.core.kinds import pod_defaults, template_fields
from dispatcher.core.kinds.cluster_defaults import ChargeRule
from dispatcher.core.kinds.demand import Charge, charge_of
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.lifecycle import approvals
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.record import Pending, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.kube.appwrappers import AppWrapperView

_log = log.get("limits")


class Limits(Struct, frozen=True):
    """The limits of all namespaces.

    `forest` returns the declared queues; `on_deferred` is called with the uid of each AppWrapper that is deferred.
    """

    rule: ChargeRule
    ceiling_of: Callable[[str], Ceiling]
    bound: QueueBound
    on_deferred: Callable[[str], None]
    kinds: Kinds
    labels: LabelResolver
    forest: Callable[[], Forest]

    def admits(self, view: AppWrapperView) -> bool:
        """True if its namespace has room for the AppWrapper; else it is deferred until `bound.call` returns it."""
        namespace, was_full = view.namespace, self.bound.waits_in(view.namespace)
        if self.bound.admits(namespace, (view.created_at, int(view.resource_version)), view.uid):
            return True
        if not was_full:
            _log.warning("namespace_queue_full", namespace=namespace, most=self.bound.most)
        self.on_deferred(view.uid)
        return False

    def asked(self, view: AppWrapperView, record: Record | None = None) -> MutableSpec | None:
        """The mutable spec that counts: the requested one, by its class and within the ceiling of the namespace.

        `record` is that of the AppWrapper: it knows the values of a class that is being replaced.
        """
        if view.mutable_spec is None:
            return None
        prioritised = self.labels.prioritised(view, view.mutable_spec, record)
        return self.ceiling_of(view.namespace).lower(prioritised)

    def cut(self, view: AppWrapperView, record: Record | None = None) -> str:
        """The warning about what the ceiling cuts; empty if it cuts nothing. `record` as in `asked`."""
        if view.mutable_spec is None:
            return ""
        prioritised = self.labels.prioritised(view, view.mutable_spec, record)
        return self.ceiling_of(view.namespace).warning(prioritised, view.namespace)

    def unknown_class(self, view: AppWrapperView, record: Record | None = None) -> str:
        """The warning about a priority class that does not exist; empty if there is no need for one.

        `record` as in `asked`.
        """
        return self.labels.unknown_class(view, view.mutable_spec, record) if view.mutable_spec else ""

    def awaited(self, view: AppWrapperView, leaves: tuple[str, ...]) -> Pending | None:
        """The pending reason of an AppWrapper in these queues that lacks approvals; None if it has all."""
        if not view.approvals and not self.names_approvals(leaves):
            return None
        return approvals.awaited(view.approvals, leaves, self.forest(), granted_in(view.status))

    def awaits_its_own(self, view: AppWrapperView, leaves: tuple[str, ...]) -> bool:
        """True if an AppWrapper in these queues lacks an approval that only its author's annotation names."""
        if not view.approvals:
            return False
        return approvals.lacks_its_own(view.approvals, leaves, self.forest(), granted_in(view.status))

    def names_approvals(self, leaves: tuple[str, ...]) -> bool:
        """True if one of these queues names approvals."""
        return any(place.approvals for place in self.forest().places_of(leaves))

    def charge(self, spec: AppWrapperSpec) -> Charge:
        """The demand of a gang, with the warnings about its spec; raises `DemandError` if it cannot be derived.

        It reads the whole spec and is a pure function: for a large spec a thread may run it.
        """
        charge = charge_of(spec, self.rule, self.kinds)
        said = (*charge.warnings, template_fields.warning(spec))
        return replace(charge, warnings=tuple(filter(None, said)))

    def pods_never_preempt(self, spec: AppWrapperSpec) -> bool:
        """True if a pod of the gang may preempt no pod, by its template or by its class, as that is now."""
        return pod_defaults.never_preempts(spec, self.labels.classes().never_preempting)

    def apply(self, view: AppWrapperView, submission: Submission, charge: Charge) -> Submission:
        """The new AppWrapper with the priority that counts, and with all warnings for its author."""
        written = MutableSpec(submission.priority, submission.priority_slope)
        asked, unknown_class = (
            self.labels.prioritised(view, written),
            self.labels.unknown_class(view, written),
        )
        ceiling = self.ceiling_of(view.namespace)
        counts = ceiling.lower(asked)
        said = (*charge.warnings, unknown_class, ceiling.warning(asked, view.namespace))
        return replace(
            submission,
            priority=counts.priority,
            priority_slope=counts.priority_slope,
            class_never_preempts=counts.never_preempts,
            warnings=tuple(filter(None, said)),
            demand_differs="; ".join(charge.differences),
            unknown_class=unknown_class,
        )

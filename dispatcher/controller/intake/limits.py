"""The rules of intake for a namespace: for declared demand, its labels, priority ceilings and the queue bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from dispatcher import log
from dispatcher.api.approvals import granted_in
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.controller.intake.label_resolver import LabelResolver
from dispatcher.core.intake.ceilings import Ceiling
from dispatcher.core.intake.deferral import Deferred
from dispatcher.core.kinds import server_fields
from dispatcher.core.kinds.charge_rule import Rule
from dispatcher.core.kinds.demand import Charge, charge_of
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.lifecycle import approvals
from dispatcher.core.lifecycle.first_steps import Submission
from dispatcher.core.model.record import Pending
from dispatcher.core.queues.forest import Forest
from dispatcher.kube.appwrappers import AppWrapperView

_log = log.get("limits")


class QueueBound:
    """Bounds how many AppWrappers of a namespace are queued or suspended; others are deferred, and enter by age.

    `count` is how many of a namespace are in the queue; `on_deferred` is called with the uid of each deferred one.
    AppWrappers that a batch takes in count at once, until `settle` says that `count` includes them.
    """

    def __init__(self, most: int, count: Callable[[str], int], on_deferred: Callable[[str], None]) -> None:
        self.most = most
        self._count = count
        self._on_deferred = on_deferred
        self._deferred = Deferred()
        self._called: set[str] = set()
        self._taken: Counter[str] = Counter()
        self._with_room: set[str] = set()

    def __len__(self) -> int:
        return len(self._deferred)

    def admits(self, view: AppWrapperView) -> bool:
        """True if there is room for the AppWrapper; else it is deferred until `call` returns it."""
        namespace, was_called = view.namespace, view.uid in self._called
        self._called.discard(view.uid)
        in_turn = was_called or not self._deferred.waits_in(namespace)
        if in_turn and self._room(namespace) > 0:
            self._taken[namespace] += 1
            self._with_room.add(view.uid)
            return True
        if not self._deferred.waits_in(namespace):
            _log.warning("namespace_queue_full", namespace=namespace, most=self.most)
        self._deferred.put(namespace, (view.created_at, int(view.resource_version)), view.uid)
        self._on_deferred(view.uid)
        return False

    def keep_turn(self, view: AppWrapperView) -> None:
        """Keep the place of an AppWrapper that had room but cannot be taken in yet, before all deferred ones."""
        if view.uid in self._with_room:
            self._with_room.discard(view.uid)
            self._taken[view.namespace] -= 1
            self._called.add(view.uid)

    def settle(self) -> None:
        """Note that `count` includes everything that was taken in."""
        self._taken.clear()
        self._with_room.clear()

    def call(self) -> list[str]:
        """The uids of deferred AppWrappers for which there is room now, the oldest of each namespace; each once."""
        called: list[str] = []
        for namespace in self._deferred.namespaces():
            for _ in range(self._room(namespace)):
                uid = self._deferred.pop(namespace)
                if uid is None:
                    break
                called.append(uid)
        self._called.update(called)
        return called

    def is_deferred(self, uid: str) -> bool:
        """True of a deferred AppWrapper."""
        return uid in self._deferred

    def waits_in(self, namespace: str) -> bool:
        """True if the namespace has deferred AppWrappers."""
        return self._deferred.waits_in(namespace)

    def forget(self, uid: str) -> None:
        """Drop an AppWrapper that is gone; safe to repeat."""
        self._deferred.discard(uid)
        self._called.discard(uid)

    def _room(self, namespace: str) -> int:
        return max(0, self.most - self._count(namespace) - self._taken[namespace])


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of all namespaces; `forest` returns the declared queues."""

    rule: Rule
    ceiling_of: Callable[[str], Ceiling]
    bound: QueueBound
    kinds: Kinds
    labels: LabelResolver
    forest: Callable[[], Forest]

    def asked(self, view: AppWrapperView) -> MutableSpec | None:
        """The mutable spec that counts: the requested one, by its class and within the ceiling of the namespace."""
        if view.mutable_spec is None:
            return None
        prioritised = self.labels.prioritised(view, view.mutable_spec)
        return self.ceiling_of(view.namespace).lower(prioritised)

    def cut(self, view: AppWrapperView) -> str:
        """The warning about what the ceiling cuts; empty if it cuts nothing."""
        if view.mutable_spec is None:
            return ""
        prioritised = self.labels.prioritised(view, view.mutable_spec)
        return self.ceiling_of(view.namespace).warning(prioritised, view.namespace)

    def unknown_class(self, view: AppWrapperView) -> str:
        """The warning about a priority class that does not exist; empty if there is no need for one."""
        return self.labels.unknown_class(view, view.mutable_spec) if view.mutable_spec else ""

    def awaited(self, view: AppWrapperView, leaves: tuple[str, ...]) -> Pending | None:
        """The pending reason of an AppWrapper in these queues that lacks approvals; None if it has all."""
        if not view.approvals and not self.names_approvals(leaves):
            return None
        return approvals.awaited(view.approvals, leaves, self.forest(), granted_in(view.status))

    def names_approvals(self, leaves: tuple[str, ...]) -> bool:
        """True if one of these queues names approvals."""
        return any(place.approvals for place in self.forest().places_of(leaves))

    def charge(self, spec: AppWrapperSpec) -> Charge:
        """The demand of a gang, with the warnings about its spec; raises `DemandError` if it cannot be derived.

        It reads the whole spec and is a pure function: for a large spec a thread may run it.
        """
        charge = charge_of(spec, self.rule, self.kinds)
        said = (*charge.warnings, server_fields.warning(spec))
        return replace(charge, warnings=tuple(filter(None, said)))

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
            warnings=tuple(filter(None, said)),
            demand_differs="; ".join(charge.differences),
            unknown_class=unknown_class,
        )

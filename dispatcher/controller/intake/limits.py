"""The rules of intake for a namespace: for declared demand, its labels, priority ceilings and the queue bound.

`Namespaces` has the labels of the hub's namespaces, and their priority ceilings from annotations; only metadata is
read. If the dispatcher may not list namespaces, they have no labels and the default ceiling, and the log says so.
`LabelResolver` says what the labels of AppWrappers and namespaces ask for, with the facts of the hub that they depend
on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import log
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.conditions import ConditionType, granted_in
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.api.names import EXPECTED_RUNTIME, MAX_PRIORITY, MAX_PRIORITY_SLOPE, NOTIFY
from dispatcher.api.notifications import LONGEST_TEXT, Choices, choices_in
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.core.intake.labels import PriorityClasses, ResolvedPriority, queues_of
from dispatcher.core.intake.namespace_bounds import (
    Ceiling,
    QueueBound,
    ceiling_of,
    expected_runtime_of,
    unreadable,
)
from dispatcher.core.intake.proposal import default_runtime, expected_seconds
from dispatcher.core.kinds import template_fields
from dispatcher.core.kinds.demand import Charge, charge_of
from dispatcher.core.kinds.pods import pod_defaults
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.lifecycle import approvals
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.lifecycle.record_change import noted_warning
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.queues.access import queue_name
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Forest
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.objects.appwrappers import AppWrapperView
from dispatcher.kube.reflector import Extent, Reflector
from dispatcher.text import mapping_of, texts_of

PATH: Final = "/api/v1/namespaces"


class _Namespace(Struct, frozen=True):
    name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def relevant(self) -> tuple[Mapping[str, str], str]:
        """The annotations of the namespace that count, and the queue that its label names."""
        return self.annotations, queue_name(self.labels)


_UNKNOWN: Final = _Namespace("", {}, {})


class Namespaces:
    """Ceilings, labels and chosen notifications by namespace.

    `on_change` is called with a namespace's name when its ceiling or its queue changes, and `on_labels` when any label
    of a namespace does.
    """

    def __init__(
        self,
        client: ClusterClient,
        default: Ceiling,
        on_change: Callable[[str], None],
        on_labels: Callable[[], None],
    ) -> None:
        self._default = default
        self._on_change = on_change
        self._on_labels = on_labels
        self._ceilings: dict[str, Ceiling] = {}
        self._expected: dict[str, int] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._notify: dict[str, str] = {}
        self._reflector = Reflector(
            "hub-namespaces", client, _path, _decode, self._changed, extent=Extent(contents=False)
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflector.run()

    async def wait_until_listed(self) -> None:
        """Return once namespaces were listed, or the API server has refused the list."""
        await self._reflector.heard.wait()
        if self._reflector.is_forbidden:
            _log.warning(
                "ceilings_unknown", remedy="apply manifests/base/hub.yaml: namespaces cannot be listed"
            )

    @property
    def first_lists(self) -> FirstLists:
        """The watch of namespaces; a refusal counts as its answer."""
        return [(self._reflector, self._reflector.heard)]

    def ceiling_of(self, namespace: str) -> Ceiling:
        """The ceiling of a namespace."""
        return self._ceilings.get(namespace, self._default)

    def expected_of(self, namespace: str) -> int:
        """The run time, in seconds, that a namespace expects of its AppWrappers; 0 if it expects none."""
        return self._expected.get(namespace, 0)

    @property
    def expected(self) -> dict[str, int]:
        """The expected run time of each namespace that has one, in seconds."""
        return dict(self._expected)

    def priorities(self) -> dict[str, int | None]:
        """The highest priority of each namespace with another ceiling than the default one; None is no bound."""
        found = ((name, each.priority) for name, each in self._ceilings.items())
        return {name: priority for name, priority in found if priority != self._default.priority}

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace; none if it is unknown."""
        return self._labels.get(namespace, {})

    def notify_of(self, namespace: str) -> str:
        """The annotation of a namespace that chooses notifications; empty without one."""
        return self._notify.get(namespace, "")

    @property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of every namespace that has any, by its name; the mapping is current, and not to be changed."""
        return self._labels

    def _changed(self, _uid: str, old: _Namespace | None, new: _Namespace | None) -> None:
        changed = new or old
        if changed is None or old == new:
            return
        if new is None:
            self._ceilings.pop(changed.name, None)
            self._expected.pop(changed.name, None)
            self._labels.pop(changed.name, None)
            self._notify.pop(changed.name, None)
        else:
            self._note(new)
        before, after = old or _UNKNOWN, new or _UNKNOWN
        if before.relevant != after.relevant:
            self._on_change(changed.name)
        if before.labels != after.labels:
            self._on_labels()

    def _note(self, namespace: _Namespace) -> None:
        self._ceilings[namespace.name] = ceiling_of(namespace.annotations, self._default)
        self._expected.pop(namespace.name, None)
        if expected := expected_runtime_of(namespace.annotations):
            self._expected[namespace.name] = expected
        self._labels[namespace.name] = namespace.labels
        self._notify.pop(namespace.name, None)
        if NOTIFY in namespace.annotations:
            self._notify[namespace.name] = namespace.annotations[NOTIFY][: LONGEST_TEXT + 1]
        for key in unreadable(namespace.annotations):
            _log.warning("ceiling_unreadable", namespace=namespace.name, annotation=key, counts_as=0)


async def _path() -> str:
    return PATH


def _decode(raw: Json) -> _Namespace | None:
    """The annotations about ceilings, run times and notifications, and all labels; None without any."""
    metadata = raw["metadata"]
    annotations, labels = mapping_of(metadata.get("annotations")), texts_of(metadata.get("labels"))
    ours = {
        key: str(annotations[key])
        for key in (MAX_PRIORITY, MAX_PRIORITY_SLOPE, EXPECTED_RUNTIME, NOTIFY)
        if key in annotations
    }
    return _Namespace(metadata["name"], ours, labels) if ours or labels else None


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


_log = log.get("limits")


def _nothing_expected(_namespace: str) -> int:
    """The default for limits without expected run times."""
    return 0


class Limits(Struct, frozen=True):
    """The limits of all namespaces.

    `expected_of` is the run time that a namespace expects of its AppWrappers, in seconds; 0 if it expects none.
    `on_deferred` is called with the uid of each AppWrapper that is deferred.
    `notify_of` is the annotation of a namespace that chooses notifications, empty without one.
    """

    rule: ChargeRule
    ceiling_of: Callable[[str], Ceiling]
    bound: QueueBound
    on_deferred: Callable[[str], None]
    kinds: Kinds
    labels: LabelResolver
    expected_of: Callable[[str], int] = _nothing_expected
    notify_of: Callable[[str], str] = lambda _namespace: ""

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
        return approvals.awaited(view.approvals, leaves, self._forest, granted_in(view.status))

    def awaits_its_own(self, view: AppWrapperView, leaves: tuple[str, ...]) -> bool:
        """True if an AppWrapper in these queues lacks an approval that only its author's annotation names."""
        if not view.approvals:
            return False
        return approvals.lacks_its_own(view.approvals, leaves, self._forest, granted_in(view.status))

    def names_approvals(self, leaves: tuple[str, ...]) -> bool:
        """True if one of these queues names approvals."""
        return any(place.approvals for place in self._forest.places_of(leaves))

    @property
    def _forest(self) -> Forest:
        return self.labels.queues().forest

    def expected_seconds(self, view: AppWrapperView, spec: AppWrapperSpec) -> int:
        """The expected run time of a new AppWrapper, stated or by default; 0 if none is known."""
        queues = self.labels.queues_of(view)
        return expected_seconds(spec, default_runtime(self.expected_of(view.namespace), queues, self._forest))

    def charge(self, spec: AppWrapperSpec) -> Charge:
        """The demand of a gang, with the warnings about its spec; raises `DemandError` if it cannot be derived.

        It reads the whole spec and is a pure function: for a large spec a thread may run it.
        """
        charge = charge_of(spec, self.rule, self.kinds)
        said = (*charge.warnings, template_fields.warning(spec))
        return replace(charge, warnings=tuple(filter(None, said)))

    def notifications(self, view: AppWrapperView) -> Choices:
        """The notifications that its annotation chooses; without one, those of its namespace."""
        return choices_in(self.notify_of(view.namespace) if view.notify is None else view.notify)

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
        unread = self.notifications(view).problems
        said = (*charge.warnings, unknown_class, ceiling.warning(asked, view.namespace), *unread)
        return replace(
            submission,
            priority=counts.priority,
            priority_slope=counts.priority_slope,
            class_never_preempts=counts.never_preempts,
            warnings=tuple(filter(None, said)),
            demand_differs="; ".join(charge.differences),
            unknown_class=unknown_class,
        )

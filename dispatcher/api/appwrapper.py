"""The spec of an AppWrapper as users write it, parsed into one frozen value.

Both spellings, MCAD's v1beta1 (``resources.GenericItems``) and v1beta2 (``components``), become the same value.
``parse_spec`` returns an ``AppWrapperSpec`` or raises a ``SpecError`` with a remedy for the author. It raises nothing
else for any JSON: a schema cannot check embedded objects, so the API server accepts more than can be dispatched.

Quantities stay as written (``int | str``); `core` computes with them. Fields that MCAD declares but never uses are
type-checked and then dropped.
"""

import hashlib
import itertools
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field

from dispatcher.api.document import Entry
from dispatcher.api.mutable_spec import LEAST_PRIORITY, read_priority
from dispatcher.api.spec_errors import SpecError, quoted
from dispatcher.api.validation import check_template
from dispatcher.values import equal_without

DEFAULT_WAIT_SECONDS = 300
DEFAULT_FORCE_DELETION_SECONDS = 600

Spelling = Literal["v1beta1", "v1beta2"]


class DeclaredPodSet(Struct, frozen=True):
    """One entry of ``custompodresources``: the number of pods and the requests and limits of each, as written."""

    replicas: int
    requests: Mapping[str, int | str]
    limits: Mapping[str, int | str]


class TemplatePodSet(Struct, frozen=True):
    """One entry of v1beta2's ``podSets``: the path of a pod template in the component, and the number of its pods.

    ``path`` begins with ``template``, which is the wrapped object. ``info`` is the entry of ``podSetInfos`` that a
    quota manager added (labels, annotations, nodeSelector, tolerations, schedulingGates), as written.
    """

    path: str
    replicas: int
    info: Mapping[str, Any] = field(default_factory=dict)


class WrappedObject(Struct, frozen=True):
    """One object to create, with its author's declarations.

    ``declared`` is None without a declaration (the demand comes from the template) and empty for an empty list (the
    demand is 0). ``template`` is the raw JSON: its apiVersion, kind, name and namespace are checked, the rest may be
    anything. Either ``name`` or ``generate_name`` is set. ``pod_sets`` is empty if the spec has none; pod sets are then
    found in the template.
    """

    index: int
    template: Mapping[str, Any]
    declared: tuple[DeclaredPodSet, ...] | None = None
    completion: tuple[str, ...] = ()
    pod_sets: tuple[TemplatePodSet, ...] = ()

    @property
    def api_version(self) -> str:
        """Group and version as written, such as ``v1`` or ``ray.io/v1``."""
        return str(self.template["apiVersion"])

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def kind(self) -> str:
        """The kind as written, such as ``RayCluster``."""
        return str(self.template["kind"])

    @property
    def name(self) -> str | None:
        """The name; None if it is to be made from ``generate_name``."""
        return self._metadata("name")

    @property
    def generate_name(self) -> str | None:
        """The prefix of the name to make; used only where ``name`` is None."""
        return self._metadata("generateName")

    def _metadata(self, key: str) -> str | None:
        metadata = self.template.get("metadata") or {}
        return metadata.get(key) or None


class WaitGrowth(StrEnum):
    """How the wait between requeuings grows."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    NONE = "none"


class Requeuing(Struct, frozen=True):
    """When a dispatched gang short of pods is requeued; None means no limit.

    With ``force_deletion_after`` None no deletion is forced. ``explicit`` is true if the author wrote a ``requeuing``
    block, which then applies unchanged.
    """

    wait: timedelta = timedelta(seconds=DEFAULT_WAIT_SECONDS)
    growth: WaitGrowth = WaitGrowth.EXPONENTIAL
    max_wait: timedelta | None = None
    max_requeuings: int | None = None
    pause: timedelta = timedelta(0)
    force_deletion_after: timedelta | None = timedelta(seconds=DEFAULT_FORCE_DELETION_SECONDS)
    explicit: bool = False


class DispatchDuration(Struct, frozen=True):
    """How long an attempt is expected and allowed to last, counted from its dispatch."""

    expected: timedelta | None = None
    limit: timedelta | None = None


class Scheduling(Struct, frozen=True):
    """``schedulingSpec`` without ``minAvailable``, which is a field of `AppWrapperSpec`."""

    requeuing: Requeuing = Requeuing()
    dispatch_duration: DispatchDuration = DispatchDuration()


@equal_without("namespace")
class AppWrapperSpec(Struct, frozen=True):
    """The spec of an AppWrapper, in either spelling; ``namespace`` is that of the AppWrapper, empty if not known."""

    wrapped: tuple[WrappedObject, ...]
    priority: int = 0
    priority_slope: float = 0.0
    min_available: int | None = None
    scheduling: Scheduling = Scheduling()
    suspend: bool = False
    managed_by: str | None = None
    spelling: Spelling = "v1beta1"
    namespace: str = ""

    def path_of(self, wrapped: WrappedObject) -> str:
        """The path of the wrapped object in the spec, for messages."""
        return _entry_path(self.spelling, wrapped.index)

    def template_path_of(self, wrapped: WrappedObject) -> str:
        """The path of its template in the spec, for messages."""
        return _template_path(self.spelling, wrapped.index)


def spec_hash(spec: bytes) -> str:
    """The hash of a spec's JSON; equal specs are stored once, under it."""
    return hashlib.sha256(spec).hexdigest()


def parse_spec(raw_spec: Mapping[str, Any], *, namespace: str) -> AppWrapperSpec:
    """Parse the spec of an AppWrapper in ``namespace``; raises `SpecError` if it can never be dispatched.

    The spec, its charge and its manifests take at most 100 bytes of memory for each byte of its JSON: 25 MiB for the
    largest one.
    """
    spec = Entry(raw_spec, "spec").object()
    priority, slope, suspend = read_priority(spec)
    managed_by = spec.child("managedBy").any_text()
    for ignored in ("service", "selector"):
        spec.child(ignored).mapping()
    scheduling = spec.child("schedulingSpec")
    spelling, wrapped = _wrapped_in(spec.child("resources"), spec.child("components"))
    parsed = AppWrapperSpec(
        priority=priority,
        priority_slope=slope,
        wrapped=wrapped,
        min_available=scheduling.child("minAvailable").integer(0) or None,
        scheduling=_scheduling(scheduling),
        suspend=suspend,
        managed_by=managed_by or None,
        spelling=spelling,
        namespace=namespace,
    )
    for one in wrapped:
        check_template(one.template, parsed.template_path_of(one), namespace)
    _check_each_object_once(wrapped, spelling)
    return parsed


def _wrapped_in(resources: Entry, components: Entry) -> tuple[Spelling, tuple[WrappedObject, ...]]:
    """The wrapped objects, and the spelling that holds them; an empty list beside a full one does not count."""
    if resources.child("Items").elements():
        resources.child("Items").fail("is no longer used", "Move its entries to spec.resources.GenericItems")
    items = tuple(_item(*each) for each in enumerate(resources.child("GenericItems").elements()))
    parts = tuple(_component(*each) for each in enumerate(components.elements()))
    if resources.value is None and components.value is None:
        raise SpecError("spec", "names nothing to create", "Give resources.GenericItems or components")
    if parts and items:
        raise SpecError("spec", "has both resources.GenericItems and components", "Keep one of the two")
    return ("v1beta2", parts) if parts or resources.value is None else ("v1beta1", items)


def _item(index: int, item: Entry) -> WrappedObject:
    """An entry of v1beta1 ``GenericItems``; the fields that are read at the end have no effect."""
    declared = item.object().child("custompodresources")
    wrapped = WrappedObject(
        index,
        _template(item.child("generictemplate")),
        None if declared.value is None else tuple(map(_declared, declared.elements())),
        _words(item.child("completionstatus").any_text()),
    )
    for key in ("replicas", "minavailable", "allocated", "priority"):
        item.child(key).integer(0, least=LEAST_PRIORITY)
    item.child("priorityslope").number()
    return wrapped


def _component(index: int, component: Entry) -> WrappedObject:
    """An entry of v1beta2 ``components``; ``podSetInfos`` have the order of ``podSets`` and may be fewer."""
    template = _template(component.object().child("template"))
    component.child("annotations").texts()
    infos = [each.object().mapping() for each in component.child("podSetInfos").elements()]
    pod_sets = map(
        _pod_set, component.child("podSets").elements(), itertools.chain(infos, itertools.repeat({}))
    )
    return WrappedObject(index, template, pod_sets=tuple(pod_sets))


def _template(entry: Entry) -> Mapping[str, Any]:
    remedy = "Put the whole object to create there: apiVersion, kind, metadata and spec"
    return entry.required(remedy).mapping()


def _pod_set(entry: Entry, info: Mapping[str, Any]) -> TemplatePodSet:
    path = entry.object().child("path").required().any_text()
    entry.child("annotations").texts()
    return TemplatePodSet(path, entry.child("replicas").integer(1), info)


def _declared(entry: Entry) -> DeclaredPodSet:
    requests = entry.object().child("requests")
    return DeclaredPodSet(
        entry.child("replicas").required().integer(0),
        requests.required("Say what one pod asks for, such as {cpu: 1, memory: 2Gi}").quantities(),
        entry.child("limits").quantities(),
    )


def _words(comma_separated: str) -> tuple[str, ...]:
    return tuple(word for word in map(str.strip, comma_separated.split(",")) if word)


def _scheduling(entry: Entry) -> Scheduling:
    """Read ``schedulingSpec``; ``forceDeletionTimeInSeconds`` is the spelling of MCAD's successor."""
    duration = entry.child("dispatchDuration")
    expected, limit = (duration.child(key).integer(0) for key in ("expected", "limit"))
    duration.child("overrun").flag()  # MCAD itself wrote it
    entry.child("nodeSelector").texts()
    return Scheduling(
        _requeuing(entry.child("requeuing"), entry.child("forceDeletionTimeInSeconds")),
        DispatchDuration(_seconds_or_unlimited(expected), _seconds_or_unlimited(limit)),
    )


def _requeuing(entry: Entry, force_deletion: Entry) -> Requeuing:
    after = entry.child("forcefulDeletionAfterSeconds").integer(DEFAULT_FORCE_DELETION_SECONDS)
    for key in ("initialTimeInSeconds", "numRequeuings"):  # MCAD itself wrote them
        entry.child(key).integer(0)
    return Requeuing(
        wait=timedelta(seconds=entry.child("timeInSeconds").integer(DEFAULT_WAIT_SECONDS)),
        growth=_growth(entry.child("growthType")),
        max_wait=_seconds_or_unlimited(entry.child("maxTimeInSeconds").integer(0)),
        max_requeuings=entry.child("maxNumRequeuings").integer(0) or None,
        pause=timedelta(seconds=entry.child("pauseTimeInSeconds").integer(0)),
        force_deletion_after=_seconds_or_unlimited(force_deletion.integer(after)),
        explicit=entry.value is not None,
    )


def _growth(entry: Entry) -> WaitGrowth:
    """Read MCAD's growthType; as in MCAD, an unknown word means that the wait does not grow."""
    word = WaitGrowth.EXPONENTIAL if entry.value is None else entry.any_text()
    try:
        return WaitGrowth(word)
    except ValueError:
        return WaitGrowth.NONE


def _seconds_or_unlimited(seconds: int) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None


def _check_each_object_once(wrapped: tuple[WrappedObject, ...], spelling: Spelling) -> None:
    first: dict[tuple[str, str, str], int] = {}
    for one in wrapped:
        if one.name is None:
            continue
        earlier = first.setdefault((one.group, one.kind, one.name), one.index)
        if earlier != one.index:
            problem = f"the {one.kind} {quoted(one.name)} is also {_entry_path(spelling, earlier)}"
            raise SpecError(_entry_path(spelling, one.index), problem, "Name each object once")


def _template_path(spelling: Spelling, index: int) -> str:
    field = "generictemplate" if spelling == "v1beta1" else "template"
    return f"{_entry_path(spelling, index)}.{field}"


def _entry_path(spelling: Spelling, index: int) -> str:
    return f"spec.resources.GenericItems[{index}]" if spelling == "v1beta1" else f"spec.components[{index}]"

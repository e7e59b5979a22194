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

from dispatcher.api.schema import (
    WrittenComponent,
    WrittenPodSet,
    WrittenRequeuing,
    WrittenScheduling,
    WrittenSpec,
    read,
)
from dispatcher.api.spec_errors import SpecError, quoted
from dispatcher.api.validation import check_template
from dispatcher.values import equal_without

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


class Growth(StrEnum):
    """How the wait between requeuings grows."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    NONE = "none"


class Requeuing(Struct, frozen=True):
    """When a dispatched gang short of pods is requeued; None means no limit.

    With ``force_deletion_after`` None no deletion is forced. ``explicit`` is true if the author wrote a ``requeuing``
    block, which then applies unchanged.
    """

    wait: timedelta = timedelta(seconds=300)
    growth: Growth = Growth.EXPONENTIAL
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
    """Parse the spec of an AppWrapper in ``namespace``; raises `SpecError` if it can never be dispatched."""
    written = read(raw_spec)
    spelling = _spelling(written)
    wrapped = _wrapped_of_components(written) if spelling == "v1beta2" else _wrapped_of_items(written)
    for one in wrapped:
        check_template(one.template, _template_path(spelling, one.index), namespace)
    _check_each_object_once(wrapped, spelling)
    return AppWrapperSpec(
        priority=written.priority,
        priority_slope=written.priority_slope,
        wrapped=wrapped,
        min_available=written.scheduling.min_available or None,
        scheduling=_scheduling(written.scheduling),
        suspend=written.suspend,
        managed_by=written.managed_by or None,
        spelling=spelling,
        namespace=namespace,
    )


def _spelling(written: WrittenSpec) -> Spelling:
    """The spelling that holds the wrapped objects; an empty list beside a full one does not count."""
    if written.resources is None and written.components is None:
        raise SpecError("spec", "names nothing to create", "Give resources.GenericItems or components")
    if written.components and written.resources and written.resources.generic_items:
        raise SpecError("spec", "has both resources.GenericItems and components", "Keep one of the two")
    return "v1beta2" if written.components or written.resources is None else "v1beta1"


def _wrapped_of_items(written: WrittenSpec) -> tuple[WrappedObject, ...]:
    items = written.resources.generic_items if written.resources else []
    return tuple(
        WrappedObject(index, item.template, _declared(item.declared), _words(item.completion))
        for index, item in enumerate(items)
    )


def _wrapped_of_components(written: WrittenSpec) -> tuple[WrappedObject, ...]:
    return tuple(
        WrappedObject(index, component.template, pod_sets=_pod_sets(component))
        for index, component in enumerate(written.components or [])
    )


def _pod_sets(component: WrittenComponent) -> tuple[TemplatePodSet, ...]:
    """Read podSets with their podSetInfos, which have the same order and may be fewer."""
    infos = itertools.chain(component.pod_set_infos, itertools.repeat({}))
    return tuple(
        TemplatePodSet(one.path, one.replicas, info)
        for one, info in zip(component.pod_sets, infos, strict=False)
    )


def _declared(pod_sets: list[WrittenPodSet] | None) -> tuple[DeclaredPodSet, ...] | None:
    if pod_sets is None:
        return None
    return tuple(DeclaredPodSet(one.replicas, one.requests, one.limits) for one in pod_sets)


def _words(comma_separated: str) -> tuple[str, ...]:
    return tuple(word for word in map(str.strip, comma_separated.split(",")) if word)


def _scheduling(written: WrittenScheduling) -> Scheduling:
    return Scheduling(
        requeuing=_requeuing(
            written.requeuing,
            written.force_deletion_after,
            explicit="requeuing" in written.model_fields_set,
        ),
        dispatch_duration=DispatchDuration(
            expected=_seconds_or_unlimited(written.dispatch_duration.expected),
            limit=_seconds_or_unlimited(written.dispatch_duration.limit),
        ),
    )


def _requeuing(written: WrittenRequeuing, force_deletion_after: int | None, *, explicit: bool) -> Requeuing:
    for seconds in (written.force_deletion_after, DEFAULT_FORCE_DELETION_SECONDS):
        if force_deletion_after is None:
            force_deletion_after = seconds
    return Requeuing(
        wait=timedelta(seconds=written.wait),
        growth=_growth(written.growth),
        max_wait=_seconds_or_unlimited(written.max_wait),
        max_requeuings=written.max_requeuings or None,
        pause=timedelta(seconds=written.pause),
        force_deletion_after=_seconds_or_unlimited(force_deletion_after or 0),
        explicit=explicit,
    )


def _growth(word: str) -> Growth:
    """Read MCAD's growthType; as in MCAD, an unknown word means that the wait does not grow."""
    try:
        return Growth(word)
    except ValueError:
        return Growth.NONE


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

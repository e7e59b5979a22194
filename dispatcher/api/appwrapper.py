"""AppWrapper as users write it, and the one frozen value everything else reads.

Both spellings, MCAD's v1beta1 (``resources.GenericItems``) and v1beta2 (``components``), are read by the
same pydantic models, because the CRD stores both under one schema. ``parse_spec`` turns what was written
into an ``AppWrapperSpec`` or raises a ``SpecError`` that the person who wrote it can act on; it raises
nothing else, whatever JSON it is given, because the API server lets through more than a schema can say
(embedded objects are opaque to it).

Quantities stay as written (``int | str``): what they mean is arithmetic, and arithmetic belongs to the core.
Fields MCAD declares but never used are type-checked and then dropped. So are v1beta2's ``podSets``: they say
where pod templates sit and how many pods each makes, but no resources, and inference finds both by itself.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from dispatcher.api.names import APPWRAPPER_KIND, PLURALS

DEFAULT_FORCE_DELETION_SECONDS = 600

INT32_MAX = 2**31 - 1

Spelling = Literal["v1beta1", "v1beta2"]


class SpecError(ValueError):
    """A spec that can never be dispatched as written; the message is for the person who wrote it.

    It says where (``path``), what is wrong and what to do instead. Text the user wrote is quoted as JSON and
    cut short in it, so that it is one printable line that any database column and any log accepts.
    """

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}. {remedy}.")
        self.path = path
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class DeclaredPodSet:
    """One entry of ``custompodresources``: so many pods, each asking for this much, as written."""

    replicas: int
    requests: Mapping[str, int | str]
    limits: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class WrappedObject:
    """One object to create, with what its author declared about it.

    ``declared`` is None where nothing was declared (derive the demand from the template) and empty where an
    empty list was (the demand is 0). ``template`` is the raw JSON: its apiVersion, kind, name and namespace
    have been checked, the rest may be anything. Either ``name`` or ``generate_name`` is set.
    """

    index: int
    template: Mapping[str, Any]
    declared: tuple[DeclaredPodSet, ...] | None = None
    completion: tuple[str, ...] = ()

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
        """The name, or None if it is to be made from ``generate_name``."""
        return self._metadata("name")

    @property
    def generate_name(self) -> str | None:
        """The prefix to make a name from; counts only where ``name`` is None."""
        return self._metadata("generateName")

    @property
    def namespace(self) -> str | None:
        """The namespace as written; if not None it is the AppWrapper's own."""
        return self._metadata("namespace")

    def _metadata(self, key: str) -> str | None:
        metadata = self.template.get("metadata") or {}
        return metadata.get(key) or None


class Growth(StrEnum):
    """How the wait between requeuings grows."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Requeuing:
    """When a dispatched gang short of pods goes back to the queue; None stands for "without limit".

    ``force_deletion_after`` None means that what will not go away is waited for.
    """

    wait: timedelta = timedelta(seconds=300)
    growth: Growth = Growth.EXPONENTIAL
    max_wait: timedelta | None = None
    max_requeuings: int | None = None
    pause: timedelta = timedelta(0)
    force_deletion_after: timedelta | None = timedelta(seconds=DEFAULT_FORCE_DELETION_SECONDS)


@dataclass(frozen=True, slots=True)
class DispatchDuration:
    """How long an attempt is expected and allowed to last, counted from its dispatch."""

    expected: timedelta | None = None
    limit: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Scheduling:
    """``schedulingSpec`` less ``minAvailable``, which has a place of its own."""

    requeuing: Requeuing = Requeuing()
    dispatch_duration: DispatchDuration = DispatchDuration()


@dataclass(frozen=True, slots=True)
class AppWrapperSpec:
    """What an AppWrapper asks for, whichever way it was spelled."""

    wrapped: tuple[WrappedObject, ...]
    priority: int = 0
    priority_slope: float = 0.0
    min_available: int | None = None
    scheduling: Scheduling = Scheduling()
    suspend: bool = False
    managed_by: str | None = None
    spelling: Spelling = "v1beta1"

    def path_of(self, wrapped: WrappedObject) -> str:
        """Where the user wrote it, for messages."""
        return _entry_path(self.spelling, wrapped.index)


def parse_spec(raw_spec: Mapping[str, Any], *, namespace: str) -> AppWrapperSpec:
    """Read the spec of an AppWrapper living in ``namespace``; SpecError if it can never be dispatched."""
    written = _read(raw_spec)
    spelling = _spelling(written)
    wrapped = _wrapped_of_components(written) if spelling == "v1beta2" else _wrapped_of_items(written)
    for one in wrapped:
        _check_template(one.template, _template_path(spelling, one.index), namespace)
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
    )


# What users write. Field for field the CRD's schema; a test holds the two together.


class Written(BaseModel):
    """A part of the spec as written: strictly typed, unknown fields ignored, null meaning absent.

    Both of the latter are what the API server itself does with a custom resource.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: entry for key, entry in value.items() if entry is not None}
        return value


def _check_quantity(value: object) -> object:
    """Take integers and strings; YAML's unquoted 0.5 is neither, and is told so."""
    if isinstance(value, float):
        raise PydanticCustomError("quantity_float", "must be written in quotes")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PydanticCustomError("quantity_type", 'must be a quantity such as 2, "500m" or "16Gi"')
    return value


def _check_resource_name(value: object) -> object:
    """Take qualified names only: the API server takes any key, NUL included."""
    if not isinstance(value, str) or not _is_resource_name(value):
        raise PydanticCustomError(
            "resource_name", "is not a resource name such as cpu, memory or nvidia.com/gpu"
        )
    return value


Int32 = Annotated[int, Field(ge=-(2**31), le=INT32_MAX)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Quantity = Annotated[Any, BeforeValidator(_check_quantity)]
ResourceName = Annotated[str, BeforeValidator(_check_resource_name)]
ResourceList = dict[ResourceName, Quantity]


class WrittenPodSet(Written):
    """v1beta1 ``custompodresources[]``."""

    replicas: Count
    requests: ResourceList
    limits: ResourceList = {}


class WrittenItem(Written):
    """v1beta1 ``resources.GenericItems[]``; ``replicas`` to ``priorityslope`` never had a meaning."""

    template: dict[str, Any] = Field(alias="generictemplate")
    declared: list[WrittenPodSet] | None = Field(None, alias="custompodresources")
    completion: str = Field("", alias="completionstatus")
    replicas: Int32 = 0
    min_available: Int32 | None = Field(None, alias="minavailable")
    allocated: Int32 = 0
    priority: Int32 = 0
    priority_slope: float = Field(0.0, alias="priorityslope")


class WrittenResources(Written):
    """v1beta1 ``resources``; ``Items`` is the list GenericItems replaced."""

    items: list[dict[str, Any]] = Field([], alias="Items", max_length=0)
    generic_items: list[WrittenItem] = Field([], alias="GenericItems")


class WrittenRequeuing(Written):
    """v1beta1 ``schedulingSpec.requeuing``; the initial time and the count were MCAD's own notes."""

    wait: Count = Field(300, alias="timeInSeconds")
    initial_wait: Count | None = Field(None, alias="initialTimeInSeconds")
    max_wait: Count = Field(0, alias="maxTimeInSeconds")
    growth: str = Field("exponential", alias="growthType")
    requeuings: Count = Field(0, alias="numRequeuings")
    max_requeuings: Count = Field(0, alias="maxNumRequeuings")
    pause: Count = Field(0, alias="pauseTimeInSeconds")
    force_deletion_after: Count | None = Field(None, alias="forcefulDeletionAfterSeconds")


class WrittenDispatchDuration(Written):
    """v1beta1 ``schedulingSpec.dispatchDuration``; ``overrun`` was MCAD's own note."""

    expected: Count = 0
    limit: Count = 0
    overrun: bool = False


class WrittenScheduling(Written):
    """v1beta1 ``schedulingSpec``; ``forceDeletionTimeInSeconds`` is how MCAD's successor spelled it."""

    min_available: Count = Field(0, alias="minAvailable")
    node_selector: dict[str, str] = Field({}, alias="nodeSelector")
    requeuing: WrittenRequeuing = WrittenRequeuing.model_construct()
    dispatch_duration: WrittenDispatchDuration = Field(
        WrittenDispatchDuration.model_construct(), alias="dispatchDuration"
    )
    force_deletion_after: Count | None = Field(None, alias="forceDeletionTimeInSeconds")


class WrittenTemplatePodSet(Written):
    """v1beta2 ``components[].podSets[]``."""

    path: str
    replicas: Count = 1
    annotations: dict[str, str] = {}


class WrittenComponent(Written):
    """v1beta2 ``components[]``; ``podSetInfos`` is Kueue's to fill."""

    template: dict[str, Any]
    pod_sets: list[WrittenTemplatePodSet] = Field([], alias="podSets")
    pod_set_infos: list[dict[str, Any]] = Field([], alias="podSetInfos")
    annotations: dict[str, str] = {}


class WrittenSpec(Written):
    """``spec``, in either spelling; ``service`` and ``selector`` never had a meaning."""

    priority: Int32 = 0
    priority_slope: float = Field(0.0, alias="priorityslope")
    service: dict[str, Any] = {}
    selector: dict[str, Any] = {}
    resources: WrittenResources | None = None
    scheduling: WrittenScheduling = Field(WrittenScheduling.model_construct(), alias="schedulingSpec")
    components: list[WrittenComponent] | None = None
    suspend: bool = False
    managed_by: str | None = Field(None, alias="managedBy")


def _read(raw_spec: object) -> WrittenSpec:
    try:
        return WrittenSpec.model_validate(raw_spec)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
        raise _explained(first) from error


def _spelling(written: WrittenSpec) -> Spelling:
    """Say which list holds the wrapped objects; an empty list beside a full one is no second spelling."""
    if written.resources is None and written.components is None:
        raise SpecError("spec", "names nothing to create", "Give resources.GenericItems")
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
        WrappedObject(index, component.template) for index, component in enumerate(written.components or [])
    )


def _declared(pod_sets: list[WrittenPodSet] | None) -> tuple[DeclaredPodSet, ...] | None:
    if pod_sets is None:
        return None
    return tuple(DeclaredPodSet(one.replicas, one.requests, one.limits) for one in pod_sets)


def _words(comma_separated: str) -> tuple[str, ...]:
    return tuple(word for word in map(str.strip, comma_separated.split(",")) if word)


def _scheduling(written: WrittenScheduling) -> Scheduling:
    return Scheduling(
        requeuing=_requeuing(written.requeuing, written.force_deletion_after),
        dispatch_duration=DispatchDuration(
            expected=_seconds_or_unlimited(written.dispatch_duration.expected),
            limit=_seconds_or_unlimited(written.dispatch_duration.limit),
        ),
    )


def _requeuing(written: WrittenRequeuing, force_deletion_after: int | None) -> Requeuing:
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
    )


def _growth(word: str) -> Growth:
    """Read MCAD's growthType; a word it did not know always meant that the wait does not grow."""
    try:
        return Growth(word)
    except ValueError:
        return Growth.NONE


def _seconds_or_unlimited(seconds: int) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None


# What can be seen to be wrong with a wrapped object without asking a cluster.

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VERSION = re.compile(_LABEL)
_KIND = re.compile("[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?")
_QUALIFIED = re.compile("[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_RBAC = "rbac.authorization.k8s.io"


def _check_template(template: Mapping[str, Any], path: str, namespace: str) -> None:
    _check_kind(template, path)
    metadata = _checked_metadata(template, path)
    _check_namespace(metadata.get("namespace"), f"{path}.metadata.namespace", namespace)
    _check_name(template, metadata, f"{path}.metadata")
    for key in ("labels", "annotations"):
        _check_string_map(metadata.get(key), f"{path}.metadata.{key}")


def _check_kind(template: Mapping[str, Any], path: str) -> None:
    """Make sure that apiVersion and kind can be a path of the API, and are not an AppWrapper's."""
    api_version, kind = template.get("apiVersion"), template.get("kind")
    if not isinstance(api_version, str) or not _is_api_version(api_version):
        problem = f"is not an API version: {_quoted(api_version)}"
        raise SpecError(
            f"{path}.apiVersion", problem, "Write what kubectl api-resources shows, such as batch/v1"
        )
    if not isinstance(kind, str) or len(kind) > 63 or not _KIND.fullmatch(kind):
        problem = f"is not a kind: {_quoted(kind)}"
        raise SpecError(f"{path}.kind", problem, "Write what kubectl api-resources shows, such as Job")
    if kind == APPWRAPPER_KIND and api_version.partition("/")[0] in PLURALS:
        raise SpecError(
            path, "Nested AppWrappers are forbidden", "List what the inner one wraps in the outer one"
        )


def _checked_metadata(template: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    metadata = template.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise SpecError(
            f"{path}.metadata", f"must be an object, not {_quoted(metadata)}", "Give it at least a name"
        )
    return metadata


def _check_namespace(value: object, path: str, namespace: str) -> None:
    if value in (None, "", namespace):
        return
    theirs, ours = _quoted(value), _quoted(namespace)
    problem = f"[SyncQueueJob] resource namespace {theirs} is different from AppWrapper namespace {ours}"
    raise SpecError(path, problem, "Leave it out: wrapped objects are created beside their AppWrapper")


def _check_name(template: Mapping[str, Any], metadata: Mapping[str, Any], path: str) -> None:
    name, prefix = metadata.get("name") or "", metadata.get("generateName") or ""
    if not name and not prefix:
        problem = f"the {template['kind']} has neither name nor generateName"
        raise SpecError(path, problem, "Give it a name of its own")
    key, value = ("name", name) if name else ("generateName", prefix)
    sample = name or (f"{prefix}x" if isinstance(prefix, str) else prefix)
    if not isinstance(sample, str) or not _is_name(sample, _group(template)):
        problem = f"{_quoted(value)} is not a valid object name"
        remedy = (
            "Use lower case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends"
        )
        raise SpecError(f"{path}.{key}", problem, remedy)


def _check_string_map(value: object, path: str) -> None:
    """Labels and annotations get ours added, so they must be what they claim to be."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise SpecError(path, f"must be an object, not {_quoted(value)}", "Write one key: value per line")
    for key, entry in value.items():
        if not isinstance(entry, str):
            raise SpecError(_joined(path, key), f"must be a string, not {_quoted(entry)}", "Put it in quotes")


def _check_each_object_once(wrapped: tuple[WrappedObject, ...], spelling: Spelling) -> None:
    first: dict[tuple[str, str, str], int] = {}
    for one in wrapped:
        if one.name is None:
            continue
        earlier = first.setdefault((one.group, one.kind, one.name), one.index)
        if earlier != one.index:
            problem = f"the {one.kind} {_quoted(one.name)} is also {_entry_path(spelling, earlier)}"
            raise SpecError(_entry_path(spelling, one.index), problem, "Name each object once")


def _group(template: Mapping[str, Any]) -> str:
    return str(template["apiVersion"]).rpartition("/")[0]


def _is_api_version(text: str) -> bool:
    group, slash, version = text.rpartition("/")
    return len(version) <= 63 and bool(_VERSION.fullmatch(version)) and (not slash or _is_subdomain(group))


def _is_name(text: str, group: str) -> bool:
    """Tell whether Kubernetes takes this as a name; RBAC's kinds alone take any path segment."""
    if group == _RBAC:
        return (
            0 < len(text) <= 253
            and text.isprintable()
            and text not in (".", "..")
            and not {"/", "%"} & set(text)
        )
    return _is_subdomain(text)


def _is_subdomain(text: str) -> bool:
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def _is_resource_name(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return len(name) <= 63 and bool(_QUALIFIED.fullmatch(name)) and (not slash or _is_subdomain(prefix))


# How a mistake is told.


def _template_path(spelling: Spelling, index: int) -> str:
    field = "generictemplate" if spelling == "v1beta1" else "template"
    return f"{_entry_path(spelling, index)}.{field}"


def _entry_path(spelling: Spelling, index: int) -> str:
    return f"spec.resources.GenericItems[{index}]" if spelling == "v1beta1" else f"spec.components[{index}]"


def _explained(error: ErrorDetails) -> SpecError:
    path, kind = _path(error["loc"]), error["type"]
    value, limits = error["input"], error.get("ctx", {})
    match kind:
        case "missing":
            return SpecError(path, "is missing", _remedy_for_missing(path))
        case "too_long":
            return SpecError(path, "is no longer used", "Move its entries to spec.resources.GenericItems")
        case "greater_than_equal":
            return SpecError(
                path, f"must not be less than {limits['ge']}, and is {_quoted(value)}", "Change the number"
            )
        case "less_than_equal":
            return SpecError(
                path, f"must not be more than {limits['le']}, and is {_quoted(value)}", "Change the number"
            )
        case "quantity_float":
            return SpecError(path, f"{_quoted(value)} must be in quotes", f'Write "{_quoted(value)}"')
        case "resource_name":
            return SpecError(path.removesuffix(".[key]"), error["msg"], "Correct the name")
        case "quantity_type":
            return SpecError(path, f"{error['msg']}, not {_quoted(value)}", "Change the value")
    expected = _EXPECTED.get(kind)
    if expected is None:
        return SpecError(path, f"is not valid ({error['msg']})", "Change the value")
    return SpecError(path, f"must be {expected}, not {_quoted(value)}", "Change the value")


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_unicode": "valid text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


def _remedy_for_missing(path: str) -> str:
    if path.endswith("template"):
        return "Put the whole object to create there: apiVersion, kind, metadata and spec"
    if path.endswith("requests"):
        return "Say what one pod asks for, such as {cpu: 1, memory: 2Gi}"
    return "Add it"


def _path(location: tuple[int | str, ...]) -> str:
    path = "spec"
    for step in location:
        path = _joined(path, step)
    return path


def _joined(path: str, step: object) -> str:
    if isinstance(step, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9]*|\[key\]", step):
        return f"{path}.{step}"
    return f"{path}[{_quoted(step)}]"


def _quoted(value: object) -> str:
    """Show a value the user wrote as JSON, escaped and short."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."

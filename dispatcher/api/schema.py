"""The spec of an AppWrapper field by field, as in the CRD's schema; a test keeps the two equal.

The same models read both spellings, because the CRD stores both under one schema. `read` returns a `WrittenSpec`, or
raises a `SpecError` for the author. Only `WrittenMutableSpec` is also read by itself.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.api.syntax import is_qualified_name, most_similar

INT32_MAX = 2**31 - 1
STEEPEST = 1e12
"""The largest priority slope, up or down: far beyond any use, and the database's bound. A priority past a double would
make the order of the whole queue unreadable."""


class Written(BaseModel):
    """A part of the spec as written: strictly typed, without unknown fields and nulls.

    The API server itself drops unknown fields and nulls of a custom resource.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return {key: entry for key, entry in value.items() if entry is not None}
        return value


def _check_quantity(value: object) -> object:
    """Accept integers and strings; YAML's unquoted 0.5 is neither, and gets an error of its own."""
    if isinstance(value, float):
        raise PydanticCustomError("quantity_float", "must be written in quotes")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise PydanticCustomError("quantity_type", 'must be a quantity such as 2, "500m" or "16Gi"')
    return value


def _check_resource_name(value: object) -> object:
    """Accept qualified names only: the API server accepts any key, also with a NUL."""
    if not isinstance(value, str) or not is_qualified_name(value):
        raise PydanticCustomError(
            "resource_name", "is not a resource name such as cpu, memory or nvidia.com/gpu"
        )
    return value


Int32 = Annotated[int, Field(ge=-(2**31), le=INT32_MAX)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Slope = Annotated[float, Field(ge=-STEEPEST, le=STEEPEST)]
Quantity = Annotated[Any, BeforeValidator(_check_quantity)]
ResourceName = Annotated[str, BeforeValidator(_check_resource_name)]
ResourceList = dict[ResourceName, Quantity]


class WrittenPodSet(Written):
    """v1beta1 ``custompodresources[]``."""

    replicas: Count
    requests: ResourceList
    limits: ResourceList = {}


class WrittenItem(Written):
    """v1beta1 ``resources.GenericItems[]``; ``replicas`` to ``priorityslope`` have no effect."""

    template: dict[str, Any] = Field(alias="generictemplate")
    declared: list[WrittenPodSet] | None = Field(None, alias="custompodresources")
    completion: str = Field("", alias="completionstatus")
    replicas: Int32 = 0
    min_available: Int32 | None = Field(None, alias="minavailable")
    allocated: Int32 = 0
    priority: Int32 = 0
    priority_slope: float = Field(0.0, alias="priorityslope")


class WrittenResources(Written):
    """v1beta1 ``resources``; ``GenericItems`` replaces ``Items``."""

    items: list[dict[str, Any]] = Field([], alias="Items", max_length=0)
    generic_items: list[WrittenItem] = Field([], alias="GenericItems")


class WrittenRequeuing(Written):
    """v1beta1 ``schedulingSpec.requeuing``; MCAD itself wrote the initial time and the count."""

    wait: Count = Field(300, alias="timeInSeconds")
    initial_wait: Count | None = Field(None, alias="initialTimeInSeconds")
    max_wait: Count = Field(0, alias="maxTimeInSeconds")
    growth: str = Field("exponential", alias="growthType")
    requeuings: Count = Field(0, alias="numRequeuings")
    max_requeuings: Count = Field(0, alias="maxNumRequeuings")
    pause: Count = Field(0, alias="pauseTimeInSeconds")
    force_deletion_after: Count | None = Field(None, alias="forcefulDeletionAfterSeconds")


class WrittenDispatchDuration(Written):
    """v1beta1 ``schedulingSpec.dispatchDuration``; MCAD itself wrote ``overrun``."""

    expected: Count = 0
    limit: Count = 0
    overrun: bool = False


class WrittenScheduling(Written):
    """v1beta1 ``schedulingSpec``; ``forceDeletionTimeInSeconds`` is the spelling of MCAD's successor."""

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
    """v1beta2 ``components[]``; Kueue writes ``podSetInfos``."""

    template: dict[str, Any]
    pod_sets: list[WrittenTemplatePodSet] = Field([], alias="podSets")
    pod_set_infos: list[dict[str, Any]] = Field([], alias="podSetInfos")
    annotations: dict[str, str] = {}


class WrittenMutableSpec(Written):
    """The part of ``spec`` that may change after submission, in either spelling."""

    priority: Int32 = 0
    priority_slope: Slope = Field(0.0, alias="priorityslope")
    suspend: bool = False


class WrittenSpec(WrittenMutableSpec):
    """``spec``, in either spelling; ``service`` and ``selector`` have no effect."""

    service: dict[str, Any] = {}
    selector: dict[str, Any] = {}
    resources: WrittenResources | None = None
    scheduling: WrittenScheduling = Field(WrittenScheduling.model_construct(), alias="schedulingSpec")
    components: list[WrittenComponent] | None = None
    managed_by: str | None = Field(None, alias="managedBy")


def read(raw_spec: object) -> WrittenSpec:
    """Read a spec as written; raises `SpecError` for the first wrong type or range."""
    try:
        return WrittenSpec.model_validate(raw_spec)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
        raise _explained(first) from error


def unknown_fields(raw_spec: object) -> list[str]:
    """Sentences about the fields of a spec that no model has; an API server drops them, or refuses them."""
    return list(_unknown_in(raw_spec, WrittenSpec, "spec"))


def _unknown_in(value: object, model: type[Written], path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    known = {each.alias or name: each for name, each in model.model_fields.items()}
    for key, entry in value.items():
        if key in known:
            for inner in _models_of(known[key].annotation):
                entries = enumerate(entry) if isinstance(entry, list) else [(None, entry)]
                for index, each in entries:
                    at = joined(path, key) if index is None else f"{joined(path, key)}[{index}]"
                    yield from _unknown_in(each, inner, at)
        else:
            similar = most_similar(str(key), list(known))
            meant = f"; did you mean {similar}?" if similar else ""
            yield f'unknown field "{joined(path, key)}"{meant}'


def _models_of(annotation: object) -> list[type[Written]]:
    """The models inside the type of a field, such as that of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Written):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_of(each)]


_Setting = TypeVar("_Setting", bound=Written)


def read_setting(model: type[_Setting], text: str) -> _Setting:
    """Read a setting in JSON; raises `ValueError` with the field of the first wrong value."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"] if step != "[key]") or "the value"
        raise ValueError(f"{where}: {first['msg']}") from error


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
                path, f"must not be less than {limits['ge']}, and is {quoted(value)}", "Change the number"
            )
        case "less_than_equal":
            return SpecError(
                path, f"must not be more than {limits['le']}, and is {quoted(value)}", "Change the number"
            )
        case "quantity_float":
            return SpecError(path, f"{quoted(value)} must be in quotes", f'Write "{quoted(value)}"')
        case "resource_name":
            return SpecError(path.removesuffix(".[key]"), error["msg"], "Correct the name")
        case "quantity_type":
            return SpecError(path, f"{error['msg']}, not {quoted(value)}", "Change the value")
    expected = _EXPECTED.get(kind)
    if expected is None:
        return SpecError(path, f"is not valid ({error['msg']})", "Change the value")
    return SpecError(path, f"must be {expected}, not {quoted(value)}", "Change the value")


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
        path = joined(path, step)
    return path

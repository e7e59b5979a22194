"""The demand of one manifest, pod set by pod set: of an AppWrapper, or of a single object that one could wrap.

Needs no cluster and no queue. `unknown` names the requests that depend on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject, parse_spec
from dispatcher.api.names import API_VERSIONS, APPWRAPPER_KIND, DEFAULT_NAMESPACE, PLURALS
from dispatcher.api.schema import unknown_fields
from dispatcher.api.spec_errors import SpecError, quoted
from dispatcher.api.syntax import most_similar
from dispatcher.api.validation import check_template
from dispatcher.core.kinds.built_in import Run
from dispatcher.core.kinds.demand import Part, charge_of, unknowns
from dispatcher.core.kinds.fields import Field, TemplateError
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import NOTHING, Resources

_OF_OBJECTS: Final = ("metadata.namespace",)
_OF_APPWRAPPERS: Final = (
    *_OF_OBJECTS,
    "spec.resources.GenericItems.*.generictemplate.metadata.namespace",
    "spec.components.*.template.metadata.namespace",
)


class Breakdown(Struct, frozen=True):
    """The pod sets of a manifest and their total; `demand` is what is charged.

    `pods` counts all pods, also those that the gang does not wait for. In an AppWrapper the path of a pod set begins
    with the wrapped object, such as `RayCluster/train:spec.headGroupSpec.template`. `warnings` are sentences about
    the manifest, `unknown` about requests that depend on a cluster. `makes_pods` is false for an object of a kind that
    is known to make none; it is true for an AppWrapper, and for a suspended object.
    """

    kind: str
    name: str
    pod_sets: tuple[PodSet, ...]
    demand: Resources
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    makes_pods: bool = True

    @property
    def pods(self) -> int:
        """The number of pods of all pod sets."""
        return sum(pod_set.count for pod_set in self.pod_sets)


def is_appwrapper(raw: Mapping[str, Any]) -> bool:
    """True for an AppWrapper, in any group and version."""
    group = str(raw.get("apiVersion")).partition("/")[0]
    return raw.get("kind") == APPWRAPPER_KIND and group in PLURALS


def makes_no_pods(raw: Mapping[str, Any], kinds: Kinds = BUILT_IN) -> bool:
    """True for an object of a kind that is known to make no pods, for any JSON; false for an AppWrapper."""
    api_version, kind = raw.get("apiVersion"), raw.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return False
    return kinds.makes_no_pods(api_version.rpartition("/")[0], kind)


def check_appwrapper(raw: Mapping[str, Any]) -> None:
    """Raises `SpecError` unless the object is an AppWrapper of a version that is served."""
    kind, version = raw.get("kind"), raw.get("apiVersion")
    if kind != APPWRAPPER_KIND:
        is_similar = isinstance(kind, str) and most_similar(kind, [APPWRAPPER_KIND])
        remedy = f"Did you mean {APPWRAPPER_KIND}?" if is_similar else _how_to_wrap(kind, version)
        raise SpecError("kind", f"is not AppWrapper, but {quoted(kind)}", remedy)
    if version not in API_VERSIONS:
        known = f"{', '.join(API_VERSIONS[:-1])} or {API_VERSIONS[-1]}"
        raise SpecError("apiVersion", f"has no AppWrappers: {quoted(version)}", f"Write {known}")


def _how_to_wrap(kind: object, version: object) -> str:
    """The advice about an object that is no AppWrapper; an object of an unknown kind may make any number of pods."""
    if not isinstance(kind, str):
        return _WRAP
    is_known = isinstance(version, str) and (version.rpartition("/")[0], kind) in BUILT_IN.derivable
    return _WRAP if is_known else _MAY_MAKE_PODS


def breakdown_of(raw: Mapping[str, Any], kinds: Kinds = BUILT_IN) -> Breakdown:
    """The breakdown of a manifest; raises `SpecError` with a path inside it if the demand cannot be derived."""
    group = str(raw.get("apiVersion")).partition("/")[0]
    if group in PLURALS or raw.get("kind") == APPWRAPPER_KIND:
        check_appwrapper(raw)
    return _of_appwrapper(raw, kinds) if is_appwrapper(raw) else _of_single(raw, kinds)


def _of_appwrapper(raw: Mapping[str, Any], kinds: Kinds) -> Breakdown:
    name = _name(object_of(raw, "metadata"))
    spec = parse_spec(object_of(raw, "spec"), namespace=_namespace(raw, _OF_APPWRAPPERS))
    charge = charge_of(spec, kinds=kinds)
    wrapped_parts = list(zip(spec.wrapped, charge.parts, strict=True))
    return Breakdown(
        APPWRAPPER_KIND,
        name,
        tuple(_named(each, wrapped) for wrapped, part in wrapped_parts for each in part.gang.pod_sets),
        charge.gang.demand,
        warnings=(
            *unknown_fields(object_of(raw, "spec")),
            *charge.warnings,
            *_made_later(charge.gang),
            *(f"{_title(each)} {_IS_SUSPENDED}" for each in spec.wrapped if _is_suspended(each, kinds)),
        ),
        unknown=tuple(
            f"{_title(wrapped)}:{each}" for wrapped, part in wrapped_parts for each in _unknowns(part)
        ),
    )


def _of_single(raw: Mapping[str, Any], kinds: Kinds) -> Breakdown:
    """The breakdown of an object as if it were wrapped; its paths begin at the object."""
    try:
        check_template(raw, "", _namespace(raw, _OF_OBJECTS))
    except SpecError as error:
        raise SpecError(error.path.lstrip("."), error.problem, error.remedy) from error
    single = WrappedObject(0, raw)
    row = kinds.row(single.group, single.kind)
    if kinds.makes_no_pods(single.group, single.kind):
        return Breakdown(single.kind, _name_of(single), (), NOTHING, makes_pods=False)
    if row.run is not None:
        return _of_run(single, row.run, row.why_underivable, kinds)
    if row.pods is None:
        why = f": {row.why_underivable}" if row.why_underivable else ""
        raise SpecError("kind", f"{_UNKNOWN} {quoted(single.kind)}{why}", _DECLARE)
    return _counted(single, kinds)


def _of_run(single: WrappedObject, run: Run, why: str, kinds: Kinds) -> Breakdown:
    """The breakdown of one run of an object with a schedule; its paths begin at that object."""
    try:
        spec = Field(single.template).at(run.spec).mapping()
    except TemplateError as error:
        raise SpecError(error.path, error.problem, _CORRECT) from error
    made = {**single.template, "kind": run.kind, "spec": spec}
    try:
        found = _counted(WrappedObject(0, made), kinds)
    except SpecError as error:
        raise SpecError(_in_run(error.path, run), error.problem, error.remedy) from error
    return replace(
        found,
        kind=single.kind,
        pod_sets=tuple(replace(each, path=_in_run(each.path, run)) for each in found.pod_sets),
        warnings=(*found.warnings, f"these are the pods of one run: {why}, {_DECLARED_RUNS}"),
        unknown=tuple(_in_run(each, run) for each in found.unknown),
    )


def _in_run(path: str, run: Run) -> str:
    """A path of the object that a run makes, or a sentence that begins with one, in the object with the schedule."""
    return f"{run.spec}.{path.removeprefix('spec.')}" if path.startswith("spec.") else path


def _counted(single: WrappedObject, kinds: Kinds) -> Breakdown:
    """The breakdown of an object of a kind whose templates say what its pods request."""
    spec = AppWrapperSpec((single,))
    try:
        charge = charge_of(spec, kinds=kinds)
    except SpecError as error:
        path = error.path.removeprefix(f"{spec.template_path_of(single)}.")
        raise SpecError(path, error.problem, _CORRECT) from error
    return Breakdown(
        single.kind,
        _name_of(single),
        charge.gang.pod_sets,
        charge.gang.demand,
        warnings=(f"it {_IS_SUSPENDED}",) if _is_suspended(single, kinds) else _made_later(charge.gang),
        unknown=tuple(each for part in charge.parts for each in _unknowns(part)),
    )


def _made_later(gang: Gang) -> tuple[str, ...]:
    """A sentence about pods that the gang does not wait for, which `show` does not count; nothing without any."""
    pods = sum(each.count for each in gang.pod_sets)
    if gang.pods >= pods:
        return ()
    return (
        f"the gang starts with {gang.pods} of the {pods} pods, and counts as {gang.pods}; all have places",
    )


_UNKNOWN: Final = "no template says what the pods ask for of a"
_WRAP: Final = "Wrap it in an AppWrapper (docs/kinds.md, Wrap an object)"
_MAY_MAKE_PODS: Final = (
    "It may make pods beside the gang: submit the file without it, or wrap it in an AppWrapper that declares its pods "
    "(docs/kinds.md, Wrap an object)"
)
_DECLARE: Final = "Wrap it in an AppWrapper that declares its pods"
_CORRECT: Final = "Correct the template"
_DECLARED_RUNS: Final = "and an AppWrapper that wraps it declares its demand"
_IS_SUSPENDED: Final = "is suspended: it makes no pods until it is resumed"


def _named(pod_set: PodSet, wrapped: WrappedObject) -> PodSet:
    """The pod set with the wrapped object in its path."""
    return replace(pod_set, path=":".join(filter(None, (_title(wrapped), pod_set.path))))


def _title(wrapped: WrappedObject) -> str:
    return f"{wrapped.kind}/{_name_of(wrapped)}"


def _name_of(wrapped: WrappedObject) -> str:
    return wrapped.name or f"{wrapped.generate_name}*"


def _unknowns(part: Part) -> Iterator[str]:
    for template in part.templates:
        yield from unknowns(template)


def _is_suspended(wrapped: WrappedObject, kinds: Kinds) -> bool:
    kind = kinds.row(wrapped.group, wrapped.kind).pods
    try:
        return kind is not None and kind.is_suspended(wrapped.template)
    except TemplateError:
        return False  # its declaration takes the place of the template


def _namespace(raw: Mapping[str, Any], paths: tuple[str, ...]) -> str:
    """The namespace that the manifest names first; people also give it on the command line of kubectl."""
    for path in paths:
        try:
            named = next(filter(None, (each.text() for each in Field(raw).each(path))), "")
        except TemplateError:
            continue  # the parser refuses it with its path
        if named:
            return named
    return DEFAULT_NAMESPACE


def object_of(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object of a manifest by its key; raises `SpecError` if it is none."""
    value = raw.get(key)
    if not isinstance(value, Mapping):
        raise SpecError(key, f"must be an object, not {quoted(value)}", "Write an AppWrapper")
    return value


def _name(metadata: Mapping[str, Any]) -> str:
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}*"
    if not isinstance(name, str) or not name.isprintable() or name == "*":
        raise SpecError(
            "metadata.name", f"is not a name: {quoted(metadata.get('name'))}", "Name the AppWrapper"
        )
    return name

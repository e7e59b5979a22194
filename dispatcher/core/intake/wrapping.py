"""Wraps the objects of a list in AppWrappers, so that what people have can be queued as it is.

AppWrappers of the list stay as they are. Of the other objects `wrap` makes one gang, or with `each_workload` one gang
of each workload, which is an object that makes pods. The AppWrapper has the name, the namespace and the labels of its
first workload, and those of its annotations that the dispatcher reads. It is written in v1beta1, and declares no
demand: the dispatcher derives it from the templates.

Some objects are left beside, with the reason, for their author to create: those that no AppWrapper wraps, most of them
cluster-scoped such as a ClusterRole; Secrets, because more people read AppWrappers than Secrets; claims of volumes,
because the objects of an attempt are deleted with it, and the data would be, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api import names
from dispatcher.api.annotations import KEYS
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.syntax import most_similar
from dispatcher.core.kinds.breakdown import breakdown_of, check_appwrapper
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.kinds.template_fields import STATUS, without_server_fields
from dispatcher.text import mapping_of, name_of, texts_of

Json = dict[str, Any]

API_VERSION: Final = f"{names.WORKLOAD_GROUP}/{names.APPWRAPPER_VERSION}"
READ_ANNOTATIONS: Final = frozenset(
    {names.CLUSTER_SELECTOR, names.CLUSTER_PREFERENCE, names.APPROVALS, names.NOTIFY, *KEYS}
)
"""The annotations of a workload that its AppWrapper gets."""

_MOST_NAMED: Final = 3
"""Objects of a gang that a message names."""
_OURS: Final = frozenset(
    {
        names.UID_LABEL,
        names.ATTEMPT_LABEL,
        names.ITEM_LABEL,
        names.NAME_LABEL,
        names.MCAD_NAME_LABEL,
        names.RESOURCE_NAME_LABEL,
    }
)
"""Labels that the dispatcher puts on wrapped objects: an object that was read from a cluster may have them."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""kubectl's copy of the whole object, in an annotation of it."""


class WrapOptions(Struct, frozen=True):
    """What to wrap, and the fields to write into each new AppWrapper.

    Durations are whole seconds. `notify` is the annotation that chooses notifications, in place of that of a workload.
    An empty text, 0 and a priority of None write nothing.
    """

    each_workload: bool = False
    queue: str = ""
    priority: int | None = None
    expected_seconds: int = 0
    limit_seconds: int = 0
    min_available: int = 0
    notify: str = ""

    @property
    def writes_fields(self) -> bool:
        """True if a field is to be written."""
        return replace(self, each_workload=False) != NO_OPTIONS


NO_OPTIONS: Final = WrapOptions()


class Why(StrEnum):
    """Why an object is left beside; to be read after its name."""

    NOT_WRAPPED = "makes no pods and is no AppWrapper"
    VALUES = "is a Secret, and all readers of an AppWrapper would read its values"
    DATA = "is a claim of a volume, and its data would be deleted with each attempt of the gang"
    SEVERAL_GANGS = "makes no pods, and several gangs of the file may use it"


class Beside(Struct, frozen=True):
    """An object that is left beside; the name of an object with a `generateName` ends with `*`."""

    kind: str
    name: str
    why: Why = Why.NOT_WRAPPED

    def __str__(self) -> str:
        """The object in words."""
        return f"{self.kind}/{self.name}"

    def as_value(self) -> Json:
        """The object as a JSON document."""
        return {"kind": self.kind, "name": self.name, "makesPods": False}


class Wrapped(Struct, frozen=True):
    """An AppWrapper to be submitted; `number` is the place in the list of it, or of its first workload, from 1.

    `wraps` are the objects that were wrapped, in words; it is empty for an AppWrapper of the list.
    """

    raw: Json
    number: int
    wraps: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where it is in the list, in words; a gang of several objects has no place of its own."""
        if not self.wraps:
            return _place(self.number, self.raw)
        more = f" and {len(self.wraps) - _MOST_NAMED} more" if len(self.wraps) > _MOST_NAMED else ""
        return f"the gang of {', '.join(self.wraps[:_MOST_NAMED])}{more}"


class Wrapping(Struct, frozen=True):
    """The AppWrappers of a list, in its order, and the objects that are left beside them."""

    appwrappers: tuple[Wrapped, ...] = ()
    beside: tuple[Beside, ...] = ()


class WrapError(SpecError):
    """An object of the list can be neither submitted nor wrapped; the path begins with its place in the list."""

    def __init__(self, number: int, raw: Mapping[str, Any], error: SpecError) -> None:
        super().__init__(f"{_place(number, raw)}: {error.path}", error.problem, error.remedy)


class UndeclaredKindError(WrapError):
    """An object may make pods, and a declaration of its kind would say which."""


def _place(number: int, raw: Mapping[str, Any]) -> str:
    """The place of an object in a list, in words."""
    return f"object {number} ({name_of(raw.get('kind')) or 'without a kind'})"


def wrap(
    objects: Sequence[Mapping[str, Any]], options: WrapOptions = NO_OPTIONS, kinds: Kinds = BUILT_IN
) -> Wrapping:
    """The AppWrappers of a list of objects, of any JSON; there are none if no object of it makes pods.

    Raises `WrapError` for an AppWrapper of a version that is not served, for an object that cannot be wrapped, and for
    options that would write fields into an AppWrapper of the list.
    """
    every = [_Listed(number, raw) for number, raw in enumerate(objects, start=1)]
    others = [each for each in every if not each.is_meant_as_appwrapper]
    as_they_are = [_as_it_is(each, options) for each in every if each.is_meant_as_appwrapper]
    left = {each.number: why for each in others if (why := _why_beside(each, kinds))}
    wrappable = [each for each in others if each.number not in left]
    workloads = [each for each in wrappable if not each.makes_no_pods(kinds)]
    gangs = [[each] for each in workloads] if options.each_workload else [wrappable] * bool(workloads)
    if len(gangs) == 1:
        gangs = [wrappable]
    in_a_gang = {each.number for gang in gangs for each in gang}
    why_not = Why.SEVERAL_GANGS if len(gangs) > 1 else Why.NOT_WRAPPED
    left |= {each.number: why_not for each in wrappable if each.number not in in_a_gang}
    made = [_gang(gang, options, kinds) for gang in gangs]
    return Wrapping(
        tuple(sorted((*as_they_are, *made), key=lambda each: each.number)),
        tuple(each.beside(left[each.number]) for each in others if each.number in left),
    )


class _Listed(Struct, frozen=True):
    """An object of the list with its place."""

    number: int
    raw: Mapping[str, Any]

    @property
    def group(self) -> str:
        return _group_of(self.raw)

    @property
    def kind(self) -> str:
        return name_of(self.raw.get("kind"))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return mapping_of(self.raw.get("metadata"))

    @property
    def name(self) -> str:
        return name_of(self.metadata.get("name")) or f"{name_of(self.metadata.get('generateName'))}*"

    @property
    def is_meant_as_appwrapper(self) -> bool:
        """True for an AppWrapper, also of a wrong version, and for one whose kind is misspelt."""
        is_of_group = self.group in names.PLURALS
        return is_of_group or bool(self.kind and most_similar(self.kind, [names.APPWRAPPER_KIND]))

    def makes_no_pods(self, kinds: Kinds) -> bool:
        return kinds.makes_no_pods(self.group, self.kind)

    def beside(self, why: Why) -> Beside:
        return Beside(self.kind, self.name, why)

    def fail(self, error: SpecError) -> NoReturn:
        raise WrapError(self.number, self.raw, error) from error


def _group_of(raw: Mapping[str, Any]) -> str:
    api_version = raw.get("apiVersion")
    return api_version.rpartition("/")[0] if isinstance(api_version, str) else ""


def _as_it_is(listed: _Listed, options: WrapOptions) -> Wrapped:
    try:
        check_appwrapper(listed.raw)
    except SpecError as error:
        listed.fail(error)
    if options.writes_fields:
        listed.fail(SpecError("spec", _NOT_CHANGED, "Write the fields in the file"))
    return Wrapped(dict(listed.raw), listed.number)


_NOT_CHANGED: Final = "is submitted as it is: no option changes an AppWrapper of a file"


def _why_beside(listed: _Listed, kinds: Kinds) -> Why | None:
    """Why an object is in no gang, by its kind; None if it can be in one."""
    if listed.group == "" and listed.kind in _BESIDE:
        return _BESIDE[listed.kind]
    is_known = kinds.row(listed.group, listed.kind).pods is not None
    return Why.NOT_WRAPPED if listed.makes_no_pods(kinds) and not is_known else None


_BESIDE: Final = {"Secret": Why.VALUES, "PersistentVolumeClaim": Why.DATA}


def _gang(gang: Sequence[_Listed], options: WrapOptions, kinds: Kinds) -> Wrapped:
    """The AppWrapper of these objects, of which one makes pods."""
    for each in gang:
        _check(each, kinds)
    namespace = _namespace_of(gang)
    first = next(each for each in gang if not each.makes_no_pods(kinds))
    raw = {
        "apiVersion": API_VERSION,
        "kind": names.APPWRAPPER_KIND,
        "metadata": {
            **_name_of(first),
            **({"namespace": namespace} if namespace else {}),
            **_told(first, options),
        },
        "spec": {
            **_fields(options),
            "resources": {"GenericItems": [{"generictemplate": _template(each.raw)} for each in gang]},
        },
    }
    return Wrapped(raw, first.number, tuple(f"{each.kind}/{each.name}" for each in gang))


def _check(listed: _Listed, kinds: Kinds) -> None:
    """Raises `WrapError` for an object whose demand no template says, or that no API server could create."""
    row = kinds.row(listed.group, listed.kind)
    try:
        breakdown_of(listed.raw, kinds)
    except SpecError as error:
        if error.path == "kind" and row.pods is None:
            advised = SpecError("kind", error.problem, _MAY_MAKE_PODS)
            raise UndeclaredKindError(listed.number, listed.raw, advised) from error
        listed.fail(error)
    if row.run is not None:
        listed.fail(
            SpecError("kind", f"{listed.kind} has pods again and again: {row.why_underivable}", _ONE_RUN)
        )


_MAY_MAKE_PODS: Final = (
    "Submit the file without it, or wrap it in an AppWrapper that declares its pods (docs/kinds.md, Wrap an "
    "object)"
)
_ONE_RUN: Final = (
    "Submit the object that it makes, or wrap it in an AppWrapper that declares its pods (docs/kinds.md, Wrap an "
    "object)"
)


def _namespace_of(gang: Sequence[_Listed]) -> str:
    """The namespace that the objects name; empty if none does. Raises `WrapError` if they name several."""
    named = [(each, namespace) for each in gang if (namespace := name_of(each.metadata.get("namespace")))]
    for each, namespace in named:
        first, of_first = named[0]
        if namespace != of_first:
            problem = f"is {namespace}, and object {first.number} is in {of_first}: a gang has one namespace"
            each.fail(SpecError("metadata.namespace", problem, _ONE_NAMESPACE))
    return named[0][1] if named else ""


_ONE_NAMESPACE: Final = (
    "Submit the objects of each namespace in a file of their own, or each workload alone (--each)"
)


def _name_of(first: _Listed) -> Json:
    key = "name" if first.metadata.get("name") else "generateName"
    return {key: first.metadata.get(key)}


def _told(first: _Listed, options: WrapOptions) -> Json:
    """The labels and annotations of an AppWrapper; absent ones are left out."""
    labels = {key: text for key, text in texts_of(first.metadata.get("labels")).items() if key not in _OURS}
    if options.queue:
        labels[names.QUEUE_LABEL] = options.queue
    written = texts_of(first.metadata.get("annotations"))
    read = {key: text for key, text in written.items() if key in READ_ANNOTATIONS}
    if options.notify:
        read[names.NOTIFY] = options.notify
    return {key: texts for key, texts in (("labels", labels), ("annotations", read)) if texts}


def _fields(options: WrapOptions) -> Json:
    """The fields of the spec that options write."""
    lasts = {"expected": options.expected_seconds, "limit": options.limit_seconds}
    duration = {key: seconds for key, seconds in lasts.items() if seconds}
    scheduling: Json = {"minAvailable": options.min_available} if options.min_available else {}
    scheduling |= {"dispatchDuration": duration} if duration else {}
    priority = {} if options.priority is None else {"priority": options.priority}
    return {**priority, **({"schedulingSpec": scheduling} if scheduling else {})}


def _template(raw: Mapping[str, Any]) -> Json:
    """The object without its status and the fields that an API server writes, as after `kubectl get -o yaml`."""
    kept = {key: value for key, value in raw.items() if key != STATUS}
    return {**kept, "metadata": dict(_metadata(mapping_of(raw.get("metadata"))))}


def _metadata(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in without_server_fields(metadata).items():
        if key == "annotations" and _LAST_APPLIED in mapping_of(value):
            yield key, {name: text for name, text in value.items() if name != _LAST_APPLIED}
        elif value is not None:
            yield key, value

"""The AppWrappers of files that are to be submitted, checked as intake checks them, and the objects beside them.

`core.intake.wrapping` says what becomes an AppWrapper and what is left beside. Commands list the objects that are left
beside and do nothing with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import NO_PODS, Objects, refused
from dispatcher.core.intake.wrapping import (
    NO_OPTIONS,
    Beside,
    UndeclaredKindError,
    WrapOptions,
    Wrapped,
    Wrapping,
    wrap,
)
from dispatcher.core.kinds.breakdown import breakdown_of, object_of
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.errors import InvalidFile
from dispatcher.text import mapping_of, name_of, one_line

Json = dict[str, Any]


class Submission(Struct, frozen=True):
    """An AppWrapper to be submitted to a namespace.

    `wraps` are the objects that it was made of, in words; it is empty for an AppWrapper of a file. `warnings` are
    sentences about these objects.
    """

    namespace: str
    raw: Json
    wraps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name; that of an AppWrapper whose name the hub makes ends with `*`."""
        return name_in(self.raw)

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Submissions(Struct, frozen=True):
    """The AppWrappers of files, and the objects that are not submitted."""

    appwrappers: tuple[Submission, ...]
    beside: tuple[Beside, ...]


def name_in(raw: Mapping[str, Any]) -> str:
    """The name of an object as written; one that the hub makes ends with `*`."""
    metadata = mapping_of(raw.get("metadata"))
    return name_of(metadata.get("name")) or f"{name_of(metadata.get('generateName'))}*"


_NAME_THE_KINDS: Final = "If the operator has declared the kind, name the file of kinds with --kinds"


def wrapping_of(
    given: Objects,
    options: WrapOptions = NO_OPTIONS,
    kinds: Kinds = BUILT_IN,
    *,
    are_kinds_of_leader: bool = False,
) -> Wrapping:
    """The AppWrappers of a file, and the objects beside them; raises `InvalidFile` for one that cannot be wrapped.

    The kinds of the leader cannot be changed with an option of the command.
    """
    try:
        return wrap(given.objects, options, kinds)
    except UndeclaredKindError as error:
        advice = "" if are_kinds_of_leader else f". {_NAME_THE_KINDS}"
        raise refused(given.name, f"{error}{advice}") from error
    except SpecError as error:
        raise refused(given.name, str(error)) from error


def check_any(given: Sequence[Objects], found: Sequence[object]) -> None:
    """Raises `InvalidFile` if files have nothing that can be queued."""
    if not found:
        raise refused(", ".join(each.name for each in given), NO_PODS)


def submissions(
    given: Sequence[Objects],
    namespace: str,
    default: str,
    options: WrapOptions = NO_OPTIONS,
    kinds: Kinds = BUILT_IN,
) -> Submissions:
    """The AppWrappers of files with their namespaces, and the objects beside them.

    A namespace is `namespace`, or if that is empty the AppWrapper's own, or else `default`.

    Raises `InvalidFile`, also for an AppWrapper of another namespace than `namespace`, for two of one name, and if
    there is none.
    """
    wrappings = [(each.name, wrapping_of(each, options, kinds)) for each in given]
    found = [
        _submission(file, wrapped, namespace, default, kinds)
        for file, wrapping in wrappings
        for wrapped in wrapping.appwrappers
    ]
    check_any(given, found)
    _check_names(found)
    return Submissions(tuple(found), tuple(each for _, wrapping in wrappings for each in wrapping.beside))


def _submission(file: str, wrapped: Wrapped, namespace: str, default: str, kinds: Kinds) -> Submission:
    raw, title = wrapped.raw, f"{file}: {wrapped.place}"
    try:
        metadata = object_of(raw, "metadata")
        to = name_of(metadata.get("namespace")) or namespace or default
        check_namespace(to, namespace)
        parse_spec(object_of(raw, "spec"), namespace=to)
        warnings = tuple(_warnings(wrapped, kinds))
    except SpecError as error:
        raise InvalidFile(one_line(f"{title}: {error}")) from error
    if not (metadata.get("name") or metadata.get("generateName")):
        raise InvalidFile(one_line(f"{title}: metadata.name: is missing. Give it a name."))
    return Submission(to, raw, wrapped.wraps, warnings)


def _warnings(wrapped: Wrapped, kinds: Kinds) -> Iterator[str]:
    """Sentences about the objects of a new AppWrapper; intake writes those about others into their status."""
    if wrapped.wraps:
        yield from breakdown_of(wrapped.raw, kinds).warnings


def _check_names(found: Iterable[Submission]) -> None:
    """Raises `InvalidFile` if two AppWrappers have one name: the hub would take the first alone."""
    seen: set[tuple[str, str]] = set()
    for each in found:
        named = str(each.raw["apiVersion"]).partition("/")[0], each.key
        if named in seen and not each.name.endswith("*"):
            raise InvalidFile(
                one_line(
                    f"two AppWrappers would be named {each.key}: an AppWrapper has the name of its "
                    "first workload. Give one of them another name, or put both into one file, which is one gang"
                )
            )
        seen.add(named)


def check_namespace(written: str, namespace: str) -> None:
    """Raises `SpecError` for an AppWrapper of another namespace than that of -n, which is empty if it was left out."""
    if namespace not in ("", written):
        raise SpecError(
            "metadata.namespace", f"is {written}, which contradicts -n {namespace}", "Leave one of them out"
        )

"""The AppWrappers of a file that is to be submitted, checked as intake checks them, and the objects beside them.

Objects beside AppWrappers make no pods, such as a ConfigMap that the pods of a gang mount. Commands list them and do
nothing with them. Objects of unknown kinds are not among them, because they may make pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.files.documents import objects_in, refused
from dispatcher.core.kinds.breakdown import check_appwrapper, makes_no_pods, object_of
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.errors import InvalidFile
from dispatcher.text import name_of, one_line

Json = dict[str, Any]

NO_APPWRAPPER: Final = "has no AppWrapper"


class Submissions(Struct, frozen=True):
    """The AppWrappers of a file, each with its namespace, and the objects that are not submitted."""

    appwrappers: tuple[tuple[str, Json], ...]
    beside: tuple[Beside, ...]


def submissions(file: str, content: bytes, namespace: str, default: str) -> Submissions:
    """The AppWrappers of a file with their namespaces, and the objects beside them.

    A namespace is `namespace`, or if that is empty the AppWrapper's own, or else `default`.

    Raises `InvalidFile`, also for an AppWrapper of another namespace than `namespace`, and for an object that may make
    pods and is no AppWrapper.
    """
    found, others = [], []
    for number, raw in enumerate(objects_in(file, content), start=1):
        if other := beside(raw):
            others.append(other)
            continue
        title = f"{file}: object {number} ({name_of(raw.get('kind')) or 'without a kind'})"
        try:
            check_appwrapper(raw)
            metadata = object_of(raw, "metadata")
            to = name_of(metadata.get("namespace")) or namespace or default
            check_namespace(to, namespace)
            parse_spec(object_of(raw, "spec"), namespace=to)
        except SpecError as error:
            raise InvalidFile(one_line(f"{title}: {error}")) from error
        if not (metadata.get("name") or metadata.get("generateName")):
            raise InvalidFile(one_line(f"{title}: metadata.name: is missing. Give it a name."))
        found.append((to, raw))
    if not found:
        raise refused(file, NO_APPWRAPPER)
    return Submissions(tuple(found), tuple(others))


def check_namespace(written: str, namespace: str) -> None:
    """Raises `SpecError` for an AppWrapper of another namespace than that of -n, which is empty if it was left out."""
    if namespace not in ("", written):
        raise SpecError(
            "metadata.namespace", f"is {written}, which contradicts -n {namespace}", "Leave one of them out"
        )


class Beside(Struct, frozen=True):
    """One such object; the name of an object with a `generateName` ends with `*`."""

    kind: str
    name: str

    def __str__(self) -> str:
        """The object in words."""
        return f"{self.kind}/{self.name}"

    def as_value(self) -> dict[str, Any]:
        """The object as a JSON document."""
        return {"kind": self.kind, "name": self.name, "makesPods": False}


def beside(raw: Mapping[str, Any], kinds: Kinds = BUILT_IN) -> Beside | None:
    """The object if it makes no pods and is no AppWrapper, else None."""
    if not makes_no_pods(raw, kinds):
        return None
    metadata = raw.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return Beside(
        name_of(raw["kind"]), name_of(named.get("name")) or f"{name_of(named.get('generateName'))}*"
    )

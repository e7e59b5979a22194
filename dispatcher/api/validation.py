"""Checks of an AppWrapper that need no cluster: its size before it is parsed, its templates, and values of Secrets.

A parsed spec takes ten to thirty times its size in memory, and parsing it blocks the event loop. etcd accepts 1.5 MiB,
for which `[[],[],…]` takes 42 MiB of memory. So a larger spec is refused unparsed. More users read AppWrappers than
Secrets, so a wrapped Secret with values is detected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from dispatcher.api.names import APPWRAPPER_KIND, PLURALS
from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.api.syntax import LABEL, is_subdomain

if TYPE_CHECKING:
    from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject

DEEPEST: Final = 100
"""Levels of objects and lists that a template may have; built-in kinds have at most about 20."""

_VERSION = re.compile(LABEL)
_KIND = re.compile("[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?")
_RBAC = "rbac.authorization.k8s.io"


def check_template(template: Mapping[str, Any], path: str, namespace: str) -> None:
    """Raise `SpecError` for a template that can never be created in `namespace`, or not by this dispatcher."""
    _check_depth(template, path)
    _check_kind(template, path)
    metadata = _checked_metadata(template, path)
    _check_namespace(metadata.get("namespace"), f"{path}.metadata.namespace", namespace)
    _check_name(template, metadata, f"{path}.metadata")
    for key in ("labels", "annotations"):
        _check_string_map(metadata.get(key), f"{path}.metadata.{key}")


def _check_depth(template: Mapping[str, Any], path: str) -> None:
    """Bound the depth: templates are copied level by level, and recursion in Python and in JSON parsers is limited."""
    level: list[Any] = [template]
    for _ in range(DEEPEST):
        entries = (part.values() if isinstance(part, Mapping) else part for part in level)
        level = [entry for part in entries for entry in part if isinstance(entry, dict | list)]
        if not level:
            return
    raise SpecError(path, f"is nested more than {DEEPEST} levels deep", "Make it flatter")


def _check_kind(template: Mapping[str, Any], path: str) -> None:
    """Refuse an apiVersion or kind that cannot be part of a path, and an AppWrapper's."""
    api_version, kind = template.get("apiVersion"), template.get("kind")
    if not isinstance(api_version, str) or not _is_api_version(api_version):
        problem = f"is not an API version: {quoted(api_version)}"
        raise SpecError(
            f"{path}.apiVersion", problem, "Write what kubectl api-resources shows, such as batch/v1"
        )
    if not isinstance(kind, str) or len(kind) > 63 or not _KIND.fullmatch(kind):
        problem = f"is not a kind: {quoted(kind)}"
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
            f"{path}.metadata", f"must be an object, not {quoted(metadata)}", "Give it at least a name"
        )
    return metadata


def _check_namespace(value: object, path: str, namespace: str) -> None:
    if value in (None, "", namespace):
        return
    theirs, ours = quoted(value), quoted(namespace)
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
        problem = f"{quoted(value)} is not a valid object name"
        remedy = (
            "Use lower case letters, digits, '-' and '.', at most 253, with a letter or digit at both ends"
        )
        raise SpecError(f"{path}.{key}", problem, remedy)


def _check_string_map(value: object, path: str) -> None:
    """Require a map of strings: the dispatcher adds its own labels and annotations."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise SpecError(path, f"must be an object, not {quoted(value)}", "Write one key: value per line")
    for key, entry in value.items():
        if not isinstance(entry, str):
            raise SpecError(joined(path, key), f"must be a string, not {quoted(entry)}", "Put it in quotes")


def _group(template: Mapping[str, Any]) -> str:
    return str(template["apiVersion"]).rpartition("/")[0]


def _is_api_version(text: str) -> bool:
    group, slash, version = text.rpartition("/")
    return len(version) <= 63 and bool(_VERSION.fullmatch(version)) and (not slash or is_subdomain(group))


def _is_name(text: str, group: str) -> bool:
    """True if Kubernetes accepts the text as a name; kinds of RBAC accept any path segment."""
    if group == _RBAC:
        return (
            0 < len(text) <= 253
            and text.isprintable()
            and text not in (".", "..")
            and not {"/", "%"} & set(text)
        )
    return is_subdomain(text)


LARGEST_SPEC: Final = 2**18
"""Bytes of JSON without white space. A gang of a hundred pods, each with its own template, has about 100,000."""

MOST_CONTAINERS: Final = 2**14
"""Lists and objects; brackets within strings count as well. In the largest spec each then has 16 bytes on average, too
little for a pod template."""

LONGEST_QUICK_SPEC: Final = 2**17
MOST_QUICK_CONTAINERS: Final = 2**8
"""Bytes, and lists and objects, up to which the API server writes an AppWrapper in some 0.03 s; with 1,027 lists and
objects it takes 0.1 to 0.3 s. A RayCluster of ten worker groups is within both."""


class SpecSize(Struct, frozen=True):
    """How large a spec is, in bytes and in lists and objects."""

    length: int
    containers: int

    @property
    def is_acceptable(self) -> bool:
        """False if the spec is to be refused unparsed."""
        return self.length <= LARGEST_SPEC and self.containers <= MOST_CONTAINERS

    @property
    def is_quick(self) -> bool:
        """False if each write of the AppWrapper, also of its status alone, may take the API server a tenth of a second.

        It decodes and validates the spec again each time: some 0.1 ms for each list and object.
        """
        return self.length <= LONGEST_QUICK_SPEC and self.containers <= MOST_QUICK_CONTAINERS

    @classmethod
    def of(cls, spec: bytes) -> SpecSize:
        """The size of a spec as JSON."""
        return cls(len(spec), count_containers(spec))


def count_containers(raw: bytes, start: int = 0, end: int | None = None) -> int:
    """Lists and objects in JSON; brackets within strings count as well."""
    return raw.count(b"[", start, end) + raw.count(b"{", start, end)


def refusal(size: SpecSize) -> SpecError:
    """The error for a spec that is too large: size, bound and remedy."""
    if size.length > LARGEST_SPEC:
        return SpecError(
            "spec",
            f"has {size.length} bytes of JSON; at most {LARGEST_SPEC} are taken",
            "Keep files and data in ConfigMaps of their own, or on a volume, and mount them",
        )
    return SpecError(
        "spec",
        f"consists of {size.containers} lists and objects; at most {MOST_CONTAINERS} are taken",
        "Keep data in ConfigMaps of their own, or on a volume, and mount them",
    )


_SECRET_VALUES: Final = ("data", "stringData")


def check_no_secret_values(spec: AppWrapperSpec) -> None:
    """Raise `SpecError` if the spec wraps a Secret with values; the message quotes neither values nor keys."""
    for wrapped in spec.wrapped:
        if _holds_values(wrapped):
            raise SpecError(
                spec.path_of(wrapped),
                "wraps a Secret with values, which all readers of AppWrappers or of the dispatcher's database can read",
                "Create the Secret beside the AppWrapper, and wrap only objects that name it; or have the operator set"
                " DISPATCHER_WRAPPED_SECRETS=stored",
            )


def has_secret_values(spec: AppWrapperSpec) -> bool:
    """True if the spec wraps a Secret with values."""
    return any(map(_holds_values, spec.wrapped))


def _holds_values(wrapped: WrappedObject) -> bool:
    return any(map(_has_values, _objects_in(wrapped.template)))


def _objects_in(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The object itself and all objects in it if it is a List; `check_template` bounds the depth."""
    yield template
    items = template.get("items")
    if str(template.get("kind")).endswith("List") and isinstance(items, list):
        for item in items:
            if isinstance(item, Mapping):
                yield from _objects_in(item)


def _has_values(template: Mapping[str, Any]) -> bool:
    # The entries of a List have the list's kind unless they name their own.
    is_secret = template.get("kind") in ("Secret", "SecretList") and "/" not in str(
        template.get("apiVersion")
    )
    entries = template.get("items") if template.get("kind") == "SecretList" else [template]
    return is_secret and any(
        entry.get(field) for entry in entries or () if isinstance(entry, Mapping) for field in _SECRET_VALUES
    )

"""Checks of a wrapped object that need no cluster."""

import re
from collections.abc import Mapping
from typing import Any, Final

from dispatcher.api.names import APPWRAPPER_KIND, PLURALS
from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.api.syntax import LABEL, is_subdomain

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

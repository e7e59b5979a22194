"""Kinds that a platform team declares: rows of the registry from a small mapping, such as a file of YAML.

A declaration says where the pod templates of a kind are, how many pods each has, and which conditions end an object:

    group: example.com
    kind: Simulation
    podSets:
    - {template: spec.driver.template, count: 1}
    - {template: "spec.groups.*.template", count: "spec.groups.*.replicas", default: 1}
    suspend: spec.suspend
    succeeded: [Finished]
    failed: [Broken]

`*` stands for every element of a list or an object. A kind without `succeeded` does not end by itself. `podSets: []`
declares that the kind makes no pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import is_subdomain
from dispatcher.core.kinds.fields import Field, TemplateError
from dispatcher.core.kinds.object_status import conditions_end
from dispatcher.core.kinds.podsets import Kind, PodRule
from dispatcher.core.kinds.registry import ROWS, KnownKind

MOST_KINDS: Final = 256
MOST_POD_SETS: Final = 32
MOST_CONDITIONS: Final = 16
"""Bounds far above any use; a file beyond them is not the one that was meant."""

_KIND: Final = re.compile("[A-Za-z]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_KEY: Final = "[A-Za-z][A-Za-z0-9_-]*"
_PATH: Final = re.compile(rf"{_KEY}(\.({_KEY}|\*))*")
_KEYS: Final = frozenset({"group", "kind", "podSets", "suspend", "succeeded", "failed"})
_KEYS_OF_POD_SET: Final = frozenset({"template", "count", "default", "optional"})
_BUILT_IN: Final = frozenset((row.group, row.kind) for row in ROWS)


class DeclarationError(ValueError):
    """A declaration of a kind is malformed; the message begins with the path of the field."""


def kinds_of(declared: object) -> tuple[KnownKind, ...]:
    """The rows of a file's value, `{"kinds": [...]}`; raises `DeclarationError` for any other JSON."""
    try:
        root = Field(declared)
        _check_keys(root, frozenset({"kinds"}))
        entries = root.child("kinds").entries(MOST_KINDS)
        rows = tuple(map(_known_kind, entries))
        _check_distinct(rows, entries)
    except TemplateError as error:
        raise DeclarationError(str(error) if error.path else f"the declaration {error.problem}") from error
    return rows


def _known_kind(declared: Field) -> KnownKind:
    _check_keys(declared, _KEYS)
    group, kind = _group(declared.child("group")), _kind(declared.child("kind"))
    if (group, kind) in _BUILT_IN:
        raise TemplateError(declared.path, f"{kind} of {group} is built in and cannot be declared")
    pod_sets = declared.child("podSets")
    if pod_sets.value is None:
        raise TemplateError(
            pod_sets.path, "must list the pod templates of the kind, or be [] if it makes no pods"
        )
    succeeded, failed = tuple(_conditions(declared, "succeeded")), tuple(_conditions(declared, "failed"))
    return KnownKind(
        group,
        kind,
        pods=Kind(tuple(map(_rule, pod_sets.entries(MOST_POD_SETS))), suspend=_suspend(declared)),
        status=conditions_end(succeeded, failed) if succeeded or failed else None,
        ends=bool(succeeded),
    )


def _rule(declared: Field) -> PodRule:
    """The rule of one pod set; the fields of its template and its count are below the same element."""
    _check_keys(declared, _KEYS_OF_POD_SET)
    groups, template = _split(_path(declared.child("template")))
    is_optional = declared.child("optional").flag()
    if is_optional and not groups:
        raise TemplateError(
            declared.child("optional").path, "needs a template below *, of which there may be none"
        )
    return PodRule(groups, template, _count(declared, groups), optional=is_optional)


def _count(declared: Field, groups: str) -> Callable[[Field], int]:
    count, default = declared.child("count"), declared.child("default")
    if not isinstance(count.value, str):
        if default.value is not None:
            raise TemplateError(default.path, "is only for a count that is a path")
        if count.value is None:
            raise TemplateError(count.path, "must be a number of pods, or the path of one")
        fixed = count.integer(default=1)
        return lambda _: fixed
    of_groups, path = _split(_path(count))
    if of_groups != groups:
        raise TemplateError(count.path, f"must begin like the template with {quoted(groups or 'no *')}")
    absent = default.integer(default=1)
    return lambda group: group.at(path).integer(default=absent)


def _split(path: str) -> tuple[str, str]:
    """The part of a path up to its last `*`, and the rest; without `*` all of it is the rest."""
    before, star, rest = path.rpartition("*")
    return f"{before}{star}", rest.removeprefix(".")


def _path(declared: Field) -> str:
    text = declared.text()
    if not _PATH.fullmatch(text) or len(text) > _LONGEST_PATH:
        problem = f"must be a path such as spec.groups.*.template, not {quoted(text)}"
        raise TemplateError(declared.path, problem)
    return text


_LONGEST_PATH: Final = 512


def _suspend(declared: Field) -> str:
    suspend = declared.child("suspend")
    if suspend.value is None:
        return ""
    path = _path(suspend)
    if "*" in path:
        raise TemplateError(suspend.path, "must be the path of one field, without *")
    return path


def _conditions(declared: Field, key: str) -> Iterator[str]:
    for condition in declared.child(key).entries(MOST_CONDITIONS):
        if not condition.text():
            raise TemplateError(condition.path, "must be the type of a condition, such as Complete")
        yield condition.text()


def _group(declared: Field) -> str:
    if not is_subdomain(declared.text()):
        raise TemplateError(
            declared.path, f"must be an API group such as example.com, not {quoted(declared.value)}"
        )
    return declared.text()


def _kind(declared: Field) -> str:
    if not _KIND.fullmatch(declared.text()):
        raise TemplateError(declared.path, f"must be a kind such as Simulation, not {quoted(declared.value)}")
    return declared.text()


def _check_keys(declared: Field, known: frozenset[str]) -> None:
    for each in declared.mapping():
        if each not in known:
            raise TemplateError(
                declared.path, f"has no field {quoted(each)}; there are {', '.join(sorted(known))}"
            )


def _check_distinct(rows: tuple[KnownKind, ...], entries: tuple[Field, ...]) -> None:
    seen: set[tuple[str, str]] = set()
    for row, entry in zip(rows, entries, strict=True):
        if (row.group, row.kind) in seen:
            raise TemplateError(entry.path, f"{row.kind} of {row.group} is declared twice")
        seen.add((row.group, row.kind))

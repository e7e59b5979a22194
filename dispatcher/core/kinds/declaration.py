"""Declarations of kinds: rows of the registry from a file, so that a platform team adds its kinds without a release.

A declaration says where the pod templates of a kind are, how many pods are made of each, and what ends an object:

    kinds:
    - group: example.com
      kind: Simulation
      podSets:
      - {template: spec.driver.template, count: 1}
      - {template: "spec.groups.*.template", count: "spec.groups.*.replicas", default: 0}
      suspend: spec.suspend
      succeeded: [Finished]
      failed: [Broken]

A template is an object with `spec.containers`. `*` stands for every element of a list or an object. An object ends when
one of these conditions is True or, with `phase`, when the text at that path is one of them. A kind without `succeeded`
does not end by itself. `podSets: []` declares that the kind makes no pods.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from dispatcher.api.document import Entry
from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import is_subdomain
from dispatcher.core.kinds.built_in import ROWS, KnownKind
from dispatcher.core.kinds.fields import Field
from dispatcher.core.kinds.object_status import Rule, conditions_end, phase_ends
from dispatcher.core.kinds.pods.pod_rules import Kind, PodRule, in_order_always

MOST_KINDS: Final = 20
"""Declared kinds are always watched, as the built-in ones are, and each watch keeps a connection."""
MOST_POD_SETS: Final = 32
MOST_WORDS: Final = 16
LONGEST_WORD: Final = 316
"""The longest type of a condition that Kubernetes takes."""

_FILE: Final = ("kinds",)
KIND_FIELDS: Final = ("group", "kind", "podSets", "suspend", "managedBy", "phase", "succeeded", "failed")
POD_SET_FIELDS: Final = ("template", "count", "default", "optional")
_NAME: Final = re.compile("[A-Z][A-Za-z0-9]{0,62}")
_KEY: Final = "[A-Za-z][A-Za-z0-9_-]*"
_PATH: Final = re.compile(rf"{_KEY}(\.({_KEY}|\*))*")
_BUILT_IN: Final = frozenset((row.group, row.kind) for row in ROWS)


class PodSetDeclaration(Struct, frozen=True):
    """The pods of one template, or of every template below a `*`.

    `count` is a number of pods, or the path of one below the same element; `default` counts where there is none. If it
    `needs_count`, one element at least must have a count, because a path without any is most likely misspelled. An
    `optional` template may be below no element at all.
    """

    template: str
    count: int | str
    default: int = 1
    optional: bool = False
    needs_count: bool = False

    def rule(self) -> PodRule:
        """The rule by which these pods are found in an object."""
        groups, template = _split(self.template)
        needed = _split(self.count)[1] if self.needs_count and isinstance(self.count, str) else ""
        return PodRule(groups, template, self._count_in, optional=self.optional, count_path=needed)

    def _count_in(self, group: Field) -> int:
        if isinstance(self.count, int):
            return self.count
        return group.at(_split(self.count)[1]).integer(default=self.default)


class KindDeclaration(Struct, frozen=True):
    """One declared kind; `row` is its row of the registry. Paths are dotted, and empty where there is none."""

    group: str
    kind: str
    pod_sets: tuple[PodSetDeclaration, ...] = ()
    suspend: str = ""
    managed_by: str = ""
    phase: str = ""
    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def row(self) -> KnownKind:
        """The row of the registry that the declaration stands for."""
        return KnownKind(
            self.group,
            self.kind,
            pods=Kind(tuple(each.rule() for each in self.pod_sets), self.suspend, in_order_always),
            status=self._status_rule(),
            ends=bool(self.succeeded),
            managed_by=(self.managed_by, "") if self.managed_by else None,
        )

    def _status_rule(self) -> Rule | None:
        if not (self.succeeded or self.failed):
            return None
        if self.phase:
            return phase_ends(self.phase, self.succeeded, self.failed)
        return conditions_end(self.succeeded, self.failed)


def read_declarations(document: Entry) -> tuple[KindDeclaration, ...]:
    """The kinds that a document declares; raises `SpecError` at the first mistake."""
    document.check_keys(_FILE)
    kinds = document.child("kinds")
    if kinds.value is None:
        kinds.fail("must be a list of kinds, or [] for none")
    entries = kinds.elements(MOST_KINDS)
    declared = tuple(map(_read_kind, entries))
    names: set[tuple[str, str]] = set()
    for entry, each in zip(entries, declared, strict=True):
        if (each.group, each.kind) in names:
            entry.fail(f"{each.kind} of {each.group} is declared twice")
        names.add((each.group, each.kind))
    return declared


def _read_kind(entry: Entry) -> KindDeclaration:
    entry.check_keys(KIND_FIELDS)
    group, kind = _group(entry.child("group")), _kind(entry.child("kind"))
    if (group, kind) in _BUILT_IN:
        entry.fail(f"{kind} of {group} is built in, and cannot be declared")
    succeeded, failed = _words(entry.child("succeeded")), _words(entry.child("failed"))
    for each in succeeded:
        if each in failed:
            entry.child("failed").fail(f"{quoted(each)} is also in succeeded")
    return KindDeclaration(
        group,
        kind,
        _pod_sets(entry.child("podSets")),
        suspend=_one_field(entry.child("suspend")),
        managed_by=_one_field(entry.child("managedBy")),
        phase=_phase(entry.child("phase"), has_words=bool(succeeded or failed)),
        succeeded=succeeded,
        failed=failed,
    )


def _group(entry: Entry) -> str:
    if not is_subdomain(entry.name()):
        entry.fail(f"must be an API group without version, such as example.com, not {quoted(entry.value)}")
    return entry.name()


def _kind(entry: Entry) -> str:
    if not _NAME.fullmatch(entry.name()):
        entry.fail(f"must be a kind such as Simulation, not {quoted(entry.value)}")
    return entry.name()


def _pod_sets(entry: Entry) -> tuple[PodSetDeclaration, ...]:
    if entry.value is None:
        entry.fail("must list the pod templates of the kind, or be [] if it makes no pods")
    entries = entry.elements(MOST_POD_SETS)
    found = tuple(map(_pod_set, entries))
    templates: set[str] = set()
    for each, pod_set in zip(entries, found, strict=True):
        if pod_set.template in templates:
            each.child("template").fail(f"{quoted(pod_set.template)} is declared twice")
        templates.add(pod_set.template)
    return found


def _pod_set(entry: Entry) -> PodSetDeclaration:
    entry.check_keys(POD_SET_FIELDS)
    template = _path(entry.child("template"))
    groups, _ = _split(template)
    optional = entry.child("optional")
    if optional.flag() and not groups:
        optional.fail("is only for a template below *, of which there may be none")
    count, default = entry.child("count"), entry.child("default")
    if isinstance(count.value, str):
        return PodSetDeclaration(
            template,
            _count_path(count, groups),
            default.integer(1),
            optional=optional.flag(),
            needs_count=default.value is None,
        )
    if count.value is None:
        count.fail("must be a number of pods, or the path of one")
    if default.value is not None:
        default.fail("is only for a count that is a path")
    return PodSetDeclaration(template, count.integer(1, least=1), optional=optional.flag())


def _count_path(entry: Entry, groups: str) -> str:
    path = _path(entry)
    if _split(path)[0] != groups:
        entry.fail(f"must begin like the template, {f'with {quoted(groups)}' if groups else 'without *'}")
    return path


def _phase(entry: Entry, *, has_words: bool) -> str:
    path = _one_field(entry)
    if path and not path.startswith("status."):
        entry.fail(f"must be a path in the status, such as status.phase, not {quoted(path)}")
    if path and not has_words:
        entry.fail("needs the values that end an object, in succeeded or failed")
    return path


def _one_field(entry: Entry) -> str:
    if entry.value is None:
        return ""
    path = _path(entry)
    if "*" in path:
        entry.fail("must be the path of one field, without *")
    return path


def _path(entry: Entry) -> str:
    path = entry.name()
    if not _PATH.fullmatch(path):
        entry.fail(f"must be a path such as spec.groups.*.template, not {quoted(path)}")
    return path


def _words(entry: Entry) -> tuple[str, ...]:
    words = entry.elements(MOST_WORDS)
    for each in words:
        if not 0 < len(each.text()) <= LONGEST_WORD:
            each.fail(f"must have 1 to {LONGEST_WORD} characters")
    return tuple(each.text() for each in words)


def _split(path: str) -> tuple[str, str]:
    """The part of a path up to its last `*`, and the rest; without `*` all of it is the rest."""
    before, star, rest = path.rpartition("*")
    return f"{before}{star}", rest.removeprefix(".")

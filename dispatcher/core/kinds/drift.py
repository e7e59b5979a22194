"""Drift of a wrapped object: fields that the dispatcher wrote and that have another value now.

The compared fields are the leaves of the created manifest (`kinds.manifest.build`); of the metadata, only our marks.
Fields that others write are not compared: defaults, side-cars, entries before or after those of a list, the number of
pods, and `suspend`. Values are equal however the API server spells them: a quantity, a number as a string, an empty
value that is left out.

An admission webhook may change a field at the creation, and the API server drops unknown fields. A difference that was
there when the object was `made` is no drift while it stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import islice
from typing import Any, Final, TypeAlias

from dispatcher.api import names
from dispatcher.api.spec_errors import joined, one_line
from dispatcher.core.kinds.manifest import owned_by
from dispatcher.core.model.quantity import QuantityError, parse_quantity
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.text import mapping_of

Differences: TypeAlias = Mapping[str, Any]
"""The current value of each field that differs, by path; None if the field is absent."""

_WRITTEN_BY_OTHERS: Final[Mapping[str, type]] = {
    "replicas": int,  # an autoscaler, through /scale or, as Ray's, in the spec
    "scaleStrategy": dict,  # Ray's autoscaler: the workers to remove
    "parallelism": int,  # of a Job, as replicas elsewhere; Kueue writes it when it admits a part
    "completions": int,  # can be changed only together with parallelism
    "suspend": bool,  # Kueue, and users who start a Job later
}
"""By name and type of the value: a ConfigMap's data may have the same keys with other types."""

_QUANTITIES: Final = frozenset({"requests", "limits", "overhead", "capacity", "hard", "sizeLimit", "divisor"})
"""Values below these keys are compared as quantities. Elsewhere "1" and "1000m" differ."""

_NAMES: Final = ("name", "groupName", "mountPath", "containerPort", "port")
"""Keys that identify the entries of a list: the first key that all entries have; else their index does."""

_MOST_IN_FRONT: Final = 20
"""The largest number of entries that others may have put before ours, in a list without names."""

_MOST_DIFFERENCES: Final = 1000
"""An object can have hundreds of thousands of fields; the first differences identify the drift."""

_MARKS: Final = frozenset({names.NAME_LABEL, names.MCAD_NAME_LABEL, names.RESOURCE_NAME_LABEL})
"""Our marks without our prefix."""

_MOST_NAMED: Final = 3
"""Fields of one object that a message names."""

_Steps: TypeAlias = tuple[object, ...]
_Found: TypeAlias = Iterator[tuple[_Steps, Any]]


def is_compared(group: str, kind: str) -> bool:
    """False for Secrets: a comparison would read their content."""
    return (group, kind) != ("", "Secret")


def differences(written: Mapping[str, Any], found: Mapping[str, Any]) -> Differences:
    """The differences of an object at the API server from the manifest we wrote.

    An index in a path is that of the entry in our manifest.
    """
    first = islice(_of_whole(written, found), _MOST_DIFFERENCES)
    return {_path(steps): there for steps, there in first}


def edited(
    written: Mapping[str, Any], found: Mapping[str, Any], made: Differences | None = None
) -> tuple[str, ...]:
    """The paths of our fields that changed since the object was made, when it differed as in `made`.

    If `made` is None, that is unknown, and missing fields are left out: they may never have existed.
    """
    now = differences(written, found)
    if made is None:
        return tuple(path for path, there in now.items() if there is not None)
    return tuple(path for path, there in now.items() if path not in made or made[path] != there)


def message(edits: Sequence[tuple[ObjectRef, tuple[str, ...]]]) -> str:
    """One line with the objects and the changed paths of each; empty if there are none."""
    return one_line("; ".join(_sentence(ref, paths) for ref, paths in edits if paths))


def _sentence(ref: ObjectRef, paths: tuple[str, ...]) -> str:
    named, more = ", ".join(paths[:_MOST_NAMED]), len(paths) - _MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    was = "was" if len(paths) == 1 else "were"
    return f"{ref.title}: {named}{others} {was} changed"


def _path(steps: _Steps) -> str:
    return reduce(joined, steps[1:], str(steps[0]))


def _of_whole(written: Mapping[str, Any], found: Mapping[str, Any]) -> _Found:
    yield from _of_marks(written.get("metadata") or {}, mapping_of(found.get("metadata")))
    for key, value in written.items():
        # apiVersion and kind are in the request; the status belongs to the controller of the kind.
        if key not in {"apiVersion", "kind", "metadata", "status"}:
            yield from _of_value(value, found.get(key), (key,), is_quantity=False)


def _of_marks(written: Mapping[str, Any], found: Mapping[str, Any]) -> _Found:
    """Differences of the owner and of our labels and annotations; users may change other metadata."""
    if owned_by(written) != owned_by(found):
        yield ("metadata", "ownerReferences"), found.get("ownerReferences")
    for part in ("labels", "annotations"):
        there = mapping_of(found.get(part))
        for key, value in (written.get(part) or {}).items():
            if _is_mark(key) and there.get(key) != value:
                yield ("metadata", part, key), there.get(key)


def _is_mark(key: str) -> bool:
    if key in (names.HUB_ANNOTATION, names.SEAL_ANNOTATION):
        return False  # a hub with a new database takes over objects with its old id and key
    return key.startswith(f"{names.PREFIX}/") or key in _MARKS


def _of_value(written: object, found: object, steps: _Steps, is_quantity: bool) -> _Found:
    if found is None:
        if not _is_nothing(written):
            yield steps, None
    elif isinstance(written, dict) and isinstance(found, dict):
        yield from _of_object(written, found, steps, is_quantity)
    elif isinstance(written, list) and isinstance(found, list):
        yield from _of_list(written, found, steps, is_quantity)
    elif isinstance(written, dict | list):
        if not _is_nothing(written):
            yield steps, found
    elif written is not None and not _same(written, found, is_quantity):
        yield steps, found


def _of_object(
    written: Mapping[str, Any], found: Mapping[str, Any], steps: _Steps, is_quantity: bool
) -> _Found:
    for key, value in written.items():
        if not _is_for_others(key, value):
            yield from _of_value(value, found.get(key), (*steps, key), is_quantity or _is_quantity(key))


def _is_for_others(key: str, value: object) -> bool:
    type_ = _WRITTEN_BY_OTHERS.get(key)
    return type_ is not None and isinstance(value, type_) and (type_ is bool or not isinstance(value, bool))


def _is_quantity(key: str) -> bool:
    return key in _QUANTITIES


def _is_nothing(value: object) -> bool:
    """True for empty values: the API server and operators leave them out when they write an object."""
    if isinstance(value, dict):
        return all(map(_is_nothing, value.values()))
    return not value


def _same(written: object, found: object, is_quantity: bool) -> bool:
    if isinstance(written, bool) or isinstance(found, bool):
        return written is found
    if written == found or (is_quantity and _is_same_quantity(written, found)):
        return True
    return isinstance(written, str) != isinstance(found, str) and str(written) == str(found)


def _is_same_quantity(written: object, found: object) -> bool:
    amount = _amount(written)
    return amount is not None and amount == _amount(found)


def _amount(value: object) -> Fraction | None:
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def _of_list(written: list[Any], found: list[Any], steps: _Steps, is_quantity: bool) -> _Found:
    by = next((key for key in _NAMES if _identifies(key, written)), None)
    if by is not None:
        return _of_entries(written, _counterparts(by, written, found), steps, is_quantity)
    return iter(()) if _is_within(written, found) else _of_entries(written, found, steps, is_quantity)


def _is_within(written: list[Any], found: list[Any]) -> bool:
    """True if entries were put before ours; ours must be unchanged, without defaults."""
    most = min(len(found) - len(written), _MOST_IN_FRONT)
    return any(found[offset : offset + len(written)] == written for offset in range(1, most + 1))


def _of_entries(written: list[Any], found: list[Any], steps: _Steps, is_quantity: bool) -> _Found:
    for index, entry in enumerate(written):
        if index < len(found):
            yield from _of_value(entry, found[index], (*steps, index), is_quantity)
        else:
            yield (*steps, index), None


def _identifies(key: str, entries: list[Any]) -> bool:
    names_seen: set[str | int] = set()
    for entry in entries:
        name = _name(key, entry)
        if name is None or name in names_seen:
            return False
        names_seen.add(name)
    return True


def _name(key: str, entry: object) -> str | int | None:
    name = entry.get(key) if isinstance(entry, dict) else None
    return name if isinstance(name, str | int) else None


def _counterparts(by: str, written: list[Any], found: list[Any]) -> list[Any]:
    """The current entry for each of ours: the entry of the same name, else a renamed one at the same index."""
    there = {_name(by, entry): entry for entry in found}
    ours = {_name(by, entry) for entry in written}
    return [
        there.get(_name(by, entry), other if _name(by, other) not in ours else None)
        for entry, other in zip(written, [*found, *[None] * len(written)], strict=False)
    ]

"""What somebody changed of a wrapped object: the fields that we wrote and that are no longer as we wrote them.

Ours are the leaves of what was created (`kinds.manifest.build`), of its metadata only our own marks. Not ours is what
others are meant to write: whatever we did not (defaults, side-cars, entries before or behind those of a list), how
many pods there are, and whether they are held back. Equal values are equal however the API server spells them: a
quantity, a number as a string, what is empty and left out.

Where an admission webhook changed a field at the creation, or the API server does not know it and dropped it, the
object differs from the start. What differed when it was `made` is no drift as long as it stays so.
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
from dispatcher.core.model.record import ObjectRef

Differences: TypeAlias = Mapping[str, Any]
"""By the path of each field of ours that differs: what is there instead, None if nothing is."""

_WRITTEN_BY_OTHERS: Final[Mapping[str, type]] = {
    "replicas": int,  # an autoscaler, through /scale or, as Ray's, by itself
    "scaleStrategy": dict,  # Ray's autoscaler: which workers are to go
    "parallelism": int,  # of a Job, as replicas elsewhere; Kueue writes it when it admits a part
    "completions": int,  # can be changed only together with parallelism
    "suspend": bool,  # Kueue, and whoever starts a Job later
}
"""By name, and only with a value of this type: elsewhere the same word may be anything, as in a ConfigMap's data."""

_QUANTITIES: Final = frozenset({"requests", "limits", "overhead", "capacity", "hard", "sizeLimit", "divisor"})
"""What is below these is compared as quantities. Anywhere else "1" and "1000m" are two different strings."""

_NAMES: Final = ("name", "groupName", "mountPath", "containerPort", "port")
"""What tells the entries of a list from each other, the first by which all do; else their order does."""

_MOST_IN_FRONT: Final = 20
"""So many entries may have been put before those of a list without names."""

_MOST_DIFFERENCES: Final = 1000
"""The first of them are enough to tell, and to know again; an object can have hundreds of thousands of fields."""

_MARKS: Final = frozenset({names.NAME_LABEL, names.MCAD_NAME_LABEL, names.RESOURCE_NAME_LABEL})
"""Our marks beside those with our prefix."""

_MOST_NAMED: Final = 3
"""Fields of one object that a message names."""

_Steps: TypeAlias = tuple[object, ...]
_Found: TypeAlias = Iterator[tuple[_Steps, Any]]


def is_compared(group: str, kind: str) -> bool:
    """False of Secrets: to compare one its content would have to be read."""
    return (group, kind) != ("", "Secret")


def differences(written: Mapping[str, Any], found: Mapping[str, Any]) -> Differences:
    """How an object as the API server has it differs in the fields we own from what we wrote.

    An index in a path is that of the entry as we wrote it.
    """
    first = islice(_of_whole(written, found), _MOST_DIFFERENCES)
    return {_path(steps): there for steps, there in first}


def edited(
    written: Mapping[str, Any], found: Mapping[str, Any], made: Differences | None = None
) -> tuple[str, ...]:
    """The paths of the fields we own that were changed since the object was made, and differed as in `made`.

    None says that this is not known. Then what is missing is not told, because nobody knows whether it ever was there.
    """
    now = differences(written, found)
    if made is None:
        return tuple(path for path, there in now.items() if there is not None)
    return tuple(path for path, there in now.items() if path not in made or made[path] != there)


def message(edits: Sequence[tuple[ObjectRef, tuple[str, ...]]]) -> str:
    """One line about objects and the paths of what was changed of each; empty if nothing was."""
    return one_line("; ".join(_sentence(ref, paths) for ref, paths in edits if paths))


def _sentence(ref: ObjectRef, paths: tuple[str, ...]) -> str:
    named, more = ", ".join(paths[:_MOST_NAMED]), len(paths) - _MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    was = "was" if len(paths) == 1 else "were"
    return f"{ref.kind} {ref.namespace}/{ref.name}: {named}{others} {was} changed"


def _path(steps: _Steps) -> str:
    return reduce(joined, steps[1:], str(steps[0]))


def _of_whole(written: Mapping[str, Any], found: Mapping[str, Any]) -> _Found:
    yield from _of_marks(written.get("metadata") or {}, found.get("metadata") or {})
    for key, value in written.items():
        # By apiVersion and kind it was asked for; the status belongs to whoever runs it.
        if key not in {"apiVersion", "kind", "metadata", "status"}:
            yield from _of_value(value, found.get(key), (key,), is_quantity=False)


def _of_marks(written: Mapping[str, Any], found: Mapping[str, Any]) -> _Found:
    """Which AppWrapper owns it, and our labels and annotations: all else of the metadata is its author's to change."""
    if owned_by(written) != owned_by(found):
        yield ("metadata", "ownerReferences"), found.get("ownerReferences")
    for part in ("labels", "annotations"):
        there = found.get(part) or {}
        for key, value in (written.get(part) or {}).items():
            if _is_mark(key) and there.get(key) != value:
                yield ("metadata", part, key), there.get(key)


def _is_mark(key: str) -> bool:
    if key == names.HUB_ANNOTATION:
        return False  # a hub that has lost its database takes over what bears its old id
    return key.startswith(f"{names.PREFIX}/") or key in _MARKS


def _of_value(written: object, found: object, steps: _Steps, is_quantity: bool) -> _Found:
    if found is None:
        if not _is_nothing(written):
            yield steps, None
    elif isinstance(written, Mapping) and isinstance(found, Mapping):
        yield from _of_object(written, found, steps, is_quantity)
    elif isinstance(written, list) and isinstance(found, list):
        yield from _of_list(written, found, steps, is_quantity)
    elif isinstance(written, Mapping | list):
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
    """True of what the API server, or an operator that writes an object back, leaves out because it says nothing."""
    if isinstance(value, Mapping):
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
    by = next((key for key in _NAMES if _tells_apart(key, written)), None)
    if by is not None:
        return _of_entries(written, _counterparts(by, written, found), steps, is_quantity)
    return iter(()) if _is_within(written, found) else _of_entries(written, found, steps, is_quantity)


def _is_within(written: list[Any], found: list[Any]) -> bool:
    """True if entries were put before ours. That these have defaults besides is not looked for: it could take long."""
    most = min(len(found) - len(written), _MOST_IN_FRONT)
    return any(found[offset : offset + len(written)] == written for offset in range(1, most + 1))


def _of_entries(written: list[Any], found: list[Any], steps: _Steps, is_quantity: bool) -> _Found:
    for index, entry in enumerate(written):
        if index < len(found):
            yield from _of_value(entry, found[index], (*steps, index), is_quantity)
        else:
            yield (*steps, index), None


def _tells_apart(key: str, entries: list[Any]) -> bool:
    told: set[str | int] = set()
    for entry in entries:
        name = _name(key, entry)
        if name is None or name in told:
            return False
        told.add(name)
    return True


def _name(key: str, entry: object) -> str | int | None:
    name = entry.get(key) if isinstance(entry, Mapping) else None
    return name if isinstance(name, str | int) else None


def _counterparts(by: str, written: list[Any], found: list[Any]) -> list[Any]:
    """What is there for each entry: that of its name; else, as it may have been renamed, what stands in its place."""
    there = {_name(by, entry): entry for entry in found}
    ours = {_name(by, entry) for entry in written}
    return [
        there.get(_name(by, entry), other if _name(by, other) not in ours else None)
        for entry, other in zip(written, [*found, *[None] * len(written)], strict=False)
    ]

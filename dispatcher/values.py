"""Two decorators for structs of msgspec: one leaves fields out of comparisons, the other leaves them out of `repr`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from typing import TypeVar

from msgspec import Struct

StructT = TypeVar("StructT", bound=Struct)


def equal_without(*ignored: str) -> Callable[[type[StructT]], type[StructT]]:
    """Compare and hash the values of a frozen class without these fields; a class below it may add none."""

    def decorated(class_: type[StructT]) -> type[StructT]:
        one, other = (
            f"({''.join(f'{value}.{name}, ' for name in _others(class_, ignored))})"
            for value in ("one", "other")
        )
        # Written out, as those of a dataclass: gangs are compared often, and `attrgetter` takes twice as long.
        equal, hashed = eval(  # noqa: S307  # of names of our own fields
            f"lambda one, other: {one} == {other} if one.__class__ is other.__class__ else NotImplemented,"
            f"lambda one: hash({one})"
        )
        return _with(
            class_, __eq__=equal, __hash__=hashed, __init_subclass__=classmethod(_refuse_more_fields)
        )

    return decorated


def shown_without(*hidden: str) -> Callable[[type[StructT]], type[StructT]]:
    """Leave these fields out of `repr`, and so out of logs and messages: they hold secrets, or too much."""

    def decorated(class_: type[StructT]) -> type[StructT]:
        names = _others(class_, hidden)

        def pairs(self: StructT) -> list[tuple[str, object]]:
            return [(name, getattr(self, name)) for name in names]

        def shown(self: StructT) -> str:
            return f"{class_.__name__}({', '.join(f'{name}={value!r}' for name, value in pairs(self))})"

        # Rich, by which structlog may show a traceback, asks for the second.
        return _with(class_, __repr__=shown, __rich_repr__=pairs)

    return decorated


def _others(class_: type[Struct], names: tuple[str, ...]) -> tuple[str, ...]:
    """The other fields. A misspelt name of a secret must not show it, so all names must be those of fields."""
    unknown = set(names).difference(class_.__struct_fields__)
    if unknown:
        raise TypeError(f"{class_.__name__} has no field {', '.join(sorted(unknown))}")
    return tuple(name for name in class_.__struct_fields__ if name not in names)


def _refuse_more_fields(class_: type[Struct], /, **_: object) -> None:
    """Raise TypeError for fields that the inherited methods would not compare."""
    if get_annotations(class_):
        raise TypeError(f"{class_.__name__} adds fields, which the class above it does not compare")


def _with(class_: type[StructT], **methods: object) -> type[StructT]:
    for name, method in methods.items():
        setattr(class_, name, method)
    return class_

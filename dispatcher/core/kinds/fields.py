"""Values inside a wrapped object, with their paths.

Templates have not passed the API server: defaults are absent, and a field may be missing, null or of another type. The
readers of `Field` return a value of the right type or raise `TemplateError` with the path of the field. `template_at`
finds a template by a path that the author wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from dispatcher.api.spec_errors import quoted

LARGEST_COUNT: Final = 2**31 - 1
"""Replicas and the like are int32 in every kind."""


class TemplateError(ValueError):
    """The pods of a wrapped object cannot be derived; `path` is inside the object."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class TooManyError(TemplateError):
    """A list is longer than the dispatcher reads; the API server may take it."""


class ConstraintError(TemplateError):
    """A constraint of pods on nodes cannot be read. No declaration takes its place, unlike that of other fields.

    The API server takes some constraints that are refused here, such as a longer list of terms.
    """


class Field(NamedTuple):
    """A value inside a wrapped object, with its path for error messages; absent and null are both None.

    `key` is the last step to it, empty for the object itself and in lists. A named tuple, because a gang has a hundred.
    """

    value: object
    path: str = ""
    key: str = ""

    def at(self, path: str) -> Field:
        """Find the value at a dotted path below this one; it is None where any step is missing."""
        field = self
        for key in filter(None, path.split(".")):
            field = field.child(key)
        return field

    def each(self, path: str) -> Iterator[Field]:
        """Find the values at a dotted path, in which `*` stands for every element of a list or an object."""
        before, star, after = path.partition("*")
        start = self.at(before)
        if not star:
            yield start
            return
        for element in start.elements():
            yield from element.each(after)

    def integer(self, default: int) -> int:
        """Read a count, at least 0 and at most what Kubernetes can store."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise TemplateError(self.path, "must be a whole number")
        if not 0 <= self.value <= LARGEST_COUNT:
            raise TemplateError(self.path, f"must be between 0 and {LARGEST_COUNT}")
        return self.value

    def flag(self) -> bool:
        """Read a boolean; false if absent."""
        if self.value is None or isinstance(self.value, bool):
            return bool(self.value)
        raise TemplateError(self.path, "must be true or false")

    def text(self) -> str:
        """Read a string that can be printed: the API server checks no template, and no database takes a NUL."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            raise TemplateError(self.path, "must be a string")
        if not self.value.isprintable():
            raise TemplateError(self.path, "must have no control characters")
        return self.value

    def mapping(self) -> Mapping[str, Any]:
        """Read an object; empty if absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise TemplateError(self.path, "must be an object")
        return self.value

    def child(self, key: str) -> Field:
        """Find the value of one key, which may contain dots."""
        return Field(self.mapping().get(key), f"{self.path}.{key}" if self.path else key, key)

    def elements(self) -> Iterator[Field]:
        """Go through a list or an object; nothing if absent."""
        if isinstance(self.value, list | tuple):
            for index, value in enumerate(self.value):
                yield Field(value, f"{self.path}[{index}]")
        else:
            for key in self.mapping():
                yield Field(self.mapping()[key], _joined(self.path, key), key)

    def entries(self, most: int) -> tuple[Field, ...]:
        """Read a list of at most `most` elements; empty if absent."""
        if self.value is None:
            return ()
        if not isinstance(self.value, list | tuple):
            raise TemplateError(self.path, "must be a list")
        if len(self.value) > most:
            raise TooManyError(self.path, f"has {len(self.value)} entries, and at most {most} are taken")
        return tuple(self.elements())


_PLAIN_KEY: Final = re.compile("[A-Za-z][A-Za-z0-9_-]{0,59}")


def _joined(path: str, key: str) -> str:
    """Extend a path by a key; an odd key is escaped and cut, and stands in brackets."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{key[:60]!r}]"
    return f"{path}.{key}" if path else key


_STEP: Final = r"\.([^.\[\]]+)|\[([0-9]{1,9})\]"
_PATH: Final = re.compile(rf"template(?:{_STEP})*")


def template_at(wrapped: Mapping[str, Any], path: str) -> Field:
    """Find the pod template at a path such as `template.spec.workerGroupSpecs[0].template`.

    The leading `template` is the wrapped object itself, and the whole path for a bare Pod. Raises `TemplateError` if
    the path is malformed or has no pod template.
    """
    if not _PATH.fullmatch(path):
        raise TemplateError(path, "is no path such as template.spec.groups[0].template")
    field = Field(wrapped)
    for key, index in re.findall(_STEP, path):
        field = _step(field, key, index)
        if field.value is None:
            raise TemplateError(path, f"leads to nothing at {quoted(key or int(index))}")
    if not _is_pod_template(field):
        raise TemplateError(path, "leads to something that is no pod template with containers")
    return field


def _step(field: Field, key: str, index: str) -> Field:
    match field.value:
        case Mapping() if key:
            return field.child(key)
        case list() | tuple() if index and int(index) < len(field.value):
            return Field(field.value[int(index)], f"{field.path}[{index}]")
    return Field(None)


def _is_pod_template(field: Field) -> bool:
    match field.value:
        case {"spec": {"containers": [_, *_]}}:
            return True
    return False

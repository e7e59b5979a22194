"""Whether the schema of a CRD and the reader of its objects agree, shown by what the reader takes and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dispatcher.api.spec_errors import SpecError, joined
from tests.outside_objects import replaced

Json = dict[str, Any]
Read = Callable[[Json], object]
"""Reads a spec; raises `SpecError`."""
Steps = tuple[str | int, ...]

FORMATS: Final = {"int32": (-(2**31), 2**31 - 1)}
"""The bounds of a format, as the API server enforces them."""
WRONG: Final[Mapping[str, tuple[object, ...]]] = {
    "integer": ("1", 1.5, True, [], {}),
    "number": ("1", True, [], {}, float("inf"), float("nan")),
    "boolean": ("true", 1, [], {}),
    "string": (1, True, [], {}, "\ud800"),
    "array": ("a", 1, {"a": "b"}),
    "object": ("a", 1, ["a"]),
    "quantity": (0.5, True, [], {}),
}
"""Values of another type, by type."""


def fields(schema: Json, path: str = "spec") -> dict[str, Json]:
    """The fields of a schema by path: `[]` stands for the elements of a list, `*` for the keys of a map.

    Those that it leaves free have none below them.
    """
    found = {path: schema}
    inner = {} if schema.get("x-kubernetes-embedded-resource") else dict(schema.get("properties", {}))
    if schema.get("additionalProperties"):
        inner["*"] = schema["additionalProperties"]
    for name, field in inner.items():
        found |= fields(field, f"{path}.{name}")
    if "items" in schema:
        found |= fields(schema["items"], f"{path}[]")
    return found


def steps_to(path: str, document: object) -> Steps:
    """The steps to a field in a document that has all of them: the first element of a list or a map."""
    steps: list[str | int] = []
    for word in path.replace("[]", ".[]").split(".")[1:]:
        step: str | int = 0 if word == "[]" else word
        if word == "*":
            assert isinstance(document, dict)
            step = next(iter(document))
        assert isinstance(document, dict | list)
        document = document[step]  # type: ignore[index]
        steps.append(step)
    return tuple(steps)


def takes(read: Read, document: Json, path: str, value: object) -> bool:
    """True if the reader takes the document with this value at this path; it may only be refused there."""
    steps = steps_to(path, document)
    refusals = []
    try:
        read(replaced(document, steps, value))
    except SpecError as error:
        refusals.append(error.path)
    at = "spec"
    for step in steps:
        at = joined(at, step)
    assert all(each.startswith(at) for each in refusals), refusals
    return not refusals


def within(field: Json) -> Iterator[object]:
    """Values that the schema just takes."""
    yield from field.get("enum", [])
    yield from (bound for bound in bounds(field) if bound is not None)
    if "enum" not in field and type_of(field) == "string":
        yield from (text(field[bound]) for bound in ("minLength", "maxLength") if bound in field)


def beyond(field: Json) -> Iterator[object]:
    """Values that the schema just refuses, also those of another type."""
    low, high = bounds(field)
    if low is not None:
        yield low - 1 if isinstance(low, int) else low * 1.1
    if high is not None:
        yield high + 1 if isinstance(high, int) else high * 1.1
    if "enum" in field:
        yield from ("", "Sometimes", field["enum"][-1].swapcase(), f"{field['enum'][0]} ")
    if field.get("minLength"):
        yield ""
    if type_of(field) == "string" and "maxLength" in field:
        yield text(field["maxLength"] + 1)
    yield from WRONG[type_of(field)]


def sizes(field: Json, value: object) -> tuple[object, object]:
    """The largest list or map that the schema takes, and one of an element more, with the elements of a value."""
    if isinstance(value, dict):
        (key, each), most = next(iter(value.items())), field["maxProperties"]
        larger = {f"{key}{number}": each for number in range(most + 1)}
        return {name: each for name, each in larger.items() if name != f"{key}0"}, larger
    assert isinstance(value, list)
    one, most = value[0], field["maxItems"]
    many = [{**one, "name": f"{number}"} if "name" in one else one for number in range(most + 1)]
    return many[:-1], many


def bounds(field: Json) -> tuple[Any, Any]:
    """The least and the greatest number of a field, None where there is none."""
    if type_of(field) not in ("integer", "number"):
        return None, None
    low, high = FORMATS.get(field.get("format", ""), (None, None))
    return field.get("minimum", low), field.get("maximum", high)


def type_of(field: Json) -> str:
    """The type of a field; that of a quantity is of no JSON type."""
    return "quantity" if field.get("x-kubernetes-int-or-string") else str(field["type"])


def text(length: int) -> str:
    """A text of that many characters, which is a name, a qualified one beyond 253."""
    return "a" * length if length <= 253 else f"{'a' * (length - 64)}/{'a' * 63}"


def required(schema: Json) -> set[str]:
    """The paths of all fields that a schema requires."""
    return {f"{path}.{name}" for path, field in fields(schema).items() for name in field.get("required", [])}


class Watched(dict[str, Any]):
    """An object that notes the paths of the keys that its reader asks for, also those inside it."""

    def __init__(self, value: Json, path: str, asked: set[str]) -> None:
        super().__init__({key: watched(each, f"{path}.{key}", asked) for key, each in value.items()})
        self._path, self._asked = path, asked

    def get(self, key: str, default: object = None) -> Any:  # noqa: ANN401
        """The value of a key, which is noted."""
        self._asked.add(f"{self._path}.{key}")
        return super().get(key, default)


def watched(value: object, path: str, asked: set[str]) -> Any:  # noqa: ANN401
    """The value with all of its objects watched."""
    if isinstance(value, dict):
        return Watched(value, path, asked)
    if isinstance(value, list):
        return [watched(each, f"{path}[]", asked) for each in value]
    return value


def asked_of(read: Read, document: Json, known: Mapping[str, Json]) -> set[str]:
    """The paths of the fields that a reader asks for; the keys of maps and of free objects are not fields."""
    asked: set[str] = set()
    read(watched(document, "spec", asked))
    free = tuple(
        f"{path}."
        for path, field in known.items()
        if field.get("type") == "object" and "properties" not in field
    )
    return {path for path in asked if not path.startswith(free)}

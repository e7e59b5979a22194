"""Kubernetes objects in files: YAML with any number of documents, or JSON; lists of objects are taken apart.

The content becomes plain JSON as kubectl makes it: keys are strings, and dates stay text. Aliases are followed up to a
bound, since a few of them can stand for more values than fit in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from dispatcher.errors import InvalidManifest
from dispatcher.text import one_line

LARGEST_FILE: Final = 16 * 2**20
"""Bytes of one file; an AppWrapper is at most 256 KiB."""
MOST_VALUES: Final = 1_000_000
"""Values of one file, aliases followed."""
DEEPEST: Final = 200
"""Levels of objects and lists; a wrapped object may have 100, and Python's recursion ends below 1000."""

Json = dict[str, Any]


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML without dates, which are no JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def objects_in(name: str, content: bytes) -> list[Json]:
    """The objects of the file `name`, in their order; raises `InvalidManifest` if it cannot be read or has none."""
    if len(content) > LARGEST_FILE:
        raise _refused(name, f"is larger than {LARGEST_FILE} bytes")
    budget = _Budget()
    try:
        documents = [budget.plain(document) for document in _documents(content)]
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _refused(name, _problem(error)) from error
    found = [
        each
        for index, document in enumerate(documents)
        if document is not None
        for each in _flat(document, f"{name}: document {index + 1}")
    ]
    if not found:
        raise _refused(name, "has no Kubernetes object")
    return found


def _documents(content: bytes) -> list[object]:
    if content.lstrip().startswith(b"{"):
        try:
            return [json.loads(content)]
        except ValueError:
            pass  # YAML in flow style
    return list(yaml.load_all(content, Loader=_Loader))  # a safe loader


class _Budget:
    """Counts the values of a file while it makes them plain."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def plain(self, value: object, depth: int = 0) -> object:
        """The value as JSON; raises `ValueError` for too many or too deep values, or a value that JSON lacks."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"has more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} levels deep")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return {_key(key): self.plain(each, depth + 1) for key, each in value.items()}
            case list():
                return [self.plain(each, depth + 1) for each in value]
        raise ValueError(f"has a value that JSON lacks: a {type(value).__name__}")


def _key(key: object) -> str:
    match key:
        case str():
            return key
        case bool() | int() | float():
            return json.dumps(key)
    raise ValueError("has a key that is no text")


def _flat(document: object, place: str) -> Iterator[Json]:
    """The object, or the objects of a list such as `kubectl get -o yaml` prints."""
    if not isinstance(document, dict):
        raise InvalidManifest(f"{place}: is no Kubernetes object, but a {type(document).__name__}")
    kind, items = document.get("kind"), document.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield document
        return
    for index, item in enumerate(items):
        yield from _flat(_with_kind(item, document), f"{place}: items[{index}]")


def _with_kind(item: object, listed: Mapping[str, Any]) -> object:
    """An element of a list of one kind, such as a JobList, may leave its kind to the list."""
    kind = listed["kind"].removesuffix("List")
    if not kind or not isinstance(item, dict) or "kind" in item:
        return item
    return {"apiVersion": listed.get("apiVersion"), "kind": kind, **item}


def _problem(error: Exception) -> str:
    match error:
        case RecursionError():
            return "is nested too deeply"
        case yaml.MarkedYAMLError(problem=str(problem), problem_mark=mark) if mark is not None:
            return f"line {mark.line + 1}: {problem}"
    return str(error)


def _refused(name: str, problem: str) -> InvalidManifest:
    return InvalidManifest(one_line(f"{name}: {problem}"))

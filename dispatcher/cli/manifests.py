"""Kubernetes objects in files: YAML with any number of documents, or JSON; lists of objects are taken apart.

The content becomes plain JSON as kubectl makes it: keys are strings, and dates stay text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dispatcher.cli.documents import BoundedMerges, documents_in, refused
from dispatcher.errors import InvalidFile

Json = dict[str, Any]


class _Loader(BoundedMerges, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML without dates, which are no JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def objects_in(name: str, content: bytes) -> list[Json]:
    """The objects of the file `name`, in their order; raises `InvalidFile` if it cannot be read or has none."""
    documents = documents_in(name, content, _documents, lambda mark: f"line {mark.line + 1}")
    try:
        plain = list(map(_plain, documents))
    except ValueError as error:
        raise refused(name, str(error)) from error
    found = [
        each
        for index, document in enumerate(plain)
        if document is not None
        for each in _flat(document, f"{name}: document {index + 1}")
    ]
    if not found:
        raise refused(name, "has no Kubernetes object")
    return found


def _documents(content: bytes) -> list[object]:
    if content.lstrip().startswith(b"{"):
        try:
            return [json.loads(content, object_pairs_hook=_object)]
        except ValueError:
            pass  # YAML in flow style, or a key twice: the loader of YAML names its place
    return list(yaml.load_all(content, Loader=_Loader))  # a safe loader


def _object(pairs: list[tuple[str, object]]) -> Json:
    """The object with these keys; raises `ValueError` if it has one twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("has a key twice")
    return found


def _plain(value: object) -> object:
    """The value as JSON; raises `ValueError` for a value that JSON lacks."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {_key(key): _plain(each) for key, each in value.items()}
        case list():
            return list(map(_plain, value))
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
        raise InvalidFile(f"{place}: is no Kubernetes object, but {_in_words(document)}")
    kind, items = document.get("kind"), document.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield document
        return
    for index, item in enumerate(items):
        yield from _flat(_with_kind(item, document), f"{place}: items[{index}]")


def _in_words(value: object) -> str:
    """The type of a plain value, as JSON calls it."""
    match value:
        case list():
            return "a list"
        case str():
            return "text"
        case bool():
            return "true or false"
    return "a number"


def _with_kind(item: object, listed: Mapping[str, Any]) -> object:
    """An element of a list of one kind, such as a JobList, may leave its kind to the list."""
    kind = listed["kind"].removesuffix("List")
    if not kind or not isinstance(item, dict) or "kind" in item:
        return item
    return {"apiVersion": listed.get("apiVersion"), "kind": kind, **item}

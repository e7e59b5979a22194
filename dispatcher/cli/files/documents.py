"""Files that people write, read within bounds: YAML and JSON, Kubernetes objects, and declared kinds.

Commands take paths of files and folders, and `-` for stdin; `read_files` reads all before a command does anything. A
folder stands for its files, without those of the folders in it, as with kubectl.

A few aliases can stand for more values than fit in memory: aliases are followed only up to a bound, and so are merges
(`<<: *base`), which the parser carries out. Kubernetes objects become plain JSON as kubectl makes it: keys are strings,
and dates stay text; lists of objects are taken apart.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TypeAlias
from weakref import WeakSet

import yaml

from dispatcher.errors import InvalidFile
from dispatcher.text import one_line

if TYPE_CHECKING:
    from dispatcher.core.kinds.registry import Kinds

LARGEST_FILE: Final = 16 * 2**20
"""Bytes of one file; an AppWrapper is at most 256 KiB."""
MOST_VALUES: Final = 1_000_000
"""Values of one file, aliases followed."""
DEEPEST: Final = 200
"""Levels of objects and lists; a wrapped object may have 100, and Python's recursion ends below 1000."""

Load: TypeAlias = Callable[[bytes], Iterable[object]]
"""Parses the content of a file; raises `YAMLError` or `ValueError`."""
Place: TypeAlias = Callable[[yaml.Mark], str]
"""The words for a place in a file."""
STDIN: Final = "-"
"""The path that stands for stdin."""
NO_PODS: Final = "no object makes pods"
"""The problem of files that have no object which makes pods, so that nothing can be queued."""
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""How the names of files end that a folder stands for."""
MOST_FILES: Final = 1000
"""Files of one folder."""
_KUSTOMIZATIONS: Final = frozenset({"kustomization.yaml", "kustomization.yml", "Kustomization"})
_MERGE: Final = "tag:yaml.org,2002:merge"
_LONGEST_KEY: Final = 100
"""Characters of a key that a message repeats."""
Json = dict[str, Any]


class File(NamedTuple):
    """A file with its content, or so much of it that it is known to be too large."""

    name: str
    content: bytes


class Objects(NamedTuple):
    """A file with the Kubernetes objects in it, in their order."""

    name: str
    objects: list[Json]


class Document(NamedTuple):
    """A file with its only document, which is no Kubernetes object."""

    name: str
    document: object


def read_files(paths: Sequence[str]) -> list[File]:
    """The files that paths name, in their order; raises `InvalidFile` for one that cannot be read."""
    if paths.count(STDIN) > 1:
        raise refused(STDIN, "is there twice: stdin can be read once")
    return [_read(path) for written in paths for path in _files_of(written)]


def read_objects(paths: Sequence[str]) -> list[Objects]:
    """The files that paths name with their Kubernetes objects; raises `InvalidFile`, also for a file without any."""
    return [Objects(name, objects_in(name, content)) for name, content in read_files(paths)]


def _files_of(written: str) -> list[str]:
    """The paths of the files that a path stands for: those of a folder in the order of their names."""
    folder = Path(written)
    if written == STDIN or not folder.is_dir():
        return [written]
    try:
        names = sorted(each.name for each in folder.iterdir() if each.is_file())
    except OSError as error:
        raise refused(written, error.strerror or str(error)) from error
    if not _KUSTOMIZATIONS.isdisjoint(names):
        raise refused(
            written,
            f"has a kustomization: pipe kubectl kustomize {written} into the command, and give - instead",
        )
    found = [str(folder / name) for name in names if name.endswith(SUFFIXES)]
    if not found:
        raise refused(written, f"has no file that ends with {', '.join(SUFFIXES)}")
    if len(found) > MOST_FILES:
        raise refused(written, f"has {len(found)} files; at most {MOST_FILES} are read")
    return found


def _read(path: str) -> File:
    if path == STDIN:
        return File("<stdin>", sys.stdin.buffer.read(LARGEST_FILE + 1))
    try:
        with Path(path).open("rb") as file:
            return File(path, file.read(LARGEST_FILE + 1))
    except OSError as error:
        raise refused(path, error.strerror or str(error)) from error


def read_document(name: str, opened: BinaryIO | None = None) -> object:
    """The only document of the file `name`, read from `opened` if that is given; raises `InvalidFile`."""
    try:
        with Path(name).open("rb") if opened is None else nullcontext(opened) as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise refused(name, error.strerror or str(error)) from error
    [document] = documents_in(
        name,
        content,
        lambda written: [yaml.load(written, Loader=Loader)],  # noqa: S506  # a safe loader
        lambda mark: f"line {mark.line + 1}, column {mark.column + 1}",
    )
    return document


def documents_in(name: str, content: bytes, load: Load, place: Place) -> list[object]:
    """The documents of the file `name`, in their order; raises `InvalidFile` beyond a bound or if `load` raises.

    A reader of a large file can stop after `LARGEST_FILE` + 1 bytes. Values may share parts, as aliases do.
    """
    if len(content) > LARGEST_FILE:
        raise refused(name, f"is larger than {LARGEST_FILE} bytes")
    budget = _Budget()
    try:
        documents = list(load(content))
        for document in documents:
            budget.spend(document)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise refused(name, _problem(error, place)) from error
    return documents


def refused(name: str, problem: str) -> InvalidFile:
    """The error for a problem in the file `name`, in one line."""
    return InvalidFile(one_line(f"{name}: {problem}"))


class BoundedMerges(yaml.constructor.SafeConstructor):
    """Makes a loader of YAML refuse keys that an object has twice, and more than `MOST_VALUES` keys.

    It raises `YAMLError` or `ValueError`. Merged keys are counted again.
    """

    _keys = 0
    _flattened: WeakSet[yaml.MappingNode] | None = None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges keys into an object; PyYAML calls this for each object, and for each that is merged into it."""
        if self._flattened is None:
            self._flattened = WeakSet()
        if node not in self._flattened:  # else merged keys were added, which its own keys may repeat
            self._flattened.add(node)
            _check_keys(node)
        super().flatten_mapping(node)
        self._keys += len(node.value)
        if self._keys > MOST_VALUES:
            raise ValueError(f"has more than {MOST_VALUES} values")


def _check_keys(node: yaml.MappingNode) -> None:
    """Raises `YAMLError` if an object has a key twice: the parser would silently take the last."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if (key.tag, key.value) in seen:
            problem = f"the key {one_line(repr(key.value), _LONGEST_KEY)} is there twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        seen.add((key.tag, key.value))


class Loader(BoundedMerges, yaml.SafeLoader):
    """PyYAML's safe loader with bounded merges."""


class _Budget:
    """Counts the values of a file."""

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def spend(self, value: object, depth: int = 0) -> None:
        """Counts a value and everything in it; raises `ValueError` for too many or too deep values."""
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"has more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise ValueError(f"is nested more than {DEEPEST} levels deep")
        for each in _elements(value):
            self.spend(each, depth + 1)


def _elements(value: object) -> Iterable[object]:
    match value:
        case dict():
            return value.values()
        case list() | tuple():
            return value
    return ()


def _problem(error: Exception, place: Place) -> str:
    match error:
        case RecursionError():
            return "is nested too deeply"
        case yaml.reader.ReaderError(reason=reason, position=position):
            return f"is no text in YAML or JSON: {reason}, at position {position}"
        case yaml.MarkedYAMLError(problem=str(problem), problem_mark=mark) if mark is not None:
            return f"{place(mark)}: {problem}"
    return str(error)


class _Loader(BoundedMerges, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML without dates, which are no JSON."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def objects_in(name: str, content: bytes) -> list[Json]:
    """The objects of the file `name`, in their order; raises `InvalidFile` if it cannot be read or has none."""
    return _objects_of(name, _json_in(name, content) or _yaml_in(name, content))


def read_either(file: File) -> Objects | Document:
    """The Kubernetes objects of a file if one of its documents has a `kind`, else its only document.

    Raises `InvalidFile`.
    """
    name, content = file
    as_json = _json_in(name, content)
    try:
        documents = as_json or _yaml_in(name, content)
    except InvalidFile:
        documents = []  # `read_document` raises as well, and names the column
    if any(isinstance(each, dict) and "kind" in each for each in documents):
        return Objects(name, _objects_of(name, documents))
    if len(as_json) == 1:
        return Document(name, as_json[0])
    return Document(name, read_document(name, BytesIO(content)))


def _json_in(name: str, content: bytes) -> list[object]:
    """The documents of a file of JSON objects, one after the other; none if it is another file."""
    return documents_in(name, content, _json, str)


def _yaml_in(name: str, content: bytes) -> list[object]:
    return documents_in(name, content, _yaml, lambda mark: f"line {mark.line + 1}")


def _objects_of(name: str, documents: Iterable[object]) -> list[Json]:
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


def _json(content: bytes) -> list[object]:
    if not content.lstrip().startswith(b"{"):
        return []
    found: list[object] = []
    try:
        text = content.decode()
        end = _end_of_blank(text, 0)
        while end < len(text) and len(found) <= MOST_VALUES:
            value, end = _JSON.raw_decode(text, end)
            found.append(value)
            end = _end_of_blank(text, end)
    except ValueError:
        return []  # YAML in flow style, or a key twice: the loader of YAML names its place
    return found


def _end_of_blank(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return start if blank is None else blank.end()


def _yaml(content: bytes) -> Iterable[object]:
    return yaml.load_all(content, Loader=_Loader)  # a safe loader


def _object(pairs: list[tuple[str, object]]) -> Json:
    """The object with these keys; raises `ValueError` if it has one twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("has a key twice")
    return found


_JSON: Final = json.JSONDecoder(object_pairs_hook=_object)
_BLANK: Final = re.compile(r"[ \t\n\r]*")


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


def read_kinds(file: str) -> Kinds:
    """The registry with the kinds that a file declares; the built-in kinds alone if `file` is empty.

    Raises `InvalidFile`, with one line that names the file and the place.
    """
    # Imported here, because most files have no kinds.
    from dispatcher.api.document import Entry
    from dispatcher.api.spec_errors import SpecError
    from dispatcher.core.kinds.declaration import read_declarations
    from dispatcher.core.kinds.registry import BUILT_IN, Kinds

    if not file:
        return BUILT_IN
    try:
        return Kinds(read_declarations(Entry(read_document(file), "")))
    except SpecError as error:
        raise refused(file, str(error)) from error

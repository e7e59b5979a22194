"""The reader of documents that people write, as a YAML or JSON parser returns them.

An `Entry` is a value of the document with its place. Each of its methods reads one type, and raises `SpecError` at
that place. A null counts as an absent value. Files are read strictly: `check_keys` refuses an unknown key, and a key
that begins with `x-` is ignored. In objects of an API server an unknown key is ignored, and every key of a map counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final, NoReturn

from msgspec import Struct

from dispatcher.api.selector import Selector, parse_selector
from dispatcher.api.spec_errors import SpecError, joined, one_line, quoted
from dispatcher.api.syntax import LONGEST_SUBDOMAIN, is_qualified_name

DOCUMENT: Final = "document"
"""The place of an error about the whole document."""

MOST_RESOURCES: Final = 64
"""Names of resources in one map or list of an operator."""
LONGEST_NAME: Final = 316
"""Characters of a qualified name, with its prefix."""
LARGEST_INTEGER: Final = 2**31 - 1
LARGEST_NUMBER: Final = 1e300
_DECIMAL: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
_NO_RESOURCE: Final = "is not a resource name such as cpu, memory or nvidia.com/gpu"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
LONGEST_SPAN: Final = 10**10
"""Seconds; three centuries."""


class Entry(Struct, frozen=True):
    """A value of the document with its place. Each method reads one type, and fails at that place.

    `step` is the last step to the value: its key or index in the entry `above`, or the path of the whole document. The
    path is put together only for an error, because most values are right.
    """

    value: Any
    step: str | int = ""
    above: Entry | None = None

    @property
    def path(self) -> str:
        """The path of the value; empty for a document without one."""
        steps: list[str | int] = []
        entry = self
        while entry.above is not None:
            steps.append(entry.step)
            entry = entry.above
        path = str(entry.step)
        for step in reversed(steps):
            path = joined(path, step).removeprefix(".")
        return path

    def fail(self, problem: str, remedy: str = "") -> NoReturn:
        """Raise `SpecError` at the path of the value."""
        raise SpecError(self.path or DOCUMENT, one_line(problem), remedy)

    def child(self, key: str) -> Entry:
        """The value of a key; absent if there is no such key."""
        value = self.value
        return Entry((value if type(value) is dict else self._mapping()).get(key), key, self)

    def fields(self) -> list[str]:
        """The keys that count in a file."""
        return [key for key in self._texts() if not key.startswith("x-")]

    def children(self) -> list[Entry]:
        """The values of all keys that count in a file."""
        return [self.child(key) for key in self.fields()]

    def required(self, remedy: str = "") -> Entry:
        """The entry itself; fails if the value is absent."""
        if self.value is None:
            self.fail("is required", remedy)
        return self

    def object(self) -> Entry:
        """The entry itself; fails if the value is no object."""
        if not isinstance(self.value, dict | Mapping):
            self.fail(f"must be an object, not {quoted(self.value)}")
        return self

    def check_keys(self, known: Collection[str]) -> None:
        """Fails if the value is no object, or has an unknown key."""
        self.object()
        for each in self._texts():
            if each not in known and not each.startswith("x-"):
                self.child(each).fail(f"is unknown here; known are {', '.join(known)}")

    def elements(self, most: int = LARGEST_INTEGER) -> list[Entry]:
        """The elements of a list, at most `most`; none if it is absent."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self.fail(f"must be a list, not {quoted(self.value)}")
        self._check_size(most)
        return [Entry(value, index, self) for index, value in enumerate(self.value)]

    def unique_elements(self, names: set[str], most: int = LARGEST_INTEGER) -> Iterator[Entry]:
        """The elements of a list of named objects; each name is added to `names` and may not be there before."""
        for entry in self.elements(most):
            name = entry.object().child("name")
            if name.name() in names:
                name.fail(f"{quoted(name.value)} names another one, too")
            names.add(name.name())
            yield entry

    def name(self) -> str:
        """A text that is not empty."""
        self.required()
        if not self.text() or len(self.text()) > LONGEST_SUBDOMAIN:
            self.fail(f"must have 1 to {LONGEST_SUBDOMAIN} characters")
        return self.text()

    def text(self) -> str:
        """A printable text; empty if absent."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str) or not self.value.isprintable():
            self.fail(f"must be a text, not {quoted(self.value)}")
        return self.value

    def any_text(self, longest: int = LARGEST_INTEGER) -> str:
        """A text of at most so many characters, printable or not; empty if absent."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            self.fail(f"must be a text, not {quoted(self.value)}")
        if len(self.value) > longest:
            self.fail(f"must have at most {longest} characters, not {len(self.value)}")
        if not self.value.isascii() and _SURROGATE.search(self.value):
            self.fail("must be valid text")
        return self.value

    def texts(self, most: int = LARGEST_INTEGER, longest: int = LARGEST_INTEGER) -> dict[str, str]:
        """Texts by name, printable or not; every name counts."""
        self._check_size(most)
        return {key: self.child(key).any_text(longest) for key in self._texts()}

    def mapping(self) -> Mapping[str, Any]:
        """An object as written; empty if absent."""
        self._texts()
        return self._mapping()

    def quantities(self, most: int = LARGEST_INTEGER) -> dict[str, int | str]:
        """Quantities as written, by the name of their resource; every name counts, and no quantity is parsed."""
        self._check_size(most)
        found = dict(self.mapping())
        for key, value in found.items():
            if not is_qualified_name(key):
                self.child(key).fail(_NO_RESOURCE, "Correct the name")
            if isinstance(value, float):  # YAML's 0.5 without quotes
                self.child(key).fail(f"{quoted(value)} must be in quotes", f'Write "{quoted(value)}"')
            if isinstance(value, bool) or not isinstance(value, int | str):
                self.child(key).fail(f'must be a quantity such as 2, "500m" or "16Gi", not {quoted(value)}')
        return found

    def resource_name(self) -> str:
        """The name of a resource: the API server accepts any text, also with a NUL."""
        name = self.any_text(LONGEST_NAME)
        if not is_qualified_name(name):
            self.fail(f"{_NO_RESOURCE}: {quoted(name)}", "Correct the name")
        return name

    def one_of(self, allowed: Collection[str], default: str | None = None) -> str:
        """One of these texts; without a default it is required."""
        if self.value is None and default is not None:
            return default
        if self.value not in allowed:
            self.fail(f"must be one of {', '.join(filter(None, allowed))}, not {quoted(self.value)}")
        return self.text()

    def flag(self) -> bool:
        """A boolean; false if absent."""
        if self.value is not None and not isinstance(self.value, bool):
            self.fail(f"must be true or false, not {quoted(self.value)}")
        return bool(self.value)

    def integer(self, default: int, least: int = 0, most: int = LARGEST_INTEGER) -> int:
        """A whole number within these bounds."""
        if self.value is None:
            return default
        is_integer = isinstance(self.value, int) and not isinstance(self.value, bool)
        if not is_integer or not least <= self.value <= most:
            self.fail(f"must be a whole number from {least} to {most}, not {quoted(self.value)}")
        return int(self.value)

    def number(self, most: float = LARGEST_NUMBER) -> float:
        """A finite number, of either sign and at most so large; 0 if absent."""
        if self.value is None:
            return 0.0
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.fail(f"must be a number, not {quoted(self.value)}")
        if not -most <= self.value <= most:
            bounds = "a finite number" if most == LARGEST_NUMBER else f"a number from {-most:g} to {most:g}"
            self.fail(f"must be {bounds}, not {quoted(self.value)}")
        return float(self.value)

    def seconds(self) -> timedelta:
        """A duration in seconds; 0 if absent."""
        number = self.number()
        if not 0 <= number <= LONGEST_SPAN:
            self.fail(f"must be seconds from 0 to {LONGEST_SPAN}, not {quoted(self.value)}")
        return timedelta(seconds=number)

    def decimal(self, default: Fraction) -> Fraction:
        """An exact decimal number of 0 or more, as a text or a number."""
        if self.value is None:
            return default
        written = str(self.value)
        is_written = isinstance(self.value, str | int | float) and not isinstance(self.value, bool)
        if not is_written or not _DECIMAL.fullmatch(written):
            self.fail(f"must be a decimal number of at least 0, not {quoted(self.value)}")
        return Fraction(written)

    def labels(self, most: int = LARGEST_INTEGER) -> dict[str, str]:
        """Printable texts of a file, by name."""
        self._check_size(most)
        return {each: self.child(each).text() for each in self.fields()}

    def selector(self) -> Selector:
        """A label selector; it selects everything if absent."""
        return parse_selector(self.text(), self.path)

    def _check_size(self, most: int) -> None:
        """Fails at a list or an object with more elements than that, before any is read."""
        if isinstance(self.value, list | dict) and len(self.value) > most:
            self.fail(f"has {len(self.value)} entries; at most {most} are allowed")

    def _mapping(self) -> Mapping[str, Any]:
        if self.value is None:
            return {}
        # `dict` comes first because it is what parsers return, and the check of an abstract class is slow.
        if not isinstance(self.value, dict | Mapping):
            self.fail(f"must be an object, not {quoted(self.value)}")
        return self.value

    def _texts(self) -> list[str]:
        """The keys of an object, all of them texts."""
        keys = list(self._mapping())
        for each in keys:
            if not isinstance(each, str):
                self.fail(f"has the key {quoted(each)}, which is no text")
        return keys


def read_setting(text: str) -> Entry:
    """The object that a setting is in JSON. Raises `SpecError`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(DOCUMENT, f"is not JSON: {error}") from error
    return Entry(document).object()

"""Label selectors over MemberClusters, as users write them in an annotation.

The grammar is that of `kubectl get --selector`, without its comparisons of numbers: requirements separated by commas,
``a=b``, ``a==b``, ``a!=b``, ``a in (b,c)``, ``a notin (b,c)``, ``a``, ``!a``. White space between words has no meaning,
and the empty text selects everything. As everywhere in Kubernetes, a cluster without the label ``a`` satisfies ``a!=b``
and ``a notin (b)``.

Any user can write an annotation of 256 kB, so a long text is refused unread, and the parser reads from left to right,
once.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, NoReturn

from msgspec import Struct

from dispatcher.api.spec_errors import SpecError, joined, quoted
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name

LONGEST_SELECTOR: Final = 4096
"""Characters; room for the names of sixty clusters of the longest kind."""

_REMEDY: Final = "Write requirements such as a=b, c!=d, e in (x,y), f notin (z), g or !h, separated by commas"
_TOKEN: Final = re.compile(r"[ \t\r\n]++|(?P<word>[^ \t\r\n=!(),]++)|(?P<symbol>==|!=|[=!(),])")
_VALUE: Final = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


class SelectorOperator(StrEnum):
    """The operators of a label selector in text form, without those on numbers.

    Source: https://github.com/kubernetes/apimachinery/blob/master/pkg/selection/operator.go
    """

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"


class Requirement(Struct, frozen=True):
    """A condition on one label; ``values`` are the operands of IN and NOT_IN."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """The requirement in the selector's grammar."""
        match self.operator:
            case SelectorOperator.EXISTS:
                return self.key
            case SelectorOperator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case SelectorOperator.IN | SelectorOperator.NOT_IN:
                return f"{self.key} {self.operator} ({', '.join(sorted(self.values))})"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy the requirement."""
        match self.operator:
            case SelectorOperator.IN:
                return self.key in labels and labels[self.key] in self.values
            case SelectorOperator.NOT_IN:
                return self.key not in labels or labels[self.key] not in self.values
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class Selector(Struct, frozen=True):
    """Requirements that all must hold; without requirements the selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    def unmet(self, labels: Mapping[str, str]) -> list[Requirement]:
        """The requirements that the labels do not satisfy, in their order."""
        return [requirement for requirement in self.requirements if not requirement.matches(labels)]


EVERYTHING: Final = Selector()


def selector_of(annotations: Mapping[str, str], key: str) -> Selector:
    """The selector in annotation `key`; everything without one. Raises `SpecError` if it is invalid."""
    return parse_selector(annotations.get(key, ""), joined("metadata.annotations", key))


def parse_selector(text: str, path: str) -> Selector:
    """Parse the selector that stands at `path`; raises `SpecError` with the position of an error."""
    if len(text) > LONGEST_SELECTOR:
        problem = f"is {len(text)} characters long, of {LONGEST_SELECTOR} at most"
        raise SpecError(path, problem, "Label the clusters so that a short selector finds them")
    return _Reader(text, path).selector()


def stored_selector(written: str) -> Selector:
    """The selector that `str` wrote, however long: `a notin (b)` is longer than the `a!=b` that was within the bound.

    Raises `SpecError` for a text that `str` writes of no selector.
    """
    return _Reader(written, "selector").selector()


class _Token(NamedTuple):
    text: str
    at: int
    is_word: bool


class _Reader:
    """Reads a text from left to right, with one token of lookahead."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._tokens = _tokens(text)
        self._end = _Token("", len(text), is_word=False)
        self._now = next(self._tokens, self._end)

    def selector(self) -> Selector:
        if self._now is self._end:
            return EVERYTHING
        requirements = [self._requirement()]
        while self._now is not self._end:
            self._take(",")
            requirements.append(self._requirement())
        return Selector(tuple(requirements))

    def _requirement(self) -> Requirement:
        if self._has("!"):
            return Requirement(self._key(), SelectorOperator.DOES_NOT_EXIST)
        key = self._key()
        if self._has("=") or self._has("=="):
            return Requirement(key, SelectorOperator.IN, frozenset({self._value()}))
        if self._has("!="):
            return Requirement(key, SelectorOperator.NOT_IN, frozenset({self._value()}))
        for operator in (SelectorOperator.IN, SelectorOperator.NOT_IN):
            if self._has(operator):
                return Requirement(key, operator, self._values())
        return Requirement(key, SelectorOperator.EXISTS)

    def _values(self) -> frozenset[str]:
        self._take("(")
        values = {self._value()}
        while not self._has(")"):
            self._take(",")
            values.add(self._value())
        return frozenset(values)

    def _key(self) -> str:
        if not self._now.is_word:
            self._refuse("expected a label")
        if not is_qualified_name(self._now.text):
            self._refuse("expected a label such as region or example.com/region")
        return self._next().text

    def _value(self) -> str:
        """The next value; empty if none is written."""
        if not self._now.is_word:
            return ""
        if len(self._now.text) > LONGEST_LABEL or not _VALUE.fullmatch(self._now.text):
            self._refuse(f"expected at most {LONGEST_LABEL} letters, digits, '-', '_' and '.'")
        return self._next().text

    def _take(self, symbol: str) -> None:
        if not self._has(symbol):
            self._refuse(f"expected {quoted(symbol)}")

    def _has(self, text: str) -> bool:
        """True if the next token is `text`; consumes it."""
        found = self._now.text == text
        if found:
            self._next()
        return found

    def _next(self) -> _Token:
        passed, self._now = self._now, next(self._tokens, self._end)
        return passed

    def _refuse(self, expectation: str) -> NoReturn:
        found = quoted(self._now.text) if self._now.text else "the end"
        problem = f"is no label selector: at character {self._now.at + 1}, {expectation}, not {found}"
        raise SpecError(self._path, problem, _REMEDY)


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup:
            yield _Token(match[0], match.start(), match.lastgroup == "word")

"""Values from outside, made safe for every place that they are used in: a log, a status, a column of text or JSON.

API servers, kubelets, TLS libraries and users write what they like: a NUL, which Postgres holds in no column, half of
a surrogate pair, which is no UTF-8, a line break, a mark that turns the reading direction, a megabyte. Each adapter
passes such text through here where it enters, so nothing behind the adapters has to think of it. A field of foreign
JSON that has another type than it should have counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

LONGEST_MESSAGE: Final = 4096
"""Characters of a message that are kept, in UTF-8 at most four bytes each. The status takes 32768 bytes of one, but
nobody reads that much."""

LONGEST_NAME: Final = 253
"""Characters of a name that are kept; Kubernetes has no longer ones."""


def one_line(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Return a text of any origin as one printable line of at most `longest` characters.

    API servers quote what they refuse, whatever its size and with any control characters in it: those are shown as
    escapes. Of a long text both ends are kept: the first says what is meant, the last what is wrong with it. A line
    that is printable and short is returned as it is, so a second call changes nothing.
    """
    if len(text) > 2 * longest:
        text = text[:longest] + text[-longest:]  # what follows must not cost more than what is kept
    if not text.isprintable():
        text = "".join(map(_escaped, text))
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def text_of(value: object, longest: int = LONGEST_MESSAGE) -> str:
    """Return what a field of foreign JSON says in one printable line; nothing if it is no text."""
    return one_line(value, longest) if isinstance(value, str) else ""


def name_of(value: object) -> str:
    """Return a name in foreign JSON (of an object, a kind, a label) in one printable line; nothing if it is no text."""
    return text_of(value, LONGEST_NAME)


def printable(text: str) -> str:
    """Return a text with an escape in the place of each character that is neither printable nor a line break."""
    if text.isprintable():
        return text
    return "\n".join(
        line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n")
    )


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, such as `1 pod` or `2 pods`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def mapping_of(value: object) -> Mapping[str, Any]:
    """The value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: object) -> Iterator[dict[str, Any]]:
    """The objects of a list; none if the value is no list."""
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def texts_of(value: object) -> dict[str, str]:
    """The entries of an object whose values are texts; none if the value is no object."""
    return {key: each for key, each in mapping_of(value).items() if isinstance(each, str)}


def first_keys(written: Mapping[str, Any], preferred: Iterable[str], most: int) -> Iterator[str]:
    """At most `most` keys: the preferred ones that are there, then others as written, which an API server sorts."""
    there = [key for key in preferred if key in written]
    others = (key for key in written if key not in there)
    yield from there
    yield from islice(others, max(0, most - len(there)))

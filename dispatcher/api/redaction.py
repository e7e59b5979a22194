"""Removes the values of fields, which may be secrets, from error messages of API servers.

An error message is stored, logged and shown in a status, and more people read it than the object. So of each error
about a field the path, the kind of error and the rule stay, and the value is hidden wherever the message repeats it.
Other messages are of known kinds or are cut short: the words of a webhook or a policy are its author's.

Source: https://github.com/kubernetes/apimachinery/blob/master/pkg/util/validation/field/errors.go (ErrorBody)
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "(not shown)"
LONGEST_FREE_TEXT: Final = 512
"""Characters kept of a message from a webhook or a policy; its author is trusted to quote no secrets."""
LONGEST_DETAIL: Final = 1024
SHORTEST_REPEATED: Final = 3
"""Shortest value that is hidden elsewhere in the message; shorter values occur in every sentence."""

_FIELD_ERROR: Final = re.compile(r"\b(Invalid value|Unsupported value|Duplicate value|Not found|Too many): ")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')
_PLAIN: Final = re.compile(r"[-+.\w]+(?=: |, |\]|$)")
_SENTENCE: Final = re.compile(r"[A-Za-z][\w'-]* [A-Za-z]")
"""The begin of a rule without a value: for rules of a CRD the API server leaves the value out itself."""
_OPENING: Final = {"{": "}", "[": "]", "(": ")"}
_DENIED: Final = re.compile(r"\bdenied (?:the )?request: ")
_UNDECODED: Final = re.compile(
    r"\bcannot be handled as an? \w+: |\berror decoding [^:]*: |\bunable to decode[^:]*: "
)
_KNOWN_DECODING: Final = re.compile(
    r'(?:strict decoding error: )?(?:(?:unknown|duplicate) field "[^"]{1,253}"(?:, |$))+'
    r"|json: cannot unmarshal \w+ into Go (?:struct field|value) ?[\w.\[\]/*]* of type [\w.\[\]/*]+"
    r"|illegal base64 data at input byte \d+"
    r"|quantities must match the regular expression .*"
)
_CONTEXT: Final = re.compile(r"error found in #\d+ byte of .*", re.DOTALL)


def without_values(message: str) -> str:
    """The message of an API server without values of fields; accepts any text."""
    message = _CONTEXT.sub(f"error found {HIDDEN}", message)
    denied = _DENIED.search(message)
    if denied:
        return message[: denied.end()] + _cut(message[denied.end() :], LONGEST_FREE_TEXT)
    undecoded = _UNDECODED.search(message)
    if undecoded:
        cause = message[undecoded.end() :]
        return message[: undecoded.end()] + (cause if _KNOWN_DECODING.fullmatch(cause) else HIDDEN)
    return _without_bad_values(message)


def _without_bad_values(message: str) -> str:
    parts, values, place = list[str](), set[str](), 0
    for error in _FIELD_ERROR.finditer(message):
        if error.start() < place:
            continue  # inside a value
        if _SENTENCE.match(message, error.end()):
            continue
        end = _end_of_value(message, error.end())
        values.add(message[error.end() : end])
        parts += (message[place : error.start()], error[1], f" {HIDDEN}")
        place = end
    parts.append(message[place:])
    if not values:
        return message
    return _cut(_without(values, "".join(parts)), LONGEST_DETAIL)


def _end_of_value(message: str, start: int) -> int:
    """The end of a value in Go's notation; the end of the message if the value's end is unclear."""
    string = _STRING.match(message, start) or _PLAIN.match(message, start)
    if string:
        return string.end()
    closing: list[str] = []
    place = start
    while place < len(message):
        character = message[place]
        quoted = _STRING.match(message, place) if character == '"' else None
        if quoted:
            place = quoted.end()
            continue
        if closing and character == closing[-1]:
            closing.pop()
            # A type has brackets, too: []string{…}, map[string]string{…}.
            if not closing and re.match(r": |, |\]|$", message[place + 1 :]):
                return place + 1
        elif character in _OPENING:
            closing.append(_OPENING[character])
        place += 1
    return len(message)


def _without(values: set[str], text: str) -> str:
    """The text without the values, also where the rule repeats them, quoted or bare."""
    bare = {value.strip('"') for value in values}
    for value in sorted(values | bare, key=len, reverse=True):
        if len(value) >= SHORTEST_REPEATED and not _is_word_of_ours(value):
            text = text.replace(value, HIDDEN)
    return text


def _is_word_of_ours(value: str) -> bool:
    """True if the API server itself wrote the type it found in place of the value."""
    return value.strip('"') in _TYPES


_TYPES: Final = frozenset(
    {"string", "integer", "number", "boolean", "object", "array", "null", "true", "false"}
)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"

"""The words for a value of the command line that is wrong, instead of those of the library that checked it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final[Mapping[str, str]] = {
    "int_parsing": "{value!r} is no whole number",
    "int_parsing_size": "{value!r} is no whole number that fits 64 bits",
    "float_parsing": "{value!r} is no number",
    "greater_than_equal": "{value} is too small: the least is {ge}",
    "less_than_equal": "{value} is too large: the most is {le}",
}
"""The sentence for each kind of error, by its type in pydantic; the bound is in the error's context."""
_BOUNDS: Final = frozenset({"ge", "le"})


def in_words(error: Exception) -> str | None:
    """The reason for which typer refused a value; None if the message of the error is in plain words already."""
    cause: Any = error.__cause__
    for found in cause.errors(include_url=False)[:1] if hasattr(cause, "errors") else ():
        bounds = {name: f"{each:.10g}" for name, each in found.get("ctx", {}).items() if name in _BOUNDS}
        words = _WORDS.get(found["type"])
        return words and words.format(value=found["input"], **bounds)
    return None

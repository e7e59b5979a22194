"""Values as JSON and back, as the database and the snapshots keep them: one form for every struct, its fields by name.

Amounts are exact integers of any size. Members and tenants never write this form: what they write is checked by the
readers of their documents. A document that is damaged is refused with a `ValueError`, but amounts are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import json

from dispatcher.core.model.resources import Resources

_Value = TypeVar("_Value")


def dump(value: object) -> bytes:
    """The document of a value. Raises ValueError for text that UTF-8 cannot hold, TypeError for other than values."""
    return _ENCODER.encode(value)


def load(document: bytes, type_: type[_Value]) -> _Value:
    """The value of that type that a document holds; unknown fields are passed over. Raises ValueError."""
    try:
        found: _Value = _decoder(type_).decode(document)  # type: ignore[arg-type]  # a type has a hash
    except RecursionError as error:
        raise ValueError("the document is nested too deeply") from error
    return found


@cache
def _decoder(type_: Any) -> json.Decoder[Any]:  # noqa: ANN401  # any type
    return json.Decoder(type_, dec_hook=_read)


def _plain(value: object) -> object:
    match value:
        case Resources():
            return dict(value.items())
        case Mapping():
            return dict(value)
        case Fraction():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no stored form")


def _read(type_: type, written: Any) -> object:  # noqa: ANN401  # any JSON
    if type_ is Resources and type(written) is dict:
        return Resources(written)
    if type_ is Fraction and type(written) is str:
        return _fraction(written)
    if type_ is object:
        return written
    raise ValueError(f"no {type_.__name__}")


def _fraction(written: str) -> Fraction:
    try:
        return Fraction(written)
    except ZeroDivisionError as error:
        raise ValueError("a fraction of nothing") from error


_ENCODER: Final = json.Encoder(enc_hook=_plain)

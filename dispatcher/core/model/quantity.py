"""Kubernetes quantities as exact integers of base units (milli for `cpu`, else the resource's own unit).

The grammar is apimachinery's: a decimal number, then nothing, one of `n u m k M G T P E`, one of
`Ki Mi Gi Ti Pi Ei`, or an exponent (`1E` is exa, `1E3` is a thousand). Two things are refused here that
the API server takes: what does not fit 63 bits (it caps silently, and a capped demand is a wrong one), and
exponents no resource can need (they would cost memory before they could be found too large).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dispatcher.api.document import Entry
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources

LONGEST_QUANTITY: Final = 64
"""Characters; the longest sensible one has 20 digits, and longer ones would only fill the cache."""

LARGEST_EXPONENT: Final = 99

ALLOWED: Final = "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi"

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class QuantityError(ValueError):
    """A quantity or the name of a resource is malformed or out of range; the message says what is allowed."""


def parse_quantity(value: object) -> Fraction:
    """Return the exact value of a quantity in the resource's own unit, sign included.

    Numbers are taken as YAML and JSON give them; a float means what it prints as, so `0.1` is a tenth.
    """
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(f"a {type(value).__name__} is not a quantity; {ALLOWED}")
    return Fraction(value) if isinstance(value, int) else _parse_text(repr(value))


def amount(resource: str, value: object) -> int:
    """Return the quantity in base units of `resource`, rounded up as the API server rounds."""
    check_resource_name(resource)
    try:
        if type(value) is str and len(value) <= LONGEST_QUANTITY:
            return _amount_of_text(value, resource == "cpu")
        return _in_base_units(value, resource == "cpu")
    except QuantityError as error:
        raise QuantityError(f"{resource}: {error}") from error


def resource_amounts(quantities: Mapping[str, object]) -> Resources:
    """Read a Kubernetes ResourceList (a node's allocatable, say) in base units."""
    return Resources({name: amount(name, value) for name, value in quantities.items()})


def amount_in(entry: Entry, resource: str) -> int | None:
    """The quantity of a resource in a document, in base units; None if absent. Raises `SpecError` at its place."""
    if entry.value is None:
        return None
    try:
        return amount(resource, entry.value)
    except QuantityError as error:
        entry.fail(str(error).removeprefix(f"{resource}: "))


def amounts_in(entry: Entry) -> Resources:
    """The quantities of a document by resource, in base units. Raises `SpecError` at the place of one."""
    found = {key: amount_in(entry.child(key), key) for key in entry.fields()}
    return Resources({key: value for key, value in found.items() if value is not None})


def check_resource_name(name: object) -> None:
    """Raises `QuantityError` for a name that Kubernetes does not allow, unlike `cpu` or `nvidia.com/gpu`.

    The API server does not check names inside a custom resource, and Postgres cannot store some of them (NUL).
    """
    if not (isinstance(name, str) and is_qualified_name(name)):
        raise QuantityError(
            f"{_shown(name)} is not a resource name; allowed are names like cpu or nvidia.com/gpu "
            f"(an optional DNS prefix, then at most {LONGEST_LABEL} of letters, digits, '-', '_' and '.')"
        )


def _parse_text(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= LONGEST_QUANTITY else None
    if match is None or not (match["whole"] or match["part"]):
        raise QuantityError(f"{_shown(text)} is not a quantity; {ALLOWED}")
    part = match["part"] or ""
    number = Fraction(int(match["whole"] + part), 10 ** len(part)) * _multiplier(match)
    return -number if match["sign"] == "-" else number


def _multiplier(match: re.Match[str]) -> Fraction | int:
    if match["exponent"] is not None:
        exponent = int(match["exponent"])
        if abs(exponent) > LARGEST_EXPONENT:
            raise QuantityError(f"{_shown(match.string)} has an exponent beyond {LARGEST_EXPONENT}")
        return Fraction(10) ** exponent
    suffix = match["suffix"] or ""
    if suffix in _BINARY:
        return 1 << _BINARY[suffix]
    return Fraction(10) ** _DECIMAL.get(suffix, 0)


@lru_cache(maxsize=8192)
def _amount_of_text(text: str, milli: bool) -> int:
    """The amount of a text; cached, because every pod event reads the same few texts."""
    return _in_base_units(text, milli)


def _in_base_units(value: object, milli: bool) -> int:
    exact = (value if type(value) is int else parse_quantity(value)) * (1000 if milli else 1)
    if exact < 0:
        raise QuantityError(f"{_shown(value)} is negative; {ALLOWED}")
    if exact > LARGEST_AMOUNT:
        unit = "milli-units" if milli else "units"
        raise QuantityError(f"{_shown(value)} is too large; allowed are at most {LARGEST_AMOUNT} {unit}")
    return -(-exact.numerator // exact.denominator)


def _shown(value: object) -> str:
    """The value as short, printable text; Python cannot print all integers beyond 64 bits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if not isinstance(value, str):
        return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
    return repr(value) if len(value) <= LONGEST_QUANTITY else f"{value[:LONGEST_QUANTITY]!r}…"


def in_words(resource: str, amount: int) -> str:
    """An amount in base units as people write it: `1500m` of cpu, `16Gi` of memory, plain numbers of the rest."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    return _bytes_in_words(amount) if _is_in_bytes(resource) else str(amount)


def quantity(resource: str, amount: int) -> str:
    """An amount in base units as an exact Kubernetes quantity, in the unit that people use if that is exact."""
    if _is_in_bytes(resource):
        return _in_exact_unit(amount)
    return in_words(resource, amount)


def _is_in_bytes(resource: str) -> bool:
    return resource == "memory" or resource.endswith("storage") or resource.startswith("hugepages-")


def _bytes_in_words(amount: int) -> str:
    """The exact amount; above 1 Gi without an exact unit, tenths of Gi, rounded down."""
    exact = _in_exact_unit(amount)
    if abs(amount) < 2**30 or exact.endswith(("G", "Gi", "M", "Mi")):
        return exact
    return f"{amount * 10 // 2**30 / 10}Gi"


def _in_exact_unit(amount: int) -> str:
    for unit, size in (("Gi", 2**30), ("G", 10**9), ("Mi", 2**20), ("M", 10**6), ("Ki", 2**10)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)

"""Objects as an API server may send them, unchecked: any JSON in any place of a real-looking one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

ABSURD: Final = (
    2**63,
    -(2**63),
    10**400,
    1e308,
    -1.0,
    "1e999",
    "1e1000000",
    "9" * 500,
    "-1",
    "1n",
    "0x10",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "NaN",
    "",
    "a\x00b",
    "0001-01-01T00:00:00+23:59",
    "2026-01-01T00:00:00",
)
"""Values that a field of the right type may have."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(ABSURD)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths_of(value: object, at: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Where something is, in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, each in inner for path in paths_of(each, (*at, key)))]


def replaced(value: Any, at: tuple[Any, ...], by: object) -> Any:  # noqa: ANN401
    """A copy with something else at that place."""
    if not at:
        return by
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[at[0]] = replaced(value[at[0]], at[1:], by)
    return copied


@st.composite
def altered(draw: st.DrawFn, real: object, fixed: Sequence[tuple[object, ...]] = ()) -> Any:  # noqa: ANN401
    """`real` with any JSON in one to three places, but not in the `fixed` ones and above them."""
    for _ in range(draw(st.integers(1, 3))):
        places = [at for at in paths_of(real) if not any(each[: len(at)] == at for each in fixed)]
        real = replaced(real, draw(st.sampled_from(places)), draw(anything))
    return real


def nested(levels: int) -> object:
    """Objects and lists in one another: so many levels, the deepest an empty object."""
    value: object = {}
    for level in range(levels):
        value = [value] if level % 2 else {"spec": value}
    return value

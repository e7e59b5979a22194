"""Examples that hypothesis draws, as values, for tests that act on all of them together.

They are the same in every run of the same code that imports the same modules: hypothesis mixes the constants of the
modules that are loaded into what it draws.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")


def drawn(examples: st.SearchStrategy[T], count: int) -> list[T]:
    """So many examples; AssertionError if hypothesis finds fewer."""
    found: list[T] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(examples)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    assert len(found) == count, f"hypothesis drew {len(found)} of {count}"
    return found

"""Runs what commands have as coroutines: commands that have none need not import asyncio, which takes 0.03 s."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

Found = TypeVar("Found")


def run(coroutine: Coroutine[Any, Any, Found]) -> Found:
    """Return the result of a coroutine, in an event loop of its own."""
    import asyncio

    return asyncio.run(coroutine)

"""The first lists of a new leader: it decides nothing before them, and gives up leadership if they do not come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from dispatcher import errors
from dispatcher.kube.reflector import Reflector

CHECK_SECONDS: Final = 1.0
"""Period in which a leader checks whether a list has advanced."""


class NotListed(errors.Unavailable):
    """The API server took too long to list the objects that a leader needs."""


FirstLists: TypeAlias = Sequence[tuple[Reflector[Any], asyncio.Event]]
"""Watches, each with the event of its first answer."""


class Listed(Protocol):
    """Watches that a leader must have listed before it decides."""

    async def wait_until_listed(self) -> None:
        """Return once each watch has its first answer."""

    @property
    def first_lists(self) -> FirstLists:
        """The watches to wait for."""


async def wait_for_lists(watches: Sequence[Listed], bound: float) -> None:
    """Return once all `watches` have their first answer.

    Raises `NotListed` with the missing watches once no list has advanced for `bound` seconds. While a list advances, no
    other replica would be faster, because it would have to start anew.
    """
    pages, stalled = 0, 0.0
    while stalled < bound:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                for each in watches:
                    await each.wait_until_listed()
                return
        read = sum(watch.most_pages for each in watches for watch, _ in each.first_lists)
        stalled = 0.0 if read > pages else stalled + CHECK_SECONDS
        pages = read
    raise NotListed(f"no list got any further within {bound:g} s: {'; '.join(missing(watches))}")


def missing(watches: Sequence[Listed]) -> list[str]:
    """The watches without a first answer, each with its last error."""
    return [watch.reason for each in watches for watch, first in each.first_lists if not first.is_set()]

"""The first lists of a new leader: it decides nothing before them, and gives up leadership if they do not come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

from dispatcher import errors

CHECK_SECONDS: Final = 1.0
"""Period in which a leader checks whether a list has advanced."""


class NotListed(errors.Unavailable):
    """The API server took too long to list the objects that a leader needs."""


class Listed(Protocol):
    """Watches that a leader must have listed before it decides."""

    async def wait_until_listed(self) -> None:
        """Return once each watch has its first answer."""

    @property
    def missing(self) -> list[str]:
        """The watches without a first answer, each with its last error."""

    @property
    def pages(self) -> int:
        """The number of pages read; it grows while a long list goes on."""


async def wait_for_lists(watches: Sequence[Listed], bound: float) -> None:
    """Return once all `watches` have their first answer.

    Raises `NotListed` with the missing watches once no list has advanced for `bound` seconds. While a list advances, no
    other replica would be faster, because it would have to start anew.
    """
    pages, silent = 0, 0.0
    while silent < bound:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                for each in watches:
                    await each.wait_until_listed()
                return
        read = sum(each.pages for each in watches)
        silent = 0.0 if read > pages else silent + CHECK_SECONDS
        pages = read
    missing = "; ".join(reason for each in watches for reason in each.missing)
    raise NotListed(f"no list got any further within {bound:g} s: {missing}")

"""The first lists of a new leader: it decides nothing before them, and gives up leadership if it cannot have them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

from dispatcher import errors

CHECK_SECONDS: Final = 1.0
"""How often a leader looks whether a list got any further."""


class NotListed(errors.Unavailable):
    """The API server did not list for too long what a leader has to know."""


class Listed(Protocol):
    """Watches that a leader begins with."""

    async def wait_until_listed(self) -> None:
        """Return once each has its first answer."""

    @property
    def missing(self) -> list[str]:
        """The watches without a first answer, each with what keeps it from one."""

    @property
    def pages(self) -> int:
        """The pages that were read so far; the number grows while a long list goes on."""


async def wait_for_lists(watches: Sequence[Listed], bound: float) -> None:
    """Return once all `watches` have their first answer.

    Raises `NotListed`, which names the rest, once no list has got any further for `bound` seconds. While one does, no
    other replica would be faster: it would have to begin anew.
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

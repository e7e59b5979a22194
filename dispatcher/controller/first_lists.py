"""What a leader has to list before it decides anything. A leader that cannot list it gives way to another replica."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dispatcher import errors


class NotListed(errors.Unavailable):
    """The API server did not list for too long what a leader has to know."""


class Listed(Protocol):
    """Watches that a leader begins with."""

    async def wait_until_known(self) -> None:
        """Return once each has its first answer."""

    @property
    def missing(self) -> list[str]:
        """The watches without a first answer, each with what keeps it from one."""


async def wait_for_lists(watches: Sequence[Listed], bound: float) -> None:
    """Return once all have their first answer; raises `NotListed` after `bound` seconds, and names the rest."""
    try:
        async with asyncio.timeout(bound):
            for each in watches:
                await each.wait_until_known()
    except TimeoutError as error:
        missing = "; ".join(reason for each in watches for reason in each.missing)
        raise NotListed(f"no complete list within {bound:g} s: {missing}") from error

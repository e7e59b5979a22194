"""A provisioning class as operators declare it: what the autoscaler of a cluster is asked for, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from msgspec import Struct

LONGEST_PARAMETER: Final = 255
"""Characters of a parameter's name and value."""
MOST_PARAMETERS: Final = 100
MOST_RETRIES: Final = 100
LONGEST_PAUSE: Final = 86_400
"""Seconds."""
MOST_DOUBLINGS: Final = 20
"""Doublings of a pause: more of a day are beyond what a `timedelta` holds."""


ACCEPT_WITHIN: Final = timedelta(seconds=1800)
"""The default is long: cluster-autoscaler looks at one request per loop, of some ten seconds each."""


class RetryRule(Struct, frozen=True):
    """The rule for requests that failed: `limit` retries, in pauses that double from `base` up to `longest`."""

    limit: int = 3
    base: timedelta = timedelta(seconds=60)
    longest: timedelta = timedelta(seconds=1800)

    def pause(self, failures: int) -> timedelta:
        """The pause after that many failures in a row, 1 or more."""
        factor: int = 2 ** min(failures - 1, MOST_DOUBLINGS)
        return min(self.longest, self.base * factor)


class ProvisioningClass(Struct, frozen=True):
    """The class that is asked for capacity before a gang is dispatched.

    A pod set is `managed` by the class if it requests one of these resources; if there are none, every pod set is.
    `parameters` are sorted by name, and the operator's: an author sets those of `author_parameters`, and no others. A
    request that nobody has looked at `accept_within` that time counts as failed.
    """

    name: str
    managed: frozenset[str] = frozenset()
    parameters: tuple[tuple[str, str], ...] = ()
    retry: RetryRule = RetryRule()
    accept_within: timedelta = ACCEPT_WITHIN
    author_parameters: frozenset[str] = frozenset()

    def manages(self, requests: Mapping[str, int]) -> bool:
        """True if pods with these requests are part of a request."""
        return not self.managed or any(requests.get(name, 0) > 0 for name in self.managed)

"""What an AppWrapper requires of a cluster, and the reason with which a cluster refuses it: values of the record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from dispatcher.api.selector import EVERYTHING, Selector
from dispatcher.text import one_line

Kind = tuple[str, str]
"""An apiVersion and a kind."""


@dataclass(frozen=True, slots=True)
class ClusterRequirements:
    """What an AppWrapper requires of a cluster, whatever is free there; equal ones are answered alike.

    `prefers` only matters among clusters it may go to; everything is no preference. `ruled_out` are clusters where a
    foreign object has one of its names, each with a sentence on it.
    """

    selector: Selector = EVERYTHING
    prefers: Selector = EVERYTHING
    namespace: str = ""
    kinds: frozenset[Kind] = frozenset()
    ruled_out: frozenset[tuple[str, str]] = frozenset()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        # Every pass looks it up, for every shape, and a selector may be long.
        parts = (self.selector, self.prefers, self.namespace, self.kinds, self.ruled_out)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def directed(self, selector: Selector, prefers: Selector) -> ClusterRequirements:
        """The same by other wishes of its user."""
        if (selector, prefers) == (self.selector, self.prefers):
            return self
        return replace(self, selector=selector, prefers=prefers)

    def without(self, cluster: str, message: str) -> ClusterRequirements:
        """The same, but for a cluster that is out of the question; `message` says why."""
        others = frozenset(each for each in self.ruled_out if each[0] != cluster)
        return replace(self, ruled_out=others | {(cluster, one_line(message))})


ANYWHERE: Final = ClusterRequirements()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one cluster does not take an AppWrapper now; `resource` is what it is relatively shortest of, if of any."""

    cluster: str
    reason: str
    message: str
    resource: str = ""

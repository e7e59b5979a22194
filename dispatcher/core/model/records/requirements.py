"""Cluster requirements of an AppWrapper, and the rejection of one cluster: values of the record."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher.api.selector import EVERYTHING, Selector
from dispatcher.text import one_line

Kind = tuple[str, str]
"""An apiVersion and a kind."""
KindIn = tuple[str, Kind]
"""A kind in one namespace, which comes first."""


# Every cycle hashes the requirements of every shape, and a selector may be long.
class ClusterRequirements(Struct, frozen=True, cache_hash=True):
    """What a cluster must have for an AppWrapper, besides capacity; every cluster treats equal requirements alike.

    `prefers` only matters among clusters that the gang fits; `EVERYTHING` is no preference. `ruled_out` are clusters
    where a foreign object has a name of the gang's, each with a sentence; `unprovisioned` those that failed to provide
    the capacity that was requested there, until all others have failed, too.
    """

    selector: Selector = EVERYTHING
    prefers: Selector = EVERYTHING
    namespace: str = ""
    kinds: frozenset[Kind] = frozenset()
    ruled_out: frozenset[tuple[str, str]] = frozenset()
    unprovisioned: frozenset[tuple[str, str]] = frozenset()

    def directed(self, selector: Selector, prefers: Selector) -> ClusterRequirements:
        """The same with other selectors."""
        if (selector, prefers) == (self.selector, self.prefers):
            return self
        return replace(self, selector=selector, prefers=prefers)

    def without(self, cluster: str, message: str) -> ClusterRequirements:
        """The same without a cluster; `message` says why."""
        others = frozenset(each for each in self.ruled_out if each[0] != cluster)
        return replace(self, ruled_out=others | {(cluster, one_line(message))})

    def unprovisioned_in(self, cluster: str, message: str) -> ClusterRequirements:
        """The same after a cluster failed to provide capacity; `message` is what its class said."""
        return replace(self, unprovisioned=self.unprovisioned | {(cluster, one_line(message))})

    def with_all_provisioners(self) -> ClusterRequirements:
        """The same with the clusters that failed to provide capacity."""
        return replace(self, unprovisioned=frozenset()) if self.unprovisioned else self


ANYWHERE: Final = ClusterRequirements()


class Rejection(Struct, frozen=True):
    """Why one cluster does not take an AppWrapper; `resource` is the scarcest one there, empty if none is."""

    cluster: str
    reason: str
    message: str
    resource: str = ""

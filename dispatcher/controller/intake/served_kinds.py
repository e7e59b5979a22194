"""Finds a kind in the clusters that gangs may run in, for questions about it while it may not be installed.

Any user can invent kinds, and each question about one is repeated. So a cluster is asked once in `SECONDS` which groups
and versions it serves, and once about each of these, whatever was invented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dispatcher import errors
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.kube.discovery import INSTALL, Kind

SECONDS: Final = 10.0
"""How long it is believed that a cluster does not serve a kind."""
MOST_VERSIONS: Final = 1_000
"""Answers that are remembered, by cluster and version."""


class _Versions(NamedTuple):
    """The versions that a cluster lists, None if it gives no list; `until` is in seconds of the monotonic clock."""

    listed: frozenset[str] | None
    until: float


class ServedKinds:
    """The kinds of these clusters; `is_complete` is true if every cluster can be asked."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        is_complete: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._clusters = clusters
        self._is_complete = is_complete
        self._monotonic = monotonic
        self._versions: BoundedDict[str, _Versions] = BoundedDict(MOST_VERSIONS)
        self._loaded: BoundedDict[tuple[str, str], float] = BoundedDict(MOST_VERSIONS)

    async def find(self, api_version: str, kind: str) -> Kind:
        """The kind as the first cluster that serves it does.

        Raises `NotFound` if no cluster serves it, with a message for users, and `Unavailable` if one may serve it.
        """
        unanswered: errors.ClusterError | None = None
        similar = ""
        for cluster in tuple(self._clusters.values()):
            try:
                return await self._find_in(cluster, api_version, kind)
            except errors.NotFound:
                similar = similar or cluster.discovery.similar(api_version, kind)
            except errors.ClusterError as error:
                unanswered = error
        if unanswered is not None:
            raise unanswered
        if not self._is_complete():
            raise errors.Unavailable(f"a member cluster may serve {kind}, and cannot be asked now")
        remedy = f"did you mean {similar}?" if similar else INSTALL
        raise errors.NotFound(f"no cluster serves {kind} of {api_version}: {remedy}")

    async def _find_in(self, cluster: Cluster, api_version: str, kind: str) -> Kind:
        discovery, now = cluster.discovery, self._monotonic()
        is_fresh = self._loaded.get((cluster.name, api_version), now) > now
        if not discovery.serves((api_version, kind)) and (
            is_fresh or not await self._lists(cluster, api_version)
        ):
            raise discovery.not_served(api_version, kind)
        try:
            return await discovery.find(api_version, kind)
        except errors.NotFound:
            self._loaded[cluster.name, api_version] = now + SECONDS
            raise

    async def _lists(self, cluster: Cluster, api_version: str) -> bool:
        """False if the cluster lists its versions without this one. Raises `Unavailable` while it is not ready."""
        known, now = self._versions.get(cluster.name), self._monotonic()
        if known is None or known.until <= now:
            listed = await cluster.discovery.versions()
            await cluster.discovery.check_ready()  # an unready API server may omit a group that it serves
            known = self._versions[cluster.name] = _Versions(listed, now + SECONDS)
        return known.listed is None or api_version in known.listed

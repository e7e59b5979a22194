"""The defaults of pods in the clusters that a gang may go to.

Intake derives the demand in each cluster, before the cluster of the gang is known. Where the defaults of a cluster are
not known, the largest of all count. The clusters are read at the same time, each namespace once a minute. If the
defaults of a cluster cannot be read, those of the hub count among the largest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from dispatcher import errors, log
from dispatcher.controller.members.cluster import Cluster
from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, ClusterDefaults, PodDefaults, largest
from dispatcher.core.model.requirements import ClusterRequirements

ANSWER_SECONDS: Final = 2.0
"""Seconds within which a member must answer: intake waits for it."""
PAUSE_SECONDS: Final = 60.0
"""Seconds for which a member that did not answer is not asked again."""

_log = log.get("pod_defaults")


class PodDefaultsOfClusters:
    """Reads the defaults of clusters; `clusters_for` gives the connected clusters that requirements allow."""

    def __init__(
        self,
        hub: Cluster,
        clusters_for: Callable[[ClusterRequirements], Iterable[Cluster]],
        monotonic: Callable[[], float],
    ) -> None:
        self._hub = hub
        self._clusters_for = clusters_for
        self._monotonic = monotonic
        self._silent_since: dict[str, float] = {}
        """The members that did not answer, by name."""

    async def read(self, requirements: ClusterRequirements, classes: frozenset[str]) -> ClusterDefaults:
        """The defaults of pods with these RuntimeClasses. Raises `Unavailable` if the hub does not answer."""
        clusters = list(self._clusters_for(requirements))
        members = [each for each in clusters if each.is_member]
        found = await asyncio.gather(
            *(self._read_member(each, requirements.namespace, classes) for each in members)
        )
        own = {
            each.name: defaults for each, defaults in zip(members, found, strict=True) if defaults is not None
        }
        if own and len(own) == len(clusters):
            return ClusterDefaults(largest(own.values()), own)
        of_hub = await self._hub.pod_defaults.read(requirements.namespace, classes) or NO_DEFAULTS
        if len(members) < len(clusters):
            own[self._hub.name] = of_hub
        return ClusterDefaults(largest([*own.values(), of_hub]), own)

    async def _read_member(
        self, cluster: Cluster, namespace: str, classes: frozenset[str]
    ) -> PodDefaults | None:
        """The defaults of a member; None if they cannot be read now."""
        silent_since = self._silent_since.get(cluster.name)
        if silent_since is not None and self._monotonic() - silent_since < PAUSE_SECONDS:
            return None
        self._silent_since.pop(cluster.name, None)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await cluster.pod_defaults.read(namespace, classes)
        except (errors.ClusterError, TimeoutError) as error:
            self._silent_since[cluster.name] = self._monotonic()
            _log.warning(
                "pod_defaults_not_read", cluster=cluster.name, error=str(error) or "no answer in time"
            )
            return None

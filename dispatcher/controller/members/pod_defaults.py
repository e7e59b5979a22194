"""The defaults of pods in the clusters that a gang may go to.

Intake derives the demand in each cluster, before the cluster of the gang is known. Where the defaults of a cluster are
not known, the largest of all count. The clusters are read at the same time, each namespace once a minute. If the
defaults of a cluster cannot be read, those of the hub count among the largest. Beside that, all defaults of each
cluster are surveyed at least once a minute, for the leader's snapshot and for old answers to intake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from dispatcher import errors, log
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.kinds.pods.pod_defaults import NO_DEFAULTS, ClusterDefaults, DefaultsSurvey
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements

ANSWER_SECONDS: Final = 2.0
"""Seconds within which a member must answer: intake waits for it."""
PAUSE_SECONDS: Final = 60.0
"""Seconds for which a member that did not answer is not asked again."""

SURVEY_SECONDS: Final = 10.0
"""Seconds within which a cluster must answer with all its defaults: nothing waits for it."""
SURVEY_PERIOD_SECONDS: Final = 5.0
"""Seconds after which clusters that were connected meanwhile are surveyed; each cluster is read once a minute."""

_log = log.get("pod_defaults")

_Read = TypeVar("_Read")


class PodDefaultsOfClusters:
    """Reads the defaults of clusters; `clusters_for` gives the connected clusters that requirements allow."""

    def __init__(
        self,
        hub: WatchedCluster,
        clusters_for: Callable[[ClusterRequirements], Iterable[WatchedCluster]],
        monotonic: Callable[[], float],
    ) -> None:
        self._hub = hub
        self._clusters_for = clusters_for
        self._intake = _Questions(ANSWER_SECONDS, monotonic)
        self._survey = _Questions(SURVEY_SECONDS, monotonic)
        self.surveys: Mapping[str, DefaultsSurvey] = {}
        """The last survey of each connected cluster, by name; empty for a cluster that did not answer."""

    async def read(self, requirements: ClusterRequirements, classes: frozenset[str]) -> ClusterDefaults:
        """The defaults of pods with these RuntimeClasses. Raises `Unavailable` if the hub does not answer."""
        clusters = list(self._clusters_for(requirements))
        members = [each for each in clusters if each.is_member]
        found = await asyncio.gather(
            *(
                self._intake.ask(each, partial(each.pod_defaults.read, requirements.namespace, classes))
                for each in members
            )
        )
        own = {
            each.name: defaults for each, defaults in zip(members, found, strict=True) if defaults is not None
        }
        if own and len(own) == len(clusters):
            return ClusterDefaults.of(own)
        of_hub = await self._hub.pod_defaults.read(requirements.namespace, classes) or NO_DEFAULTS
        if len(members) < len(clusters):
            own[self._hub.name] = of_hub
        return ClusterDefaults.of(own, of_hub)

    async def run(self) -> None:
        """Keep `surveys` current, until cancelled."""
        while True:
            await self.survey()
            await asyncio.sleep(SURVEY_PERIOD_SECONDS)

    async def survey(self) -> None:
        """Read all defaults of each connected cluster; those of a cluster that does not answer are not known."""
        clusters = list(self._clusters_for(ANYWHERE))
        found = await asyncio.gather(*(self._survey.ask(each, each.pod_defaults.survey) for each in clusters))
        pairs = zip(clusters, found, strict=True)
        self.surveys = {each.name: DefaultsSurvey() if survey is None else survey for each, survey in pairs}


class _Questions:
    """Questions to clusters, each with a bound in seconds; a cluster that did not answer is left alone for a while."""

    def __init__(self, answer_seconds: float, monotonic: Callable[[], float]) -> None:
        self._answer_seconds = answer_seconds
        self._monotonic = monotonic
        self._silent_since: dict[str, float] = {}
        """The clusters that did not answer, by name."""

    async def ask(self, cluster: WatchedCluster, read: Callable[[], Awaitable[_Read]]) -> _Read | None:
        """The answer of a cluster; None if it cannot be read now."""
        silent_since = self._silent_since.get(cluster.name)
        if silent_since is not None and self._monotonic() - silent_since < PAUSE_SECONDS:
            return None
        self._silent_since.pop(cluster.name, None)
        try:
            async with asyncio.timeout(self._answer_seconds):
                return await read()
        except (errors.ClusterError, TimeoutError) as error:
            self._silent_since[cluster.name] = self._monotonic()
            _log.warning(
                "pod_defaults_not_read", cluster=cluster.name, error=str(error) or "no answer in time"
            )
            return None

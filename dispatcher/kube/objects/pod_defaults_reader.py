"""Reads a cluster's additions to pods at their creation: LimitRanges of a namespace, and RuntimeClasses by name.

Each answer is kept for a minute, so a burst of AppWrappers costs one read for each namespace. Once an answer is older,
the last survey takes its place, if that is younger: an API server that is busy answers after seconds, for which intake
would wait in every minute. The log names the first refusal. `survey` reads the additions to all pods of the cluster,
for that and for the snapshot of the leader, and the extended resources that DeviceClasses name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.core.kinds.pods.pod_defaults import (
    MOST_CLASSES,
    MOST_NAMESPACES,
    MOST_SURVEYED_CLASSES,
    DefaultsSurvey,
    PodDefaults,
    Quantities,
    add_requests,
    overheads_by_class,
)
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.resources import MOST_DEVICE_CLASSES, device_resources_of
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.paging import pages
from dispatcher.kube.questions import read_default_requests, read_overhead

KEPT_SECONDS: Final = 60.0
SURVEY_KEPT_SECONDS: Final = 45.0
"""Shorter, so that an answer that gets old mostly has a younger survey: a survey begins some seconds late, and takes
some."""
LONGEST_SURVEY_SECONDS: Final = 2 * KEPT_SECONDS
"""Age above which a survey is no answer: the API server has not answered the next one."""
MOST_KEPT: Final = 10_000
NO_DEVICE_RESOURCES: Final[frozenset[str]] = frozenset()
_DEVICE_CLASSES: Final = paths.collection("resource.k8s.io/v1", "deviceclasses", "")

_Read = TypeVar("_Read")
_log = log.get("pod_defaults")


class PodDefaultsReader:
    """The defaults of one cluster, whose rights are in the file `manifest`; `monotonic` is in seconds."""

    def __init__(
        self, client: ClusterClient, cluster: str, manifest: str, monotonic: Callable[[], float]
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._manifest = manifest
        self._requests = _TimedCache(lambda name: self._shown(read_default_requests(client, name)), monotonic)
        self._overheads = _TimedCache(lambda name: self._shown(read_overhead(client, name)), monotonic)
        self._surveys = _TimedCache(self._survey, monotonic, SURVEY_KEPT_SECONDS)
        self._has_warned = False
        self.device_resources = NO_DEVICE_RESOURCES
        """The extended resources that DeviceClasses of the cluster name, since the last survey."""

    async def read(self, namespace: str, classes: frozenset[str]) -> PodDefaults | None:
        """The defaults of pods in a namespace, with the overheads of these RuntimeClasses. Raises `Unavailable`.

        None if the API server refuses to show them.
        """
        requests = await self._value(self._requests, namespace, DefaultsSurvey.requests_in)
        overheads = {
            name: await self._value(self._overheads, name, DefaultsSurvey.overhead_of)
            for name in sorted(classes)[:MOST_CLASSES]
        }
        if requests is None or None in overheads.values():
            return None
        return PodDefaults(requests, {name: each for name, each in overheads.items() if each})

    async def _value(
        self,
        answers: _TimedCache[Quantities | None],
        name: str,
        surveyed: Callable[[DefaultsSurvey, str], Quantities | None],
    ) -> Quantities | None:
        """The last answer, or what a younger survey has; read if there is neither, or both are old."""
        known, survey = answers.last(name), self._surveys.last("")
        if known is None or survey is None or known.age < KEPT_SECONDS:
            return await answers.get(name)
        found = surveyed(survey.value, name) if survey.age < min(known.age, LONGEST_SURVEY_SECONDS) else None
        return await answers.get(name) if found is None else found

    async def survey(self) -> DefaultsSurvey:
        """The defaults of pods in all namespaces and with all RuntimeClasses. Raises `Unavailable`."""
        return await self._surveys.get("")

    async def _survey(self, _name: str) -> DefaultsSurvey:
        self.device_resources = await self._all_device_resources()
        found: dict[str, dict[str, object]] = {}
        has_more = False
        try:
            async for page in pages(self._client, paths.collection("v1", "limitranges", ""), {}):
                add_requests(found, page.items)
                if len(found) > MOST_NAMESPACES:
                    has_more = True
                    found.popitem()  # the next page may have more of that namespace
                    break
        except errors.Refused as error:
            self._warn_once(error)
            return DefaultsSurvey(None, await self._all_overheads())
        requests = {name: found[name] for name in list(found)[:MOST_NAMESPACES]}
        return DefaultsSurvey(requests, await self._all_overheads(), has_more)

    async def _all_device_resources(self) -> frozenset[str]:
        """Those that DeviceClasses name; none if the cluster serves none, or does not show them."""
        found = NO_DEVICE_RESOURCES
        try:
            async for page in pages(self._client, _DEVICE_CLASSES, {}):
                found |= device_resources_of(page.items)
                if len(found) > MOST_DEVICE_CLASSES:
                    break
        except errors.Refused:
            return NO_DEVICE_RESOURCES
        return found

    async def _all_overheads(self) -> Mapping[str, Quantities] | None:
        found: dict[str, Quantities] = {}
        try:
            async for page in pages(
                self._client, paths.collection("node.k8s.io/v1", "runtimeclasses", ""), {}
            ):
                found.update(overheads_by_class(page.items))
                if len(found) > MOST_SURVEYED_CLASSES:
                    return None
        except errors.Refused as error:
            self._warn_once(error)
            return None
        return found

    async def _shown(self, read: Awaitable[Quantities]) -> Quantities | None:
        """What a read shows; None if the API server refuses it, which the log says once."""
        try:
            return await read
        except errors.Refused as error:
            self._warn_once(error)
            return None

    def _warn_once(self, error: errors.Refused) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "pod_defaults_unknown",
                cluster=self._cluster,
                error=str(error),
                remedy=f"apply {self._manifest}",
            )


class _Aged(Struct, Generic[_Read], frozen=True):
    """A value, and the seconds since it was read."""

    value: _Read
    age: float


class _TimedCache(Generic[_Read]):
    """Values by name as `read` returns them, each kept for `seconds`; at most `MOST_KEPT`, the oldest go first."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[_Read]],
        monotonic: Callable[[], float],
        seconds: float = KEPT_SECONDS,
    ) -> None:
        self._read = read
        self._monotonic = monotonic
        self._seconds = seconds
        self._values: BoundedDict[str, tuple[float, _Read]] = BoundedDict(MOST_KEPT)

    async def get(self, name: str) -> _Read:
        """The value of a name, read again if it is not kept any more."""
        known = self.last(name)
        if known is not None and known.age < self._seconds:
            return known.value
        began = self._monotonic()
        value = await self._read(name)
        self._values[name] = began, value
        return value

    def last(self, name: str) -> _Aged[_Read] | None:
        """The last value of a name, however old; None if it was never read, or is not kept any more."""
        known = self._values.get(name)
        return None if known is None else _Aged(known[1], self._monotonic() - known[0])

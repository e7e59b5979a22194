"""The kinds that a cluster serves, among those that AppWrappers wrap; asked by group and version, never kind by kind.

One request answers for all kinds of a group and version, and one request lists the groups and versions. So invented
groups, versions and kinds cost no request of their own. Registered kinds in their usual versions have a lane of their
own and wait for no other kind. A kind that is not served is asked about again periodically, and dropped when no
AppWrapper requires it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dispatcher import errors, log
from dispatcher.core.kinds.built_in import VERSIONS
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.records.requirements import Kind
from dispatcher.kube.discovery import Discovery

SURVEY_SECONDS: Final = 10.0
"""Period in which a cluster is asked again about a kind that it does not serve."""
NO_ANSWER_SECONDS: Final = 1.0
"""The same after no answer, for example of an API server that has just started."""
FRESH_SECONDS: Final = 1.0
"""Seconds for which an answer about a group and version also holds for kinds required after it."""
REGISTERED_SECONDS: Final = 1.0
"""Total wait of all scheduling cycles within `SURVEY_SECONDS` for kinds of `REGISTERED`."""
OTHERS_SECONDS: Final = 0.25
"""The same for other kinds: any user can invent one for each cycle."""
AT_ONCE: Final = 4
"""Concurrent requests of one lane."""
MOST_HINTS: Final = 20
"""Most missing kinds that are compared with served ones; a comparison takes some 0.1 ms, and any user invents kinds."""
MOST_UNCHECKED: Final = 50
"""Most groups and versions asked about in one round if the API server does not list them."""


REGISTERED: Final = frozenset(
    (f"{group}/{version}".removeprefix("/"), kind)
    for group, kind in BUILT_IN.derivable
    for version in VERSIONS[group]
)
"""The built-in kinds in their usual versions. So no invented version of a registered kind costs a request."""


class Lane:
    """Asks about some kinds, independently of other lanes; calls `on_found` when one turns out to be served.

    With `checks_versions`, a lane asks only about groups and versions that the cluster lists. `wait_budget` bounds the
    total wait of scheduling cycles for the lane within `SURVEY_SECONDS`, in seconds.
    """

    def __init__(
        self, discovery: Discovery, on_found: Callable[[], None], *, checks_versions: bool, wait_budget: float
    ) -> None:
        self.answered = asyncio.Event()
        """Set while each asked kind is known to be served or not served."""
        self.answered.set()
        self._discovery = discovery
        self._on_found = on_found
        self._checks_versions = checks_versions
        self._wait_budget = self._wait_left = wait_budget
        self._budget_ends = 0.0
        self._wanted: frozenset[Kind] = frozenset()
        self._awaited: frozenset[Kind] = frozenset()
        self._asked_at: dict[str, float] = {}
        self._asked = asyncio.Event()

    def was_awaited(self, kinds: frozenset[Kind]) -> bool:
        """True if somebody waited for the answer about all `kinds` since they were first asked about.

        Who asks without waiting, as the snapshot for commands does, must not let a cycle take an unknown kind for one
        that is missing.
        """
        return kinds <= self._awaited

    def ask(self, kinds: frozenset[Kind]) -> None:
        """Ask about exactly these unserved kinds from now on."""
        new = kinds - self._wanted
        self._wanted = kinds
        self._awaited &= kinds
        if any(self._is_due(api_version) for api_version, _ in new):
            self.answered.clear()
            self._asked.set()

    async def wait(self) -> None:
        """Return once the lane has `answered`, or once its `wait_budget` is used up."""
        begun, wanted = _now(), self._wanted
        if begun >= self._budget_ends:
            self._wait_left, self._budget_ends = self._wait_budget, begun + SURVEY_SECONDS
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_left):
                    await self.answered.wait()
        finally:
            self._wait_left = max(0.0, self._wait_left - (_now() - begun))
            self._awaited = wanted & self._wanted

    async def run(self) -> None:
        """Ask until cancelled."""
        pause = SURVEY_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._asked.wait()
            is_new = self._asked.is_set()
            self._asked.clear()
            pause = await self._look(only_due=is_new)
            if not self._asked.is_set():
                self.answered.set()

    def _is_due(self, api_version: str) -> bool:
        at = self._asked_at.get(api_version)
        return at is None or _now() - at >= FRESH_SECONDS

    async def _look(self, *, only_due: bool) -> float:
        """Make one round; returns the seconds until the next one."""
        wanted = self._wanted
        versions = {api_version for api_version, _ in wanted}
        self._asked_at = {each: at for each, at in self._asked_at.items() if each in versions}
        due = sorted(filter(self._is_due, versions) if only_due else versions)
        try:
            await self._ask_about(due)
        except errors.Unavailable:
            return NO_ANSWER_SECONDS
        except errors.ClusterError:
            return SURVEY_SECONDS  # the API server refuses the answer
        except Exception as error:  # noqa: BLE001  # one kind must not end the watches of the others
            log.internal_error("kind_survey", error)
            return NO_ANSWER_SECONDS
        return SURVEY_SECONDS

    async def _ask_about(self, versions: list[str]) -> None:
        if not versions:
            return
        at = _now()
        limit = asyncio.Semaphore(AT_ONCE)
        served = await self._served_among(versions)
        answers = await asyncio.gather(*(self._load(each, limit) for each in served), return_exceptions=True)
        self._asked_at.update(dict.fromkeys(versions, at))
        for each in answers:
            if isinstance(each, BaseException):
                raise each
        if not all(map(self._discovery.serves, self._wanted)):
            await self._discovery.check_ready()  # an unready API server may omit a group that it serves

    async def _served_among(self, versions: list[str]) -> list[str]:
        """The versions that the cluster lists."""
        if not self._checks_versions:
            return versions
        listed = await self._discovery.versions()
        return versions[:MOST_UNCHECKED] if listed is None else [each for each in versions if each in listed]

    async def _load(self, api_version: str, limit: asyncio.Semaphore) -> None:
        async with limit:
            await self._discovery.load(api_version)
        # Not after the others, because another group and version may take long.
        if any(kind[0] == api_version and self._discovery.serves(kind) for kind in self._wanted):
            self._on_found()


class KindSurvey:
    """Tells which of the required kinds one cluster serves."""

    def __init__(self, discovery: Discovery, on_found: Callable[[], None]) -> None:
        self._discovery = discovery
        self._registered = Lane(discovery, on_found, checks_versions=False, wait_budget=REGISTERED_SECONDS)
        self._others = Lane(discovery, on_found, checks_versions=True, wait_budget=OTHERS_SECONDS)
        self._hinted: tuple[frozenset[Kind], int] = frozenset(), 0
        self._hints: Mapping[Kind, str] = {}

    def missing(self, kinds: frozenset[Kind]) -> frozenset[Kind]:
        """The kinds that the cluster does not serve, or may not serve: the survey asks about these."""
        missing = frozenset(kind for kind in kinds if not self._discovery.serves(kind))
        self._ask(missing)
        return missing

    def hints(self, missing: frozenset[Kind]) -> Mapping[Kind, str]:
        """What is special about missing kinds, of `MOST_HINTS` of them at most; looked up once for each answer."""
        if self._hinted != (missing, self._discovery.changes):
            found = {each: self._discovery.hint(each) for each in sorted(missing)[:MOST_HINTS]}
            self._hints = {each: hint for each, hint in found.items() if hint}
            self._hinted = missing, self._discovery.changes
        return self._hints

    def was_awaited(self, kinds: frozenset[Kind]) -> bool:
        """True if somebody waited for the answer about all unserved `kinds`; it may still be missing."""
        missing = frozenset(kind for kind in kinds if not self._discovery.serves(kind))
        registered, others = _split(missing)
        return self._registered.was_awaited(registered) and self._others.was_awaited(others)

    def ask_for(self, kinds: frozenset[Kind]) -> KindSurvey:
        """Ask about `kinds`; `wait` returns once the answer is known."""
        self.missing(kinds)
        return self

    async def wait(self) -> None:
        """Return once all asked kinds are known to be served or not, or once the wait budgets are used up."""
        await self._registered.wait()
        await self._others.wait()

    async def run(self) -> None:
        """Ask about kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registered.run(), name="registered-kinds")
            tasks.create_task(self._others.run(), name="other-kinds")

    def _ask(self, missing: frozenset[Kind]) -> None:
        registered, others = _split(missing)
        self._registered.ask(registered)
        self._others.ask(others)


def _split(kinds: Iterable[Kind]) -> tuple[frozenset[Kind], frozenset[Kind]]:
    """The registered kinds among these, and the others."""
    every = frozenset(kinds)
    return every & REGISTERED, every - REGISTERED


def _now() -> float:
    return asyncio.get_running_loop().time()

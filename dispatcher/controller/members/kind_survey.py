"""Which kinds a cluster serves, of those that AppWrappers wrap: asked by group and version, never kind by kind.

One request answers for every kind of a group and version, and one says which groups and versions there are, so groups,
versions and kinds that AppWrappers invent cost no request of their own. The kinds in our tables, in their usual
versions, have a lane to themselves and wait for no others. A kind that is not served is looked for again now and then,
and forgotten when no AppWrapper asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from dispatcher import errors, log
from dispatcher.core.kinds.registry import KINDS, VERSIONS
from dispatcher.core.model.requirements import Kind
from dispatcher.kube.discovery import Discovery

SURVEY_SECONDS: Final = 10.0
"""How often a kind that a cluster does not serve is looked for again."""
NO_ANSWER_SECONDS: Final = 1.0
"""The same where the cluster did not say whether it serves it, as an API server that was only just started."""
FRESH_SECONDS: Final = 1.0
"""For so long an answer about a group and version counts for kinds of it that were asked for after it."""
REGISTERED_SECONDS: Final = 1.0
"""Longest wait for kinds of `REGISTERED`, of all scheduling cycles within `SURVEY_SECONDS` together."""
OTHERS_SECONDS: Final = 0.25
"""The same for other kinds: anybody can invent one for each cycle."""
AT_ONCE: Final = 4
"""Groups and versions that one lane asks about at the same time."""
MOST_UNCHECKED: Final = 50
"""Groups and versions asked about in one round where the API server does not say which there are."""


REGISTERED: Final = frozenset(
    (f"{group}/{version}".removeprefix("/"), kind) for group, kind in KINDS for version in VERSIONS[group]
)
"""The kinds in our tables, in their usual versions. So no invented version of a known kind costs a request."""


class Lane:
    """Looks for some kinds, independently of other lanes; `on_found` is called when one turns out to be served.

    A lane that `guesses` asks only about groups and versions that the cluster says it serves. `wait_budget` is how many
    seconds scheduling cycles may `wait` for it within `SURVEY_SECONDS`.
    """

    def __init__(
        self, discovery: Discovery, on_found: Callable[[], None], *, checks_versions: bool, wait_budget: float
    ) -> None:
        self.answered = asyncio.Event()
        """Set while every kind that was asked for is known to be served, or not to be."""
        self.answered.set()
        self._discovery = discovery
        self._on_found = on_found
        self._checks_versions = checks_versions
        self._wait_budget = self._wait_left = wait_budget
        self._budget_ends = 0.0
        self._wanted: frozenset[Kind] = frozenset()
        self._asked_at: dict[str, float] = {}
        self._asked = asyncio.Event()

    def was_asked(self, kinds: frozenset[Kind]) -> bool:
        """True if it was asked for all of them since they were last forgotten."""
        return kinds <= self._wanted

    def ask(self, kinds: frozenset[Kind]) -> None:
        """From now on look for these kinds, which are not served as far as is known, and for no others."""
        new = kinds - self._wanted
        self._wanted = kinds
        if any(self._is_due(api_version) for api_version, _ in new):
            self.answered.clear()
            self._asked.set()

    async def wait(self) -> None:
        """Return once it has `answered`, or once its `wait_budget` is used up."""
        begun = _now()
        if begun >= self._budget_ends:
            self._wait_left, self._budget_ends = self._wait_budget, begun + SURVEY_SECONDS
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_left):
                    await self.answered.wait()
        finally:
            self._wait_left = max(0.0, self._wait_left - (_now() - begun))

    async def run(self) -> None:
        """Look until cancelled."""
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
        """One round; seconds until the next is worth while."""
        wanted = self._wanted
        versions = {api_version for api_version, _ in wanted}
        self._asked_at = {each: at for each, at in self._asked_at.items() if each in versions}
        due = sorted(filter(self._is_due, versions) if only_due else versions)
        try:
            await self._ask_about(due)
        except errors.Unavailable:
            return NO_ANSWER_SECONDS
        except errors.ClusterError:
            return SURVEY_SECONDS  # it does not tell us
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
            await self._discovery.check_ready()  # else its "no" does not count

    async def _served_among(self, versions: list[str]) -> list[str]:
        """Those that the cluster has at all, as one request says."""
        if not self._checks_versions:
            return versions
        known = await self._discovery.versions()
        return versions[:MOST_UNCHECKED] if known is None else [each for each in versions if each in known]

    async def _load(self, api_version: str, limit: asyncio.Semaphore) -> None:
        async with limit:
            await self._discovery.load(api_version)
        # Told at once: another group and version may take its time.
        if any(kind[0] == api_version and self._discovery.serves(kind) for kind in self._wanted):
            self._on_found()


class KindSurvey:
    """What one cluster serves of the kinds that are asked for."""

    def __init__(self, discovery: Discovery, on_found: Callable[[], None]) -> None:
        self._discovery = discovery
        self._registered = Lane(discovery, on_found, checks_versions=False, wait_budget=REGISTERED_SECONDS)
        self._others = Lane(discovery, on_found, checks_versions=True, wait_budget=OTHERS_SECONDS)

    def missing(self, kinds: frozenset[Kind]) -> frozenset[Kind]:
        """Those of `kinds` that it does not serve, or of which that is not known yet: these are looked for."""
        missing = frozenset(kind for kind in kinds if not self._discovery.serves(kind))
        self._ask(missing)
        return missing

    def was_asked_for(self, kinds: frozenset[Kind]) -> bool:
        """True if it was asked whether it serves all of `kinds`, though it may not have answered yet."""
        missing = frozenset(kind for kind in kinds if not self._discovery.serves(kind))
        known, others = _split(missing)
        return self._registered.was_asked(known) and self._others.was_asked(others)

    def ask_for(self, kinds: frozenset[Kind]) -> KindSurvey:
        """Have it found out whether it serves `kinds`; `wait` for it."""
        self.missing(kinds)
        return self

    async def wait(self) -> None:
        """Return once that is known of all kinds that were asked for, or once cycles have waited long enough for it."""
        await self._registered.wait()
        await self._others.wait()

    async def run(self) -> None:
        """Look for kinds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registered.run(), name="registered-kinds")
            tasks.create_task(self._others.run(), name="other-kinds")

    def _ask(self, missing: frozenset[Kind]) -> None:
        known, others = _split(missing)
        self._registered.ask(known)
        self._others.ask(others)


def _split(kinds: Iterable[Kind]) -> tuple[frozenset[Kind], frozenset[Kind]]:
    """Those in our tables, and the others."""
    every = frozenset(kinds)
    return every & REGISTERED, every - REGISTERED


def _now() -> float:
    return asyncio.get_running_loop().time()

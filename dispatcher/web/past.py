"""Asks the database for the pages about the past: history, usage, waits, and the attempts of one AppWrapper.

Each page costs what its command costs (`kubectl aw history`, `usage`, `waits` and `show`): one connection and some
bounded queries. At most `MOST_AT_ONCE` are asked at once, however many pages are open.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from dispatcher.cli.command_line import NotWritten, moment
from dispatcher.cli.pending import Start, described
from dispatcher.cli.query import TO_GET_A_ROLE, ask, why_not
from dispatcher.errors import CommandFailed, StoreError, StoreForbidden
from dispatcher.store.readers.reports import Description, Filter, GroupBy, Period, Report, Reports, Window
from dispatcher.text import one_line

MOST_AT_ONCE: Final = 2
"""Connections to the database at once; a reader's role may have few."""
MOST_ROWS: Final = 500
"""AppWrappers on one page of history."""
SINCE: Final = "7d"
"""Where the window begins if a page does not say it, as in the commands."""

ABOVE: Final = "the explanation above has it, if there is one"

Found = TypeVar("Found")


class Past:
    """Reads history from the database at a libpq URL; may be asked by several threads.

    Each question raises `CommandFailed` with a sentence if there is no answer.
    """

    def __init__(self, url: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._url = url
        self._now = now
        self._turn = threading.BoundedSemaphore(MOST_AT_ONCE)

    def window(self, since: str, until: str) -> Window:
        """The window that a person wrote, as the options --since and --until are read. Raises `NotWritten`."""
        now = self._now()
        window = Window(moment(since or SINCE, now), moment(until, now) if until else now)
        if window.since >= window.until:
            raise NotWritten(f"{since or SINCE} is not before {until or 'now'}")
        return window

    def jobs(self, window: Window, of: Filter) -> Report:
        """AppWrappers that existed in the window, newest first, at most `MOST_ROWS`."""
        return self._ask(lambda reports: reports.jobs(window, of, MOST_ROWS))

    def usage(self, window: Window, by: GroupBy, per: Period, of: Filter) -> Report:
        """Hours of cores, memory and GPUs."""
        return self._ask(lambda reports: reports.usage(window, [by], per, of))

    def waits(self, window: Window, of: Filter) -> Report:
        """Waits until the first start, by day, queue, namespace and number of GPUs."""
        return self._ask(lambda reports: reports.waits(window, of))

    def interruptions(self, window: Window, of: Filter) -> Report:
        """Attempts that were preempted or evicted, newest first, at most `MOST_ROWS`."""
        return self._ask(lambda reports: reports.interruptions(window, of, MOST_ROWS))

    def utilisation(self, window: Window, resource: str) -> Report:
        """What became of a resource in each cluster, hour by hour; of all GPUs if none is named."""
        return self._ask(lambda reports: reports.utilisation(window, resource))

    def story(self, namespace: str, name: str, uid: str = "") -> Description | None:
        """The AppWrapper of the uid, or without one the newest that had the name, with its attempts and events.

        None if there was none. Its estimated start is part of its explanation alone, which plans.
        """
        found, _ = self._ask(
            lambda reports: reports.descriptions(uid or name, namespace, is_uid=bool(uid), most=1)
        )
        named = [each for each in found if (each.job["namespace"], each.job["name"]) == (namespace, name)]
        return _without_start(described(named[0])) if named else None

    def _ask(self, question: Callable[[Reports], Awaitable[Found]]) -> Found:
        with self._turn:
            try:
                return ask(self._url, question)
            except StoreForbidden as error:
                raise CommandFailed(f"{why_not(error)}, and only it has history: {TO_GET_A_ROLE}") from error
            except StoreError as error:
                raise CommandFailed(one_line(str(error))) from error


def _without_start(description: Description) -> Description:
    if description.waiting is None:
        return description
    return replace(description, waiting={**description.waiting, **Start(unknown=ABOVE).columns})

"""What the hub said last: one reading serves every page, and an old one stays if the hub does not answer.

A reading costs what `kubectl get appwrappers` costs, at most once in `FRESH_SECONDS`, however many pages are open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, field

from dispatcher.cli.options import HubOptions
from dispatcher.cli.query import on_hub
from dispatcher.cli.screens.appwrapper_status import AppWrapperStatus
from dispatcher.errors import CommandFailed, TryAgain

Json = dict[str, Any]

FRESH_SECONDS: Final = 2.0
"""For so long a reading answers all pages."""


class Seen(Struct, frozen=True):
    """The AppWrappers at a moment, by namespace and name; of all namespaces if `namespace` is empty."""

    at: datetime
    namespace: str
    appwrappers: Mapping[tuple[str, str], Json] = field(default_factory=dict)

    def status(self, namespace: str, name: str) -> AppWrapperStatus | None:
        """An AppWrapper as it was then; None if there was none of that name."""
        found = self.appwrappers.get((namespace, name))
        return None if found is None else AppWrapperStatus(found, self.at)


NOTHING: Final = Seen(datetime.min.replace(tzinfo=UTC), "")


class Reading:
    """Reads the hub; may be asked by several threads.

    With a `namespace` that one alone is read. Without, all are, or that of the kubeconfig if all may not be listed.
    """

    def __init__(
        self,
        at: HubOptions,
        namespace: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at = at
        self._namespace = namespace
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._fresh_until = 0.0
        self.seen = NOTHING
        self.problem = ""
        """Why the last look failed, in a sentence; empty if it did not. What was seen before stays."""

    def look(self) -> Seen:
        """What there is, or was at the last look that the hub answered."""
        with self._lock:
            if self._monotonic() >= self._fresh_until:
                try:
                    self.seen, self.problem = self._read(), ""
                except (CommandFailed, TryAgain) as error:
                    self.problem = str(error)
                self._fresh_until = self._monotonic() + FRESH_SECONDS
            return self.seen

    def _read(self) -> Seen:
        with on_hub(self._at) as hub:
            namespace = self._namespace
            try:
                found = hub.appwrappers(namespace)
            except CommandFailed:
                if namespace:
                    raise
                namespace = hub.namespace  # all may not be listed
                found = hub.appwrappers(namespace)
            named = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in found}
            return Seen(self._now(), namespace, named)

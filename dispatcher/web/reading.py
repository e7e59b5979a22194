"""Reads the AppWrappers of the hub for the pages. If the hub does not answer, the pages show what was read last.

A reading costs what `kubectl get appwrappers` costs, at most once in `FRESH_SECONDS`, however many pages are open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from dispatcher.cli.options import HubOptions
from dispatcher.cli.screens.appwrapper_status import AppWrapperStatus
from dispatcher.errors import CommandFailed, Forbidden
from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.text import mapping_of
from dispatcher.web.look import HubLook

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

Json = dict[str, Any]

FRESH_SECONDS: Final = 2.0
"""For so long a reading answers all pages."""


class Seen(Struct, frozen=True):
    """The AppWrappers at a moment, by namespace and name; of all namespaces if `namespace` is empty."""

    at: datetime
    namespace: str
    appwrappers: Mapping[tuple[str, str], Json] = field(default_factory=dict)
    unreadable: int = 0
    """AppWrappers that are left out, because they have not the shape of their definition."""

    def status(self, namespace: str, name: str) -> AppWrapperStatus | None:
        """An AppWrapper as it was then; None if there was none of that name."""
        found = self.appwrappers.get((namespace, name))
        return None if found is None else AppWrapperStatus(found, self.at)


NOTHING: Final = Seen(datetime.min.replace(tzinfo=UTC), "")


class Reading(HubLook[Seen]):
    """Reads the AppWrappers of the hub.

    With a `namespace` that one alone is read. Without, all are, or that of the kubeconfig if all may not be listed: the
    first look decides.
    """

    def __init__(
        self,
        at: HubOptions,
        namespace: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        kept: KeptAccesses | None = None,
    ) -> None:
        super().__init__(NOTHING, FRESH_SECONDS, at, kept, monotonic)
        self._namespace = namespace
        self._now = now

    def _read_from(self, hub: Hub) -> Seen:
        try:
            found = hub.appwrappers(self._namespace)
        except CommandFailed as error:
            is_first = self.seen is NOTHING and not self._namespace
            if not (is_first and isinstance(error.__cause__, Forbidden)):
                raise
            self._namespace = hub.namespace  # all may not be listed
            found = hub.appwrappers(self._namespace)
        readable = list(filter(_is_readable, found))
        named = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in readable}
        return Seen(self._now(), self._namespace, named, len(found) - len(readable))


def _is_readable(appwrapper: Json) -> bool:
    """True if an AppWrapper has the shape of its definition, as far as the pages read it; others are left out."""
    metadata, status = mapping_of(appwrapper.get("metadata")), appwrapper.get("status")
    waiting = status.get("waiting") if isinstance(status, dict) else None
    parts = (status, waiting, waiting.get("repair") if isinstance(waiting, dict) else None)
    is_named = all(
        isinstance(metadata.get(each), str) for each in ("namespace", "name", "uid", "creationTimestamp")
    )
    return is_named and all(each is None or isinstance(each, dict) for each in parts)

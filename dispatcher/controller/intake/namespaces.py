"""The priority ceilings of the hub's namespaces, from their annotations; only metadata is read.

If the dispatcher may not list namespaces, the default ceiling holds everywhere, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dispatcher import log
from dispatcher.api.names import MAX_PRIORITY, MAX_PRIORITY_SLOPE
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.core.intake.ceilings import Ceiling, ceiling_of, unreadable
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.reflector import Extent, Reflector

PATH: Final = "/api/v1/namespaces"

_log = log.get("namespaces")


@dataclass(frozen=True, slots=True)
class _Limited:
    name: str
    annotations: Mapping[str, str]


class Namespaces:
    """Ceilings by namespace; calls `on_change` with a namespace's name when the ceiling of that namespace changes."""

    def __init__(self, client: ClusterClient, default: Ceiling, on_change: Callable[[str], None]) -> None:
        self._default = default
        self._on_change = on_change
        self._ceilings: dict[str, Ceiling] = {}
        self._reflector = Reflector(
            "hub-namespaces", client, _path, _decode, self._changed, extent=Extent(contents=False)
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflector.run()

    async def wait_until_listed(self) -> None:
        """Return once namespaces were listed, or the API server has refused the list."""
        await self._reflector.heard.wait()
        if self._reflector.is_forbidden:
            _log.warning("ceilings_unknown", remedy="apply manifests/hub.yaml: namespaces cannot be listed")

    @property
    def first_lists(self) -> FirstLists:
        """The watch of namespaces; a refusal counts as its answer."""
        return [(self._reflector, self._reflector.heard)]

    def ceiling_of(self, namespace: str) -> Ceiling:
        """The ceiling of a namespace."""
        return self._ceilings.get(namespace, self._default)

    def _changed(self, _uid: str, old: _Limited | None, new: _Limited | None) -> None:
        changed = new or old
        if changed is None or old == new:
            return
        if new is None:
            self._ceilings.pop(changed.name, None)
        else:
            self._ceilings[new.name] = ceiling_of(new.annotations, self._default)
            for key in unreadable(new.annotations):
                _log.warning("ceiling_unreadable", namespace=new.name, annotation=key, counts_as=0)
        self._on_change(changed.name)


async def _path() -> str:
    return PATH


def _decode(raw: Json) -> _Limited | None:
    """The annotations about ceilings; None without any."""
    metadata = raw["metadata"]
    annotations = metadata.get("annotations") or {}
    ours = {key: annotations[key] for key in (MAX_PRIORITY, MAX_PRIORITY_SLOPE) if key in annotations}
    return _Limited(metadata["name"], ours) if ours else None

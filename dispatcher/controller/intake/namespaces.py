"""The hub's namespaces: their labels, and their priority ceilings from annotations; only metadata is read.

If the dispatcher may not list namespaces, they have no labels and the default ceiling, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from dispatcher import log
from dispatcher.api.names import MAX_PRIORITY, MAX_PRIORITY_SLOPE
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.core.intake.namespace_bounds import Ceiling, ceiling_of, unreadable
from dispatcher.core.queues.access import queue_name
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.reflector import Extent, Reflector
from dispatcher.text import mapping_of, texts_of

PATH: Final = "/api/v1/namespaces"

_log = log.get("namespaces")


class _Namespace(Struct, frozen=True):
    name: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def relevant(self) -> tuple[Mapping[str, str], str]:
        """What AppWrappers in the namespace depend on: its ceilings and the queue that it names."""
        return self.annotations, queue_name(self.labels)


_UNKNOWN: Final = _Namespace("", {}, {})


class Namespaces:
    """Ceilings and labels by namespace.

    `on_change` is called with a namespace's name when its ceiling or its queue changes, and `on_labels` when any label
    of a namespace does.
    """

    def __init__(
        self,
        client: ClusterClient,
        default: Ceiling,
        on_change: Callable[[str], None],
        on_labels: Callable[[], None],
    ) -> None:
        self._default = default
        self._on_change = on_change
        self._on_labels = on_labels
        self._ceilings: dict[str, Ceiling] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
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
            _log.warning(
                "ceilings_unknown", remedy="apply manifests/base/hub.yaml: namespaces cannot be listed"
            )

    @property
    def first_lists(self) -> FirstLists:
        """The watch of namespaces; a refusal counts as its answer."""
        return [(self._reflector, self._reflector.heard)]

    def ceiling_of(self, namespace: str) -> Ceiling:
        """The ceiling of a namespace."""
        return self._ceilings.get(namespace, self._default)

    def priorities(self) -> dict[str, int | None]:
        """The highest priority of each namespace with another ceiling than the default one; None is no bound."""
        found = ((name, each.priority) for name, each in self._ceilings.items())
        return {name: priority for name, priority in found if priority != self._default.priority}

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace; none if it is unknown."""
        return self._labels.get(namespace, {})

    @property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of every namespace that has any, by its name; the mapping is current, and not to be changed."""
        return self._labels

    def _changed(self, _uid: str, old: _Namespace | None, new: _Namespace | None) -> None:
        changed = new or old
        if changed is None or old == new:
            return
        if new is None:
            self._ceilings.pop(changed.name, None)
            self._labels.pop(changed.name, None)
        else:
            self._note(new)
        before, after = old or _UNKNOWN, new or _UNKNOWN
        if before.relevant != after.relevant:
            self._on_change(changed.name)
        if before.labels != after.labels:
            self._on_labels()

    def _note(self, namespace: _Namespace) -> None:
        self._ceilings[namespace.name] = ceiling_of(namespace.annotations, self._default)
        self._labels[namespace.name] = namespace.labels
        for key in unreadable(namespace.annotations):
            _log.warning("ceiling_unreadable", namespace=namespace.name, annotation=key, counts_as=0)


async def _path() -> str:
    return PATH


def _decode(raw: Json) -> _Namespace | None:
    """The annotations about ceilings, and all labels; None without any."""
    metadata = raw["metadata"]
    annotations, labels = mapping_of(metadata.get("annotations")), texts_of(metadata.get("labels"))
    ours = {key: str(annotations[key]) for key in (MAX_PRIORITY, MAX_PRIORITY_SLOPE) if key in annotations}
    return _Namespace(metadata["name"], ours, labels) if ours or labels else None

"""Reads the nodes of all clusters for the GPU map, as `kubectl aw nodes` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dispatcher.cli.options import HubOptions
from dispatcher.cli.people.node_report import NodeReport, SeenNode
from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.web.look import HubLook

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

FRESH_SECONDS: Final = 10.0
"""Seconds for which a reading answers all pages."""


class SeenNodes(Struct, frozen=True):
    """The nodes at a moment, and sentences about everything that cannot be seen; `at` is None before the first look."""

    at: datetime | None = None
    nodes: tuple[SeenNode, ...] = ()
    sentences: tuple[str, ...] = ()


class NodeReading(HubLook[SeenNodes]):
    """Reads AppWrappers, nodes and pods with the rights of a kubeconfig.

    A read costs what `kubectl aw nodes` costs. Pods are those of all namespaces; if these may not be listed, those of
    `namespace`, or of the kubeconfig's if it is empty. A member that does not answer costs its timeout in each read.
    """

    def __init__(
        self,
        at: HubOptions,
        namespace: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        kept: KeptAccesses | None = None,
    ) -> None:
        super().__init__(SeenNodes(), FRESH_SECONDS, at, kept, monotonic)
        self._namespace = namespace
        self._now = now

    def _read_from(self, hub: Hub) -> SeenNodes:
        report, sentences = NodeReport.read(hub, self._namespace or hub.namespace, "")
        return SeenNodes(self._now(), tuple(report.nodes), tuple(sentences))

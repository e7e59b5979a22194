"""The queues as trees with bars: what each may use, uses and borrows, as `kubectl aw queues` tells it.

Names may be those of operators alone, but are escaped like all others. Values are plain text and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dispatcher.cli.operators.queue_tree import NO_QUEUES, QueueLine, QueueList, lines
from dispatcher.cli.operators.queues import quota_subtrees
from dispatcher.cli.options import HubOptions
from dispatcher.core.model.quantity import QuantityError, amount
from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.web.look import HubLook

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

FRESH_SECONDS: Final = 5.0
"""Seconds for which a reading answers all pages; the leader writes the statuses of queues every few seconds."""
WIDTH: Final = 200
"""Width of the longest bar in pixels."""
MOST_QUEUES: Final = 1_000
"""Queues on one page."""
DEEPEST: Final = 12
"""Levels that are indented."""


class QueuesSeen(Struct, frozen=True):
    """The queues at a moment; `at` is None before the first look."""

    at: datetime | None = None
    lines: tuple[QueueLine, ...] = ()
    sees_trees: bool = True
    """Whether MCAD's trees may be read."""


class Bars(Struct, frozen=True):
    """Widths in pixels: the nominal quota, the use within it, and the use beyond it."""

    nominal: int
    within: int
    beyond: int


class QueueBar(Struct, frozen=True):
    """A queue of the page, with its bars; None where nothing is limited."""

    line: QueueLine
    indent: int
    bars: Bars | None


class QueuesPage(Struct, frozen=True):
    """The queues, `of_all` in number."""

    queues: tuple[QueueBar, ...]
    of_all: int
    sees_trees: bool
    nothing: str = NO_QUEUES


class QueueReading(HubLook[QueuesSeen]):
    """Reads DispatchQueues and QuotaSubtrees with the rights of a kubeconfig, as `kubectl aw queues` does."""

    def __init__(
        self,
        at: HubOptions,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
        kept: KeptAccesses | None = None,
    ) -> None:
        super().__init__(QueuesSeen(), FRESH_SECONDS, at, kept, monotonic)
        self._now = now

    def _read_from(self, hub: Hub) -> QueuesSeen:
        listed, subtrees = hub.queues(), quota_subtrees(hub)
        return QueuesSeen(
            self._now(), tuple(lines(QueueList.of(listed, subtrees or ()))), subtrees is not None
        )


def queues_page(seen: QueuesSeen) -> QueuesPage:
    """The queues in the order of their trees; bars of one resource have one scale. O(n) for n queues."""
    scale = _scale(seen.lines)
    shown = tuple(
        QueueBar(each, min(each.depth, DEEPEST), _bars(each, scale.get(each.resource, 0)))
        for each in seen.lines[:MOST_QUEUES]
    )
    return QueuesPage(shown, len(seen.lines), seen.sees_trees)


def _scale(shown: Iterable[QueueLine]) -> dict[str, int]:
    """The largest amount of each resource."""
    found: dict[str, int] = {}
    for each in shown:
        largest = max(_amount(each.resource, each.nominal), _amount(each.resource, each.used))
        found[each.resource] = max(found.get(each.resource, 0), largest)
    return found


def _bars(line: QueueLine, scale: int) -> Bars | None:
    if not line.resource or not scale:
        return None
    nominal, used = _amount(line.resource, line.nominal), _amount(line.resource, line.used)
    within = min(nominal, used)
    return Bars(*(round(WIDTH * each / scale) for each in (nominal, within, used - within)))


def _amount(resource: str, written: str) -> int:
    """An amount in base units; 0 for what is no quantity, which a status may have."""
    try:
        return max(0, amount(resource, written)) if written else 0
    except QuantityError:
        return 0

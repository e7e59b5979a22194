"""The keys `trace` and `policy` of a plan file: which trace is run, and by which policy.

`docs/simulation.md` has the fields. A policy says where the gangs of a trace may go and in which queue they wait: the
clusters and queues of the file are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from dispatcher.api.document import Entry
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.simulation.simulation import REMOVAL

TRACE: Final = (
    "format",
    "file",
    "from",
    "until",
    "clusters",
    "queues",
    "resource",
    "perNode",
    "sort",
    "gangs",
)
POLICY: Final = (
    "name",
    "cluster",
    "queue",
    "queueing",
    "starvationBoundSeconds",
    "fit",
    "limits",
    "removalSeconds",
)
GPU: Final = "nvidia.com/gpu"


class Format(StrEnum):
    """How a trace is written."""

    LIST = "list"
    PHILLY = "philly"
    MURI = "muri"
    SWF = "swf"


_COLUMNS: Final = ("file", "clusters", "queues", "resource", "perNode")
KEYS: Final[Mapping[Format, tuple[str, ...]]] = {
    Format.LIST: ("gangs",),
    Format.PHILLY: (*_COLUMNS, "from", "until"),
    Format.MURI: ("file", "resource", "perNode", "sort"),
    Format.SWF: (*_COLUMNS, "sort"),
}
"""The keys of `trace` that have an effect with each format, beside `format`."""


class Where(StrEnum):
    """Where the gangs of a trace may go."""

    ANY = "any"
    """To every cluster."""
    TRACE = "trace"
    """To the cluster that the trace names."""


class Limits(StrEnum):
    """What is known of the run times of gangs before they end."""

    NONE = "none"
    TRACE = "trace"
    """What the trace says that users stated."""
    TRUE = "true"
    """Each gang states its true run time as its limit."""


class TraceSpec(Struct, frozen=True):
    """The key `trace`. `clusters` and `queues` map names of the trace to names of the file, if they are not empty."""

    format: Format
    file: str = ""
    since: datetime | None = None
    until: datetime | None = None
    clusters: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, str] = field(default_factory=dict)
    resource: str = ""
    per_node: int = 0
    is_to_sort: bool = False


class Policy(Struct, frozen=True):
    """The key `policy`. `queue` is a queue of the file, or empty for the queue that the trace names."""

    name: str = ""
    cluster: Where = Where.TRACE
    queue: str = ""
    queueing: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO
    starvation_bound: timedelta = timedelta(minutes=10)
    fit: FitMode = FitMode.NODE
    limits: Limits = Limits.TRACE
    removal: timedelta = REMOVAL


def read_trace(entry: Entry) -> TraceSpec:
    """The key `trace` of a document. Raises `SpecError`."""
    entry.required("Add the trace that is to be run, such as trace: {format: list, gangs: []}").check_keys(
        TRACE
    )
    format_ = Format(entry.child("format").one_of(tuple(Format)))
    known = "format", *KEYS[format_]
    for each in entry.children():
        if each.value is not None and each.step not in known:
            each.fail(f"has no effect with format {format_}; known are {', '.join(known)}")
    if format_ is not Format.LIST:
        entry.child("file").name()
    return TraceSpec(
        format=format_,
        file=entry.child("file").text(),
        since=_time(entry.child("from")),
        until=_time(entry.child("until")),
        clusters=entry.child("clusters").labels(),
        queues=entry.child("queues").labels(),
        resource=_resource(entry.child("resource")),
        per_node=entry.child("perNode").integer(0, least=1),
        is_to_sort=entry.child("sort").flag(),
    )


def read_policy(entry: Entry, default_name: str) -> Policy:
    """The key `policy` of a document. Raises `SpecError`."""
    if entry.value is not None:
        entry.check_keys(POLICY)
    bound, removal = entry.child("starvationBoundSeconds"), entry.child("removalSeconds")
    if removal.value is not None and not removal.seconds():
        removal.fail("must be more than 0: a removal takes time")
    return Policy(
        name=entry.child("name").text() or default_name,
        cluster=Where(entry.child("cluster").one_of(tuple(Where), Where.TRACE)),
        queue=entry.child("queue").text(),
        queueing=QueueingStrategy(
            entry.child("queueing").one_of(tuple(QueueingStrategy), QueueingStrategy.BEST_EFFORT_FIFO)
        ),
        starvation_bound=Policy().starvation_bound if bound.value is None else bound.seconds(),
        fit=FitMode(entry.child("fit").one_of(tuple(FitMode), FitMode.NODE)),
        limits=Limits(entry.child("limits").one_of(tuple(Limits), Limits.TRACE)),
        removal=REMOVAL if removal.value is None else removal.seconds(),
    )


def _time(entry: Entry) -> datetime | None:
    written = entry.value.isoformat() if hasattr(entry.value, "isoformat") else entry.text()
    if not written:
        return None
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        entry.fail('must be a day or a time such as "2017-10-01" or "2017-10-01T08:30:00"')
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _resource(entry: Entry) -> str:
    if entry.value is None:
        return ""
    return entry.resource_name()

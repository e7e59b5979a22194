"""The jobs of trace files: Philly, Muri and the Standard Workload Format.

A reader takes the lines of a file and yields what each job says (`Stated`); `traces.jobs` makes gangs of it. Times are
seconds, and begin at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from dispatcher.core.simulation.traces.rows import Row, TraceError, csv_rows
from dispatcher.core.simulation.traces.spec import Format, TraceSpec


class Stated(Struct, frozen=True):
    """What a trace says of one job: `at` and `runs` in seconds, and how many devices it has.

    `cluster` and `queue` are names of the trace, empty if it has none. `limit` is the longest run that its user stated.
    """

    line: int
    name: str
    at: float
    runs: float
    devices: int
    cluster: str = ""
    queue: str = ""
    priority: int = 0
    limit: int = 0


Reader = Callable[[Iterable[str], TraceSpec], Iterator[Stated]]


def philly(lines: Iterable[str], spec: TraceSpec) -> Iterator[Stated]:
    """Microsoft's Philly as siasosp23/artifacts has it: time of arrival, seconds, GPUs, virtual cluster."""
    for row in csv_rows(lines, ("timestamp", "duration", "num_gpus", "cluster")):
        at = row.time("timestamp")
        if (spec.since is None or spec.since <= at) and (spec.until is None or at < spec.until):
            cluster = row.text("cluster")
            runs, devices = row.seconds("duration"), row.count("num_gpus")
            yield Stated(row.line, f"{row.line}", at.timestamp(), runs, devices, cluster, cluster)


def muri(lines: Iterable[str], _spec: TraceSpec) -> Iterator[Stated]:
    """Muri's traces (Rivendile/Muri): arrival and duration in milliseconds, and GPUs."""
    for row in csv_rows(lines, ("job_id", "num_gpu", "submit_time", "duration")):
        at, runs = row.seconds("submit_time", _MILLI), row.seconds("duration", _MILLI)
        yield Stated(row.line, f"{row.line}", at, runs, row.count("num_gpu"))


def swf(lines: Iterable[str], _spec: TraceSpec) -> Iterator[Stated]:
    """The Standard Workload Format: 18 numbers in a line; lines that begin with ; are comments.

    The queue of a job is its queue number, and its cluster the partition. A job that never ran, or for which the trace
    has no processors or no run time (-1), is left out.
    Source: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
    """
    for line, written in enumerate(lines, 1):
        fields = written.split()
        if not fields or fields[0].startswith(";"):
            continue
        if len(fields) != len(SWF):
            raise TraceError(line, f"has {len(fields)} fields, not {len(SWF)}: is the file truncated?")
        row = Row(line, dict(zip(SWF, fields, strict=True)))
        processors = _known(row, "allocated processors") or _known(row, "requested processors")
        runs = _known(row, "run time")
        if not processors or runs is None:
            continue
        yield Stated(
            line,
            f"{line}",
            row.seconds("submit time"),
            runs,
            _whole(row, processors),
            cluster=_name(row, "partition"),
            queue=_name(row, "queue"),
            limit=int(_known(row, "requested time") or 0),
        )


SWF: Final = (
    "job",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "cpu time",
    "memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
_MILLI: Final = 0.001
_UNKNOWN: Final = -1


def _known(row: Row, column: str) -> float | None:
    """A number of at least 0; None if it is -1, which says that the trace does not know it."""
    found = row.number(column)
    return None if found == _UNKNOWN else row.seconds(column)


def _name(row: Row, column: str) -> str:
    """A number that names something; empty if the trace does not know it."""
    return "" if _known(row, column) is None else row.text(column)


def _whole(row: Row, number: float) -> int:
    if number != int(number):
        row.fail(f"the number of processors must be whole, not {number}")
    return int(number)


READERS: Final[Mapping[Format, Reader]] = {Format.PHILLY: philly, Format.MURI: muri, Format.SWF: swf}
UNSORTED: Final = frozenset({Format.PHILLY})
"""The formats whose published files are not in the order of arrival."""
CPUS: Final = frozenset({Format.SWF})
"""The formats whose devices are processors; those of the others are GPUs."""

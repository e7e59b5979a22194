"""A dispatcher's own figures, as Prometheus would scrape them."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from testbed.processes import Process

Labels = tuple[str, ...]
"""The values of the labels of a sample, in the order of the labels' names."""

STARTED = '"event": "started"'
"""In the line of its log in which a dispatcher says where it serves."""


async def values_of(process: Process, metric: str) -> dict[Labels, float]:
    """Every sample of one metric of now; none as long as the process does not serve it yet."""
    answer = await asyncio.to_thread(_read, process)
    # To parse all metrics would take a tester that looks again and again more time than the answer takes the process.
    own = "\n".join(line for line in answer.splitlines() if line.startswith((f"{metric}{{", f"{metric} ")))
    return {
        tuple(sample.labels[name] for name in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(own)
        for sample in family.samples
    }


async def free_in(process: Process, cluster: str = "hub") -> dict[str, int]:
    """What the dispatcher says is free, by resource; what is absent is 0."""
    gauges = await values_of(process, "dispatcher_capacity_free")
    return {resource: int(value) for (name, resource), value in gauges.items() if name == cluster and value}


async def writes_of(process: Process) -> float:
    """How many writes it has sent to API servers."""
    return sum((await values_of(process, "dispatcher_api_writes_total")).values())


async def cycles_of(process: Process) -> float:
    """How many dispatch cycles it has run; 0 before it leads."""
    return (await values_of(process, "dispatcher_cycle_seconds_count")).get((), 0.0)


async def readiness_of(process: Process) -> tuple[int, str]:
    """What `/readyz` answers: its status and its line; 0 and no line while nothing is served."""
    return await asyncio.to_thread(_ask_readiness, process)


def probes_of(process: Process) -> str:
    """Where it serves probes and metrics, from its own log; empty until it has started."""
    for line in reversed(process.log.read_text().splitlines()):
        if line.startswith("{") and STARTED in line:
            return str(json.loads(line)["probes"])
    return ""


def _ask_readiness(process: Process) -> tuple[int, str]:
    probes = probes_of(process)
    if not probes:
        return 0, ""
    try:
        with urllib.request.urlopen(f"{probes}/readyz", timeout=5) as answer:  # noqa: S310  # http on loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""  # the log's last word is that of its killed predecessor of the same name


def _read(process: Process) -> str:
    probes = probes_of(process)
    if not probes:
        return ""
    try:
        with urllib.request.urlopen(f"{probes}/metrics", timeout=10) as answer:  # noqa: S310  # http on loopback
            text: str = answer.read().decode()
    except urllib.error.URLError:
        return ""  # the log's last word is that of its killed predecessor of the same name
    return text

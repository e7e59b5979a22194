"""Arithmetic on measurements: counts from Prometheus text, percentiles, differences."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

WRITE_VERBS: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})

_SAMPLE: Final = re.compile(r"^(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def writes(metrics: str) -> Counter[str]:
    """The writes that an API server has handled since its start, by `VERB resource`, without dry runs."""
    found: Counter[str] = Counter()
    for labels, value in _samples(metrics, "apiserver_request_total"):
        if labels["verb"] in WRITE_VERBS and not labels["dry_run"]:
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            found[f"{labels['verb']} {resource}"] += value
    return found


def requests_of_flow(metrics: str, flow_schema: str) -> int:
    """The requests that an API server has served under that flow schema since its start."""
    samples = _samples(metrics, "apiserver_flowcontrol_dispatched_requests_total")
    return sum(value for labels, value in samples if labels["flow_schema"] == flow_schema)


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """The growth of each count; unchanged counts are left out."""
    grown = {key: value - before.get(key, 0) for key, value in sorted(after.items())}
    return {key: value for key, value in grown.items() if value}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed (nearest rank)."""
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def _samples(metrics: str, name: str) -> list[tuple[dict[str, str], int]]:
    start = f"{name}{{"
    matches = (_SAMPLE.match(line) for line in metrics.splitlines() if line.startswith(start))
    return [(dict(_LABEL.findall(each["labels"])), int(float(each["value"]))) for each in matches if each]

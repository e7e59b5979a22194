"""Arithmetic on what was measured, and nothing else: counts out of Prometheus text, percentiles, differences."""

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
    """Writes an API server has handled since it started, by `VERB resource`; dry runs are none."""
    found: Counter[str] = Counter()
    for labels, value in _samples(metrics, "apiserver_request_total"):
        if labels["verb"] in WRITE_VERBS and not labels["dry_run"]:
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            found[f"{labels['verb']} {resource}"] += value
    return found


def requests_of_flow(metrics: str, flow_schema: str) -> int:
    """Requests an API server has let through by that flow schema since it started."""
    samples = _samples(metrics, "apiserver_flowcontrol_dispatched_requests_total")
    return sum(value for labels, value in samples if labels["flow_schema"] == flow_schema)


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """How much each grew; what did not is left out."""
    grown = {key: value - before.get(key, 0) for key, value in sorted(after.items())}
    return {key: value for key, value in grown.items() if value}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that `percent` of them do not exceed (nearest rank)."""
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def _samples(metrics: str, name: str) -> list[tuple[dict[str, str], int]]:
    start = f"{name}{{"
    matches = (_SAMPLE.match(line) for line in metrics.splitlines() if line.startswith(start))
    return [(dict(_LABEL.findall(each["labels"])), int(float(each["value"]))) for each in matches if each]

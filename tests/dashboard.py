"""The dashboard of manifests/components/monitoring, as tests read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).parents[1] / "manifests" / "components" / "monitoring" / "dashboard.json"
INTERVAL: Final = "$__rate_interval"
"""Grafana's own variable: a window with at least four scrapes."""


def read() -> dict[str, Any]:
    """The dashboard."""
    loaded: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return loaded


def queries(job: str = "dispatcher", interval: str = "10s") -> dict[str, str]:
    """Every query by its panel and letter, with Grafana's variables filled in."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$job", job).replace(INTERVAL, interval)
        for panel in read()["panels"]
        for target in panel.get("targets", ())
    }

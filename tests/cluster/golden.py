"""What the real MCAD answered, and what of our answer is to be equal to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

RECORDED = Path(__file__).parents[1] / "golden" / "mcad-conditions.yaml"
TIMES = {"lastTransitionMicroTime", "lastUpdateMicroTime", "lastTransitionTime"}
ADDITIONS = {
    *("cluster", "waiting", "reason", "gpus", "queue", "user", "lifecyclePhase"),
    *("controllerfirsttimestamp", "pending", "running"),
}
"""Ours, or a time; the pod counts MCAD has too, but it did not count these pods."""


def golden_status(name: str) -> Json:
    """MCAD's status of one of the two AppWrappers it was shown, times aside."""
    recorded: Json = yaml.safe_load(RECORDED.read_text())[name]
    return without_additions(recorded)


def without_additions(status: Json) -> Json:
    """A status less its times and what MCAD never wrote."""
    kept = {key: value for key, value in status.items() if key not in ADDITIONS}
    if not kept.get("canrun"):
        # MCAD leaves a false one out; docs/compatibility.md says why this one does not.
        kept.pop("canrun", None)
    return kept | {"conditions": [_without_times(condition) for condition in status["conditions"]]}


def _without_times(condition: Json) -> Json:
    assert TIMES - {"lastTransitionTime"} <= condition.keys()
    return {key: value for key, value in condition.items() if key not in TIMES}

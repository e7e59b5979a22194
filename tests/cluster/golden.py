"""What the real MCAD answered, and what of our answer is to be equal to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

Json = dict[str, Any]

RECORDED = Path(__file__).parents[1] / "golden" / "mcad-conditions.yaml"
TIMES = {"lastTransitionMicroTime", "lastUpdateMicroTime", "lastTransitionTime"}
ADDITIONS = {
    *("cluster", "waiting", "reason", "gpus", "queue", "user", "lifecyclePhase"),
    *("controllerfirsttimestamp", "pending", "running", "about", "failure"),
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


# --- What MCAD leaves behind -------------------------------------------------------------------------------


RECORDED_BY_MCAD: Final[Json] = yaml.safe_load(RECORDED.read_text())
"""The status that MCAD wrote, by the name of the example."""
COMPLETED_BY_MCAD: Final[Json] = {
    "state": "Completed",
    "queuejobstate": "Completed",
    "conditions": [
        *RECORDED_BY_MCAD["raycluster-glue"]["conditions"],
        {"type": "Completed", "status": "True", "reason": "PodsCompleted"},
    ],
}


def as_mcad_created(template: Json, name: str, uid: str) -> Json:
    """A template with what MCAD added: the AppWrapper as the controlling owner, and two labels."""
    metadata = template["metadata"]
    labels = {"appwrapper.mcad.ibm.com": name, "resourceName": metadata["name"]}
    owner = {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": "AppWrapper",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    marks = {"labels": (metadata.get("labels") or {}) | labels, "ownerReferences": [owner]}
    return template | {"metadata": metadata | marks}

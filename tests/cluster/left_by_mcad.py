"""AppWrappers and objects as MCAD leaves them behind when it is stopped."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tests.cluster.golden import RECORDED

Json = dict[str, Any]
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

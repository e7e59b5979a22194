"""A stand-in for Kubeflow's trainer, which makes a JobSet for a TrainJob.

Not included: the runtimes of TrainJobs (one step on one kind of node is assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.operated import Json, Operated, Wish, child, conditions_of, find, has_condition, living


def decide_train_job(owner: Json, below: Sequence[Json], now: str) -> Wish:
    """A JobSet with one Job of `trainer.numNodes` pods; its end is the TrainJob's."""
    if owner["spec"].get("suspend"):
        return Wish()
    trainer = owner["spec"].get("trainer") or {}
    nodes = trainer.get("numNodes", 1)
    container = {
        "name": "node",
        "image": trainer.get("image", "trainer"),
        "resources": trainer.get("resourcesPerNode") or {},
    }
    template = living({"metadata": {}, "spec": {"containers": [container]}}, owner)
    job = {"spec": {"parallelism": nodes, "completions": nodes, "template": template}}
    name = owner["metadata"]["name"]
    job_set = find(below, "JobSet", name) or {}
    facts = {
        theirs: has_condition(job_set.get("status") or {}, its)
        for theirs, its in (("Complete", "Completed"), ("Failed", "Failed"))
    }
    content = {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}
    return Wish(
        wanted=[child(owner, "jobset.x-k8s.io/v1alpha2", "JobSet", name, content)],
        status={"conditions": conditions_of(owner.get("status") or {}, facts, "TrainJob", now)},
    )


TRAIN_JOB: Final = Operated("trainer.kubeflow.org/v1alpha1", "TrainJob", decide_train_job)

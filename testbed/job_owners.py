"""Operators that make other owners of pods: JobSet, Kubeflow's trainer, and LeaderWorkerSet.

Not included: restarts and failure policies, startup policies, the runtimes of TrainJobs (one step on one kind of node
is assumed), headless services.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from testbed.operated import (
    Json,
    Operated,
    Phase,
    Wish,
    child,
    conditions_of,
    find,
    has_condition,
    labelled,
    living,
    phase_of_all,
    phase_of_job,
)

LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"


def decide_job_set(owner: Json, below: Sequence[Json], now: str) -> Wish:
    """One Job for each replica of each replicated job; the set is done when all of its Jobs are."""
    old = owner.get("status") or {}
    if old.get("terminalState"):
        return Wish(unwanted=[each for each in below if _is_open_job(each)])
    if owner["spec"].get("suspend"):
        return Wish(status={"conditions": conditions_of(old, {"Suspended": True}, "JobSet", now)})
    groups = {each["name"]: _jobs_of(owner, each) for each in owner["spec"]["replicatedJobs"]}
    phases = {
        name: [phase_of_job(find(below, "Job", each["metadata"]["name"])) for each in jobs]
        for name, jobs in groups.items()
    }
    every = [each for found in phases.values() for each in found]
    phase = phase_of_all(every, every)
    facts = {"Completed": phase == Phase.SUCCEEDED, "Failed": phase == Phase.FAILED}
    ended = next((name for name, holds in facts.items() if holds), None)
    return Wish(
        wanted=[each for jobs in groups.values() for each in jobs],
        status={
            "restarts": 0,
            "replicatedJobsStatus": [_counts(name, found) for name, found in phases.items()],
            "conditions": conditions_of(old, facts, "JobSet", now),
            **({"terminalState": ended} if ended else {}),
        },
    )


def _jobs_of(owner: Json, replicated: Json) -> list[Json]:
    return [_job_of(owner, replicated, number) for number in range(replicated.get("replicas", 1))]


def _job_of(owner: Json, replicated: Json, number: int) -> Json:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": owner["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
        "jobset.sigs.k8s.io/job-index": str(number),
    }
    spec = replicated["template"]["spec"]
    template = labelled(spec["template"], labels)
    pods = {**template, "spec": {"restartPolicy": "OnFailure", **template["spec"]}}
    indexed = {"completionMode": "Indexed", "completions": spec.get("parallelism", 1)}
    content = {**labelled(replicated["template"], labels), "spec": {**indexed, **spec, "template": pods}}
    name = f"{owner['metadata']['name']}-{replicated['name']}-{number}"
    return child(owner, "batch/v1", "Job", name, content)


def _counts(name: str, phases: Sequence[Phase]) -> Json:
    return {
        "name": name,
        "ready": phases.count(Phase.RUNNING),
        "active": phases.count(Phase.PENDING) + phases.count(Phase.RUNNING),
        "succeeded": phases.count(Phase.SUCCEEDED),
        "failed": phases.count(Phase.FAILED),
        "suspended": 0,
    }


def _is_open_job(one: Json) -> bool:
    return one["kind"] == "Job" and phase_of_job(one) in (Phase.PENDING, Phase.RUNNING)


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


def decide_leader_worker_set(owner: Json, below: Sequence[Json], now: str) -> Wish:
    """A StatefulSet of the leaders, and one of workers for each leader's pod, which owns it."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    groups, size = spec.get("replicas", 1), spec["leaderWorkerTemplate"].get("size", 1)
    worker = spec["leaderWorkerTemplate"]["workerTemplate"]
    leader = spec["leaderWorkerTemplate"].get("leaderTemplate") or worker
    leaders = _stateful_set(owner, name, leader, groups, {LWS_NAME: name, LWS_WORKER: "0"})
    wanted = [leaders]
    names = [f"{name}-{group}" for group in range(groups)]
    for group, pod in enumerate(find(below, "Pod", each) for each in names):
        if pod is not None and size > 1:
            labels = {LWS_NAME: name, LWS_GROUP: str(group)}
            wanted.append(_stateful_set(pod, names[group], worker, size - 1, labels, first=1))
    ready = sum(
        _is_ready(find(below, "Pod", each))
        and (size == 1 or _ready_replicas(find(below, "StatefulSet", each)) == size - 1)
        for each in names
    )
    facts = {"Available": ready == groups, "Progressing": ready < groups}
    return Wish(
        wanted=wanted,
        status={
            "replicas": groups,
            "readyReplicas": ready,
            "conditions": conditions_of(owner.get("status") or {}, facts, "LeaderWorkerSet", now),
        },
    )


def _stateful_set(
    owner: Json, name: str, template: Json, replicas: int, labels: dict[str, str], first: int = 0
) -> Json:
    spec = {
        "replicas": replicas,
        "ordinals": {"start": first},
        "serviceName": labels[LWS_NAME],
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": labelled(template, labels),
    }
    return child(owner, "apps/v1", "StatefulSet", name, {"spec": spec})


def _is_ready(pod: Json | None) -> bool:
    return has_condition((pod or {}).get("status") or {}, "Ready")


def _ready_replicas(stateful_set: Json | None) -> int:
    return int(((stateful_set or {}).get("status") or {}).get("readyReplicas", 0))


OWNERS: Final = (
    Operated("jobset.x-k8s.io/v1alpha2", "JobSet", decide_job_set),
    Operated("trainer.kubeflow.org/v1alpha1", "TrainJob", decide_train_job),
    Operated("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", decide_leader_worker_set),
)

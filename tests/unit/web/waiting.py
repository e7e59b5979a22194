"""The leader's snapshot of a working day: a gang that waits on two clusters, one of which has a tainted node."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from dispatcher.core.model.records.record import Attempt, Phase, Record
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.store.snapshot.snapshot_reader import Snapshot
from tests.builders import at, make_record

Json = dict[str, Any]

GPU: Final = "nvidia.com/gpu"


def waiting() -> Snapshot:
    """`nlp/pretrain-7b` waits for 8 pods of 4 GPUs."""
    shape = {"allocatable": {"cpu": 64, "memory": "512Gi", GPU: 8, "pods": 110}}
    reserved = [{"key": "team", "value": "speech", "effect": "NoSchedule"}]
    document = {
        "clusters": [
            {"name": "east", "nodes": [{**shape, "name": "gpu", "count": 5}]},
            {
                "name": "west",
                "nodes": [{**shape, "name": "a", "count": 3}, {**shape, "name": "b", "taints": reserved}],
            },
        ],
        "running": [
            _runs("tokenise", "east", 3, 4, ["gpu-0", "gpu-1", "gpu-2"]),
            _runs("finetune-13b", "east", 2, 6, ["gpu-3", "gpu-4"]),
            _runs("detector-9", "west", 3, 5, ["a-0", "a-1", "a-2"]),
            _runs("ablation", "east", 1, 4, ["gpu-0"]),
        ],
        "pending": [
            {"name": "pretrain-7b", "namespace": "nlp", "pods": [{"count": 8, "requests": {GPU: 4}}]}
        ],
    }
    world = replace(parse_scenario(document), now=at(7200))
    pretrain = replace(world.pending[0], uid="uid-of-nlp-pretrain-7b")
    world = replace(world, pending=(pretrain,))
    records = {each.name: _record_of(each) for each in world.running}
    facts = {pretrain.uid: pretrain, **records}
    return Snapshot(world, facts, SchedulingRules(), world.now, has_leader=True)


def _record_of(gang: RunningGang) -> Record:
    found = make_record(Phase.RUNNING, gang.name, uid=gang.name, user="grace", namespace="nlp")
    attempt = Attempt(1, gang.cluster, at(0))
    return replace(
        found, gang=replace(found.gang, demand=gang.demand), attempt=attempt, expected_seconds=9000
    )


def _runs(name: str, cluster: str, count: int, gpus: int, nodes: list[str]) -> Json:
    pods = [{"count": count, "requests": {GPU: gpus}, "nodes": nodes}]
    return {"name": name, "cluster": cluster, "pods": pods}

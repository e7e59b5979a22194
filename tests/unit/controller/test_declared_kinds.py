"""The controller's parts charge, judge and read objects of declared kinds as their declarations say."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dispatcher.api.appwrapper import WrappedObject, parse_spec
from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.manifest import Owner
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.records.record import ObjectRef, Phase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.objects.appwrappers import NO_ANNOTATIONS, decode
from tests.builders import make_appwrapper, make_metadata, make_owner, make_record, make_template
from tests.fakes import FakeApiServer, answer
from tests.unit.controller.store import FakeStore
from tests.unit.controller.world import World

Json = dict[str, Any]

OWN = "platform.example.com/v1"
COLLECTION = f"/apis/{OWN}/namespaces/default/trainings"
DECLARED = Kinds(
    (
        KindDeclaration(
            "platform.example.com",
            "Training",
            (PodSetDeclaration("spec.template", "spec.replicas"),),
            succeeded=("Trained",),
        ),
    )
)
TRAINING: Json = {
    "apiVersion": OWN,
    "kind": "Training",
    "metadata": {"name": "train"},
    "spec": {"replicas": 3, "template": {"spec": make_template()["spec"]}},
}


async def test_gang_is_charged_for_its_templates(world: World) -> None:
    spec = parse_spec({"resources": {"GenericItems": [{"generictemplate": TRAINING}]}}, namespace="default")
    assert replace(world.limits, kinds=DECLARED).charge(spec).gang.demand == Resources({"cpu": 3000})


async def test_gang_waits_for_its_pods_and_its_end() -> None:
    store, view = FakeStore(), decode(make_appwrapper("aw", TRAINING))
    store.specs[view.spec_hash] = view.spec
    record = replace(make_record(Phase.RUNNING, "aw"), spec_hash=view.spec_hash)
    policy = await Specs(store, kinds=DECLARED).policy_of(record, NO_ANNOTATIONS)
    assert policy.items == (CompletionRule(ends=True, holds=True, pods=3, asks=3, in_order=True),)


async def test_object_that_no_watch_shows_is_read_by_its_declaration(
    server: FakeApiServer, client: ClusterClient
) -> None:
    owner: Owner = make_owner()
    metadata = make_metadata("train", labels=owner.labels(), ownerReferences=[owner.reference()])
    status = {"conditions": [{"type": "Trained", "status": "True"}]}
    served = {"name": "trainings", "kind": "Training", "namespaced": True}
    server.on("GET", f"/apis/{OWN}", answer({"resources": [served]}))
    server.on("GET", f"{COLLECTION}/train", answer({**TRAINING, "metadata": metadata, "status": status}))
    cluster = WatchedCluster(
        "hub",
        client,
        CapacityLedger(),
        on_capacity=lambda: None,
        on_pods=lambda _appwrapper: None,
        kinds=DECLARED,
    )
    ref = ObjectRef(0, OWN, "Training", "default", "train", metadata["uid"])
    found = await cluster.object_client.reclaim(WrappedObject(0, TRAINING), ref, owner)
    assert found == ObjectState(End.SUCCEEDED, frozenset({"Trained"}))

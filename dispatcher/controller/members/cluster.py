"""One connected cluster: its client, its watches, and the capacity ledger that they update."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from dispatcher import log
from dispatcher.api import names
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.controller.members.kind_survey import KindSurvey
from dispatcher.core.kinds.asked import owns_rayclusters
from dispatcher.core.kinds.provisioning_request import request_ref
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.pods import Pod, PodCounts, Unscheduled
from dispatcher.core.model.records.record import ObjectRef, Record
from dispatcher.core.model.records.requirements import Kind, KindIn
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.anchors import Anchors
from dispatcher.kube.objects.drift_checker import DriftChecker
from dispatcher.kube.objects.events import EventRecorder, WarningReader
from dispatcher.kube.objects.live_pod_lister import LivePodLister
from dispatcher.kube.objects.nodes import NODES_PATH, PODS_PATH, PodView, decode_node, decode_pod
from dispatcher.kube.objects.object_client import ObjectClient
from dispatcher.kube.objects.object_informers import ObjectInformers
from dispatcher.kube.objects.owner_resolver import OwnerResolver
from dispatcher.kube.objects.pod_changes import GrowthGates, SurplusPods
from dispatcher.kube.objects.pod_defaults_reader import PodDefaultsReader
from dispatcher.kube.objects.pod_failures import PodFailureReader
from dispatcher.kube.reflector import Extent, Reflector
from dispatcher.text import mapping_of

_log: Final = log.get("cluster")

NAMESPACES_PATH: Final = "/api/v1/namespaces"
METADATA_ONLY: Final = Extent(contents=False)

MOST_PENDING_PODS: Final = 10
"""The most unschedulable pods of one AppWrapper that its status lists."""


class Namespace(NamedTuple):
    """A namespace of a member; gangs may enter it if `is_enabled`."""

    name: str
    is_enabled: bool


class _Namespaces(NamedTuple):
    """The names of all namespaces of a member, and of those without the label that enables gangs."""

    all: frozenset[str]
    closed: frozenset[str]


async def _at_once() -> None:
    """Does nothing."""


def _unknown(_appwrapper: str) -> str | None:
    """The default for clusters without AppWrappers: no AppWrapper has a namespace."""
    return None


class WatchedCluster:
    """A cluster and its watches; the hub is the cluster named `hub`. A changed pod calls `on_pods` with its AppWrapper.

    `namespace_of` gives the namespace of an AppWrapper by uid, None while the AppWrapper is unknown; pods in other
    namespaces do not count. `recount_claims_of` must be called for each AppWrapper that becomes known later.
    """

    def __init__(
        self,
        name: str,
        client: ClusterClient,
        ledger: CapacityLedger,
        *,
        on_capacity: Callable[[], None],
        on_pods: Callable[[str], None],
        namespace_of: Callable[[str], str | None] = _unknown,
        kinds: Kinds = BUILT_IN,
        field_validation: str = "Warn",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.kinds = kinds
        self.ledger = ledger
        self.discovery = Discovery(client)
        self.object_client = ObjectClient(client, self.discovery, kinds, field_validation)
        self.anchors = Anchors(client, self._anchor_found)
        self.growth_gates = GrowthGates(client, ledger.admit)
        self.surplus_pods = SurplusPods(client)
        self.event_recorder = EventRecorder(client, monotonic, name)
        manifest = "manifests/overlays/member/member.yaml" if self.is_member else "manifests/base/hub.yaml"
        self.pod_defaults = PodDefaultsReader(client, name, manifest, monotonic)
        self.may_create_namespaces = False
        self.is_loaded = True
        """False while `ClusterLoader` loads the gangs of the cluster."""
        self.draining = ""
        """The reason of a drain, in a sentence; empty without a drain."""
        self.objects = ObjectInformers(client, self.discovery, on_pods, kinds, ledger.set_unwanted)
        self.drift_checker = DriftChecker(on_pods)
        self.live_pods = LivePodLister(client, on_pods, ledger.is_down, self._owner)
        anchor_root = self.anchors.root_of if self.is_member else None
        self.owners = OwnerResolver(
            client,
            self.discovery,
            self._owner_resolved,
            namespace_of,
            anchor_root,
            has_pods=lambda uid: uid in self._unresolved_pods,
        )
        self._told_names_left_out = False
        self.warnings = WarningReader(client, self.owners, monotonic)
        self.pod_failures = PodFailureReader(client, self.owners)
        self._on_capacity = on_capacity
        self._on_pods = on_pods
        self._unresolved_pods: dict[str, set[str]] = defaultdict(set)
        self._namespace_of = namespace_of
        self._unknown_claims: dict[str, set[str]] = defaultdict(set)
        self._nodes = Reflector("nodes", client, _at(NODES_PATH), decode_node, self._node_changed)
        self._pods = Reflector("pods", client, _at(PODS_PATH), decode_pod, self._pod_changed)
        self._namespaces = Reflector(
            "namespaces",
            client,
            _at(NAMESPACES_PATH),
            _namespace,
            self._namespace_changed,
            extent=METADATA_ONLY,
        )
        self._namespace_sets: _Namespaces | None = None
        self._kinds = KindSurvey(self.discovery, on_capacity)

    @property
    def is_member(self) -> bool:
        """True if the cluster is another one than the hub."""
        return self.name != HUB_CLUSTER

    @property
    def is_ready(self) -> bool:
        """True once the cluster is listed and loaded; nothing is dispatched to it before."""
        return self.is_loaded and all(each.synced.is_set() for each in self._needed)

    @property
    def _needed(self) -> list[Reflector[Any]]:
        """The watches that must be listed before a dispatch to the cluster."""
        return [self._nodes, self._pods, *([self._namespaces] if self.is_member else [])]

    @property
    def first_lists(self) -> FirstLists:
        """The watches that must be listed before a dispatch to the cluster."""
        return [(each, each.synced) for each in self._needed]

    @property
    def is_answering(self) -> bool:
        """True while the watches that a dispatch needs work."""
        return not any(each.is_failing for each in self._needed)

    @property
    def watches(self) -> list[Reflector[Any]]:
        """Every watch of the cluster."""
        return [*self._needed, *self.objects.watches]

    @property
    def forbidden(self) -> list[str]:
        """The needed watches that the API server refuses."""
        return [each.name for each in self._needed if each.is_forbidden]

    @property
    def excess(self) -> str:
        """A sentence about an answer of the API server beyond the size limits; empty if there is none."""
        return next((each.excess for each in self.watches if each.excess), "")

    def missing_kinds(self, kinds: frozenset[Kind]) -> frozenset[Kind]:
        """The kinds that the cluster does not serve, or may not serve; it is asked about these. See `KindSurvey`."""
        return self._kinds.missing(kinds)

    def kind_hints(self, missing: frozenset[Kind]) -> Mapping[Kind, str]:
        """What is special about some of the missing kinds, as a misspelling. See `KindSurvey`."""
        return self._kinds.hints(missing)

    def waited_for_kinds(self, kinds: frozenset[Kind]) -> bool:
        """True if somebody waited for a survey of all `kinds`; its answer may still be missing."""
        return self._kinds.was_awaited(kinds)

    @property
    def forbidden_kinds(self) -> frozenset[KindIn]:
        """The kinds that the cluster did not let the dispatcher create, with the namespaces. See `CreateRights`."""
        return self.object_client.rights.denied

    def ask_for_kinds(self, kinds: frozenset[Kind]) -> KindSurvey:
        """Start a survey of `kinds` and return it; its `wait` returns once the answer is known."""
        return self._kinds.ask_for(kinds)

    def missing_namespaces(self, namespaces: frozenset[str]) -> frozenset[str]:
        """The namespaces that a member lacks; empty for the hub, where each AppWrapper has its namespace."""
        if not self.is_member:
            return frozenset()
        return namespaces - self._listed_namespaces.all

    def closed_namespaces(self, namespaces: frozenset[str]) -> frozenset[str]:
        """The existing namespaces of a member without the label that enables gangs; empty for the hub."""
        if not self.is_member:
            return frozenset()
        return namespaces & self._listed_namespaces.closed

    @property
    def _listed_namespaces(self) -> _Namespaces:
        """The listed namespaces of the member, as sets that are built once per change, not once per cycle."""
        if self._namespace_sets is None:
            listed = self._namespaces.items.values()
            self._namespace_sets = _Namespaces(
                frozenset(each.name for each in listed),
                frozenset(each.name for each in listed if not each.is_enabled),
            )
        return self._namespace_sets

    @property
    def reconnects(self) -> dict[str, int]:
        """The number of breaks of each watch."""
        watches = {"nodes": self._nodes.reconnects, "pods": self._pods.reconnects}
        return {**self.objects.reconnects, **watches}

    async def run(self, objects_after: Callable[[], Awaitable[None]] = _at_once) -> None:
        """Watch until cancelled; wrapped objects once `objects_after` has returned.

        Nothing is dispatched before nodes and pods are listed, and nothing waits for the lists of wrapped objects.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run(), name=f"{self.name}-nodes")
            tasks.create_task(self._pods.run(), name=f"{self.name}-pods")
            tasks.create_task(self.owners.run(), name=f"{self.name}-owners")
            tasks.create_task(self.live_pods.run(), name=f"{self.name}-live-pods")
            tasks.create_task(self._watch_objects(objects_after), name=f"{self.name}-objects")
            tasks.create_task(self._kinds.run(), name=f"{self.name}-kinds")
            tasks.create_task(self.object_client.rights.run(self._on_capacity), name=f"{self.name}-rights")
            tasks.create_task(self.event_recorder.run(), name=f"{self.name}-events")
            tasks.create_task(self.drift_checker.run(), name=f"{self.name}-drift-checker")
            if self.is_member:
                tasks.create_task(self._namespaces.run(), name=f"{self.name}-namespaces")

    async def _watch_objects(self, after: Callable[[], Awaitable[None]]) -> None:
        await after()
        await self.objects.run()

    async def wait_until_listed(self) -> None:
        """Return once the needed watches are listed."""
        for each in self._needed:
            await each.synced.wait()

    def _namespace_changed(self, _uid: str, old: Namespace | None, new: Namespace | None) -> None:
        if old != new:
            self._namespace_sets = None
            self._on_capacity()

    def capacity(self) -> CapacitySnapshot:
        """The capacity at this moment. An exception about the places of one AppWrapper is logged and counted."""
        found = self.ledger.snapshot()
        for failure in self.ledger.take_failures():
            log.internal_error("scheduler", failure.error, appwrapper=failure.uid, cluster=self.name)
        return found

    def track(self, record: Record) -> None:
        """Track the objects of an attempt, so that their pods are confirmed at once as pods of the AppWrapper.

        While the attempt holds capacity, a missing object wakes its AppWrapper, also if a late list shows the absence.
        """
        objects = _objects_in(self.name, record)
        for ref in objects:
            if ref.uid:
                self.track_object(ref, record.uid)
        self.objects.expect(record.uid, objects if record.holds_capacity else ())

    def track_object(self, ref: ObjectRef, appwrapper: str, *, contents: bool = False) -> None:
        """Track one object of an AppWrapper and recount its pods, which until now counted beside the demand.

        Watches the kind from now on; with `contents`, in full also for a kind without pods (see `ObjectInformers`).
        """
        self.owners.learn(ref.uid, appwrapper)
        self._owner_resolved(ref.uid)
        self.objects.want(ref.api_version, ref.kind, contents=contents)
        if owns_rayclusters(ref):
            # KubeRay makes them with the labels of their owner. They name the workers that Ray wants to be deleted.
            self.objects.want(ref.api_version, "RayCluster")

    def recount_claims_of(self, appwrapper: str) -> None:
        """Recount the pods that claim an AppWrapper, once the AppWrapper is known. Safe to repeat."""
        for uid in self._unknown_claims.pop(appwrapper, ()):
            self._recount(uid)

    def recount_claims(self) -> None:
        """Recount the pods of each claimed AppWrapper that became known before the cluster was connected."""
        for appwrapper in [each for each in self._unknown_claims if self._namespace_of(each) is not None]:
            self.recount_claims_of(appwrapper)

    def pod_counts(self, appwrapper: str) -> PodCounts:
        """The pods of one AppWrapper in this cluster."""
        return self.ledger.pod_counts(appwrapper)

    def pending_pods(self, appwrapper: str) -> list[Json]:
        """The first unschedulable pods of one AppWrapper, in the form of `status.pendingpodconditions`."""
        return [_pending_pod(each) for each in self.ledger.unscheduled(appwrapper)[:MOST_PENDING_PODS]]

    def _node_changed(self, _uid: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self.ledger.remove_node(old.name)
        else:
            self.ledger.set_node(new)
            self._tell_names_left_out(new)
        node = new or old
        if node is not None and _is_down(old) != _is_down(new):
            for appwrapper in self.ledger.owners_on(node.name):
                self._on_pods(appwrapper)
        # A heartbeat changes only the version of a node: it must not cause a cycle.
        if old != new:
            self._on_capacity()

    def _tell_names_left_out(self, node: Node) -> None:
        """Log the first node whose names go beyond the bounds; the metric has their number at any time."""
        if self.ledger.left_out and not self._told_names_left_out:
            self._told_names_left_out = True
            left_out = self.ledger.left_out
            _log.warning("node_names_left_out", cluster=self.name, node=node.name, left_out=left_out)

    def _pod_changed(self, uid: str, old: PodView | None, new: PodView | None) -> None:
        if old is not None and (new is None or _claim(old) != _claim(new)):
            self._drop_unresolved(uid, old)
        sorts_before = self.ledger.sorts_version
        if new is None:
            self.ledger.remove_pod(uid)
        else:
            self._count(uid, new)
        freed = old is not None and _is_charged(old.pod) and (new is None or not _is_charged(new.pod))
        concerns_terms = self.ledger.sorts_version != sorts_before
        if freed or concerns_terms or _asks_anew(old, new):
            self._on_capacity()
        for owner in {self._appwrapper_to_wake(view) for view in (old, new) if view is not None}:
            if owner is not None:
                self._on_pods(owner)

    def _count(self, uid: str, view: PodView) -> None:
        owner = self._owner(view)
        claim = None
        if owner is None and view.controller is not None:
            # Also pods without a claim: their controller may be resolved later, when its AppWrapper is adopted.
            self._unresolved_pods[view.controller.uid].add(uid)
            self._note_unknown_claim(uid, view)
            is_likely = self.owners.is_being_resolved(view.controller) and self._claims_in_its_namespace(view)
            claim = view.claimed_by if is_likely else None
        self.ledger.set_pod(replace(view.pod, owner=owner, claim=claim))

    def _appwrapper_to_wake(self, view: PodView) -> str | None:
        """The AppWrapper to wake for a change of the pod: its claimed one, also before the owner is resolved."""
        return (
            view.claimed_by if view.claimed_by and self._claims_in_its_namespace(view) else self._owner(view)
        )

    def _claims_in_its_namespace(self, view: PodView) -> bool:
        """True if the pod claims an AppWrapper of its own namespace."""
        if view.claimed_by is None or view.controller is None:
            return False
        return self.owners.is_in_namespace(view.claimed_by, view.controller.namespace)

    def _note_unknown_claim(self, uid: str, view: PodView) -> None:
        """Note a pod of an unknown AppWrapper, such as one dispatched by MCAD: it is recounted once that is known."""
        named = self.owners.named_by(view.claimed_by, view.controller)
        if named and self._namespace_of(named) is None:
            self._unknown_claims[named].add(uid)

    def _owner(self, view: PodView) -> str | None:
        return self.owners.confirm(view.claimed_by, view.controller, view.names_appwrapper)

    def _drop_unresolved(self, uid: str, view: PodView) -> None:
        if view.controller is None:
            return
        _discard(self._unresolved_pods, view.controller.uid, uid)
        named = self.owners.named_by(view.claimed_by, view.controller)
        if named:
            _discard(self._unknown_claims, named, uid)

    def _owner_resolved(self, controller: str) -> None:
        """Recount the pods of a controller, once the AppWrapper of that controller is resolved."""
        for uid in self._unresolved_pods.pop(controller, ()):
            self._recount(uid)

    def _recount(self, uid: str) -> None:
        view = self._pods.items.get(uid)
        if view is None:
            return
        self._count(uid, view)
        owner = self._owner(view)
        if owner is not None:
            self._on_pods(owner)
            self._on_capacity()

    def _anchor_found(self, uid: str, appwrapper: str) -> None:
        """Treat an anchor as the controller of pods: a wrapped Pod has no other."""
        self.owners.learn(uid, appwrapper)
        self._owner_resolved(uid)


def _is_charged(pod: Pod) -> bool:
    """True while the pod may be charged: on a node, or if its AppWrapper grows by grants, from the grant on."""
    return pod.live and (bool(pod.node) or pod.can_be_gated)


def _asks_anew(old: PodView | None, new: PodView | None) -> bool:
    """True if a pod with the dispatcher's gate has come or gone: another growth may be asked for."""
    is_gated, was_gated = (each is not None and each.pod.gate is not None for each in (new, old))
    return is_gated and not was_gated if new is not None else was_gated


def _claim(view: PodView) -> tuple[str | None, ObjectRef | None]:
    """The fields of a pod that decide its owner; any user who may patch the pod can change them at any rate."""
    return view.claimed_by, view.controller


def _discard(pods: dict[str, set[str]], key: str, uid: str) -> None:
    uids = pods.get(key)
    if uids is not None:
        uids.discard(uid)
        if not uids:
            del pods[key]


def _objects_in(cluster: str, record: Record) -> tuple[ObjectRef, ...]:
    attempt = record.attempt
    if attempt is None or attempt.cluster != cluster:
        return ()
    request = request_ref(record)
    return attempt.objects if request is None else (*attempt.objects, request)


def _namespace(raw: Json) -> Namespace | None:
    """The namespace in an API object; None if it is being deleted."""
    metadata = raw["metadata"]
    if "deletionTimestamp" in metadata:
        return None
    label = mapping_of(metadata.get("labels")).get(names.DISPATCH_LABEL)
    return Namespace(str(metadata["name"]), is_enabled=label == names.DISPATCH_ENABLED)


def _is_down(node: Node | None) -> bool:
    return node is not None and not node.ready


def _pending_pod(unscheduled: Unscheduled) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    if unscheduled.message:
        condition["message"] = unscheduled.message
    if unscheduled.since:
        condition["lastTransitionTime"] = unscheduled.since
    return {"podname": unscheduled.pod, "conditions": [condition]}


def _at(path: str) -> Callable[[], Awaitable[str]]:
    async def locate() -> str:
        return path

    return locate

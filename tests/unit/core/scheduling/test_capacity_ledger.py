"""The ledger against its definition: whatever happens, in whatever order, both say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from dispatcher.core.model.clusters.nodes import Node, Taint, Toleration
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pods import Gate, Pod, PodCounts, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.scheduling.capacity import capacity_ledger
from dispatcher.core.scheduling.capacity.appwrapper_share import count_pods
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from tests.unit.core.scheduling.capacity_definition import account, attainable

CapacityLedger = partial(capacity_ledger.CapacityLedger, FitMode.AGGREGATE)
"""A ledger of sums over the nodes, which is what the definition says."""

GPU = Taint("gpu", "", "NoSchedule")
DRAIN = Taint("drain", "", "NoExecute")
SPOT = Taint("spot", "", "PreferNoSchedule")

NODE_NAMES = st.sampled_from(["n1", "n2", "n3"])
POD_UIDS = st.sampled_from(["p1", "p2", "p3", "p4", "p5"])
APPWRAPPERS = st.sampled_from(["a", "b"])
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(0, 5)).map(Resources)
NODES = st.builds(
    Node,
    name=NODE_NAMES,
    allocatable=AMOUNTS,
    usable=st.booleans(),
    taints=st.permutations([GPU, DRAIN, SPOT]).flatmap(
        lambda all_: st.sampled_from([(), *map(tuple, [all_[:1], all_])])
    ),
    ready=st.booleans(),
)
PODS = st.builds(
    Pod,
    uid=POD_UIDS,
    requests=AMOUNTS,
    node=st.just("") | NODE_NAMES,
    phase=st.sampled_from(PodPhase),
    owner=st.none() | APPWRAPPERS,
    claim=st.none() | APPWRAPPERS,
    never_ends=st.booleans(),
    reason=st.sampled_from(PodReason),
    exit_codes=st.sampled_from([(), (1,), (1, 137)]),
    unscheduled=st.none() | st.builds(Unscheduled, pod=POD_UIDS),
    gate=st.none() | st.builds(Gate, st.just("ns"), st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
    can_be_gated=st.booleans(),
    template=st.sampled_from(["", "t", "u"]),
    base_pods=st.integers(0, 2),
    admitted_as=st.builds(Gate, st.just("ns"), st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
    is_ending=st.booleans(),
    node_by_author=st.booleans(),
).map(
    lambda pod: pod if pod.can_be_gated and not pod.gate else replace(pod, admitted_as=None, is_ending=False)
)


def counts(pods: Collection[Pod], down: Collection[str]) -> PodCounts:
    """What is to be counted, said once more and otherwise."""
    phases, reasons = [pod.phase for pod in pods], [pod.reason for pod in pods]
    return PodCounts(
        pending=phases.count(PodPhase.PENDING) + phases.count(PodPhase.UNKNOWN),
        running=phases.count(PodPhase.RUNNING),
        succeeded=phases.count(PodPhase.SUCCEEDED),
        failed=phases.count(PodPhase.FAILED),
        starting=reasons.count(PodReason.STARTING),
        unschedulable=reasons.count(PodReason.UNSCHEDULABLE),
        gated=reasons.count(PodReason.GATED),
        lost=sum(pod.live and pod.node in down for pod in pods),
        evicted=reasons.count(PodReason.EVICTED),
        unbound=sum(pod.live and pod.gate is None and not pod.node for pod in pods),
        exit_codes=frozenset(code for pod in pods for code in pod.exit_codes),
    )


def gang(*tolerations: Toleration) -> Gang:
    return Gang(pod_sets=(PodSet(1, NOTHING, tolerations),))


VIEWS = (
    None,
    Gang(),
    gang(),
    gang(Toleration("gpu", "Exists")),
    gang(Toleration("drain", "Exists")),
    gang(Toleration(operator="Exists")),
)


class LedgerAgainstDefinition(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = CapacityLedger()
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.reservations: dict[str, Resources] = {}
        self.growth: dict[str, Resources] = {}

    @rule(node=NODES)
    def a_node_is_there(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.ledger.set_node(node)

    @rule(name=NODE_NAMES)
    def a_node_is_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.ledger.remove_node(name)

    @rule(pod=PODS)
    def a_pod_is_there(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.ledger.set_pod(pod)

    @rule(uid=POD_UIDS)
    def a_pod_is_gone(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.ledger.remove_pod(uid)

    @rule(uid=POD_UIDS)
    def a_pod_is_admitted_before_the_watch_shows_it(self, uid: str) -> None:
        if (pod := self.pods.get(uid)) is not None and pod.gate is not None:
            reason = PodReason.NONE if pod.reason is PodReason.GATED else pod.reason
            admitted_as = pod.gate if pod.can_be_gated else None
            self.pods[uid] = replace(pod, gate=None, admitted_as=admitted_as, reason=reason)
        self.ledger.admit(uid)

    @rule(appwrapper=APPWRAPPERS, demand=AMOUNTS, grown=st.just(NOTHING) | AMOUNTS)
    def an_appwrapper_is_active(self, appwrapper: str, demand: Resources, grown: Resources) -> None:
        self.reservations[appwrapper], self.growth[appwrapper] = demand, grown
        self.ledger.reserve(appwrapper, Gang(demand), grown=grown)

    @rule(appwrapper=APPWRAPPERS)
    def an_appwrapper_is_over(self, appwrapper: str) -> None:
        self.reservations.pop(appwrapper, None)
        self.ledger.release(appwrapper)

    @invariant()
    def free_is_what_the_definition_says_in_every_view(self) -> None:
        pods = self.pods.values()
        snapshot = self.ledger.snapshot()
        for view in VIEWS:
            free = account(self.nodes.values(), pods, self.reservations, view, self.growth)
            assert self.ledger.free(view) == snapshot.free_for(view) == free
            assert self.ledger.total(view) == account(self.nodes.values(), [], {}, view)

    @invariant()
    def attainable_is_what_is_free_once_all_that_ends_has_ended(self) -> None:
        lasting = [pod for pod in self.pods.values() if pod.never_ends and not (pod.owner or pod.claim)]
        snapshot = self.ledger.snapshot()
        for view in VIEWS:
            expected = account(self.nodes.values(), lasting, {}, view)
            assert attainable(self.nodes.values(), self.pods.values(), view) == expected
            assert snapshot.attainable_for(view) == expected
            assert snapshot.permanent_for(view) == snapshot.total_for(view) - expected

    @invariant()
    def pods_are_counted_by_owner_as_a_count_from_scratch_would(self) -> None:
        down = {node.name for node in self.nodes.values() if not node.ready}
        for appwrapper in ("a", "b"):
            pods = [pod for pod in self.pods.values() if pod.owner == appwrapper]
            expected = counts(pods, down)
            assert self.ledger.pod_counts(appwrapper) == count_pods(pods, down.__contains__) == expected

    @invariant()
    def bound_are_the_requests_of_its_live_pods_with_nodes_and_of_those_that_claim_it_for_now(self) -> None:
        for appwrapper in ("a", "b"):
            pods = [
                pod
                for pod in self.pods.values()
                if (pod.owner or pod.claim) == appwrapper and pod.occupies_node
            ]
            assert self.ledger.bound(appwrapper) == sum_of(pod.requests for pod in pods)

    @invariant()
    def taken_are_its_pods_on_nodes_that_exist_and_admitted_ones_within_what_it_holds(self) -> None:
        for appwrapper in ("a", "b"):
            pods = [pod for pod in self.pods.values() if (pod.owner or pod.claim) == appwrapper and pod.live]
            taken = sum_of(pod.requests for pod in pods if pod.node in self.nodes)
            if any(pod.can_be_gated or pod.gate for pod in pods):
                held = self.reservations.get(appwrapper, NOTHING)
                held += self.growth.get(appwrapper, NOTHING) if appwrapper in self.reservations else NOTHING
                others = [pod.requests for pod in pods if not pod.gate and pod.node not in self.nodes]
                for requests in sorted(others, key=lambda each: sorted(each.items())):
                    if requests.fits_in((held - taken).positive_part()):
                        taken += requests
            assert self.ledger.taken(appwrapper) == taken

    @invariant()
    def gated_pods_are_listed_by_age_and_name(self) -> None:
        with_gated = set()
        for appwrapper in ("a", "b"):
            own = [pod for pod in self.pods.values() if (pod.owner or pod.claim) == appwrapper]
            pods = [pod for pod in own if pod.live and pod.gate]
            found = self.ledger.gated(appwrapper)
            assert {each.uid: each.requests for each in found} == {pod.uid: pod.requests for pod in pods}
            assert found == sorted(found, key=lambda each: (each.created_at, each.name))
            admitted = Counter(pod.template for pod in own if pod.live and not pod.gate)
            for each in found:
                pod = self.pods[each.uid]
                assert each.is_base is bool(pod.template and admitted[pod.template] < pod.base_pods)
                admitted[pod.template] += 1
            with_gated |= {appwrapper} if found else set()
        assert self.ledger.with_gated() == with_gated

    @invariant()
    def surplus_pods_are_none_of_those_that_the_base_gang_keeps(self) -> None:
        for appwrapper in ("a", "b"):
            own = [pod for pod in self.pods.values() if pod.owner == appwrapper and pod.live]
            expected = set()
            for template in ("t", "u"):
                pods = [pod for pod in own if pod.template == template and pod.admitted_as]
                pods.sort(
                    key=lambda pod: (
                        pod.is_ending,
                        not pod.node,
                        pod.admitted_as.created_at,  # type: ignore[union-attr]
                        pod.admitted_as.name,  # type: ignore[union-attr]
                    )
                )
                base = max((pod.base_pods for pod in pods), default=0)
                expected |= {pod.uid for pod in pods[base:]}
            found = self.ledger.surplus(appwrapper)
            assert {each.uid for each in found if not each.is_gated} == expected

    @invariant()
    def unscheduled_pods_are_listed_by_name(self) -> None:
        for appwrapper in ("a", "b"):
            pods = [pod for pod in self.pods.values() if pod.owner == appwrapper]
            expected = sorted((pod.unscheduled for pod in pods if pod.unscheduled), key=lambda each: each.pod)
            assert self.ledger.unscheduled(appwrapper) == expected

    @invariant()
    def owners_on_a_node_are_those_of_its_live_pods(self) -> None:
        for node in ("n1", "n2", "n3"):
            on_it = [pod for pod in self.pods.values() if pod.node == node and pod.live]
            assert self.ledger.owners_on(node) == {pod.owner for pod in on_it if pod.owner}

    def teardown(self) -> None:
        """What has been forgotten leaves nothing behind."""
        for uid in self.pods:
            self.ledger.remove_pod(uid)
        for name in self.nodes:
            self.ledger.remove_node(name)
        for appwrapper in self.reservations:
            self.ledger.release(appwrapper)
        assert vars(self.ledger) == vars(CapacityLedger())


TestLedgerAgainstDefinition = LedgerAgainstDefinition.TestCase
TestLedgerAgainstDefinition.settings = settings(max_examples=40, stateful_step_count=25)

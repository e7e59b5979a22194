"""A gang fits beside the pods that are there by kube-scheduler's rules of required affinity and anti-affinity.

Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/framework/plugins/interpodaffinity/filtering_test.go
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.growth import admissible, count_of, growth_of, pods_soon, taken_soon
from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    HOSTNAME,
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
)
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.records.record import Growth, Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources, sum_of
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue as QueueDeclaration
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.capacity.queued_terms import followed_by
from dispatcher.core.scheduling.cycle.outcome_changes import change_of
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed, Waiting
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.fit.fit import Shortfall, fit, fits, fits_in_empty
from dispatcher.core.scheduling.growth.grant_facts import GrantFacts
from dispatcher.core.scheduling.growth.grants import decide_in_steps
from dispatcher.core.scheduling.growth.growing import Growing
from dispatcher.core.scheduling.growth.waiting_gangs import WaitingGangs
from dispatcher.core.scheduling.preemption.surplus import surplus_of
from tests.builders import at, attempt_of, make_record, make_snapshots
from tests.one_queue import OneQueue, plan

CPU = Resources({"cpu": 1000})
ZONE = "zone"
ZONES = {"a1": "a", "a2": "a", "b1": "b", "bare": None}
"""The nodes of the tables; `bare` has no zone."""


def term(topology: str = HOSTNAME, namespaces: Iterable[str] | None = ("ns",), **labels: str) -> PodTerm:
    conditions = tuple(LabelRequirement(key, LabelOperator.IN, (value,)) for key, value in labels.items())
    return PodTerm(topology, None if namespaces is None else frozenset(namespaces), conditions)


def sort(*repels: PodTerm, namespace: str = "ns", **labels: str) -> PodSort:
    return PodSort.of(namespace, labels.items(), repels)


def gang(of: PodSort, *attracts: PodTerm, pods: int = 1) -> Gang:
    pod_set = PodSet(pods, CPU, repels=of.repels, attracts=attracts, sort=of)
    return Gang(pod_set.total, pods, (pod_set,))


def ledger_of(*pods: tuple[str, PodSort], never_end: bool = False) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE)
    for name, zone in ZONES.items():
        labels = {HOSTNAME: name} if zone is None else {HOSTNAME: name, ZONE: zone}
        ledger.set_node(Node(name, Resources({"cpu": 8000}), labels=labels))
    for number, (node, of) in enumerate(pods):
        ledger.set_pod(Pod(f"pod-{number}", CPU, node, PodPhase.RUNNING, never_ends=never_end, sort=of))
    return ledger


def nodes_for(asked: Gang, ledger: CapacityLedger, *, ignores_requirements: bool = False) -> set[str]:
    """The nodes that take the pods of the gang: each is asked for alone, by a node selector.

    With `ignores_requirements` the domains of all nodes count for its spread, as without the selector.
    """
    ledger.follow(followed_by(asked.pod_sets))
    found, snapshot = set[str](), ledger.snapshot()
    for name in ZONES:
        nodes = NodeRequirements(((HOSTNAME, name),))
        pod_sets = tuple(
            replace(each, nodes=nodes, spread=_ignoring(each.spread) if ignores_requirements else each.spread)
            for each in asked.pod_sets
        )
        there = replace(asked, pod_sets=pod_sets)
        placed = fit(there, snapshot)
        assert isinstance(placed, Assignment) == fits(there, snapshot)
        found |= placed.nodes if isinstance(placed, Assignment) else set()
    return found


def _ignoring(spread: tuple[Spread, ...]) -> tuple[Spread, ...]:
    return tuple(replace(each, ignores_requirements=True) for each in spread)


WEB, DB = sort(app="web"), sort(app="db")
ALL = set(ZONES)


@pytest.mark.parametrize(
    ("asked", "pods", "nodes"),
    [
        pytest.param(gang(sort(term(app="web"))), [], ALL, id="nothing-to-repel"),
        pytest.param(gang(sort(term(app="web"))), [("a1", WEB)], ALL - {"a1"}, id="anti-affinity-by-host"),
        pytest.param(gang(sort(term(ZONE, app="web"))), [("a1", WEB)], {"b1", "bare"}, id="by-zone"),
        pytest.param(
            gang(sort(term(ZONE, app="web"))), [("bare", WEB)], ALL, id="pod-on-a-node-without-label"
        ),
        pytest.param(gang(sort(term(ZONE, app="web"))), [("gone", WEB)], ALL, id="pod-on-an-unknown-node"),
        pytest.param(gang(sort(term(app="web"))), [("a1", DB)], ALL, id="other-labels"),
        pytest.param(
            gang(sort(term(app="web"))),
            [("a1", sort(namespace="other", app="web"))],
            ALL,
            id="other-namespace",
        ),
        pytest.param(
            gang(sort(term(namespaces=("x", "other"), app="web"))),
            [("a1", sort(namespace="other", app="web")), ("a2", WEB)],
            ALL - {"a1"},
            id="listed-namespaces",
        ),
        pytest.param(
            gang(sort(term(namespaces=None, app="web"))),
            [("a1", sort(namespace="other", app="web")), ("a2", WEB)],
            {"b1", "bare"},
            id="every-namespace",
        ),
        pytest.param(
            gang(sort(term(), app="x")), [("a1", sort()), ("a2", DB)], {"b1", "bare"}, id="empty-selector"
        ),
        pytest.param(
            gang(sort(term(app="web"), term(ZONE, app="db"))),
            [("b1", WEB), ("a1", DB)],
            {"bare"},
            id="each-of-two-terms",
        ),
        pytest.param(gang(WEB), [("a1", sort(term(ZONE, app="web")))], {"b1", "bare"}, id="symmetry"),
        pytest.param(gang(DB), [("a1", sort(term(ZONE, app="web")))], ALL, id="symmetry-selects-other"),
        pytest.param(
            gang(WEB),
            [("a1", sort(term(ZONE, ("other",), app="web"), namespace="other"))],
            ALL,
            id="symmetry-in-other-namespace",
        ),
        pytest.param(gang(DB, term(ZONE, app="web")), [("a1", WEB)], {"a1", "a2"}, id="affinity"),
        pytest.param(gang(DB, term(ZONE, app="web")), [], set(), id="affinity-to-nobody"),
        pytest.param(gang(DB, term(ZONE, app="web")), [("bare", WEB)], set(), id="affinity-without-domain"),
        pytest.param(gang(WEB, term(app="web")), [], ALL, id="first-of-those-that-attract-each-other"),
        pytest.param(gang(WEB, term(app="web")), [("b1", WEB)], {"b1"}, id="next-of-those"),
        pytest.param(
            gang(DB, term(ZONE, app="web"), term(tier="front")),
            [("a1", WEB), ("b1", sort(app="web", tier="front"))],
            {"b1"},
            id="affinity-counts-pods-that-all-terms-select",
        ),
        pytest.param(
            gang(sort(term(app="web"), app="db"), term(ZONE, app="web")),
            [("a1", WEB)],
            {"a2"},
            id="near-the-zone-and-off-the-host",
        ),
    ],
)
def test_gang_goes_to_the_nodes_that_kube_scheduler_allows(
    asked: Gang, pods: list[tuple[str, PodSort]], nodes: set[str]
) -> None:
    assert nodes_for(asked, ledger_of(*pods)) == nodes


def spread_gang(pods: int = 1, topology: str = ZONE, most_skew: int = 1, least_domains: int = 1) -> Gang:
    """Pods of the sort WEB, spread with the pods of others of that sort."""
    others = replace(term("", app="web"), selects_ending=False)
    spread = Spread(topology, most_skew, least_domains, others=others)
    pod_set = PodSet(pods, CPU, spread=(spread,), sort=WEB)
    return Gang(pod_set.total, pods, (pod_set,))


ENDING = replace(WEB, is_ending=True).shared()


@pytest.mark.parametrize(
    ("asked", "pods", "nodes"),
    [
        pytest.param(spread_gang(), [], {"a1", "a2", "b1"}, id="nobody-there"),
        pytest.param(spread_gang(), [("a2", WEB)], {"b1"}, id="one-more-in-a-zone"),
        pytest.param(spread_gang(most_skew=2), [("a2", WEB)], {"a1", "a2", "b1"}, id="skew-of-two"),
        pytest.param(spread_gang(), [("a1", WEB), ("b1", WEB)], {"a1", "a2", "b1"}, id="as-many-in-each"),
        pytest.param(spread_gang(), [("a1", WEB), ("bare", WEB)], {"b1"}, id="pod-without-domain"),
        pytest.param(spread_gang(), [("a1", DB)], {"a1", "a2", "b1"}, id="other-labels"),
        pytest.param(
            spread_gang(), [("a1", sort(namespace="other", app="web"))], {"a1", "a2", "b1"}, id="namespace"
        ),
        pytest.param(spread_gang(), [("a1", ENDING)], {"a1", "a2", "b1"}, id="pod-that-is-being-deleted"),
        pytest.param(spread_gang(2), [("a1", WEB), ("a2", WEB)], {"b1"}, id="both-fill-the-other-zone"),
        pytest.param(spread_gang(topology=HOSTNAME), [("a1", WEB)], ALL - {"a1"}, id="by-host"),
        pytest.param(spread_gang(least_domains=3), [("a1", WEB)], {"b1"}, id="too-few-domains"),
    ],
)
def test_spread_counts_the_pods_of_others(
    asked: Gang, pods: list[tuple[str, PodSort]], nodes: set[str]
) -> None:
    """As kube-scheduler does: https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/framework/plugins/podtopologyspread/filtering.go."""
    assert nodes_for(asked, ledger_of(*pods), ignores_requirements=True) == nodes


def test_places_of_a_gang_count_for_the_spread_of_the_next_one() -> None:
    ledger, asked = ledger_of(), spread_gang()
    ledger.follow(followed_by(asked.pod_sets))
    snapshot, zones = ledger.snapshot(), []
    for number in range(4):
        placed = fit(asked, snapshot)
        assert isinstance(placed, Assignment)
        (node,) = placed.nodes
        zones.append(ZONES[node])
        ledger.reserve(f"gang-{number}", asked, placed)
        snapshot = ledger.snapshot()
    assert sorted(map(str, zones)) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("follows_first", [True, False])
def test_pods_that_come_and_go_close_and_open_their_domain(follows_first: bool) -> None:
    asked, ledger = gang(sort(term(ZONE, app="web"))), ledger_of(("a1", DB))
    if follows_first:
        ledger.follow(followed_by(asked.pod_sets))
    ledger.set_pod(Pod("web", CPU, "a1", PodPhase.RUNNING, sort=WEB))
    assert nodes_for(asked, ledger) == {"b1", "bare"}
    ledger.set_pod(Pod("web", CPU, "b1", PodPhase.RUNNING, sort=WEB))
    assert nodes_for(asked, ledger) == {"a1", "a2", "bare"}
    ledger.set_pod(Pod("web", CPU, "b1", PodPhase.SUCCEEDED, sort=WEB))
    assert nodes_for(asked, ledger) == ALL


def test_relabelled_pod_makes_another_snapshot_without_another_amount() -> None:
    ledger = ledger_of(("a1", DB))
    ledger.follow(followed_by(gang(sort(term(app="web"))).pod_sets))
    before = ledger.snapshot()
    ledger.set_pod(Pod("pod-0", CPU, "a1", PodPhase.RUNNING, sort=sort(app="other")))
    assert ledger.snapshot() == before  # nobody asks for these labels
    ledger.set_pod(Pod("pod-0", CPU, "a1", PodPhase.RUNNING, sort=WEB))
    assert ledger.snapshot() != before


def test_places_that_another_gang_holds_count_like_its_pods() -> None:
    asked, ledger = gang(sort(term(ZONE, app="web"))), ledger_of()
    held = gang(WEB, pods=2)
    ledger.reserve("other", held, Assignment(((("a1", 1), ("a2", 1)),)))
    assert nodes_for(asked, ledger) == {"b1", "bare"}
    ledger.release("other")
    assert nodes_for(asked, ledger) == ALL


def test_places_of_a_gang_that_repels_others_count_from_its_dispatch() -> None:
    ledger = ledger_of()
    ledger.reserve("other", gang(sort(term(ZONE, app="web"))), Assignment(((("a1", 1),),)))
    assert nodes_for(gang(WEB), ledger) == {"b1", "bare"}


def test_pods_of_a_victim_count_no_more() -> None:
    asked, ledger = gang(sort(term(ZONE, app="web"))), ledger_of()
    for number, node in enumerate(("a1", "b1", "bare")):
        pod = Pod(f"web-{number}", CPU, node, PodPhase.RUNNING, owner="other", sort=WEB)
        ledger.set_pod(pod)
    ledger.follow(followed_by(asked.pod_sets))
    ledger.remove_node("bare")
    snapshot = ledger.snapshot()
    assert not fits(asked, snapshot)
    assert fits(asked, snapshot.without_gangs(["other"]))
    assert not fits(asked, snapshot)


def test_gangs_that_repel_each_other_share_no_domain_within_one_cycle() -> None:
    repelling = gang(sort(term(ZONE, app="web"), app="web"))
    ledger = ledger_of()
    ledger.remove_node("bare")
    ledger.follow(followed_by(repelling.pod_sets))
    queue = [make_record(name=f"aw-{number}", gang=repelling) for number in range(3)]
    outcomes = plan(queue, make_snapshots(hub=ledger.snapshot()))
    assert [isinstance(each, Placed) for each in outcomes] == [True, True, False]
    zones = [{ZONES[node] for node in each.assignment.nodes} for each in outcomes if isinstance(each, Placed)]
    assert zones == [{"a"}, {"b"}]


def test_gang_waits_for_pods_that_end_and_not_for_pods_that_never_end() -> None:
    asked = gang(sort(term(ZONE, app="web")))
    for never_end in (False, True):
        ledger = ledger_of(("a1", WEB), ("b1", WEB), never_end=never_end)
        ledger.remove_node("bare")
        ledger.follow(followed_by(asked.pod_sets))
        assert not fits(asked, ledger.snapshot())
        assert fits_in_empty(asked, ledger.snapshot()) is not never_end


def test_required_pods_may_still_come_to_an_empty_cluster() -> None:
    asked, ledger = gang(DB, term(ZONE, app="web")), ledger_of()
    ledger.follow(followed_by(asked.pod_sets))
    assert fits_in_empty(asked, ledger.snapshot())


@pytest.mark.parametrize(
    ("asked", "pods", "words"),
    [
        pytest.param(
            gang(sort(term(ZONE, app="web"))),
            [("a1", WEB), ("b1", WEB), ("bare", WEB)],
            "3 of 4 nodes excluded: 3 by its anti-affinity to other pods",
            id="anti-affinity",
        ),
        pytest.param(
            gang(WEB),
            [("a1", sort(term(ZONE, app="web"))), ("b1", sort(term(app="web")))],
            "3 of 4 nodes excluded: 3 by the anti-affinity of other pods",
            id="symmetry",
        ),
        pytest.param(
            gang(DB, term(ZONE, app="web")),
            [("b1", WEB)] * 8,
            "3 of 4 nodes excluded: 3 without the other pods that its affinity requires",
            id="affinity",
        ),
    ],
)
def test_message_counts_the_nodes_that_other_pods_close(
    asked: Gang, pods: list[tuple[str, PodSort]], words: str
) -> None:
    ledger = ledger_of(*pods)
    ledger.follow(followed_by(asked.pod_sets))
    ledger.set_pod(Pod("full", Resources({"cpu": 8000}), "bare", PodPhase.RUNNING, sort=sort()))
    (outcome,) = plan([make_record(gang=asked)], make_snapshots(hub=ledger.snapshot()))
    assert not isinstance(outcome, Placed)
    assert outcome.pending.message.endswith(words)


@pytest.mark.parametrize("is_full", [False, True], ids=["free", "full"])
@pytest.mark.parametrize(
    ("asked", "pods", "words"),
    [
        pytest.param(
            gang(DB, term(ZONE, app="web")), [], "with app=web of namespace ns in their zone", id="no-pod"
        ),
        pytest.param(
            gang(DB, term(ZONE, app="web")),
            [("bare", WEB), ("gone", WEB), ("a1", sort(namespace="other", app="web"))],
            "with app=web of namespace ns in their zone",
            id="in-no-zone-on-no-node-and-of-another-namespace",
        ),
        pytest.param(
            gang(DB, term(ZONE, app="web"), term(namespaces=None, tier="front")),
            [("a1", WEB)],
            f"with app=web, tier=front of namespace ns in their {HOSTNAME}",
            id="all-terms-of-one-pod",
        ),
        pytest.param(
            gang(DB, term(namespaces=[f"n{number}" for number in range(7)])),
            [],
            f"with any labels of namespace n0, n1, n2, n3, n4 and 2 more in their {HOSTNAME}",
            id="many-namespaces",
        ),
        pytest.param(
            gang(DB, term(namespaces=None, app="web")),
            [],
            f"with app=web of any namespace in their {HOSTNAME}",
            id="any",
        ),
    ],
)
def test_gang_without_a_pod_that_its_affinity_requires_waits_for_that_and_blocks_no_other(
    asked: Gang, pods: list[tuple[str, PodSort]], words: str, *, is_full: bool
) -> None:
    ledger = ledger_of(*pods)
    ledger.follow(followed_by(asked.pod_sets))
    for node in ZONES if is_full else ():
        ledger.set_pod(Pod(f"full-{node}", CPU * 8, node, PodPhase.RUNNING, sort=sort()))
    (outcome,) = plan([make_record(gang=asked)], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(outcome, Impossible)
    assert (outcome.pending.reason, outcome.pending.resource) == ("RequiredPodsMissing", "")
    assert f"its pods require a pod {words}, and there is none" in outcome.pending.message


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(gang(DB, term(ZONE, app="web")), id="required-pods-are-there"),
        pytest.param(gang(WEB, term(ZONE, app="web")), id="its-own-pods-are-required"),
        pytest.param(gang(sort(term(ZONE, app="web"))), id="repelled-everywhere"),
    ],
)
def test_gang_lacks_room_alone_once_the_pods_are_there_that_its_affinity_requires(asked: Gang) -> None:
    ledger = ledger_of(("a1", WEB))
    ledger.follow(followed_by(asked.pod_sets))
    for node in ZONES:
        ledger.set_pod(Pod(f"full-{node}", CPU * 8, node, PodPhase.RUNNING, sort=sort()))
    (outcome,) = plan([make_record(gang=asked)], make_snapshots(hub=ledger.snapshot()))
    assert isinstance(outcome, Waiting)
    assert outcome.pending.reason == "InsufficientResources"


def test_gang_without_affinity_is_compared_as_it_is_where_no_pod_has_affinity() -> None:
    ledger = ledger_of(("a1", WEB))
    snapshot = ledger.snapshot()
    assert snapshot.nodes is not None
    assert snapshot.nodes.there is None
    plain = gang(WEB)
    assert snapshot.beside(plain) is plain
    assert not isinstance(fit(plain, snapshot), Shortfall)


def test_refusal_is_not_kept_once_the_pods_that_repel_a_gang_are_others() -> None:
    """No amount changes: a gang without terms of its own is compared again because its class is repelled."""
    ledger, queue = ledger_of(), OneQueue()
    for name in ("a1", "b1", "bare"):
        ledger.set_pod(
            Pod(name, CPU, name, PodPhase.RUNNING, sort=sort(term(ZONE, app="web"), term(app="web")))
        )
    for name in ("a2", "bare"):
        ledger.set_pod(Pod(f"full-{name}", CPU * 8, name, PodPhase.RUNNING, sort=sort()))
    head = Gang(CPU * 8, 1, (PodSet(1, CPU * 8),))  # the first that waits is compared in any case
    queue.put(make_record(name="head", gang=head, enqueue_seq=1))
    queue.put(make_record(name="web", gang=gang(WEB), enqueue_seq=2))
    for refused in plan_of(queue, ledger):
        change = change_of(refused, at(1))
        assert change is not None
        queue.put(change.after)
    assert plan_of(queue, ledger) == []
    ledger.set_pod(Pod("b1", CPU, "b1", PodPhase.RUNNING, sort=sort(app="other")))
    (placed,) = plan_of(queue, ledger)
    assert isinstance(placed, Placed)
    assert placed.assignment.nodes == {"b1"}


def plan_of(queue: OneQueue, ledger: CapacityLedger) -> list[Outcome]:
    ledger.follow(queue.followed)
    snapshots = make_snapshots(hub=ledger.snapshot())
    return queue.plan(snapshots, QueueingStrategy.BEST_EFFORT_FIFO, timedelta(days=1), at(1))


@pytest.mark.parametrize("queues", [None, (QueueDeclaration("default"),)])
def test_gang_repelled_by_other_pods_delays_no_gang_that_differs_in_labels_alone(
    queues: tuple[QueueDeclaration, ...] | None,
) -> None:
    nodes = tuple(Node(name, CPU * 2, labels={HOSTNAME: name}) for name in ("n1", "n2"))
    repelling = sort(term(app="web"))
    world = World(
        clusters=(
            Cluster("hub", nodes, others=tuple(Place(each.name, CPU, 1, repelling) for each in nodes)),
        ),
        pending=(
            make_record(name="web", gang=gang(WEB), enqueue_seq=1),
            make_record(name="db", gang=gang(DB), enqueue_seq=2),
        ),
        queues=queues,
    )
    placed = {each.record.name: isinstance(each, Placed) for each in world.plan()}
    assert placed == {"web": False, "db": True}
    open_world = replace(world, clusters=(replace(world.clusters[0], others=()),))
    assert all(isinstance(each, Placed) for each in open_world.plan())


# -----------------------------------------------------------------------------------------------------------
# Pods that a tenant makes under its own running gang, with any mark, amount and node: they grant it nothing.


ONE = Resources({"cpu": 1000})
HUGE = Resources({"cpu": 4_000_000, "nvidia.com/gpu": 4000})
TEMPLATE = "0.w"
GATE = Gate("team-a", "forged", "2026-01-01T00:00:00Z")
PENDING = Pod("forged", HUGE, owner="uid-of-ray", can_be_gated=True, template="0.x", admitted_as=GATE)
FORGED = [
    pytest.param([PENDING], id="as-admitted-growth"),
    pytest.param([replace(PENDING, template="")], id="of-no-template"),
    pytest.param([replace(PENDING, template=TEMPLATE)], id="of-the-gangs-template"),
    pytest.param([replace(PENDING, template=TEMPLATE, base_pods=1000)], id="of-a-large-base-gang"),
    pytest.param([replace(PENDING, node="ghost")], id="on-a-node-that-does-not-exist"),
    pytest.param([replace(PENDING, gate=GATE, admitted_as=None, base_pods=1000)], id="as-a-gated-base-pod"),
    pytest.param([replace(PENDING, owner=None, claim="uid-of-ray")], id="by-its-label-alone"),
    pytest.param(
        [replace(PENDING, uid=f"forged-{n}", requests=NOTHING, template=TEMPLATE) for n in range(100)],
        id="many-without-requests",
    ),
    pytest.param(
        [replace(PENDING, uid=f"forged-{n}", hosts=999_999_999, replica=f"r{n}") for n in range(3)],
        id="hosts-of-slices",
    ),
]


def running(*growth: Growth) -> Record:
    """A gang of one pod of one cpu, with this growth."""
    gang = Gang(ONE, 1, (PodSet(1, ONE, path="w"),))
    record = make_record(Phase.RUNNING, name="ray", uid="uid-of-ray", gang=gang)
    return replace(record, attempt=replace(attempt_of(record), cluster="hub", growth=growth))


GROWN = running(Growth(at(0), ONE, pods=((TEMPLATE, 1),), count=1))


def ledger_with(record: Record, *pods: Pod, mode: FitMode = FitMode.NODE) -> CapacityLedger:
    """The ledger of two nodes of 4 cpus; the gang's pod runs on the first one."""
    ledger = CapacityLedger(mode, "hub")
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, ONE * 4))
    own = Pod("base", ONE, "n1", PodPhase.RUNNING, owner=record.uid, can_be_gated=True, base_pods=1)
    for pod in (replace(own, template=TEMPLATE), *pods):
        ledger.set_pod(pod)
    ledger.reserve(record.uid, record.gang, grown=record.grown, granted=record.granted)
    return ledger


@pytest.mark.parametrize("mode", FitMode)
@pytest.mark.parametrize("record", [running(), GROWN], ids=["not-grown", "grown"])
@pytest.mark.parametrize("pods", FORGED)
def test_forged_pods_take_no_room_and_no_quota(pods: list[Pod], record: Record, mode: FitMode) -> None:
    ledger = ledger_with(record, *pods, mode=mode)
    assert (ONE * (8 - 1) - record.grown).fits_in(ledger.free())
    assert ledger.charged(record.uid).fits_in(record.held)
    gated = ledger.gated(record.uid)
    within = admissible(record.allowed, ledger.taken(record.uid), gated, record.granted)
    soon = taken_soon(record.allowed, ledger.taken(record.uid), within)
    assert soon.fits_in(record.held)
    assert growth_of(record.placed_gang.demand, soon).fits_in(record.grown)
    taken_pods = ledger.taken_pods(record.uid, record.charged_pods)
    assert pods_soon(record, taken_pods, within) <= record.charged_pods
    assert Growing.of(record, ledger).admitted_pods <= record.charged_pods
    if mode is FitMode.NODE:
        nodes = ledger.snapshot().nodes
        assert nodes is not None
        assert sum_of(each.requests * each.pods for each in nodes.uses[record.uid].held).fits_in(record.grown)


@pytest.mark.parametrize("pods", FORGED)
def test_grant_of_honest_growth_has_the_amounts_of_that_alone(pods: list[Pod]) -> None:
    record = running()
    gate = Gate("team-a", "more", "2026-01-01T00:01:00Z")
    more = Pod("more", ONE, owner=record.uid, gate=gate, can_be_gated=True, template=TEMPLATE, base_pods=1)
    ledger = ledger_with(record, more, *pods)
    waiting = incremental.run(WaitingGangs.of([], Forest.undeclared(), at(0), {}))
    snapshots = {"hub": ClusterSnapshot("hub", ledger.snapshot())}
    growing = [Growing.of(record, ledger)]
    (grant,) = incremental.run(
        decide_in_steps(growing, GrantFacts(Forest.undeclared(), (), waiting, at(0)), snapshots)
    )
    if grant.pods:
        assert grant.amounts == sum_of(each.requests for each in grant.pods)
    assert grant.amounts.fits_in(ONE)
    assert grant.count == len(grant.pods)


@pytest.mark.parametrize("pods", FORGED)
def test_surplus_is_what_other_gangs_would_get(pods: list[Pod]) -> None:
    worker = Pod("worker", ONE, "n2", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    worker = replace(worker, base_pods=1, admitted_as=replace(GATE, name="worker"))
    base = Pod("base", ONE, "n1", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    base = replace(
        base, base_pods=1, admitted_as=replace(GATE, name="base", created_at="2025-01-01T00:00:00Z")
    )
    found = surplus_of(GROWN, ledger_with(GROWN, worker, base, *pods))
    charged = [each for each in found.pods if each.node in {"n1", "n2"}]
    assert [each.name for each in charged] == ["worker"]
    assert sum_of(each.requests for each in found.pods if not each.is_gated).fits_in(GROWN.grown)
    assert found.admitted_pods == 2


@pytest.mark.parametrize("mode", FitMode)
@pytest.mark.parametrize("record", [running(), GROWN], ids=["not-grown", "grown"])
def test_pod_that_only_its_author_says_to_be_on_a_node_takes_no_quota_and_no_room_elsewhere(
    record: Record, mode: FitMode
) -> None:
    ledger = ledger_with(record, replace(PENDING, node="n2", node_by_author=True), mode=mode)
    assert (ONE * (4 - 1) - record.grown).fits_in(ledger.free())
    assert ledger.charged(record.uid).fits_in(record.held)
    assert ledger.taken(record.uid).fits_in(record.held)
    assert surplus_of(record, ledger).pods == ()


def test_pod_is_charged_beyond_the_record_once_somebody_else_says_that_it_is_on_its_node() -> None:
    record, pod = running(), replace(PENDING, requests=ONE * 2, node="n2", node_by_author=True)
    ledger = ledger_with(record, pod)
    ledger.set_pod(replace(pod, node_by_author=False))
    assert (ledger.charged(record.uid), ledger.free()) == (ONE * 3, ONE * (8 - 1 - 2))
    ledger.set_pod(pod)
    assert ledger.charged(record.uid) == ONE
    ledger.remove_node("n2")
    ledger.remove_pod(pod.uid)
    assert (ledger.charged(record.uid), ledger.free()) == (ONE, ONE * 3)


def test_pod_on_a_node_that_exists_is_charged_for_what_it_uses() -> None:
    record = running()
    ledger = ledger_with(record, replace(PENDING, requests=ONE * 2, node="n2"))
    assert ledger.free() == ONE * (8 - 1 - 2)
    assert ledger.charged(record.uid) == ledger.taken(record.uid) == ONE * 3


BOUND = replace(PENDING, requests=ONE, node="n2", phase=PodPhase.RUNNING)
TAKEN = replace(PENDING, requests=ONE)


@pytest.mark.parametrize(
    ("record", "pods", "count"),
    [
        pytest.param(running(), [], 0, id="the-gang-alone"),
        pytest.param(running(), [TAKEN], 0, id="pending-and-not-granted"),
        pytest.param(running(), [replace(TAKEN, node="ghost")], 0, id="on-a-node-that-does-not-exist"),
        pytest.param(running(), [replace(BOUND, node_by_author=True)], 0, id="on-a-node-by-its-author"),
        pytest.param(running(), [BOUND], 1, id="on-a-node"),
        pytest.param(running(), [replace(BOUND, requests=NOTHING)], 1, id="on-a-node-without-requests"),
        pytest.param(running(), [replace(BOUND, can_be_gated=False)], 1, id="on-a-node-without-the-gate"),
        pytest.param(running(), [replace(BOUND, phase=PodPhase.SUCCEEDED)], 0, id="ended"),
        pytest.param(GROWN, [TAKEN], 1, id="granted-and-pending"),
        pytest.param(GROWN, [TAKEN, replace(TAKEN, uid="more")], 1, id="pending-beside-a-grant"),
        pytest.param(GROWN, [BOUND, replace(TAKEN, uid="more")], 1, id="pending-beside-a-grant-on-a-node"),
        pytest.param(GROWN, [BOUND, replace(BOUND, uid="more")], 2, id="on-a-node-beside-a-grant"),
        pytest.param(GROWN, [], 0, id="granted-and-gone"),
    ],
)
def test_queue_is_charged_with_the_number_of_granted_pods_and_of_those_on_nodes(
    record: Record, pods: list[Pod], count: int
) -> None:
    ledger = ledger_with(record, *pods)
    taken = ledger.taken_pods(record.uid, record.charged_pods)
    assert count_of(record, pods_soon(record, taken, ())) == count
    noted = run_changes.note_growth(record, ledger.taken(record.uid), at(60), count=count).after
    assert noted.quota_charge["pods"] == noted.charged_pods == 1 + count
    for pod in pods:
        ledger.remove_pod(pod.uid)
    assert ledger.taken_pods(record.uid, noted.charged_pods) == 1


NODES = ("", "n1", "n2", "n3", "ghost")
ANY_PODS = st.lists(
    st.builds(
        Pod,
        uid=st.sampled_from(["p1", "p2", "p3"]),
        requests=st.sampled_from([NOTHING, ONE]),
        node=st.sampled_from(NODES),
        phase=st.sampled_from(PodPhase),
        owner=st.sampled_from([None, "uid-of-ray"]),
        claim=st.just("uid-of-ray"),
        can_be_gated=st.booleans(),
        node_by_author=st.booleans(),
    ),
    max_size=8,
)


@given(pods=ANY_PODS, gone=st.sampled_from(NODES), held=st.integers(0, 4))
def test_number_of_pods_is_that_of_those_on_nodes_and_within_what_is_held(
    pods: list[Pod], gone: str, held: int
) -> None:
    ledger, last = CapacityLedger(), {pod.uid: pod for pod in pods}
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, ONE))
    for pod in pods:
        ledger.set_pod(pod)
    ledger.set_node(Node("n3", ONE))
    ledger.remove_node(gone)
    live = [pod for pod in last.values() if pod.live]
    there = sum(pod.node in {"n1", "n2", "n3"} - {gone} and not pod.node_by_author for pod in live)
    elsewhere = len(live) - there if any(pod.can_be_gated for pod in live) else 0
    assert ledger.taken_pods("uid-of-ray", held) == max(there, min(there + elsewhere, held))
    for uid in last:
        ledger.remove_pod(uid)
    assert ledger._shares == {}  # noqa: SLF001  # nothing else shows what is kept


def test_amounts_move_with_the_nodes_that_come_and_go() -> None:
    record, pod = running(), replace(PENDING, requests=ONE * 2, node="n3")
    ledger = ledger_with(record, pod)
    assert (ledger.taken(record.uid), ledger.taken_pods(record.uid, 1)) == (ONE, 1)
    ledger.set_node(Node("n3", ONE * 4))
    assert (ledger.taken(record.uid), ledger.free()) == (ONE * 3, ONE * (12 - 1 - 2))
    assert ledger.taken_pods(record.uid, 1) == 2
    ledger.set_node(Node("n3", ONE * 5))
    assert ledger.taken(record.uid) == ONE * 3
    ledger.remove_node("n3")
    assert (ledger.taken(record.uid), ledger.free()) == (ONE, ONE * 7)
    ledger.remove_pod(pod.uid)
    ledger.set_node(Node("n3", ONE * 4))
    assert ledger.taken(record.uid) == ONE


def test_growth_stays_charged_while_its_node_is_gone_and_its_pod_is_not() -> None:
    worker = Pod("worker", ONE, "n2", PodPhase.RUNNING, owner=GROWN.uid, can_be_gated=True, template=TEMPLATE)
    ledger = ledger_with(GROWN, replace(worker, base_pods=1))
    ledger.remove_node("n2")
    assert ledger.taken(GROWN.uid) == ONE * 2
    ledger.remove_pod("worker")
    assert ledger.taken(GROWN.uid) == ONE


def test_pod_without_requests_leaves_nothing_behind() -> None:
    ledger = CapacityLedger()
    pod = Pod("p", NOTHING, "n1", claim="uid-of-ray")
    ledger.set_node(Node("n1", ONE))
    ledger.set_pod(pod)
    ledger.remove_node("n1")
    ledger.set_node(Node("n1", ONE))
    assert ledger.taken_pods("uid-of-ray", 0) == 1
    ledger.remove_pod("p")
    assert (ledger._shares, ledger._pods_on) == ({}, {})  # noqa: SLF001  # nothing else shows what is kept


def test_growth_is_charged_once_from_grant_to_end_and_after_a_restart() -> None:
    """Granted, admitted, bound, gone; a new leader's ledger has the same amounts at each step."""
    gate = Gate("team-a", "more", "2026-01-01T00:01:00Z")
    gated = Pod("more", ONE, owner=GROWN.uid, gate=gate, can_be_gated=True, template=TEMPLATE, base_pods=1)
    admitted = replace(gated, gate=None, admitted_as=gate)
    bound = replace(admitted, node="n2", phase=PodPhase.RUNNING)
    ledger = ledger_with(GROWN)
    for pod in (gated, admitted, bound):
        ledger.set_pod(pod)
        anew = ledger_with(GROWN, pod)
        for each in (ledger, anew):
            assert (each.free(), each.charged(GROWN.uid)) == (ONE * 6, ONE * 2)
    ledger.remove_pod("more")
    assert ledger.taken(GROWN.uid) == ONE
    ledger.reserve(GROWN.uid, GROWN.gang)
    assert (ledger.free(), ledger.charged(GROWN.uid)) == (ONE * 7, ONE)

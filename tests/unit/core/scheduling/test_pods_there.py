"""A gang fits beside the pods that are there by kube-scheduler's rules of required affinity and anti-affinity.

Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/scheduler/framework/plugins/interpodaffinity/filtering_test.go
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.controller.scheduling.scheduler import change_of
from dispatcher.core.model.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.nodes import HOSTNAME, LabelOperator, LabelRequirement, Node, NodeRequirements
from dispatcher.core.model.pod_terms import PodSort, PodTerm
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue as QueueDeclaration
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle import CycleState, Outcome, Placed
from dispatcher.core.scheduling.explain import Refused
from dispatcher.core.scheduling.fit import Shortfall, fit, fits, fits_in_empty
from dispatcher.core.scheduling.node_snapshot import Place
from dispatcher.core.scheduling.pending_queue import PendingQueue
from dispatcher.core.scheduling.queued_terms import followed_by
from dispatcher.core.scheduling.world import World
from dispatcher.core.scheduling.world_facts import Cluster
from tests.builders import at, make_record, make_snapshots

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
    state = CycleState(make_snapshots(hub=ledger.snapshot()), lambda record: record.uid)
    answers = [state.place(make_record(name=f"aw-{number}", gang=repelling)) for number in range(3)]
    assert [type(each) for each in answers] == [Placed, Placed, Refused]
    zones = [{ZONES[node] for node in each.assignment.nodes} for each in answers if isinstance(each, Placed)]
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
    refused = CycleState(make_snapshots(hub=ledger.snapshot()), lambda record: record.uid).place(
        make_record(gang=asked)
    )
    assert isinstance(refused, Refused)
    assert refused.pending.message.endswith(words)


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
    snapshots = make_snapshots(hub=ledger.snapshot())
    refused = CycleState(snapshots, lambda record: record.uid).place(make_record(gang=asked))
    assert isinstance(refused, Refused)
    assert refused.pending.reason == "RequiredPodsMissing"
    assert f"its pods require a pod {words}, and there is none" in refused.pending.message
    assert (refused.may_be_head, refused.nearest.resource) == (False, "")


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
    snapshots = make_snapshots(hub=ledger.snapshot())
    refused = CycleState(snapshots, lambda record: record.uid).place(make_record(gang=asked))
    assert isinstance(refused, Refused)
    assert (refused.pending.reason, refused.may_fit_later) == ("InsufficientResources", True)


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
    ledger, queue = ledger_of(), PendingQueue()
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


def plan_of(queue: PendingQueue, ledger: CapacityLedger) -> list[Outcome]:
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

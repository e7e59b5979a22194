"""Pods and queued gangs with many terms about pods cost their own terms, however many others are known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from dispatcher.core.model.clusters.nodes import HOSTNAME, LabelOperator, LabelRequirement, Node
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm, TermIndex
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.queued.pending_queue import PendingQueue
from tests.builders import make_record

TERMS = 64
CPU = Resources({"cpu": 1})


def own_terms(number: int, namespace: str = "tenant") -> tuple[PodTerm, ...]:
    conditions = (LabelRequirement("x", LabelOperator.IN, (f"{number}-{each}",)) for each in range(TERMS))
    return tuple(PodTerm(HOSTNAME, frozenset({namespace}), (each,)) for each in conditions)


def pod(number: int, **labels: str) -> Pod:
    of = PodSort.of("tenant", labels.items(), own_terms(number))
    return Pod(f"p{number}", CPU, f"n{number % 5}", PodPhase.RUNNING, sort=of)


def calls_of(work: Callable[[], object]) -> int:
    """The calls of functions, in Python or C, that some work makes."""
    made = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return made


def ledger_with(pods: int) -> CapacityLedger:
    ledger = CapacityLedger(FitMode.NODE, "hub")
    for number in range(5):
        ledger.set_node(Node(f"n{number}", Resources({"cpu": 10**6}), labels={HOSTNAME: f"n{number}"}))
    for number in range(pods):
        ledger.set_pod(pod(number))
        ledger.snapshot()
    return ledger


def test_pod_with_terms_of_its_own_costs_the_same_however_many_are_known() -> None:
    few, many = ledger_with(5), ledger_with(60)
    assert calls_of(lambda: many.set_pod(pod(99))) <= 1.1 * calls_of(lambda: few.set_pod(pod(98)))


def test_changed_labels_of_a_pod_cost_the_same_however_many_terms_are_known() -> None:
    few, many = ledger_with(5), ledger_with(60)
    for ledger in (few, many):
        ledger.snapshot()
    assert calls_of(lambda: many.set_pod(pod(1, app="x"))) <= 1.1 * calls_of(
        lambda: few.set_pod(pod(1, app="x"))
    )


def test_snapshot_indexes_the_terms_that_came_since_the_last_one_only() -> None:
    few, many = ledger_with(5), ledger_with(60)
    for ledger in (few, many):
        ledger.set_pod(pod(99))
    assert calls_of(many.snapshot) <= 1.1 * calls_of(few.snapshot)


def test_term_is_compared_with_no_pod_of_a_namespace_that_it_does_not_name() -> None:
    anywhere = LabelRequirement("x", LabelOperator.EXISTS)
    index = TermIndex(PodTerm(f"t{each}", frozenset({"tenant"}), (anywhere,)) for each in range(1000))
    own, other = PodSort.of("tenant", [("x", "1")]), PodSort.of("other", [("x", "1")])
    assert len(index.selecting(own)) == 1000
    assert calls_of(lambda: index.selecting(other)) < 50


def test_term_of_a_pod_that_is_gone_repels_no_gang() -> None:
    ledger = ledger_with(0)
    selected = PodSort.of("tenant", [("x", "7-0")])
    gang = Gang(CPU, 1, (PodSet(1, CPU, sort=selected),))
    ledger.set_pod(pod(7))
    assert ledger.snapshot().beside(gang) != gang
    ledger.remove_pod("p7")
    assert ledger.snapshot().beside(gang) == gang


def namespaced(count: int) -> list[PodTerm]:
    """Terms that each name so many namespaces."""
    listed = frozenset(f"ns-{each}" for each in range(count))
    conditions = (LabelRequirement("x", LabelOperator.IN, (f"{each}",)) for each in range(TERMS))
    return [PodTerm(HOSTNAME, listed, (each,)) for each in conditions]


def test_term_costs_the_same_however_many_namespaces_it_names() -> None:
    few, many = namespaced(4), namespaced(256)
    assert calls_of(lambda: TermIndex(many)) <= calls_of(lambda: TermIndex(few))


def test_term_of_many_namespaces_selects_pods_of_these_alone() -> None:
    index = TermIndex(namespaced(256))
    assert len(index.selecting(PodSort.of("ns-255", [("x", "7")]))) == 1
    assert not index.selecting(PodSort.of("ns-256", [("x", "7")]))


def test_term_that_names_a_key_is_compared_with_no_pod_without_it() -> None:
    keyed = [
        PodTerm(
            f"t{each}",
            None,
            (
                LabelRequirement("job", LabelOperator.EXISTS),
                LabelRequirement("job", LabelOperator.NOT_IN, (str(each),)),
            ),
        )
        for each in range(1000)
    ]
    index = TermIndex(keyed)
    assert len(index.selecting(PodSort.of("tenant", [("job", "7")]))) == 999
    assert calls_of(lambda: index.selecting(PodSort.of("tenant", [("app", "web")]))) < 50


def gang_with(*terms: PodTerm, namespace: str = "tenant") -> Gang:
    sort = PodSort.of(namespace, (), terms)
    return Gang(CPU, 1, (PodSet(1, CPU, repels=terms, sort=sort),))


def put(queue: PendingQueue, number: int, *terms: PodTerm, namespace: str = "tenant") -> None:
    gang = gang_with(*terms, namespace=namespace)
    queue.put(make_record(name=f"{namespace}-{number}", gang=gang, enqueue_seq=number, namespace=namespace))


def queue_with(gangs: int) -> tuple[PendingQueue, CapacityLedger]:
    queue, ledger = PendingQueue(), ledger_with(0)
    for number in range(gangs):
        put(queue, number, *own_terms(number)[:8])
    ledger.follow(queue.followed)
    ledger.snapshot()
    return queue, ledger


def test_queued_gang_with_terms_costs_the_same_however_many_are_queued() -> None:
    few, many = queue_with(5), queue_with(100)

    def come_and_go(queue: PendingQueue, ledger: CapacityLedger) -> None:
        put(queue, 200, *own_terms(200)[:8])
        ledger.follow(queue.followed)
        ledger.snapshot()
        queue.remove("uid-of-tenant-200")
        ledger.follow(queue.followed)
        ledger.snapshot()

    assert calls_of(lambda: come_and_go(*many)) <= 1.1 * calls_of(lambda: come_and_go(*few))


def unlabelled(number: int) -> tuple[PodTerm, ...]:
    """Terms that every pod of every namespace has to be compared with."""
    conditions = (LabelRequirement("x", LabelOperator.NOT_IN, (f"{number}-{each}",)) for each in range(8))
    return tuple(PodTerm(HOSTNAME, None, (each,)) for each in conditions)


def test_pod_costs_the_same_however_many_terms_without_a_label_one_namespace_has_in_the_queue() -> None:
    def calls_with(gangs: int) -> int:
        queue, ledger = PendingQueue(), ledger_with(0)
        for number in range(gangs):
            put(queue, number, *unlabelled(number))
        ledger.follow(queue.followed)
        honest = PodSort.of("honest", [("app", f"{gangs}")])
        return calls_of(lambda: ledger.set_pod(Pod("p", CPU, "n1", PodPhase.RUNNING, sort=honest)))

    assert calls_with(200) <= 1.1 * calls_with(2)


def test_decided_gang_costs_the_same_however_many_terms_without_a_label_pods_of_one_namespace_have() -> None:
    def calls_with(pods: int) -> int:
        ledger = ledger_with(0)
        for number in range(pods):
            of = PodSort.of("tenant", (), unlabelled(number))
            ledger.set_pod(Pod(f"p{number}", CPU, "n1", PodPhase.RUNNING, sort=of))
        snapshot = ledger.snapshot()
        sort = PodSort.of("honest", [("app", "web")])
        return calls_of(lambda: snapshot.beside(Gang(CPU, 1, (PodSet(1, CPU, sort=sort),))))

    assert calls_with(200) <= 1.1 * calls_with(9)

"""Pods with many terms of anti-affinity cost their own terms, however many others are known."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.nodes import HOSTNAME, LabelOperator, LabelRequirement, Node
from dispatcher.core.model.pod_terms import PodSort, PodTerm, TermIndex
from dispatcher.core.model.pods import Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity_ledger import CapacityLedger, FitMode

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

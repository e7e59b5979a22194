"""The surplus pods of a gang that grows by grants, beyond the base gang: first those that lose the least."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.gangs.growth import SurplusPod, slices_of
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger

CPU = Resources({"cpu": 1})


def worker(number: int, *, template: str = "small", base: int = 1, node: str = "n1") -> Pod:
    """The worker that was created that many seconds after the first, of a template with that many pods in the base."""
    at = Gate("team-a", f"{template}-{number}", f"2026-01-01T00:00:{number:02}Z")
    phase = PodPhase.RUNNING if node else PodPhase.PENDING
    return Pod(
        f"uid-{template}-{number}",
        CPU,
        node,
        phase,
        owner="ray",
        can_be_gated=True,
        template=template,
        base_pods=base,
        admitted_as=at,
    )


def gated(pod: Pod) -> Pod:
    return replace(pod, node="", phase=PodPhase.PENDING, gate=pod.admitted_as, admitted_as=None)


W1, W2, W3 = (worker(number) for number in (1, 2, 3))
SAME_AGE = replace(worker(3), uid="uid-z", admitted_as=Gate("team-a", "z", "2026-01-01T00:00:03Z"))


@pytest.mark.parametrize(
    ("pods", "surplus"),
    [
        pytest.param([], [], id="none"),
        pytest.param([W1], [], id="base-gang"),
        pytest.param([W1, W2, W3], [W3, W2], id="newest-first"),
        pytest.param([W1, SAME_AGE, W3], [SAME_AGE, W3], id="by-name-at-the-same-age"),
        pytest.param(
            [replace(W1, is_ending=True), W2, W3], [replace(W1, is_ending=True), W3], id="ending-first"
        ),
        pytest.param([W1, worker(2, node=""), W3], [worker(2, node=""), W3], id="without-a-node-first"),
        pytest.param([W1, worker(2, node="", base=0)], [worker(2, node="", base=0)], id="base-gang-is-bound"),
        pytest.param(
            [replace(W1, is_ending=True), worker(2, node=""), W3],
            [replace(W1, is_ending=True), worker(2, node="")],
            id="ending-before-those-without-a-node",
        ),
        pytest.param([W1, W2, gated(W3)], [W2], id="gated"),
        pytest.param([W1, W2, replace(W3, phase=PodPhase.SUCCEEDED)], [W2], id="finished"),
        pytest.param([W1, W2, replace(W3, owner=None, claim="ray")], [W2], id="unconfirmed-owner"),
        pytest.param([W1, W2, replace(W3, owner="another")], [W2], id="of-another"),
        pytest.param([replace(each, template="") for each in (W1, W2)], [], id="without-a-template"),
        pytest.param([replace(each, admitted_as=None) for each in (W1, W2)], [], id="never-gated"),
        pytest.param(
            [W2, worker(1, base=3), W3, worker(4, template="big"), worker(5, template="big", base=0)],
            [worker(5, template="big", base=0)],
            id="each-template-has-its-base",
        ),
        pytest.param(
            [W1, W2, worker(1, template="big", base=0), replace(worker(0, template="big"), is_ending=True)],
            [replace(worker(0, template="big"), is_ending=True), W2],
            id="ordered-over-all-templates",
        ),
    ],
)
def test_surplus_is_the_pods_beyond_the_base_gang(pods: list[Pod], surplus: list[Pod]) -> None:
    ledger = CapacityLedger()
    for pod in pods:
        ledger.set_pod(pod)
    assert ledger.surplus("ray") == list(map(surplus_pod, surplus))


@pytest.mark.parametrize(
    ("pods", "unwanted", "surplus"),
    [
        pytest.param([W1, W2, W3], "2", [W2, W3], id="before-a-newer-one"),
        pytest.param([W1, W2, W3], "1", [W1, W3], id="the-base-gang-keeps-a-busy-one"),
        pytest.param([W1], "1", [], id="never-the-base-gang"),
        pytest.param([W1, W2, worker(3, node="")], "2", [W2, worker(3, node="")], id="before-unbound-ones"),
        pytest.param(
            [W1, W2, replace(W3, is_ending=True)],
            "2",
            [replace(W3, is_ending=True), W2],
            id="after-ending-ones",
        ),
        pytest.param([W1, W2, W3], "12", [W2, W1], id="the-newest-of-several"),
    ],
)
def test_pods_that_ray_found_idle_are_given_up_before_busy_ones(
    pods: list[Pod], unwanted: str, surplus: list[Pod]
) -> None:
    ledger = CapacityLedger()
    for pod in pods:
        ledger.set_pod(pod)
    before = ledger.surplus("ray")
    ledger.set_unwanted("raycluster", frozenset(("team-a", f"small-{number}") for number in unwanted))
    ledger.set_unwanted("another", frozenset({("team-b", "small-3")}))
    assert ledger.surplus("ray") == list(map(surplus_pod, surplus))
    ledger.set_unwanted("raycluster", frozenset())
    assert ledger.surplus("ray") == before


@pytest.mark.parametrize(
    ("grown", "pods", "surplus"),
    [
        pytest.param(1, [W1, W2, gated(W3)], [W2], id="not-granted"),
        pytest.param(2, [W1, W2, gated(W3)], [gated(W3), W2], id="granted"),
        pytest.param(2, [W1, worker(2, node=""), gated(W3)], [gated(W3), worker(2, node="")], id="first"),
        pytest.param(2, [gated(W1), gated(W2)], [gated(W2)], id="the-base-gang-keeps-its-own"),
        pytest.param(2, [W1, W2, replace(gated(W3), owner=None, claim="ray")], [W2], id="unconfirmed-owner"),
    ],
)
def test_granted_pods_that_are_not_admitted_yet_are_given_up_before_others(
    grown: int, pods: list[Pod], surplus: list[Pod]
) -> None:
    ledger = CapacityLedger()
    ledger.reserve("ray", Gang(CPU, pod_sets=(PodSet(1, CPU),)), grown=CPU * grown)
    for pod in pods:
        ledger.set_pod(pod)
    assert ledger.surplus("ray") == list(map(surplus_pod, surplus))


def test_pod_admitted_before_the_watch_shows_it_is_where_it_was_with_its_gate() -> None:
    ledger = CapacityLedger()
    ledger.set_pod(W1)
    ledger.set_pod(gated(W2))
    ledger.admit(W2.uid)
    assert [pod.admitted_as for pod in ledger.pods()] == [W1.admitted_as, W2.admitted_as]
    ledger.set_pod(W2)
    assert ledger.surplus("ray") == [surplus_pod(W2)]


def test_pod_is_live_until_it_ended_and_may_be_ending_before() -> None:
    ledger = CapacityLedger()
    seen = []
    for pod in (W1, replace(W1, is_ending=True), replace(W1, phase=PodPhase.FAILED, is_ending=True)):
        ledger.set_pod(pod)
        seen.append((ledger.is_live(W1.uid), ledger.is_ending(W1.uid)))
    ledger.remove_pod(W1.uid)
    seen.append((ledger.is_live(W1.uid), ledger.is_ending(W1.uid)))
    assert seen == [(True, False), (True, True), (False, True), (False, False)]


def surplus_pod(pod: Pod) -> SurplusPod:
    at, is_gated = pod.gate or pod.admitted_as, pod.gate is not None
    assert at is not None
    return SurplusPod(
        at.namespace, at.name, pod.uid, pod.requests, pod.node, at.created_at, pod.is_ending, is_gated
    )


def test_given_up_pods_come_first_even_if_the_base_gang_lacks_pods_meanwhile() -> None:
    ledger = CapacityLedger()
    for pod in (W1, W2, W3):
        ledger.set_pod(pod)
    assert ledger.surplus("ray", {W2.uid}) == [surplus_pod(W2), surplus_pod(W3)]
    for pod in (W1, W3):
        ledger.remove_pod(pod.uid)
    assert ledger.surplus("ray", {W2.uid}) == [surplus_pod(W2)]


def host(number: int, replica: str = "", **fields: object) -> Pod:
    """A host of a slice of two, in a group with one slice in the base gang."""
    return replace(worker(number, base=2), hosts=2, replica=replica, **fields)  # type: ignore[arg-type]


H1, H2, H3, H4, H5, H6 = (host(number) for number in range(1, 7))
A1, A3, B2, B4 = host(1, "a"), host(3, "a"), host(2, "b"), host(4, "b")


@pytest.mark.parametrize(
    ("pods", "slices"),
    [
        pytest.param([H1, H2], [], id="base-gang"),
        pytest.param([H1, H2, H3, H4], [[H4, H3]], id="next-to-each-other-by-age"),
        pytest.param([H1, H2, H3, H4, H5, H6], [[H6, H5], [H4, H3]], id="newest-first"),
        pytest.param([A1, B2, A3, B4], [[B4, B2]], id="of-one-replica"),
        pytest.param([replace(A1, is_ending=True), B2, A3, B4], [[A1, A3]], id="with-an-ending-host-first"),
        pytest.param(
            [replace(A1, node=""), B2, A3, B4], [[A1, A3]], id="with-a-host-that-does-not-run-first"
        ),
        pytest.param([A1, B2, B4], [[A1]], id="what-is-left-of-an-older-slice"),
        pytest.param([A1, A3, B2], [[B2]], id="host-without-its-slice"),
    ],
)
def test_hosts_of_a_slice_are_surplus_together(pods: list[Pod], slices: list[list[Pod]]) -> None:
    ledger = CapacityLedger()
    for pod in pods:
        ledger.set_pod(pod)
    found = [{pod.uid for pod in hosts} for hosts in slices_of(ledger.surplus("ray"))]
    assert found == [{pod.uid for pod in hosts} for hosts in slices]

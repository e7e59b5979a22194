"""What the benchmark of binding submits, what it counts, and what its table shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import unhinted
from benchmarks.binding_book import Book, Counts, Dispatch
from benchmarks.binding_gangs import (
    Amounts,
    Gang,
    Machine,
    Pods,
    Wrapping,
    fits_empty,
    gpus_of,
    make_gangs,
    make_machines,
)
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import ATTEMPT_LABEL, ITEM_LABEL, NAME_LABEL
from dispatcher.core.kinds import manifest
from testbed.kuberay_operator import GROUP_LABEL, HEAD_GROUP
from tests.builders import gang_of

Json = dict[str, Any]
Event = tuple[float, str, Json]

GIB = 2**30
ONE_GPU = Amounts(cpu=4, memory=8, gpu=1)
SMALL = Machine("small", Amounts(cpu=8, memory=32, gpu=1), "t4", is_tainted=False)
LARGE = Machine("large", Amounts(cpu=32, memory=128, gpu=8), "a100", is_tainted=False)
TAINTED = Machine("tainted", Amounts(cpu=64, memory=256, gpu=8), "v100", is_tainted=True)


def make_gang(*pods: Pods, name: str = "g", wrapping: Wrapping = Wrapping.JOBS) -> Gang:
    return Gang(name, pods or (Pods(2, ONE_GPU),), wrapping, seconds=5.0)


# --- nodes and gangs ---------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_nodes_and_gangs_and_another_seed_others() -> None:
    machines = make_machines(40, seed=1)
    assert machines == make_machines(40, seed=1) != make_machines(40, seed=2)
    assert make_gangs(30, machines, seed=1) == make_gangs(30, machines, seed=1)
    assert make_gangs(30, machines, seed=1) != make_gangs(30, machines, seed=2)


def test_load_is_mixed() -> None:
    machines = make_machines(40, seed=1)
    gangs = make_gangs(300, machines, seed=1)
    pods = [each for gang in gangs for each in gang.pods]
    assert {each.amounts.gpu for each in machines} == {1, 2, 4, 8}
    assert {each.model for each in machines} == {"a100", "t4", "v100"}
    assert {each.is_tainted for each in machines} == {True, False}
    assert {len(each.pods) for each in gangs} == {1, 2, 3}
    assert {each.wrapping for each in gangs} == set(Wrapping)
    assert {each.requests.gpu for each in pods} == {0, 1, 2, 3, 4, 8}
    assert (min(each.requests.cpu for each in pods), max(each.requests.cpu for each in pods)) == (1, 16)
    assert {each.model for each in pods} == {"", "a100", "t4", "v100"}
    assert {each.tolerates for each in pods} == {True, False}


def test_every_gang_fits_the_empty_cluster() -> None:
    machines = make_machines(10, seed=3)
    assert all(fits_empty(each, machines) for each in make_gangs(50, machines, seed=3))


@pytest.mark.parametrize(
    ("pods", "fits"),
    [
        pytest.param((Pods(9, ONE_GPU),), True, id="a-pod-for-each-gpu"),
        pytest.param((Pods(10, ONE_GPU),), False, id="one-more-than-gpus"),
        pytest.param((Pods(9, ONE_GPU), Pods(1, Amounts(4, 8, 0))), True, id="cpu-that-is-left"),
        pytest.param(
            (Pods(5, Amounts(8, 8, 0)), Pods(1, Amounts(1, 1, 1))), False, id="no-cpu-left-for-the-gpus"
        ),
        pytest.param((Pods(2, ONE_GPU, model="t4"),), False, id="too-few-of-the-model"),
        pytest.param((Pods(8, ONE_GPU, model="v100"),), False, id="taint"),
        pytest.param((Pods(8, ONE_GPU, model="v100", tolerates=True),), True, id="toleration"),
    ],
)
def test_gang_fits_by_whole_pods_on_nodes_it_may_use(pods: tuple[Pods, ...], *, fits: bool) -> None:
    assert fits_empty(make_gang(*pods), [SMALL, LARGE, TAINTED]) is fits


@pytest.mark.parametrize(
    ("wrapping", "counts"),
    [(Wrapping.PODS, [1, 1, 1]), (Wrapping.JOBS, [2, 1]), (Wrapping.RAY_CLUSTER, [1, 1, 1])],
)
def test_dispatcher_derives_the_pods_of_a_gang_from_its_appwrapper(
    wrapping: Wrapping, counts: list[int]
) -> None:
    gang = make_gang(Pods(2, ONE_GPU, "t4", tolerates=True), Pods(1, Amounts(2, 4, 0)), wrapping=wrapping)
    derived = gang_of(parse_spec(gang.appwrapper()["spec"], namespace="benchmark"))
    assert derived.pods == gang.size == 3
    assert dict(derived.demand.items()) | {"pods": 3} == {
        "cpu": 10_000,
        "memory": 20 * GIB,
        "nvidia.com/gpu": 2,
        "pods": 3,
    }
    assert [each.count for each in derived.pod_sets] == counts
    assert {len(each.tolerations) for each in derived.pod_sets} == {0, 1}


@pytest.mark.parametrize("first", [1, 3])
def test_pods_of_a_raycluster_have_the_pod_sets_of_its_gang(first: int) -> None:
    gang = make_gang(Pods(first, ONE_GPU), Pods(2, Amounts(2, 4, 0)), wrapping=Wrapping.RAY_CLUSTER)
    derived = gang_of(parse_spec(gang.appwrapper()["spec"], namespace="benchmark"))
    (wrapped,) = gang.appwrapper()["spec"]["resources"]["GenericItems"]
    groups = wrapped["generictemplate"]["spec"]["workerGroupSpecs"]
    names = [HEAD_GROUP, *(each["groupName"] for each in groups for _ in range(each["replicas"]))]
    found = Counter(gang.index_of({GROUP_LABEL: name}) for name in names)
    assert found == {index: each.count for index, each in enumerate(derived.pod_sets)}


def test_gpus_of_all_nodes_are_added() -> None:
    assert gpus_of([SMALL, LARGE, TAINTED]) == 17


# --- counting ----------------------------------------------------------------------------------------------------


def make_pod(
    name: str, *, gang: str = "g", attempt: int = 1, item: int = 0, node: str = "", **status: object
) -> Json:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid of {name}",
            "labels": {NAME_LABEL: gang, ATTEMPT_LABEL: str(attempt), ITEM_LABEL: str(item)},
        },
        "spec": {
            "containers": [{"resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}}}],
            **({"nodeName": node} if node else {}),
        },
        "status": status,
    }


def unschedulable(reason: str = "Unschedulable") -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": "no node"}]


def noted(*events: Event, gang: Gang | None = None) -> Book:
    book = Book([gang or make_gang()])
    for now, kind, pod in events:
        book.note(kind, pod, now)
    return book


def only(book: Book) -> Dispatch:
    [dispatch] = book.dispatches.values()
    return dispatch


def test_gang_becomes_whole_once_with_its_last_pod() -> None:
    book = Book([make_gang()])
    assert book.note("MODIFIED", make_pod("a", node="n"), 1.0) is None
    assert book.note("ADDED", make_pod("b"), 2.0) is None
    assert book.note("MODIFIED", make_pod("b", node="n"), 3.0) is only(book)
    assert book.note("MODIFIED", make_pod("b", node="n", phase="Running"), 4.0) is None
    assert only(book).whole == 3.0


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        pytest.param([(1.0, "ADDED", make_pod("a"))], 0.0, id="not-tried-yet"),
        pytest.param([(1.0, "MODIFIED", make_pod("a", conditions=unschedulable()))], 9.0, id="still-pending"),
        pytest.param(
            [
                (1.0, "MODIFIED", make_pod("a", conditions=unschedulable())),
                (2.0, "MODIFIED", make_pod("a", conditions=unschedulable())),
                (4.0, "MODIFIED", make_pod("a", node="n")),
                (8.0, "DELETED", make_pod("a", node="n")),
            ],
            3.0,
            id="bound-later",
        ),
        pytest.param(
            [
                (1.0, "MODIFIED", make_pod("a", conditions=unschedulable())),
                (6.0, "DELETED", make_pod("a", conditions=unschedulable())),
            ],
            5.0,
            id="evicted",
        ),
        pytest.param(
            [(1.0, "MODIFIED", make_pod("a", conditions=unschedulable("SchedulingGated")))], 0.0, id="gated"
        ),
    ],
)
def test_pod_is_pending_from_the_first_refusal_until_it_is_bound_or_gone(
    events: list[Event], seconds: float
) -> None:
    assert only(noted(*events)).pending_seconds(10.0) == seconds


def test_attempts_are_dispatches_of_their_own_and_other_pods_are_none() -> None:
    book = noted(
        (1.0, "ADDED", make_pod("a", attempt=1)),
        (2.0, "ADDED", make_pod("b", attempt=2)),
        (3.0, "ADDED", make_pod("c", gang="other")),
    )
    assert list(book.dispatches) == [("g", 1), ("g", 2)]


def test_pods_are_on_their_nodes_until_they_end() -> None:
    book = noted(
        (1.0, "MODIFIED", make_pod("a", node="n")),
        (1.0, "MODIFIED", make_pod("b", node="m")),
        (2.0, "MODIFIED", make_pod("b", node="m", phase="Failed")),
    )
    assert book.on_nodes(3.0) == {"n": ["a, 1 GPUs, for 2.0 s"]}
    assert not book.is_empty()
    book.note("DELETED", make_pod("a", node="n"), 4.0)
    assert book.is_empty()


def test_pods_are_off_plan_on_other_nodes_and_where_a_node_has_too_many_of_their_item() -> None:
    book = noted(
        (1.0, "MODIFIED", make_pod("first", item=0, node="n")),
        (2.0, "MODIFIED", make_pod("one too many", item=0, node="n")),
        (3.0, "MODIFIED", make_pod("elsewhere", item=1, node="n")),
        (4.0, "MODIFIED", make_pod("in place", item=1, node="m")),
        (5.0, "ADDED", make_pod("not bound", item=1)),
    )
    strays = only(book).off_plan([{"n": 1, "m": 1}, {"m": 2}])
    assert [each.name for each in strays] == ["one too many", "elsewhere"]


def test_counts_of_a_run() -> None:
    """Two gangs on 4 GPUs: `one` waits 6 s for its second pod; `two`, of two shapes, is bound at once."""
    one, two = make_gang(name="one"), make_gang(Pods(1, ONE_GPU), Pods(1, ONE_GPU), name="two")
    book = Book([one, two])
    for now, kind, pod in (
        (0.0, "MODIFIED", make_pod("one-a", gang="one", node="n")),
        (2.0, "MODIFIED", make_pod("one-b", gang="one", conditions=unschedulable())),
        (8.0, "MODIFIED", make_pod("one-b", gang="one", node="m")),
        (10.0, "DELETED", make_pod("one-a", gang="one", node="n")),
        (10.0, "DELETED", make_pod("one-b", gang="one", node="m")),
        (0.0, "MODIFIED", make_pod("two-a", gang="two", node="n")),
        (0.0, "MODIFIED", make_pod("two-b", gang="two", item=1, node="n")),
        (5.0, "DELETED", make_pod("two-a", gang="two", node="n")),
        (10.0, "DELETED", make_pod("two-b", gang="two", item=1, node="n")),
    ):
        book.note(kind, pod, now)
    plans = {("one", 1): [{"n": 2}], ("two", 1): [{"n": 1}, {"n": 1}]}
    assert book.count(plans, gpus=4, span=(0.0, 10.0), settling=5.0) == Counts(
        gangs=2,
        dispatches=2,
        of_one_shape=1,
        rayclusters=0,
        stuck=1,
        stuck_of_one_shape=1,
        stuck_rayclusters=0,
        hesitant=1,
        longest_pending=6.0,
        pods=4,
        off_plan=1,
        allocated=(10 + 2 + 5 + 10) / 40,
        working=(2 * 2 + 2 * 5) / 40,
        makespan=10.0,
    )
    assert book.count({}, gpus=4, span=(0.0, 10.0), settling=6.0).stuck == 0
    assert book.count({}, gpus=4, span=(0.0, 10.0), settling=5.0).off_plan is None


# --- settings and table ------------------------------------------------------------------------------------------


def test_unhinted_dispatcher_builds_pods_that_prefer_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST_HINTED_NODES", manifest.MOST_HINTED_NODES)  # put back afterwards
    wrapped = parse_spec(make_gang().appwrapper()["spec"], namespace="benchmark").wrapped[0]
    hints = (manifest.NodeHint(0, "spec.template", ("n",)),)
    owner = manifest.Owner(
        "uid", "workload.codeflare.dev", "v1beta1", "benchmark", "g", 1, "hub", hints=hints
    )
    hinted = _pod_spec(manifest.build(wrapped, owner))
    unhinted.prefer_no_nodes()
    plain = _pod_spec(manifest.build(wrapped, owner))
    assert (hinted.pop("affinity", None) is not None, "affinity" in plain) == (True, False)
    assert hinted == plain


def _pod_spec(job: Json) -> Json:
    return dict(job["spec"]["template"]["spec"])

"""The forest: who is whose parent, which settings count where, and what makes a queue invalid."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from traceback import walk_stack
from typing import Final

import pytest

from dispatcher.api.selector import EVERYTHING, parse_selector
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, TreeQuota, tree_quotas
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import (
    CIRCLE,
    MOST_LEVELS,
    PARENT_NOT_FOUND,
    TOO_DEEP,
    Defaults,
    Forest,
    Tree,
)
from dispatcher.core.queues.leaf_quota import LeafQuota, leaf_quotas
from dispatcher.core.queues.queue import (
    Elastic,
    Order,
    Preemption,
    Queue,
    QueueingStrategy,
    Quota,
    Reclaim,
    Sharing,
    StopPolicy,
    WhileBorrowing,
    WithinQueue,
)
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

STRICT, BEST_EFFORT = QueueingStrategy.STRICT_FIFO, QueueingStrategy.BEST_EFFORT_FIFO


def seconds(amount: int) -> timedelta:
    return timedelta(seconds=amount)


def test_without_a_declaration_there_is_one_queue_without_limits() -> None:
    forest = Forest.of([])
    default = forest.places["default"]
    assert list(forest.places) == ["default"]
    assert forest.trees == {"default": Tree("default", ("default",), Sharing.PRIORITY)}
    assert (default.is_leaf, default.parent, default.queue.resources) == (True, None, {})
    assert default.queue.preemption == Preemption()


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], False, id="none"),
        pytest.param([Queue("a"), Queue("b", "a", sharing=Sharing.DIVISION)], False, id="without-limits"),
        pytest.param([Queue("a", stop_policy=StopPolicy.HOLD)], False, id="held"),
        pytest.param([Queue("a", resources={"cpu": Quota(5)})], True, id="quota"),
        pytest.param([Queue("a", preemption=Preemption(WithinQueue.LOWER_PRIORITY))], True, id="preempts"),
        pytest.param([Queue("a", preemption=Preemption(reclaim=Reclaim.ANY))], True, id="reclaims"),
        pytest.param([Queue("a", stop_policy=StopPolicy.HOLD_AND_DRAIN)], True, id="drains"),
    ],
)
def test_running_gangs_count_where_a_queue_has_quota_preempts_or_drains(
    queues: list[Queue], expected: bool
) -> None:
    assert Forest.of(queues).counts_running is expected
    held = Forest.of([]).charging({}, queues)
    assert held.counts_running is expected


def test_the_default_queue_exists_beside_others_and_may_be_declared() -> None:
    assert list(Forest.of([Queue("a")]).places) == ["a", "default"]
    declared = Queue("default", "a", {"cpu": Quota(5)})
    forest = Forest.of([declared, Queue("a")])
    assert forest.places["default"].queue is declared
    assert list(forest.trees) == ["a"]


def test_the_nearest_queue_above_with_a_setting_decides() -> None:
    forest = Forest.of(
        [
            Queue(
                "org",
                strategy=STRICT,
                starvation_bound=seconds(1),
                min_runtime=seconds(2),
                max_preemptions=3,
                preemptible_below=4,
                elastic=Elastic.FIRST,
            ),
            Queue("team", "org", min_runtime=seconds(0), max_preemptions=0, preemptible_below=-1),
            Queue("a", "team", strategy=BEST_EFFORT, starvation_bound=seconds(0)),
            Queue("b", "team", elastic=Elastic.LAST),
            Queue("c", "org"),
            Queue("other"),
        ],
        Defaults(BEST_EFFORT, seconds(600), seconds(7), 5),
    )
    found = {
        name: (
            each.strategy,
            each.starvation_bound.total_seconds(),
            each.min_runtime.total_seconds(),
            each.max_preemptions,
            each.preemptible_below,
            each.elastic.value,
        )
        for name, each in forest.places.items()
        if each.is_leaf
    }
    assert found == {
        "a": (BEST_EFFORT, 0, 0, 0, -1, "First"),
        "b": (STRICT, 1, 0, 0, -1, "Last"),
        "c": (STRICT, 1, 2, 3, 4, "First"),
        "other": (BEST_EFFORT, 600, 7, 5, None, "Last"),
        "default": (BEST_EFFORT, 600, 7, 5, None, "Last"),
    }


def test_only_gangs_below_the_bound_are_preemptible() -> None:
    place = Forest.of([Queue("a", preemptible_below=100)]).places["a"]
    assert place.is_preemptible(99)
    assert not place.is_preemptible(100)
    assert Forest.of([Queue("a")]).places["a"].is_preemptible(10**9)


def test_all_selectors_on_the_way_to_the_root_count() -> None:
    h100, gold, eu = (parse_selector(text, "spec") for text in ("gpu=h100", "tier=gold", "region=eu"))
    forest = Forest.of(
        [
            Queue("org", cluster_selector=eu),
            Queue("team", "org", namespace_selector=gold),
            Queue("a", "team", cluster_selector=h100),
        ]
    )
    assert forest.places["a"].cluster_selectors == (("a", h100), ("org", eu))
    assert forest.places["a"].namespace_selectors == (("team", gold),)
    assert forest.places["org"].cluster_selectors == (("org", eu),)
    assert forest.clusters_of(["a"]).requirements == (*h100.requirements, *eu.requirements)
    assert forest.clusters_of(["unknown"]) == EVERYTHING


@pytest.mark.parametrize(
    ("above", "own", "expected", "by"),
    [
        (StopPolicy.NONE, StopPolicy.NONE, StopPolicy.NONE, ""),
        (StopPolicy.HOLD, StopPolicy.NONE, StopPolicy.HOLD, "org"),
        (StopPolicy.NONE, StopPolicy.HOLD, StopPolicy.HOLD, "a"),
        (StopPolicy.HOLD, StopPolicy.HOLD, StopPolicy.HOLD, "org"),
        (StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN, StopPolicy.HOLD_AND_DRAIN, "a"),
        (StopPolicy.HOLD_AND_DRAIN, StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN, "org"),
    ],
)
def test_the_strictest_stop_policy_on_the_way_counts(
    above: StopPolicy, own: StopPolicy, expected: StopPolicy, by: str
) -> None:
    forest = Forest.of([Queue("org", stop_policy=above), Queue("a", "org", stop_policy=own)])
    assert (forest.places["a"].stop_policy, forest.places["a"].stopped_by) == (expected, by)


def test_the_sharing_is_that_of_the_root() -> None:
    forest = Forest.of(
        [
            Queue("org", sharing=Sharing.DIVISION),
            Queue("a", "org", sharing=Sharing.PRIORITY),
            Queue("b"),
        ]
    )
    assert forest.places["a"].sharing is forest.trees["org"].sharing is Sharing.DIVISION
    assert forest.places["b"].sharing is Sharing.PRIORITY


def test_fields_without_effect_are_named() -> None:
    while_borrowing = Preemption(reclaim=Reclaim.ANY, while_borrowing=WhileBorrowing(3))
    lending = {"a/gpu": Quota(1, lending_limit=1), "cpu": Quota(1, lending_limit=0), "memory": Quota(1, 1)}
    forest = Forest.of(
        [
            Queue("kai", sharing=Sharing.DIVISION),
            Queue("a", "kai", lending, priority=1, sharing=Sharing.DIVISION, preemption=while_borrowing),
            Queue("kueue", sharing=Sharing.DOMINANT_SHARE, priority=2),
            Queue("b", "kueue", lending, preemption=while_borrowing),
            Queue("c", preemption=while_borrowing),
            Queue("mcad", None, lending, weight=Fraction(3), order=Order.USAGE, preemption=while_borrowing),
            Queue("d", "mcad", weight=Fraction(7), starvation_bound=timedelta(5)),
            Queue("strict", "mcad", strategy=QueueingStrategy.STRICT_FIFO, starvation_bound=timedelta(5)),
            Queue("e", "strict", order=Order.USAGE, preemption=Preemption(WithinQueue.LOWER_PRIORITY)),
            Queue("mixed", "mcad", strategy=QueueingStrategy.STRICT_FIFO, starvation_bound=timedelta(5)),
            Queue("f", "mixed", strategy=QueueingStrategy.BEST_EFFORT_FIFO),
        ]
    )
    assert {name: forest.ignored(name) for name in forest.places} == {
        "kai": [],
        "a": [
            "sharing",
            "resources.a/gpu.lendingLimit",
            "resources.cpu.lendingLimit",
            "preemption.whileBorrowing",
        ],
        "kueue": ["priority"],
        "b": ["preemption.whileBorrowing"],
        "c": [],
        "mcad": [
            "resources.a/gpu.lendingLimit",
            "resources.cpu.lendingLimit",
            "resources.memory.borrowingLimit",
            "weight",
            "order",
            "preemption.reclaim",
            "preemption.whileBorrowing",
        ],
        "d": ["weight"],
        "strict": ["starvationBoundSeconds"],
        "e": [],
        "mixed": [],
        "f": [],
        "default": [],
    }
    assert forest.places["c"].while_borrowing == WhileBorrowing(3)
    assert forest.places["b"].while_borrowing is None


def test_a_circle_or_a_missing_parent_makes_a_queue_and_all_below_it_invalid_and_no_other() -> None:
    forest = Forest.of(
        [
            Queue("below", "one"),
            Queue("one", "two"),
            Queue("two", "three"),
            Queue("three", "one"),
            Queue("orphan", "nobody"),
            Queue("child", "orphan"),
            Queue("own", "own"),
            Queue("org"),
            Queue("a", "org"),
        ]
    )
    circle = dict.fromkeys(("below", "one", "two", "three", "own"), CIRCLE)
    assert forest.problems == circle | dict.fromkeys(("orphan", "child"), PARENT_NOT_FOUND)
    assert list(forest.places) == ["org", "a", "default"]


def test_the_order_of_declaration_is_that_of_siblings_and_leaves() -> None:
    forest = Forest.of(
        [Queue("b", "org"), Queue("a2", "a"), Queue("org"), Queue("a", "org"), Queue("a1", "a")]
    )
    assert forest.places["org"].children == ("b", "a")
    assert forest.places["a"].children == ("a2", "a1")
    assert [each.name for each in forest.leaves] == ["b", "a2", "a1", "default"]
    assert forest.trees["org"].names == ("org", "b", "a", "a2", "a1")
    assert [each.name for each in forest.below("a")] == ["a", "a2", "a1"]
    assert [each.position for each in forest.below("org")] == [2, 0, 3, 1, 4]


def test_queues_below_the_deepest_level_are_not_valid_and_the_one_above_takes_gangs() -> None:
    chain = [Queue(f"q{depth}", f"q{depth - 1}" if depth else None) for depth in range(20_000)]
    forest = Forest.of(chain)
    assert forest.problems == {f"q{depth}": TOO_DEEP for depth in range(MOST_LEVELS, 20_000)}
    deepest = forest.places[f"q{MOST_LEVELS - 1}"]
    assert len(deepest.path) == MOST_LEVELS
    assert deepest.is_leaf
    assert [each.name for each in forest.below(deepest.name)] == [deepest.name]
    assert not forest.places[f"q{MOST_LEVELS - 2}"].is_leaf


def test_a_thousand_queues_in_a_tree_two_hundred_deep_are_served_without_recursion() -> None:
    chains = [
        Queue(
            f"{chain}-{depth}", f"{chain}-{depth - 1}" if depth else "org", {"gpu": Quota(1, lending_limit=0)}
        )
        for chain in range(5)
        for depth in range(200)
    ]
    circle = [Queue(f"c{number}", f"c{(number + 1) % 500}") for number in range(500)]
    deepest = sys.getrecursionlimit()
    sys.setrecursionlimit(sum(1 for _ in walk_stack(None)) + 60)  # less than the depth of the tree
    try:
        forest = Forest.of([Queue("org"), *reversed(chains), *circle])
        quota = TreeQuota.of(forest.trees["org"], forest)
        account = Account(quota)
        account.charge("3-199", Resources({"gpu": 7}))
        available = account.available("3-199", "gpu")
    finally:
        sys.setrecursionlimit(deepest)
    assert len(forest.places["3-199"].path) == 201
    assert set(forest.problems.values()) == {CIRCLE}
    assert quota.queues["org"].total["gpu"] == 5
    # Each keeps all that it has: a leaf has its own, and an inner queue its total of 1 less what is kept below.
    assert quota.queues["3-199"].kept["gpu"] == 1
    assert quota.queues["3-198"].own["gpu"] == 0
    assert available == -6


def test_resources_that_no_gang_can_ask_for_are_named_as_without_effect() -> None:
    counted = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "nvidia.com/gpu")
    in_vain = (
        "services",
        "persistentvolumeclaims",
        "requests.cpu",
        "requests.nvidia.com/gpu",
        "count/jobs.batch",
    )
    forest = Forest.of(
        [Queue("a", resources={name: Quota(1, lending_limit=1) for name in (*counted, *in_vain)})]
    )
    found = forest.ignored("a")
    assert {each for each in found if not each.endswith(".lendingLimit")} == {
        f"resources.{name}" for name in in_vain
    }
    assert {each.removesuffix(".lendingLimit") for each in found if each.endswith("Limit")} == {
        f"resources.{name}" for name in counted
    }


# --- What each leaf is entitled to, and in which resources its use counts ----------------------------------


ONE = Fraction(1)
GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([], [LeafQuota("default", ONE, {})], id="the queue that is there without a declaration"),
        pytest.param(
            [Queue("a", resources={GPU: Quota(8, 4, 2)}, weight=Fraction(3, 2))],
            [LeafQuota("a", Fraction(3, 2), {GPU: 8}), LeafQuota("default", ONE, {})],
            id="its nominal quota, whatever it borrows and lends",
        ),
        pytest.param(
            [
                Queue("org", resources={GPU: Quota(12)}),
                Queue("b", "org", {GPU: Quota(8)}),
                Queue("a", "org", {"cpu": Quota(500)}),
            ],
            [
                LeafQuota("a", ONE, {"cpu": 500, GPU: 0}),
                LeafQuota("b", ONE, {"cpu": 0, GPU: 8}),
                LeafQuota("default", ONE, {}),
            ],
            id="nothing of a resource that only others name; inner queues have no gangs",
        ),
        pytest.param(
            [Queue("lost", "nowhere", {GPU: Quota(8)})],
            [LeafQuota("default", ONE, {})],
            id="an invalid queue is entitled to nothing",
        ),
    ],
)
def test_each_leaf_is_entitled_to_its_nominal_quota(queues: list[Queue], expected: list[LeafQuota]) -> None:
    assert leaf_quotas(Forest.of(queues)) == tuple(expected)


@pytest.mark.parametrize(
    ("limited", "counted"),
    [
        ((GPU, "cpu", "amd.com/gpu"), ("amd.com/gpu", GPU)),
        (("cpu", "memory"), ("cpu",)),
        (("memory",), ("cpu",)),
        ((), ("cpu",)),
    ],
)
def test_use_counts_in_limited_devices_else_in_cpu(
    limited: tuple[str, ...], counted: tuple[str, ...]
) -> None:
    assert LeafQuota("a", ONE, dict.fromkeys(limited, 1)).counted == counted


# -----------------------------------------------------------------------------------------------------------
# A gang that holds capacity stays charged in its tree when its queue is deleted or is not valid any more.


ORG: Final = Queue("org", None, {"cpu": Quota(8000)})
A: Final = Queue("a", "org", {"cpu": Quota(4000)})
B: Final = Queue("b", "org", {"cpu": Quota(4000)})
TEAM: Final = Queue("team", "b")
PARENTS: Final = {"a": "org", "b": "org", "team": "b"}


def forest(*queues: Queue, parents: Mapping[str, str] = PARENTS) -> Forest:
    last = {name: Queue(name, parent) for name, parent in parents.items()}
    return DeclaredQueues.of((DispatchQueue(each) for each in queues), (), last=last).forest


def charged(ledger: QuotaLedger) -> dict[str, int]:
    """The cpu that is charged in each queue with any."""
    used = {name: amounts for account in ledger.accounts.values() for name, amounts in account.used.items()}
    return {name: amounts["cpu"] for name, amounts in used.items() if amounts.get("cpu")}


@pytest.mark.parametrize(
    ("queues", "leaf", "used"),
    [
        pytest.param((ORG, A, B, TEAM), "team", {"org": 3000, "b": 3000, "team": 3000}, id="all are valid"),
        pytest.param((ORG, A, B), "team", {"org": 3000, "b": 3000}, id="a leaf is deleted"),
        pytest.param((ORG, A), "team", {"org": 3000}, id="a leaf is deleted with the queue above it"),
        pytest.param((ORG, A, TEAM), "team", {"org": 3000}, id="the queue above is deleted"),
        pytest.param(
            (ORG, A, Queue("b", "orgg")), "b", {"org": 3000, "b": 3000}, id="the parent is misspelt"
        ),
        pytest.param((ORG, A, Queue("b", "b")), "b", {"org": 3000, "b": 3000}, id="a circle"),
        pytest.param((A, B), "b", {}, id="the root is deleted"),
        pytest.param((ORG, A, B), "never", {}, id="a queue that never was"),
    ],
)
def test_charge_counts_in_the_nearest_valid_queue_of_the_last_valid_path(
    queues: tuple[Queue, ...], leaf: str, used: Mapping[str, int]
) -> None:
    found = forest(*queues)
    ledger = QuotaLedger(found, tree_quotas(found))
    ledger.charge((leaf,), Resources({"cpu": 3000}), 0)
    assert charged(ledger) == used
    ledger.charge((leaf,), Resources({"cpu": 3000}), 0, -1)
    assert not charged(ledger)


GANGS: Final = (("team", 3000), ("a", 2000))


@pytest.mark.parametrize(
    ("put_back", "used"),
    [
        pytest.param((), {}, id="the tree is gone"),
        pytest.param((A, B, TEAM), {}, id="the root is not there yet"),
        pytest.param((ORG,), {"org": 5000}, id="the root alone"),
        pytest.param((ORG, A), {"org": 5000, "a": 2000}, id="the root and a leaf"),
        pytest.param((ORG, B), {"org": 5000, "b": 3000}, id="the root and the queue above a leaf"),
        pytest.param(
            (ORG, A, B, TEAM), {"org": 5000, "a": 2000, "b": 3000, "team": 3000}, id="the same tree"
        ),
        pytest.param(
            (ORG, Queue("a", "org"), Queue("team", "a")),
            {"org": 5000, "a": 5000, "team": 3000},
            id="another tree of the same names",
        ),
        pytest.param((A, B, Queue("team", None)), {}, id="a leaf as a root without quota"),
    ],
)
def test_gangs_of_a_tree_that_was_deleted_are_charged_again_as_soon_as_a_part_of_it_is_back(
    put_back: tuple[Queue, ...], used: Mapping[str, int]
) -> None:
    """Nothing is dispatched in a tree without its root, so its use matters again with the first valid queue."""
    found = forest(*put_back)
    assert found.places.keys() <= {"org", "a", "b", "team", "default"}
    ledger = QuotaLedger(found, tree_quotas(found))
    for leaf, cpu in GANGS:
        ledger.charge((leaf,), Resources({"cpu": cpu}), 0)
    assert charged(ledger) == used


def test_tree_of_one_queue_is_charged_again_when_the_queue_is_back() -> None:
    alone = Queue("alone", None, {"cpu": Quota(4000)})
    for queues, used in (((), {}), ((alone,), {"alone": 3000})):
        found = forest(*queues, parents={})
        ledger = QuotaLedger(found, tree_quotas(found))
        ledger.charge(("alone",), Resources({"cpu": 3000}), 0)
        assert charged(ledger) == used


def test_siblings_have_what_an_orphan_leaves_of_the_total() -> None:
    found = forest(ORG, A)
    ledger = QuotaLedger(found, tree_quotas(found))
    ledger.charge(("b",), Resources({"cpu": 4000}), 0)
    assert ledger.has_quota(("a",), Resources({"cpu": 4000}), 0)
    assert not ledger.has_quota(("a",), Resources({"cpu": 4001}), 0)

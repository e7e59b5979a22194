"""The worked numbers of the sharings: dominant shares, divisions, and the order by recent use."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, TreeQuota
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, Quota, Sharing
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.sharing.division import Load, divide, load
from dispatcher.core.scheduling.sharing.dominant_share import Share, share, turn_key
from tests.unit.core.scheduling.queue_answers import answer_of

GPU = "nvidia.com/gpu"


def account_of(*queues: Queue) -> tuple[Account, Forest]:
    forest = Forest.of(queues)
    return Account(TreeQuota.of(forest.trees["org"], forest)), forest


# --- DominantShare -----------------------------------------------------------------------------------------------


def test_a_share_is_borrowing_in_thousandths_of_the_parents_capacity_by_weight() -> None:
    account, forest = account_of(
        Queue("org", sharing=Sharing.DOMINANT_SHARE),
        Queue("a", "org", {GPU: Quota(10, borrowing_limit=3, lending_limit=4)}),
        Queue("b", "org", {GPU: Quota(6)}, weight=Fraction(2)),
        Queue("c", "org", {GPU: Quota(8)}),
    )
    for leaf, amount in {"a": 7, "b": 9, "c": 4}.items():
        account.charge(leaf, Resources({GPU: amount}))
    assert share(account, forest, "b") == Share.of(Fraction(3 * 1000, 18 * 2))
    assert share(account, forest, "b").shown == 84
    assert [share(account, forest, name).shown for name in ("org", "a", "c")] == [0, 0, 0]
    key = turn_key(account, forest, "b", ((GPU, 2),))
    assert (key.would_borrow, key.share.amount) == (True, Fraction(5 * 1000, 18 * 2))
    key = turn_key(account, forest, "c", ((GPU, 4),))
    assert (key.would_borrow, key.share.amount) == (False, Fraction(0))
    assert share(account, forest, "b").shown == 84, "the use is as before"


@pytest.mark.parametrize(("cpu", "gpus", "shown"), [(3, 7, 200), (3, 3, 100), (2, 5, 0), (0, 6, 100)])
def test_the_resource_with_the_largest_part_is_dominant(cpu: int, gpus: int, shown: int) -> None:
    account, forest = account_of(
        Queue("org", sharing=Sharing.DOMINANT_SHARE),
        Queue("a", "org", {"cpu": Quota(2), GPU: Quota(5)}),
        Queue("lender", "org", {"cpu": Quota(8), GPU: Quota(5)}),
    )
    account.charge("a", Resources({"cpu": cpu, GPU: gpus}))
    assert share(account, forest, "a").shown == shown


def test_a_queue_of_weight_zero_that_borrows_has_an_infinite_share_and_two_compare_undivided() -> None:
    account, forest = account_of(
        Queue("org", sharing=Sharing.DOMINANT_SHARE, resources={GPU: Quota(10)}),
        Queue("a", "org", weight=Fraction(0)),
        Queue("b", "org", weight=Fraction(0)),
        Queue("c", "org"),
    )
    assert share(account, forest, "a").shown == 0
    for leaf, amount in {"a": 1, "b": 2, "c": 7}.items():
        account.charge(leaf, Resources({GPU: amount}))
    assert share(account, forest, "a").shown is None
    assert share(account, forest, "c") < share(account, forest, "a") < share(account, forest, "b")


# --- Division ----------------------------------------------------------------------------------------------------


def divided(gpus: int, *queues: tuple[int, int, int], **fields: tuple[int, ...]) -> list[int]:
    """The fair shares of siblings with these quotas, weights and pending demands."""
    siblings = [
        Queue(
            f"q{number}",
            "org",
            {GPU: Quota(quota)},
            weight=Fraction(weight),
            priority=fields["priorities"][number] if "priorities" in fields else 0,
        )
        for number, (quota, weight, _) in enumerate(queues)
    ]
    account, forest = account_of(Queue("org", sharing=Sharing.DIVISION), *siblings)
    wanted = {each.name: Resources({GPU: queue[2]}) for each, queue in zip(siblings, queues, strict=True)}
    shares = divide(account, forest, {GPU: gpus}, wanted)
    return [shares.fair[each.name][GPU] for each in siblings]


def test_the_rest_is_divided_by_weight_until_no_queue_needs_less_than_its_portion() -> None:
    assert divided(12, (2, 1, 10), (2, 3, 5), (4, 2, 1)) == [6, 5, 1]


@pytest.mark.parametrize(
    ("gpus", "queues", "expected"),
    [
        pytest.param(3, [(2, 1, 2), (2, 1, 2)], [2, 2], id="quotas are given even beyond what there is"),
        pytest.param(
            7, [(0, 1, 9), (0, 1, 9)], [4, 3], id="of equal fractions the first declared gets the unit"
        ),
        pytest.param(
            8, [(0, 1, 9), (0, 2, 9)], [3, 5], id="the larger fraction gets the unit: 2 2/3 and 5 1/3"
        ),
        pytest.param(9, [(1, 0, 9), (1, 1, 3)], [1, 3], id="a weight of 0 gets its quota and no more"),
        pytest.param(9, [(1, 0, 9), (1, 0, 3)], [1, 1], id="only weights of 0"),
        pytest.param(9, [(5, 1, 0), (0, 1, 9)], [0, 9], id="who wants nothing gets nothing"),
    ],
)
def test_divisions(gpus: int, queues: list[tuple[int, int, int]], expected: list[int]) -> None:
    assert divided(gpus, *queues) == expected


def test_a_higher_priority_is_satisfied_before_a_lower_one_gets_of_the_rest() -> None:
    assert divided(10, (1, 1, 9), (1, 1, 5), (1, 1, 9), priorities=(0, 2, 1)) == [1, 5, 4]


def test_an_inner_queue_divides_its_fair_share_and_a_limit_bounds_the_wanted_amount() -> None:
    account, forest = account_of(
        Queue("org", sharing=Sharing.DIVISION, resources={GPU: Quota(12)}),
        Queue("team", "org", {GPU: Quota(2, borrowing_limit=4)}),
        Queue("a", "team", {GPU: Quota(1)}),
        Queue("b", "team", {GPU: Quota(1)}),
        Queue("other", "org", {GPU: Quota(2)}),
    )
    account.charge("other", Resources({GPU: 3}))
    wanted = {name: Resources({GPU: 9}) for name in ("a", "b")}
    shares = divide(account, forest, {GPU: 99}, wanted)
    assert {name: amounts[GPU] for name, amounts in shares.fair.items()} == {
        "org": 12,
        "team": 6,
        "a": 3,
        "b": 3,
        "other": 3,
    }
    assert {name: shares.allocated[name][GPU] for name in ("team", "a", "other")} == {
        "team": 6,
        "a": 3,
        "other": 3,
    }
    assert load(account, shares, "other") == Load(is_infinite=False, units=1 << 32, share=Fraction(1))
    account.charge("a", Resources({GPU: 2}))
    assert load(account, shares, "a").share == Fraction(2, 3)
    assert load(account, shares, "team").share == Fraction(1, 3)


# --- order: Usage ------------------------------------------------------------------------------------------------

USAGE = """
clusters: [{name: hub, nodes: [{name: n, allocatable: {cpu: 100}}]}]
queues:
- {name: a, resources: {cpu: {nominalQuota: 1}}, order: ORDER, recentUsage: {large: 5000, small: 182.8}}
pending:
- {name: high, queue: a, namespace: large, priority: 9, age: 99, demand: {cpu: 1}}
- {name: low, queue: a, namespace: small, age: 9, demand: {cpu: 1}}
- {name: first, queue: a, namespace: large, age: 1, demand: {cpu: 1}, preempting: MARK}
"""


@pytest.mark.parametrize(
    ("order", "mark", "expected"),
    [
        pytest.param("Priority", "false", "high", id="by priority"),
        pytest.param("Usage", "false", "low", id="recent use goes before priority"),
        pytest.param("Usage", "true", "first", id="the mark of a preemptor goes before recent use"),
    ],
)
def test_the_order_of_the_gangs_of_a_queue(order: str, mark: str, expected: str) -> None:
    document: dict[str, Any] = yaml.safe_load(USAGE.replace("ORDER", order).replace("MARK", mark))
    decided = answer_of(parse_scenario(document))["decisions"]
    assert decided[0] == {"dispatch": expected, "cluster": "hub"}
    assert [each["reason"] for each in decided[1:]] == ["InsufficientQuota"] * 2


SHARES = st.builds(lambda amount, infinite: (infinite, amount), st.fractions(0, 3), st.booleans())


@given(SHARES, SHARES)
@example((False, Fraction(1, 2**40)), (False, Fraction(1, 2**41)))
def test_shares_compare_as_their_exact_amounts(
    one: tuple[bool, Fraction], other: tuple[bool, Fraction]
) -> None:
    mine, theirs = (Share.of(amount, is_infinite=infinite) for infinite, amount in (one, other))
    assert (mine < theirs, mine == theirs, mine > theirs) == (one < other, one == other, one > other)

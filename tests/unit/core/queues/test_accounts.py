"""The accounts of a tree of queues: what each may use, by its declaration and by the use of all."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, TreeQuota, below_common_ancestor
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, Quota, Sharing
from tests.unit.core.queues.naive_quota import Charged, Json, NaiveForest

GPU = "nvidia.com/gpu"


def queue(name: str, parent: str | None = None, nominal: int | None = None, **limits: int) -> Queue:
    """A queue with a quota of GPUs, if `nominal` is given."""
    resources = {} if nominal is None else {GPU: Quota(nominal, **limits)}
    return Queue(name, parent, resources)


def account_of(*queues: Queue, root: str = "org") -> Account:
    forest = Forest.of(queues)
    return Account(TreeQuota.of(forest.trees[root], forest))


def gpus(amount: int) -> Resources:
    return Resources({GPU: amount})


ORG = (
    queue("org"),
    queue("a", "org", 10, lending_limit=4, borrowing_limit=3),
    queue("b", "org", 6),
    queue("c", "org", 8),
    queue("c1", "c", 4),
    queue("c2", "c", 2, borrowing_limit=1),
)


@pytest.mark.parametrize(
    ("name", "total", "kept", "own", "used", "available", "most", "borrowed"),
    [
        ("org", 24, 0, 18, 14, 4, 18, 0),
        ("a", 10, 6, 10, 7, 4, 13, 0),
        ("b", 6, 0, 6, 9, 4, 18, 3),
        ("c", 8, 0, 8, 4, 4, 18, 0),
        ("c1", 4, 0, 4, 3, 4, 18, 0),
        ("c2", 2, 0, 2, 1, 2, 3, 0),
    ],
)
def test_the_table_of_a_tree_with_lending_and_borrowing_limits(
    name: str, total: int, kept: int, own: int, used: int, available: int, most: int, borrowed: int
) -> None:
    account = account_of(*ORG)
    for leaf, amount in {"a": 7, "b": 9, "c1": 3, "c2": 1}.items():
        account.charge(leaf, gpus(amount))
    quota = account.quota.queues[name]
    assert (quota.total[GPU], quota.kept[GPU], quota.own[GPU], account.used[name][GPU]) == (
        total,
        kept,
        own,
        used,
    )
    assert (account.available(name, GPU), quota.most[GPU], account.borrowed(name, GPU)) == (
        available,
        most,
        borrowed,
    )


@pytest.mark.parametrize(
    ("queues", "used", "available", "most"),
    [
        pytest.param(
            [queue("org", nominal=10)], {"org": 4}, {"org": 6}, {"org": 10}, id="a queue without a cohort"
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 5), queue("b", "org", 5)],
            {"b": 7},
            {"a": 3, "b": 3},
            {"a": 10, "b": 10},
            id="queues of a cohort share what they have",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 5, borrowing_limit=2), queue("b", "org", 5)],
            {"a": 1},
            {"a": 6, "b": 9},
            {"a": 7, "b": 10},
            id="a borrowing limit",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 5, lending_limit=1), queue("b", "org", 5)],
            {"b": 5},
            {"a": 5, "b": 1},
            {"a": 10, "b": 6},
            id="a lending limit",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 5, lending_limit=0, borrowing_limit=0), queue("b", "org", 5)],
            {"a": 2, "b": 1},
            {"a": 3, "b": 4},
            {"a": 5, "b": 5},
            id="a queue that neither lends nor borrows",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 2), queue("b", "org", 3)],
            {"b": 9},
            {"a": -4, "b": -4},
            {"a": 5, "b": 5},
            id="more is used than there is, after a quota was lowered",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 4, lending_limit=1), queue("b", "org", 3)],
            {"b": 9},
            {"a": -2, "b": -5},
            {"a": 7, "b": 4},
            id="what a queue keeps is there, and its part of the debt is taken from it",
        ),
        pytest.param(
            [queue("org", nominal=4), queue("a", "org", 3), queue("b", "org", 3)],
            {"a": 3},
            {"a": 1, "b": 1},
            {"a": 4, "b": 4},
            id="a parent with less than its children caps them",
        ),
        pytest.param(
            [queue("org", nominal=9), queue("a", "org", 3), queue("b", "org", 3)],
            {"a": 7},
            {"a": 2, "b": 2},
            {"a": 9, "b": 9},
            id="a parent with more than its children",
        ),
        pytest.param(
            [
                queue("org"),
                queue("left", "org", 8, lending_limit=2),
                queue("a", "left", 4),
                queue("right", "org", 5, borrowing_limit=1),
                queue("b", "right", 5),
            ],
            {"a": 3, "b": 0},
            {"a": 10, "b": 6},
            {"a": 13, "b": 6},
            id="limits of inner queues",
        ),
        pytest.param(
            [queue("org"), queue("a", "org", 5), queue("b", "org")],
            {"b": 2},
            {"a": 3, "b": 3},
            {"a": 5, "b": 5},
            id="a queue that names nothing borrows all",
        ),
    ],
)
def test_amounts_that_one_more_gang_may_use(
    queues: list[Queue], used: Mapping[str, int], available: Mapping[str, int], most: Mapping[str, int]
) -> None:
    account = account_of(*queues)
    for leaf, amount in used.items():
        account.charge(leaf, gpus(amount))
    assert {name: account.available(name, GPU) for name in available} == available
    assert {name: account.quota.queues[name].most[GPU] for name in most} == most


def test_resource_that_no_queue_names_is_not_limited() -> None:
    account = account_of(queue("org"), queue("a", "org", 1))
    demand = Resources({"cpu": 10**9, GPU: 1})
    assert account.quota.limited == (GPU,)
    assert account.missing("a", demand) == {}
    account.charge("a", demand)
    assert account.missing("a", Resources({"cpu": 10**9})) == {}
    assert account.is_within("a", ["cpu"])
    assert account.missing("a", demand) == {GPU: 1}


def test_a_gang_that_asks_for_nothing_of_a_resource_in_debt_has_quota() -> None:
    account = account_of(queue("org", nominal=2))
    account.charge("org", gpus(5))
    assert account.missing("org", Resources({"cpu": 1})) == {}


def test_a_division_has_limits_on_the_way_to_the_root_and_no_lending() -> None:
    root = Queue("org", None, {GPU: Quota(10)}, sharing=Sharing.DIVISION)
    team = queue("team", "org", 3, borrowing_limit=2, lending_limit=0)
    account = account_of(root, team, queue("a", "team", 1), queue("b", "org", 2))
    account.charge("b", gpus(4))
    assert account.missing_of_limits("a", gpus(5)) == {}
    assert account.missing_of_limits("a", gpus(6)) == {GPU: 1}
    account.charge("b", gpus(2))
    assert account.missing_of_limits("a", gpus(4)) == {}
    assert account.missing_of_limits("a", gpus(5)) == {GPU: 1}
    assert account.missing_of_limits("b", gpus(4)) == {}


def test_a_gang_that_may_not_be_preempted_counts_against_each_total_on_the_way() -> None:
    account = account_of(queue("org", nominal=5), queue("a", "org", 4), queue("b", "org", 4))
    account.charge("a", gpus(4))
    assert account.beyond_nominal("a", gpus(4)) == []
    account.charge("b", gpus(2), is_firm=True)
    assert account.beyond_nominal("a", gpus(3)) == []
    assert account.beyond_nominal("a", gpus(4)) == [GPU]


def test_the_queues_below_the_lowest_common_ancestor() -> None:
    quota = account_of(*ORG).quota
    assert below_common_ancestor(quota.paths["c1"], quota.paths["c2"]) == ("c1", "c2")
    assert below_common_ancestor(quota.paths["c1"], quota.paths["b"]) == ("c", "b")


# --- any tree ------------------------------------------------------------------------------------------------


def random_queues(chance: Random) -> list[Json]:
    """The queues of one tree; inner ones may name less than their children have, and any may limit anything."""
    found: list[Json] = []
    for number in range(chance.randint(1, 9)):
        entry: Json = {"name": f"q{number}", "resources": {}}
        if number:
            entry["parent"] = f"q{chance.randrange(number)}"
        for resource in ("gpu", "memory"):
            if chance.random() < 0.6:
                quota = entry["resources"][resource] = {"nominalQuota": chance.randint(0, 9)}
                for limit in ("borrowingLimit", "lendingLimit"):
                    if chance.random() < 0.4:
                        quota[limit] = chance.randint(0, 6)
        found.append(entry)
    if chance.random() < 0.4:
        found[0]["sharing"] = "Division"
    chance.shuffle(found)
    return found


def declared(entries: list[Json]) -> list[Queue]:
    return [
        Queue(
            each["name"],
            each.get("parent"),
            {
                name: Quota(quota["nominalQuota"], quota.get("borrowingLimit"), quota.get("lendingLimit"))
                for name, quota in each["resources"].items()
            },
            sharing=Sharing(each["sharing"]) if "sharing" in each else None,
        )
        for each in entries
    ]


def random_charges(chance: Random, leaves: list[str]) -> list[tuple[str, dict[str, int]]]:
    demands = [
        {"gpu": chance.randint(0, 4), "memory": chance.randint(0, 4)} for _ in range(chance.randint(0, 8))
    ]
    return [(chance.choice(leaves), demand) for demand in demands]


def assert_as_defined(account: Account, naive: NaiveForest, charged: Charged, firm: Charged) -> None:
    for name, quota in account.quota.queues.items():
        for resource in naive.limited(name):
            assert quota.total[resource] == naive.total(name, resource)
            assert quota.own[resource] == naive.own(name, resource)
            assert quota.kept[resource] == naive.kept(name, resource)
            assert quota.most[resource] == naive.most(name, resource)
            assert quota.limit[resource] == naive.limit(name, resource)
            assert account.used[name][resource] == naive.used(name, resource, charged)
            assert account.plain[name][resource] == naive.plain(name, resource, charged)
            assert account.firm[name][resource] == naive.plain(name, resource, firm)
            assert account.available(name, resource) == naive.available(name, resource, charged)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_an_account_is_as_defined_and_charges_are_taken_back_in_any_order(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 - repeatable
    entries = random_queues(chance)
    naive, forest = NaiveForest(entries), Forest.of(declared(entries))
    account = Account(TreeQuota.of(forest.trees["q0"], forest))
    assert_as_defined(account, naive, [], [])
    charged = [
        (leaf, demand, chance.random() < 0.3) for leaf, demand in random_charges(chance, naive.leaves())
    ]
    for leaf, demand, is_firm in charged:
        account.charge(leaf, Resources(demand), is_firm=is_firm)
    kept, gone = charged[: len(charged) // 2], charged[len(charged) // 2 :]
    everything = [(leaf, demand) for leaf, demand, _ in charged]
    assert_as_defined(
        account, naive, everything, [(leaf, demand) for leaf, demand, is_firm in charged if is_firm]
    )
    for leaf, demand, is_firm in chance.sample(gone, len(gone)):
        account.charge(leaf, Resources(demand), -1, is_firm=is_firm)
    left = [(leaf, demand) for leaf, demand, _ in kept]
    assert_as_defined(account, naive, left, [(leaf, demand) for leaf, demand, is_firm in kept if is_firm])


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_a_gang_has_quota_or_borrows_as_defined(seed: int) -> None:
    chance = Random(seed)  # noqa: S311 - repeatable
    entries = random_queues(chance)
    naive, forest = NaiveForest(entries), Forest.of(declared(entries))
    account = Account(TreeQuota.of(forest.trees["q0"], forest))
    charged = random_charges(chance, naive.leaves())
    for leaf, demand in charged:
        account.charge(leaf, Resources(demand))
    for leaf in naive.leaves():
        (_, demand), *_ = [*random_charges(chance, [leaf]), (leaf, {"gpu": 1})]
        missing = account.missing_of_limits if naive.sharing(leaf) == "Division" else account.missing
        assert sorted(missing(leaf, Resources(demand))) == sorted(naive.missing(leaf, demand, charged))
        assert account.would_borrow(leaf, Resources(demand)) == naive.would_borrow(leaf, demand, charged)

"""A gang that holds capacity stays charged in its tree when its queue is deleted or is not valid any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import tree_quotas
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Queue, Quota
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger

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

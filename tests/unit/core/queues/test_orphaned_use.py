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
    return DeclaredQueues.of((DispatchQueue(each) for each in queues), (), parents=parents).forest


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
        pytest.param((ORG, A, Queue("b", "orgg")), "b", {"org": 3000}, id="the parent is misspelt"),
        pytest.param((ORG, A, Queue("b", "b")), "b", {"org": 3000}, id="a circle"),
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


def test_siblings_have_what_an_orphan_leaves_of_the_total() -> None:
    found = forest(ORG, A)
    ledger = QuotaLedger(found, tree_quotas(found))
    ledger.charge(("b",), Resources({"cpu": 4000}), 0)
    assert ledger.has_quota(("a",), Resources({"cpu": 4000}), 0)
    assert not ledger.has_quota(("a",), Resources({"cpu": 4001}), 0)

"""Growth of running gangs goes in the order in which a cycle would dispatch gangs of the same pods."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Order, Queue, Quota, Sharing
from dispatcher.core.scheduling.cycle.cycle import QueueCycle, QueueFacts
from dispatcher.core.scheduling.cycle.outcomes import Placed
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.growth.growing import GangGrowth
from dispatcher.core.scheduling.growth.growth_turns import asked_at
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from dispatcher.core.scheduling.sharing.gangs import RecentUse, active_gang
from tests import sweeps
from tests.builders import at, attempt_of, make_gang, make_record
from tests.unit.core.scheduling.test_grants import Hub

Asks = dict[Record, list[tuple[float, int]]]
"""Pods of one cpu that gangs ask for, by age."""


def ray(name: str, queue: str = "a", *, cpu: int = 1, **fields: Any) -> Record:  # noqa: ANN401
    return make_record(Phase.RUNNING, name, gang=make_gang(cpu=1000 * cpu), queue=queue, **fields)


def granted(hub: Hub, asks: Asks) -> set[str]:
    """The gangs whose pods are granted, with the number of each pod."""
    return {pod.name for grant in hub.decide(dict(asks)) for pod in grant.pods}


def dispatched(hub: Hub, asks: Asks) -> set[str]:
    """The gangs that a cycle dispatches beside the same running gangs, one for each pod, with the same names."""
    assert hub.queues is not None
    pending = [
        replace(
            make_record(Phase.QUEUED, f"{record.name}-{number}", gang=make_gang(cpu=1000)),
            queue=record.queue,
            namespace=record.namespace,
            priority=record.priority,
            priority_slope=record.priority_slope,
            created_at=at(seconds).replace(microsecond=0),
        )
        for record, pods in asks.items()
        for number, (seconds, _) in enumerate(pods, 1)
    ]
    active = [gang for each in asks if (gang := active_gang(each, is_unreachable=False)) is not None]
    now = at(hub.seconds)
    facts = QueueFacts(Forest.of(hub.queues), QueuedGangs.of(pending, now), active, now, usage=hub.usage)
    cycle = QueueCycle(facts, {"hub": ClusterSnapshot("hub", hub.ledger(asks).snapshot())})
    return {outcome.record.name for outcome in cycle.run() if isinstance(outcome, Placed)}


USED: RecentUse = {("a", "much"): Fraction(9), ("a", "little"): Fraction(1), ("b", "much"): Fraction(2)}


@pytest.mark.parametrize(
    ("order", "first"), [pytest.param(Order.USAGE, "little", id="by-use"), (Order.PRIORITY, "much")]
)
def test_growth_of_the_namespace_that_used_less_goes_first_where_its_queue_says_so(
    order: Order, first: str
) -> None:
    """Room is left for two of four pods."""
    asks: Asks = {
        ray("much", namespace="much", priority=5): [(100, 1), (101, 1)],
        ray("little", namespace="little"): [(110, 1), (111, 1)],
    }
    hub = Hub(1, (Queue("a", order=order),), usage=USED)
    assert granted(hub, asks) == dispatched(hub, asks) == {f"{first}-1", f"{first}-2"}


def test_recent_use_decides_within_a_queue_and_not_between_queues() -> None:
    asks: Asks = {
        ray("of-b", "b", namespace="much", cpu=2): [(110, 1)],
        ray("of-a", "a", namespace="little"): [(120, 1)],
    }
    hub = Hub(1, (Queue("a", order=Order.USAGE), Queue("b", order=Order.USAGE)), usage=USED)
    assert granted(hub, asks) == dispatched(hub, asks) == {"of-b-1"}


@pytest.mark.parametrize(
    ("sharing", "a", "b", "first"),
    [
        pytest.param(Sharing.PRIORITY, 3, 9, "b", id="an-owner-before-a-borrower"),
        pytest.param(Sharing.PRIORITY, 9, 9, "a", id="two-owners-by-priority"),
        pytest.param(Sharing.DOMINANT_SHARE, 1, 3, "b", id="the-lower-share"),
        pytest.param(Sharing.DIVISION, 3, 6, "b", id="within-its-quota"),
        pytest.param(Sharing.DIVISION, 6, 9, "b", id="the-lower-load"),
    ],
)
def test_growth_has_the_turn_that_its_queue_gives_it(sharing: Sharing, a: int, b: int, first: str) -> None:
    """One cpu of eight is left; the gang of a has the higher priority, and its pod is older."""
    tree = (
        Queue("org", sharing=sharing),
        Queue("a", "org", {"cpu": Quota(1000 * a)}),
        Queue("b", "org", {"cpu": Quota(1000 * b)}),
        Queue("spare", "org", {"cpu": Quota(20_000)}),
    )
    asks: Asks = {
        ray("a", "a", cpu=3, priority=5): [(100, 1)],
        ray("b", "b", cpu=4): [(110, 1)],
    }
    hub = Hub(2, tree)
    assert granted(hub, asks) == dispatched(hub, asks) == {f"{first}-1"}


def test_slope_counts_from_the_creation_of_the_pod() -> None:
    asks: Asks = {
        ray("steep", cpu=2, priority_slope=0.1): [(100, 1)],  # 10 at 200 seconds
        ray("flat", priority=11): [(150, 1)],
    }
    hub = Hub(1, (Queue("a"),))
    assert granted(hub, asks) == dispatched(hub, asks) == {"flat-1"}
    assert granted(Hub(1), asks) == {"flat-1"}
    later = Hub(1, (Queue("a"),), seconds=220)
    assert granted(later, asks) == dispatched(later, asks) == {"steep-1"}


def test_each_step_of_a_pass_takes_few_gangs_and_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop runs between steps: 20 gangs ask for 10 pods each."""
    touched = Counter[str]()

    def counted(of: type, name: str) -> None:
        counting = getattr(of, name)

        def count(*arguments: Any) -> Any:  # noqa: ANN401
            touched[name] += 1
            return counting(*arguments)

        monkeypatch.setattr(of, name, count)

    def all_steps(steps: Steps[Any]) -> Any:  # noqa: ANN401
        while True:
            before = touched.copy()
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            assert max((touched - before).values(), default=0) <= 2

    counted(GangGrowth, "__init__")
    counted(QueuedGangs, "put")
    counted(GangGrowth, "decision")
    monkeypatch.setattr(incremental, "run", all_steps)
    asks: Asks = {ray(f"ray{number}"): [(100 + each, 1) for each in range(10)] for number in range(20)}
    assert granted(Hub(12, (Queue("a"),)), asks)
    assert touched == {"__init__": 20, "put": 200, "decision": 20}


def random_case(chance: Random, sharing: Sharing) -> tuple[Hub, Asks]:
    """Gangs that grow in the leaves of a tree whose quota suffices, so that only room is short."""

    def leaf(name: str, parent: str) -> Queue:
        return Queue(
            name,
            parent,
            {"cpu": Quota(1000 * chance.randint(0, 6))},
            weight=Fraction(chance.randint(1, 3)),
            priority=chance.randint(0, 1),
            order=chance.choice(list(Order)),
        )

    tree = (
        Queue("org", sharing=sharing),
        Queue("dep", "org", weight=Fraction(chance.randint(1, 3)), priority=chance.randint(0, 1)),
        leaf("a", "dep"),
        leaf("b", "dep"),
        leaf("c", "org"),
        Queue("spare", "org", {"cpu": Quota(50_000)}),
    )
    seconds = [float(each) for each in chance.sample(range(60, 200), 40)]
    asks: Asks = {
        ray(
            f"ray{number}",
            chance.choice("abc"),
            namespace=chance.choice(["x", "y", "z"]),
            priority=chance.randint(0, 2),
        ): [(seconds.pop(), 1) for _ in range(chance.randint(0, 5))]
        for number in range(chance.randint(2, 5))
    }
    usage = {(leaf, name): Fraction(chance.randint(0, 3)) for leaf in "abc" for name in "xyz"}
    return Hub(chance.randint(2, 3), tree, usage=usage), asks


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("seeds", sweeps.spread(range(150), 50))
def test_growth_goes_in_the_order_of_a_cycle(sharing: Sharing, seeds: range) -> None:
    short = 0
    for seed in seeds:
        hub, asks = random_case(Random(seed), sharing)  # noqa: S311 - repeatable
        found = granted(hub, asks)
        assert found == dispatched(hub, asks), seed
        short += 0 < len(found) < sum(map(len, asks.values()))
    assert short > 10


# --- The age of growth: by the hub's clock, or by our records where a member dates its pods by its own -----


NOW = at(100)


@pytest.mark.parametrize(
    ("cluster", "noted", "created", "asked"),
    [
        pytest.param("hub", None, 50, 50, id="on-the-hub"),
        pytest.param("hub", None, 3600, 100, id="on-the-hub-and-in-the-future"),
        pytest.param("east", None, -3500, 100, id="in-a-member-that-lags-and-not-noted-yet"),
        pytest.param("east", 60, -3500, 60, id="in-a-member-that-lags"),
        pytest.param("east", 60, 80, 80, id="in-a-member-with-the-right-time"),
        pytest.param("east", 60, 3600, 100, id="in-a-member-that-is-ahead"),
    ],
)
def test_growth_asks_since_it_was_created_but_no_member_can_say_since_before_it_was_noted(
    cluster: str, noted: float | None, created: float, asked: float
) -> None:
    record = make_record(Phase.RUNNING)
    request = None if noted is None else GrowthRequest(1, NOTHING, at(noted), "", "")
    attempt = replace(attempt_of(record), cluster=cluster, growth_request=request)
    pod = GatedPod("default", "w", "w", NOTHING, at(created).isoformat())
    assert asked_at(replace(record, attempt=attempt), pod, NOW) == at(asked)

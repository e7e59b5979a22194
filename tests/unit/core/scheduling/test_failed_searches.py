"""A search for victims that failed is not made again, and is made again once it may succeed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
import yaml
from msgspec.structs import replace

from dispatcher.core.model.incremental import run
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.cycle import Preempting
from dispatcher.core.scheduling.pending_queue import Changes
from dispatcher.core.scheduling.scenario import parse_scenario
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, Part
from dispatcher.core.scheduling.sharing.queue_planner import QueuePlanner, QueueRules
from dispatcher.core.scheduling.sharing.search import Search
from dispatcher.core.scheduling.world import KnownSnapshots, World

CLUSTER = "clusters: [{name: hub, nodes: [{name: n, allocatable: {gpu: 100, memory: 1}}]}]"
ONE_QUEUE = f"""
{CLUSTER}
queues: [{{name: a, resources: {{gpu: {{nominalQuota: 10}}}}, preemption: {{withinQueue: LowerPriority}}}}]
running:
- {{name: low, queue: a, cluster: hub, ran: 40, demand: {{gpu: 4}}}}
- {{name: high, queue: a, cluster: hub, ran: 9, priority: 9, demand: {{gpu: 4}}}}
pending:
- {{name: waits, queue: a, priority: 5, age: 1, demand: {{gpu: 8}}}}
"""
SHIELDED = ONE_QUEUE.replace("{name: a, ", "{name: a, minRuntimeSeconds: 60, ").replace(
    "priority: 9, demand", "demand"
)
DISPATCHING = ONE_QUEUE.replace("- {name: high, queue: a, cluster: hub, ran: 9,", "").replace(
    " priority: 9, demand: {gpu: 4}}\npending:",
    "pending:\n- {name: comes, queue: a, priority: 9, demand: {gpu: 4}}",
)
GROWN = f"""
{CLUSTER}
queues:
- name: a
  minRuntimeSeconds: 600
  resources: {{gpu: {{nominalQuota: 10}}}}
  preemption: {{withinQueue: LowerPriority}}
running:
- {{name: grown, queue: a, cluster: hub, ran: 40, demand: {{gpu: 8}}}}
pending:
- {{name: waits, queue: a, priority: 5, age: 1, demand: {{gpu: 6}}}}
"""
DIVIDED = f"""
{CLUSTER}
queues:
- {{name: org, sharing: Division, resources: {{gpu: {{nominalQuota: 12}}}}}}
- {{name: a, parent: org, preemption: {{reclaim: Any}}}}
- {{name: b, parent: org}}
- {{name: c, parent: org}}
running:
- {{name: r1, queue: b, cluster: hub, ran: 9, demand: {{gpu: 4}}}}
- {{name: r2, queue: b, cluster: hub, ran: 8, demand: {{gpu: 4}}}}
pending:
- {{name: waits, queue: a, demand: {{gpu: 6}}}}
- {{name: too-large, queue: c, demand: {{gpu: 6, memory: 99}}}}
"""


class Leader:
    """One planner in the world of a scenario."""

    def __init__(self, text: str) -> None:
        self.world: World = parse_scenario(yaml.safe_load(text))
        self.rules, self.planner = QueueRules(self.world.forest), QueuePlanner()

    def preempted(self, *absent: str, seconds: float = 0) -> list[str]:
        """The victims of a cycle so long after the first, without some gangs."""
        active = [each.active for each in self.world.running if each.active and each.name not in absent]
        queued = {each.uid: each for each in self.world.pending if each.name not in absent}
        news = run(
            self.planner.news_in_steps(
                Changes(queued, are_all=True),
                self.rules,
                active,
                KnownSnapshots().of(self.world),
                self.world.now + timedelta(seconds=seconds),
            )
        )
        return [gang.record.name for each in news if isinstance(each, Preempting) for gang, _ in each.victims]


@pytest.mark.parametrize(
    ("text", "before", "after", "seconds"),
    [
        pytest.param(ONE_QUEUE, (), ("high",), 0, id="another-gang-ended"),
        pytest.param(DISPATCHING, (), ("comes",), 0, id="a-gang-dispatched-in-that-cycle-is-gone"),
        pytest.param(SHIELDED, (), (), 60, id="a-gang-is-shielded-no-more"),
        pytest.param(DIVIDED, (), ("too-large",), 0, id="another-queue-wants-less"),
    ],
)
def test_a_search_is_made_again_once_it_may_succeed(
    text: str, before: tuple[str, ...], after: tuple[str, ...], seconds: float
) -> None:
    leader = Leader(text)
    assert leader.preempted(*before) == []
    assert leader.preempted(*after, seconds=seconds) == Leader(text).preempted(*after, seconds=seconds) != []


def test_a_search_is_made_again_for_each_gang_that_is_shielded_no_more() -> None:
    """Both gangs are needed; one may go after 20 s, the other after 51 s."""
    leader = Leader(SHIELDED)
    found = [sorted(leader.preempted(seconds=seconds)) for seconds in (0, 20, 50, 51)]
    assert found == [[], [], [], ["high", "low"]]


@pytest.mark.parametrize(
    ("text", "seconds", "leaf"),
    [
        pytest.param(ONE_QUEUE, 0, "a", id="the-same-gangs-run"),
        pytest.param(SHIELDED, 19, "a", id="the-same-gangs-are-shielded"),
        pytest.param(DIVIDED, 0, "a", id="the-same-shares"),
    ],
)
def test_a_search_is_not_made_again_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float, leaf: str
) -> None:
    made, search = list[str](), Search.may_be_enough

    def counted(self: Search, gangs: Iterable[ActiveGang]) -> bool:
        made.append(self.leaf)
        return search(self, gangs)

    monkeypatch.setattr(Search, "may_be_enough", counted)
    leader = Leader(text)
    assert [leader.preempted(), leader.preempted(seconds=seconds)] == [[], []]
    assert made == [leaf]


def test_a_search_is_made_again_once_more_of_a_gang_is_surplus() -> None:
    """Pods of a gang end, and its growth is surplus: its record, which has the sum, does not change."""
    leader = Leader(GROWN)

    def preempted(surplus: int, planner: QueuePlanner) -> list[str]:
        (gang,) = (each.active for each in leader.world.running if each.active)
        base, unused = (Resources({"gpu": amount}) for amount in (8 - surplus, surplus))
        parts = [Part(base, base), Part(unused, unused, "unused", unused=unused)]
        active = [replace(gang, part=each) for each in parts]
        queued = Changes({each.uid: each for each in leader.world.pending}, are_all=True)
        snapshots = KnownSnapshots().of(leader.world)
        news = run(planner.news_in_steps(queued, leader.rules, active, snapshots, leader.world.now))
        return [each.uid for new in news if isinstance(new, Preempting) for each, _ in new.victims]

    assert preempted(1, leader.planner) == []
    assert preempted(4, leader.planner) == preempted(4, QueuePlanner()) == ["grown/unused"]

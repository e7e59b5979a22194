"""The policies that a new leader reads first: their gangs are reconciled after them, and all others at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from dispatcher.controller.intake.specs import Specs
from dispatcher.controller.upkeep import takeover
from dispatcher.controller.upkeep.takeover import FirstPolicies
from dispatcher.core.model.records.record import SET_ASIDE, Phase
from tests.builders import make_appwrapper, make_template
from tests.unit.controller.store import FakeStore
from tests.unit.controller.world import World


class CountedStore(FakeStore):
    """Counts the specs of each query."""

    def __init__(self, store: FakeStore) -> None:
        super().__init__()
        self.specs = store.specs
        self.queries: list[int] = []

    async def load_specs(self, hashes: Collection[str]) -> dict[str, bytes]:
        self.queries.append(len(hashes))
        return await super().load_specs(hashes)


@dataclass
class NextLeader:
    """The leader after that of `world`: it has the records, and no spec in memory."""

    world: World
    looked_at: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = CountedStore(self.world.store)
        self.specs = Specs(self.store)
        self.policies = FirstPolicies(self.world.cache, self.world.hub, self.specs, self.looked_at.append)
        self.reconciler = self.world.compose(self.specs, has_policy_unread=self.policies.is_unread).reconciler


@pytest.mark.parametrize("phase", [Phase.DISPATCHED, Phase.RUNNING])
async def test_active_gang_is_looked_at_once_its_policy_was_read(world: World, phase: Phase) -> None:
    record = await world.brought_to(phase, make_appwrapper())
    leader = NextLeader(world)
    leader.policies.begin()

    await leader.reconciler.reconcile(record.uid)
    assert leader.store.queries == []

    await leader.policies.read()
    assert leader.looked_at == [record.uid]
    await leader.reconciler.reconcile(record.uid)
    assert leader.store.queries == [1]


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.DISPATCHING, Phase.REQUEUEING, Phase.FAILED])
async def test_gang_that_is_not_active_is_looked_at_at_once(world: World, phase: Phase) -> None:
    record = await world.brought_to(phase, make_appwrapper())
    leader = NextLeader(world)
    leader.policies.begin()

    assert not leader.policies.is_unread(record.uid)
    await leader.policies.read()
    assert (leader.looked_at, leader.store.queries) == ([], [])


async def test_gang_without_an_appwrapper_is_looked_at_at_once(world: World) -> None:
    record = await world.brought_to(Phase.RUNNING, make_appwrapper())
    world.hide(record.uid)
    leader = NextLeader(world)
    leader.policies.begin()
    assert not leader.policies.is_unread(record.uid)


async def test_gang_whose_appwrapper_went_meanwhile_is_looked_at(world: World) -> None:
    record = await world.brought_to(Phase.RUNNING, make_appwrapper())
    leader = NextLeader(world)
    leader.policies.begin()
    world.hide(record.uid)
    await leader.policies.read()
    assert leader.looked_at == [record.uid]


async def test_policies_of_many_gangs_are_read_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "AT_ONCE", 2)
    gangs = [make_appwrapper(name, make_template(name=name)) for name in ("a", "b", "c")]
    uids = [(await world.brought_to(Phase.RUNNING, each)).uid for each in gangs]
    leader = NextLeader(world)
    leader.policies.begin()
    await leader.policies.read()
    assert (leader.looked_at, leader.store.queries) == (uids, [2, 1])


# --- records in place of rows that cannot be read ----------------------------------------------------------------


async def test_gang_whose_row_cannot_be_read_is_left_alone(world: World) -> None:
    record = await world.brought_to(Phase.RUNNING, make_appwrapper())
    aside = replace(record, version=SET_ASIDE, phase=Phase.DISPATCHING)
    world.cache.put(aside)
    leader = NextLeader(world)
    leader.policies.begin()
    await leader.policies.read()

    await leader.reconciler.reconcile(record.uid)
    assert (leader.looked_at, leader.store.queries) == ([], [])
    assert world.cache.get(record.uid) is aside

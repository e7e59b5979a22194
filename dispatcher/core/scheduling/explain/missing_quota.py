"""The quota that a gang seems to miss: numbers with which a search for the least sufficient quota begins.

They are guesses. Gangs ahead, quota that is held back and limits further up change what is needed, so only a plan of
the changed world says what suffices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dispatcher.core.model.record import Record
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.core.queues.accounts import Account, tree_quotas
from dispatcher.core.queues.forest import Place
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import RunningGang
from dispatcher.core.scheduling.sharing.quota_ledger import QuotaLedger


class MissingQuota:
    """The accounts of a world before a cycle, and after it with the gangs that it placed."""

    def __init__(self, world: World, placed: Collection[str]) -> None:
        self._world = world
        self._forest = world.forest.for_quota
        quotas = tree_quotas(self._forest)
        before, after = QuotaLedger(self._forest, quotas), QuotaLedger(self._forest, quotas)
        for gang in world.running:
            if gang.active is not None:
                for ledger in (before, after):
                    ledger.charge(gang.active.leaves, _charge(gang), gang.active.record.priority)
        for record in world.pending:
            if record.uid in placed:
                after.charge(record.leaves, record.gang.charged, record.priority)
        self._ledgers = (before, after)

    def asked(self, place: Place, demand: Resources) -> list[str]:
        """The limited resources of a leaf's tree that a demand asks for."""
        return [name for name, _ in self._ledgers[0].accounts[place.root].quota.asked(demand)]

    def guesses(self, place: Place, record: Record, resource: str) -> set[int]:
        """Amounts of a resource, in base units and above 0, that a gang may miss in a leaf or further up."""
        found: set[int] = set()
        for ledger in self._ledgers:
            found.update(_missing(ledger.accounts[place.root], place, record, resource))
        return {amount for amount in found if amount > 0}

    def most(self, queue: str, resource: str) -> int:
        """An amount, in base units, that a queue may add and that all gangs of the world together do not exceed."""
        tree = self._forest.trees[self._forest.places[queue].root]
        quotas = {each: self._forest.places[each].queue.resources.get(resource) for each in tree.names}
        nominal = {each: quota.nominal for each, quota in quotas.items() if quota is not None}
        pending = sum(each.gang.charged[resource] for each in self._world.pending)
        running = sum(_charge(each)[resource] for each in self._world.running)
        return min(sum(nominal.values()) + pending + running, LARGEST_AMOUNT - nominal[queue])


def _charge(gang: RunningGang) -> Resources:
    """The amounts that the queues of a running gang are charged with; as much as it holds if it has no queues."""
    return gang.held if gang.active is None else gang.held.highest(gang.active.record.quota_charge)


def _missing(account: Account, place: Place, record: Record, resource: str) -> Iterator[int]:
    demand, leaf = record.gang.charged[resource], account.quota.queues[place.name]
    yield account.used[place.name][resource] + demand - leaf.own[resource]
    if place.sharing is not Sharing.DIVISION:
        yield demand - leaf.most[resource]
        yield demand - account.available(place.name, resource)
    for name in place.path:
        queue, limit = account.quota.queues[name], account.quota.queues[name].limit[resource]
        if place.sharing is Sharing.DIVISION and limit is not None:
            yield demand - limit
            yield account.plain[name][resource] + demand - limit
        if not place.is_preemptible(record.priority):
            yield demand - queue.total[resource]
            yield account.firm[name][resource] + demand - queue.total[resource]

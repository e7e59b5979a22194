"""No gang is preempted that surplus can replace, as far as the sharing lets the preemptor take it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import yaml

from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, below_common_ancestor, common_length
from dispatcher.core.queues.queue import Sharing
from dispatcher.core.scheduling.cycle.cycle import QueueCycle
from dispatcher.core.scheduling.cycle.outcomes import Preempting
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.preemption import spared
from dispatcher.core.scheduling.preemption.victims import may_preempt
from dispatcher.core.scheduling.sharing import dominant_share
from dispatcher.core.scheduling.sharing.gangs import ActiveGang, PendingGang
from dispatcher.core.scheduling.sharing.search import Trial, uses_any
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import GPU, SHARINGS, bind, free_amounts

MOST_TRIED = 7
"""Surplus parts of which all sets are tried."""


class SurplusOracle:
    """The surplus that a preemptor may take instead of the gangs that it preempts."""

    def __init__(self, world: World, outcome: Preempting) -> None:
        cycle = QueueCycle(world.queue_facts(), KnownSnapshots().of(world))
        self._later, self._victims = cycle._later, [gang for gang, _ in outcome.victims]  # noqa: SLF001
        self._forest = world.forest
        self._gang = PendingGang(outcome.record)
        self._place = self._forest.places[outcome.record.queue]
        self._shares = cycle._shares.get(self._place.root)  # noqa: SLF001
        self._trial = Trial(
            self._gang,
            outcome.cluster,
            self._later,
            cycle._rooms[outcome.cluster].later,  # noqa: SLF001
        )
        lacks_room = not self._trial.has_room()
        contested = cycle._search._contested(self._trial, self._place, lacks_room=lacks_room)  # noqa: SLF001
        account, leaf = self._account, self._place.name
        self._contested = contested
        self._within = {name for name in account.used if account.is_within(name, contested)}
        self._before = {name: dict(amounts) for name, amounts in account.plain.items()}
        self._count(1)
        self._is_owner = account.is_within(leaf, contested)
        self._count(-1)
        self._ahead = {name for name in account.quota.paths if self._is_ahead(name)}
        others = {gang.record.queue for gang in self._victims} - {leaf}
        self._takes_plain = not others <= self._ahead
        taken = {gang.uid for gang in self._victims}
        self.candidates = [
            each
            for each in cycle._facts.active  # noqa: SLF001
            if each.is_surplus
            and not each.is_leaving
            and each.uid not in taken
            and (not lacks_room or each.cluster == outcome.cluster)
            and uses_any(each, contested)
            and all(
                place.is_preemptible(each.record.priority) for place in self._forest.places_of(each.leaves)
            )
            and self._forest.places[each.record.queue].root == self._place.root
            and may_preempt(self._gang, self._place, each, each.record.queue)
        ]

    def spared_by(self, gang: ActiveGang) -> list[str] | None:
        """Surplus that would have been enough in the place of a victim, by name; None if there is none."""
        others = [each for each in self._victims if each.uid != gang.uid]
        for each in others:
            self._trial.remove(each, None)  # type: ignore[arg-type]
        try:
            return self._search(set(), frozenset(), frozenset())
        finally:
            self._trial.close()

    def _search(self, seen: set[object], taken: frozenset[str], closed: frozenset[str]) -> list[str] | None:
        if (taken, closed) in seen:
            return None
        seen.add((taken, closed))
        if self._is_enough():
            return sorted(taken)
        for each in self.candidates:
            if each.uid in taken:
                continue
            for is_second in self._allowed(each, closed):
                self._trial.remove(each, None)  # type: ignore[arg-type]
                after = closed | {each.record.queue} if is_second else closed
                found = self._search(seen, taken | {each.uid}, after)
                self._trial.restore(each)
                if found is not None:
                    return found
        return None

    def _allowed(self, gang: ActiveGang, closed: frozenset[str]) -> Iterator[bool]:
        """The rules by which the sharing lets it go: False for the first round, True for the second."""
        if self._place.sharing is Sharing.DOMINANT_SHARE:
            self._count(1)
            found = list(self._shared(gang, closed))
            self._count(-1)
            yield from found
            return
        is_given = self._is_given if self._place.sharing is Sharing.DIVISION else self._is_reclaimed
        if gang.record.queue == self._place.name or is_given(gang):
            yield False

    def _is_ahead(self, leaf: str) -> bool:
        """True if the gang fits what a queue on its way has left, below the first queue that both are below."""
        account = self._account
        path, asked = account.quota.paths[self._place.name], account.quota.asked(self._demand)
        common = common_length(path, account.quota.paths[leaf])
        return any(account.left(name, asked) for name in path[: len(path) - common])

    def _is_reclaimed(self, gang: ActiveGang) -> bool:
        """True if no queue on the way of the surplus is within its own quota."""
        account, leaf = self._account, gang.record.queue
        path, other = account.quota.paths[self._place.name], account.quota.paths[leaf]
        between = other[: len(other) - common_length(path, other)]
        is_listed = leaf in self._ahead or self._takes_plain
        return is_listed and not any(account.is_within(name, self._contested) for name in between)

    def _shared(self, gang: ActiveGang, closed: frozenset[str]) -> Iterator[bool]:
        account, leaf, own = self._account, gang.record.queue, self._place.name
        path, others = account.quota.paths[own], account.quota.paths[leaf]
        if not all(account.borrows(name) or name in path for name in others):
            return
        if leaf == own:
            if not closed:
                yield False
            return
        if leaf in self._within:
            return
        mine, theirs = below_common_ancestor(path, others)
        limit = dominant_share.share(account, self._forest, mine)
        before = dominant_share.share(account, self._forest, theirs)
        account.charge(leaf, gang.charge, -1)
        after = dominant_share.share(account, self._forest, theirs)
        account.charge(leaf, gang.charge)
        if not closed and (self._is_owner or limit <= after):
            yield False
        if leaf not in closed and limit < before:
            yield True

    def _is_given(self, gang: ActiveGang) -> bool:
        account, shares = self._account, self._shares
        assert shares is not None
        own, asked = self._place.name, account.quota.asked(self._demand)
        if any(self._before[own][name] + amount > shares.fair[own][name] for name, amount in asked):
            return False
        mine, theirs = below_common_ancestor(account.quota.paths[own], account.quota.paths[gang.record.queue])
        totals = account.quota.queues
        is_entitled = all(
            self._before[mine][name] + amount <= totals[mine].total[name] for name, amount in asked
        )
        used = account.plain[theirs]
        return any(
            used[name] > shares.allocated[theirs][name]
            or (is_entitled and used[name] > totals[theirs].total[name])
            for name, _ in asked
        )

    def _is_enough(self) -> bool:
        has_quota = self._trial.has_quota(self._place.name)
        if self._place.sharing is Sharing.PRIORITY and self._account.would_borrow(
            self._place.name, self._demand
        ):
            return False  # a search that borrows takes less, and one that does not needs this
        return has_quota and self._trial.has_room() and self._is_fair()

    def _is_fair(self) -> bool:
        """True if no queue on the way ends above its fair share, and above the load of a sibling that gave."""
        if self._place.sharing is not Sharing.DIVISION:
            return True
        account, shares = self._account, self._shares
        assert shares is not None
        path, paths = account.quota.paths[self._place.name], account.quota.paths
        for given, _ in self._trial.removed.values():
            other = paths[given.record.queue]
            if common_length(path, other) == min(len(path), len(other)):
                continue
            mine, theirs = below_common_ancestor(path, other)
            for name, amount in account.quota.asked(self._demand):
                used, fair, gives = (
                    account.plain[mine][name] + amount,
                    shares.fair[mine][name],
                    shares.fair[theirs][name],
                )
                if used > fair and gives and (not fair or used * gives >= account.plain[theirs][name] * fair):
                    return False
        return True

    def _count(self, sign: int) -> None:
        self._account.charge(self._place.name, self._demand, sign)

    @property
    def _account(self) -> Account:
        return self._later.account_of(self._place.name)

    @property
    def _demand(self) -> Resources:
        return self._gang.record.gang.demand


# --- the tests -------------------------------------------------------------------------------------------


Json = dict[str, Any]

THREE = """
clusters: [{{name: hub, nodes: [{{name: n, allocatable: {{gpu: 9}}}}]}}]
queues:
- {{name: org, sharing: {sharing}}}
- {{name: a, parent: org, resources: {{gpu: {{nominalQuota: 4}}}}, preemption: {{reclaim: Any}}}}
- {{name: b, parent: org, resources: {{gpu: {{nominalQuota: 1}}}}}}
- {{name: c, parent: org, resources: {{gpu: {{nominalQuota: 1}}}}}}
- {{name: lender, parent: org, resources: {{gpu: {{nominalQuota: 3}}}}}}
running:
- {{name: one, queue: b, cluster: hub, ran: 90, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: two, queue: b, cluster: hub, ran: 60, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: three, queue: b, cluster: hub, ran: 30, pods: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
- {{name: ray, queue: c, cluster: hub, ran: 900, pods: [{{count: 1, requests: {{gpu: 1}}, nodes: [n]}}],
   surplus: [{{count: 2, requests: {{gpu: 1}}, nodes: [n, n]}}]}}
pending:
- {{name: p, queue: a, pods: [{{count: {count}, requests: {{gpu: 1}}}}]}}
"""


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(("count", "preempt"), [(2, []), (3, ["three"]), (4, ["three"])])
def test_surplus_of_another_queue_spares_a_gang_of_the_queue_that_borrows_most(
    count: int, preempt: list[str], sharing: str
) -> None:
    """Queue b borrows five GPUs, and c two for its surplus."""
    document = yaml.safe_load(THREE.format(sharing=sharing, count=count))
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert found["preempt"] == preempt
    assert found["surplus"] == {"ray": count - 2 * len(preempt)}


@pytest.mark.parametrize(("most", "preempt"), [(0, ["three", "two"]), (1, ["three"])])
def test_tries_to_spare_gangs_are_bounded(
    most: int, preempt: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spared, "MOST_COMPARISONS", most)
    document = yaml.safe_load(THREE.format(sharing="Division", count=4))
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert found["preempt"] == preempt


def test_the_cluster_is_chosen_where_fewer_gangs_are_preempted_whatever_surplus() -> None:
    """In the east two gangs hold what is needed, in the west one gang and two surplus pods."""
    document = yaml.safe_load("""
clusters:
- {name: east, nodes: [{name: e, allocatable: {gpu: 4}}]}
- {name: west, nodes: [{name: w, allocatable: {gpu: 5}}]}
queues:
- {name: org}
- {name: a, parent: org, resources: {gpu: {nominalQuota: 4}}, preemption: {reclaim: Any}}
- {name: b, parent: org, resources: {gpu: {nominalQuota: 5}}}
running:
- {name: one, queue: b, cluster: east, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [e, e]}]}
- {name: two, queue: b, cluster: east, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [e, e]}]}
- {name: three, queue: b, cluster: west, ran: 9, pods: [{count: 2, requests: {gpu: 1}, nodes: [w, w]}]}
- {name: ray, queue: b, cluster: west, ran: 90, pods: [{count: 1, requests: {gpu: 1}, nodes: [w]}],
   surplus: [{count: 2, requests: {gpu: 1}, nodes: [w, w]}]}
pending:
- {name: p, queue: a, pods: [{count: 4, requests: {gpu: 1}}]}
""")
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert (found["cluster"], found["preempt"], found["surplus"]) == ("west", ["three"], {"ray": 2})


@pytest.mark.parametrize("sharing", SHARINGS)
def test_surplus_that_no_sharing_lets_go_costs_each_gang_few_comparisons(
    sharing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one of its surplus pods, queue c is within its quota. Any other would do in the place of a gang."""
    gangs, surplus = 30, 20
    running: list[Json] = [
        {"name": f"g{number}", "queue": "b", "cluster": "hub", "pods": [_pod_on(number)]}
        for number in range(gangs)
    ]
    others = [_pod_on(gangs + number) for number in range(surplus + 1)]
    running.append({"name": "ray", "queue": "c", "cluster": "hub", "pods": others[:1], "surplus": others[1:]})
    document = {
        "clusters": [{"name": "hub", "nodes": [{"name": "n", "count": 51, "allocatable": {GPU: 1}}]}],
        "queues": [
            {"name": "org", "sharing": sharing},
            {"name": "a", "parent": "org", **_quota(30), "preemption": {"reclaim": "Any"}},
            {"name": "b", "parent": "org", **_quota(1)},
            {"name": "c", "parent": "org", **_quota(20)},
        ],
        "running": running,
        "pending": [{"name": "p", "queue": "a", "pods": [{"count": 28, "requests": {GPU: 1}}]}],
    }
    compared = 0
    has_room = Trial.has_room

    def counting(trial: Trial) -> bool:
        nonlocal compared
        compared += 1
        return has_room(trial)

    monkeypatch.setattr(Trial, "has_room", counting)
    (found,) = answer_of(parse_scenario(document))["decisions"]
    assert (len(found["preempt"]), found["surplus"]) == (27, {"ray": 1})
    assert compared < 8 * gangs


def _pod_on(number: int) -> Json:
    return {"count": 1, "requests": {GPU: 1}, "nodes": [f"n-{number}"]}


def _quota(gpus: int) -> Json:
    return {"resources": {GPU: {"nominalQuota": gpus}}}


def crowded(chance: Random, sharing: str) -> Json:
    """Gangs with and without surplus in the queues of a tree, on few nodes, and a gang that wants several GPUs."""
    departments = {name: "dep" if name in "cd" and chance.random() < 0.5 else "org" for name in "abcd"}
    inner = [{"name": "dep", "parent": "org"}] if "dep" in departments.values() else []
    queues: list[Json] = [{"name": "org", "sharing": sharing}, *inner]
    for name, parent in departments.items():
        within = chance.choice(["Never", "LowerPriority", "LowerPriority"])
        queue: Json = {
            "name": name,
            "parent": parent,
            "resources": {GPU: {"nominalQuota": chance.randint(0, 5)}},
            "preemption": {"withinQueue": within, "reclaim": "Any"},
        }
        if chance.random() < 0.3:
            queue["weight"] = chance.choice([2, 3])
        if chance.random() < 0.2:
            queue["priority"] = 1
        queues.append(queue)
    nodes = {"name": "n", "count": chance.randint(2, 4), "allocatable": {GPU: chance.randint(3, 6)}}
    document: Json = {"clusters": [{"name": "hub", "nodes": [nodes]}], "queues": queues, "running": []}
    free = free_amounts(document)["hub"]
    for number in range(chance.randint(4, 8)):
        gang: Json = {
            "name": f"r{number}",
            "queue": chance.choice("abcd"),
            "cluster": "hub",
            "ran": chance.choice([5, 60, 600]),
            "priority": chance.randint(0, 2),
            "pods": [{"count": chance.randint(1, 2), "requests": {GPU: chance.randint(1, 2)}}],
        }
        more: Json = {"pods": [{"count": chance.randint(1, 2), "requests": {GPU: 1}}]}
        if bind(gang, free):
            document["running"].append(gang)
            if chance.random() < 0.5 and bind(more, free):
                gang["surplus"] = more["pods"]
    wanted = [{"count": chance.randint(1, 4), "requests": {GPU: chance.randint(1, 3)}}]
    document["pending"] = [{"name": "p", "queue": chance.choice("abcd"), "priority": 2, "pods": wanted}]
    return document


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(150), id="few"),
        pytest.param(range(150, 4000), id="many", marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_no_set_of_surplus_would_spare_a_preempted_gang(sharing: str, seeds: range) -> None:
    counts = Counter[str]()
    for seed in seeds:
        world = parse_scenario(crowded(Random(seed), sharing))  # noqa: S311 - repeatable
        _, outcomes = world.plan_queues()
        for outcome in outcomes:
            if not isinstance(outcome, Preempting):
                continue
            gangs = [gang for gang, _ in outcome.victims if not gang.is_surplus]
            oracle = SurplusOracle(world, outcome)
            if gangs and 0 < len(oracle.candidates) <= MOST_TRIED:
                counts["with surplus left"] += 1
                sparing = {gang.uid: oracle.spared_by(gang) for gang in gangs}
                assert not any(sparing.values()), (seed, sparing)
            counts["with surplus taken"] += 0 < len(gangs) < len(outcome.victims)
    assert counts["with surplus left"] > len(seeds) / 12
    assert counts["with surplus taken"] > len(seeds) / 20

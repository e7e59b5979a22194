"""Cycles over random forests: no quota or cluster is exceeded, no preemption is in vain, order does not matter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.core.model.records.pending_reasons import LACKS_QUOTA
from dispatcher.core.model.records.record import Pending
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome, QueueShare
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.cycle.refusals import MOST_BORROWERS
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from tests import sweeps
from tests.unit.core.queues.naive_quota import NaiveForest
from tests.unit.core.scheduling.queue_answers import answer_of
from tests.unit.core.scheduling.queue_worlds import (
    RESOURCES,
    SHARINGS,
    demand_of,
    free_amounts,
    have_places,
    queues_of,
    random_document,
    take,
    take_bound,
)

Json = dict[str, Any]


STARVED = 600
"""Seconds after which a blocked gang is starved."""


@dataclass
class State:
    """The gangs that hold quota, by name, and the free amounts; `promised` are gangs on a cluster without nodes yet."""

    gangs: dict[str, Json]
    free: dict[str, dict[str, dict[str, int]]]
    promised: dict[str, list[Json]] = field(default_factory=dict)

    def charged(self, held: Iterable[tuple[str, dict[str, int]]] = ()) -> list[tuple[str, dict[str, int]]]:
        return [*charges_of(self.gangs.values()), *held]


def charges_of(gangs: Iterable[Json]) -> list[tuple[str, dict[str, int]]]:
    """The demands of gangs, each in all of its leaves."""
    return [(leaf, demand_of(each)) for each in gangs for leaf in queues_of(each)]


class Replay:
    """One cycle. `check` raises an AssertionError that names the broken rule."""

    def __init__(self, document: Json, shares: dict[str, QueueShare]) -> None:
        self.document = document
        self.forest = NaiveForest([*document["queues"], {"name": "default"}])
        self.shares = shares
        self.pending = {each["name"]: each for each in document["pending"]}
        self.running = {each["name"]: each for each in document["running"]}
        self.clusters = {each["name"]: each for each in document["clusters"]}
        self.now = self._state(document["running"])
        self.free_before = self._state(document["running"]).free
        self.later = self._state([each for each in document["running"] if not each.get("ending")])
        self.holds: list[tuple[str, dict[str, int], bool]] = []
        self.kept: set[str] = set()
        self.decided: list[str] = []
        self.counts: Counter[str] = Counter()
        self.heads: set[str] = set()
        self.reserved: set[str] = set()
        """The starved gangs that quota is kept for."""

    def _state(self, running: Iterable[Json]) -> State:
        state = State({each["name"]: each for each in running}, free_amounts(self.document))
        for gang in state.gangs.values():
            take_bound(gang, state.free[gang["cluster"]])
        return state

    def check(self, outcomes: Sequence[QueueOutcome]) -> None:
        """Every pending gang is decided once, and every decision is right."""
        drained = [each for each in outcomes if isinstance(each, Drained)]
        for drain in drained:
            self._leave([self.running[gang.uid] for gang in drain.gangs])
        decided = outcomes[len(drained) :]
        self.reserved = self._reserved_in(
            each.record.uid for each in decided if not isinstance(each, Drained)
        )
        for outcome in decided:
            match outcome:
                case Drained():
                    raise AssertionError("queues are drained first")
                case Placed():
                    self._check_dispatch(self._decided(outcome.record.uid), outcome)
                case Preempting():
                    self._check_preemption(self._decided(outcome.record.uid), outcome)
                case _:
                    self._check_waiting(self._decided(outcome.record.uid), outcome)
        assert sorted(self.decided) == sorted(self.pending), "every pending gang is decided once"
        for name, gangs in self.later.promised.items():
            assert have_places(gangs, self.clusters[name], self.later.free[name]), (
                f"{name} is overcommitted later"
            )

    def _reserved_in(self, order: Iterable[str]) -> set[str]:
        """The gangs that quota is kept for, if gangs are decided in this order: the first one of the same queues."""
        found: dict[tuple[str, ...], str] = {}
        for name in order:
            if self._may_have_reservation(gang := self.pending[name]):
                found.setdefault(tuple(queues_of(gang)), name)
        return set(found.values())

    def _may_have_reservation(self, gang: Json) -> bool:
        """True if quota may be kept for a starved gang.

        To a gang that only waits for others to leave quota comes by itself, and one that fits no cluster needs none.
        """
        if gang.get("blocked", 0) < STARVED or self.over_nominal(gang, self.later):
            return False
        empty = free_amounts(self.document)
        fits = any(have_places([gang], each, empty[name]) for name, each in self.clusters.items())
        return fits and bool(self.missing(gang, self.later, without_holds=True))

    def _decided(self, name: str) -> Json:
        self.decided.append(name)
        gang: Json = self.pending[name]
        return gang

    def count(self, what: str, more: int = 1) -> None:
        self.counts[what] += more

    # --- quota -------------------------------------------------------------------------------------------------

    def missing(self, gang: Json, state: State, *, without_holds: bool = False) -> dict[str, int]:
        """The limited resources of which a gang lacks quota in a state, also because it may not be preempted."""
        found: dict[str, int] = {}
        for leaf in queues_of(gang):
            held = [] if without_holds else self._held_from(leaf, state)
            found |= self.forest.missing(leaf, demand_of(gang), state.charged(held))
        return found | dict.fromkeys(self.over_nominal(gang, state), 1)

    def over_nominal(self, gang: Json, state: State) -> list[str]:
        """The limited resources of which it has no nominal quota in a leaf where it may not be preempted."""
        forest = self.forest
        charges = [
            (leaf, demand_of(each))
            for each in state.gangs.values()
            for leaf in queues_of(each)
            if forest.is_firm(leaf, each["priority"])
        ]
        return [
            resource
            for leaf in queues_of(gang)
            if forest.is_firm(leaf, gang["priority"])
            for resource in forest.over_nominal(leaf, demand_of(gang), charges)
        ]

    def _held_from(self, leaf: str, state: State) -> list[tuple[str, dict[str, int]]]:
        held: list[tuple[str, dict[str, int]]] = []
        for other, demand, is_starved in self.holds:
            if self.forest.path(other)[-1] != self.forest.path(leaf)[-1]:
                continue
            if other == leaf:
                if is_starved:
                    held.append((other, demand))
                continue
            charged = state.charged(held)
            amounts = {
                resource: max(
                    0,
                    min(
                        amount, self.forest.own(other, resource) - self.forest.used(other, resource, charged)
                    ),
                )
                for resource, amount in demand.items()
                if resource in self.forest.limited(other)
            }
            held.append((other, amounts))
        return held

    # --- decisions ---------------------------------------------------------------------------------------------

    def _check_dispatch(self, gang: Json, outcome: Placed) -> None:
        self.count("dispatch")
        for state in (self.now, self.later):
            assert not self.missing(gang, state), "a dispatch exceeds quota"
            self._check_assignment(gang, outcome, state)
            state.gangs[gang["name"]] = gang

    def _check_assignment(self, gang: Json, outcome: Placed, state: State) -> None:
        free, labels = state.free[outcome.cluster], self._labels(outcome.cluster)
        for pods, places in zip(gang["pods"], outcome.assignment.places, strict=True):
            assert sum(count for _, count in places) == pods["count"], "a pod has no node"
            for node, count in places:
                assert pods.get("nodeSelector", {}).items() <= labels[node].items(), (
                    "a pod is on a wrong node"
                )
                for _ in range(count):
                    take(pods["requests"], free[node])
                assert all(amount >= 0 for amount in free[node].values()), "a node is overcommitted"

    def _labels(self, cluster: str) -> dict[str, dict[str, str]]:
        nodes = self.clusters[cluster]["nodes"]
        return {f"{each['name']}-{n}": each.get("labels", {}) for each in nodes for n in range(each["count"])}

    def _check_preemption(self, gang: Json, outcome: Preempting) -> None:
        self.count("preempt")
        victims = [self.running[each.uid] for each, _ in outcome.victims]
        assert victims, "nobody is preempted"
        for victim in victims:
            self._check_candidate(gang, victim, outcome.cluster)
        # What is kept there is not free, and what is promised there has places that the replay does not know.
        if outcome.cluster not in self.kept and not self.later.promised.get(outcome.cluster):
            assert self._lacks(gang, outcome.cluster, self.later), (
                "a preemption in vain: it fits later anyway"
            )
            self._check_victims_are_needed(gang, victims, outcome.cluster)
        self._leave(victims)
        assert not self._lacks(gang, outcome.cluster, self.later), "the victims are not enough"
        self._promise(gang, outcome.cluster)
        self._note_head(gang, outcome)
        if len(victims) > 1:
            self.count("several victims")

    def _lacks(self, gang: Json, cluster: str, state: State) -> bool:
        return bool(self.missing(gang, state)) or not self._has_room(gang, cluster, state)

    def _has_room(self, gang: Json, cluster: str, state: State) -> bool:
        gangs = [*state.promised.get(cluster, []), gang]
        return have_places(gangs, self.clusters[cluster], state.free[cluster])

    def _check_candidate(self, gang: Json, victim: Json, cluster: str) -> None:
        forest, leaves, its = self.forest, queues_of(gang), queues_of(victim)
        assert victim["name"] in self.later.gangs, "a victim is leaving already"
        assert not any(forest.is_firm(leaf, victim["priority"]) for leaf in its), (
            "a victim may not be preempted"
        )
        common = [
            (mine, theirs)
            for mine in leaves
            for theirs in its
            if forest.path(mine)[-1] == forest.path(theirs)[-1]
        ]
        assert common, "a victim is in another tree"
        shields = {theirs: forest.setting(theirs, "minRuntimeSeconds", 0) for _, theirs in common}
        unshielded = [(mine, theirs) for mine, theirs in common if victim["ran"] >= shields[theirs]]
        assert unshielded, "a victim is shielded"
        allowed = [mine for mine, theirs in unshielded if self._may_preempt(gang, mine, victim, theirs)]
        assert allowed, "a victim is no candidate by the rules of the leaf"
        # Room is sought in the first tree only.
        is_in_one_tree = len(leaves) == 1
        if is_in_one_tree and cluster not in self.kept and not self._has_room(gang, cluster, self.later):
            assert victim["cluster"] == cluster, "a victim elsewhere makes no room"

    def _may_preempt(self, gang: Json, leaf: str, victim: Json, its: str) -> bool:
        preemption = self.forest.queues[leaf].get("preemption", {})
        rule = preemption.get("withinQueue" if its == leaf else "reclaim", "Never")
        mine, theirs = int(gang["priority"]), int(victim["priority"])
        is_newer_equal = mine == theirs and int(victim["age"]) < int(gang["age"])
        return (
            rule == "Any"
            or (rule == "LowerPriority" and theirs < mine)
            or (rule == "LowerOrNewerEqualPriority" and (theirs < mine or is_newer_equal))
        )

    def _check_victims_are_needed(self, gang: Json, victims: list[Json], cluster: str) -> None:
        """None of them can be left out; Division may need one to stay fair to the others that give."""
        for victim in victims:
            others = [each for each in victims if each is not victim]
            without = self._without(others)
            if not self._lacks(gang, cluster, without):
                needs = [
                    self._need(gang, leaf, others, without, self._without(victims))
                    for leaf in queues_of(gang)
                ]
                assert any(needs), "a victim is not needed"
                self.counts.update(filter(None, needs))

    def _need(
        self, gang: Json, leaf: str, others: list[Json], without_others: State, without_all: State
    ) -> str:
        """What the sharing of one tree asks for beyond quota and room, and has only without all victims; else empty."""
        sharing, demand = self.forest.sharing(leaf), demand_of(gang)
        if sharing == "Priority":
            # It was to be enough without borrowing.
            would = self.forest.would_borrow(leaf, demand, without_others.charged())
            would_still = self.forest.would_borrow(leaf, demand, without_all.charged())
            return "not borrowing" if would and not would_still else ""
        is_fair = sharing != "Division" or self._is_fair(gang, leaf, others, without_others)
        return "" if is_fair else "fair to those that give"

    def _is_fair(self, gang: Json, leaf: str, victims: list[Json], state: State) -> bool:
        """True if no queue on the way ends above its fair share and above the load of a sibling that gave."""
        forest, demand, charged = self.forest, demand_of(gang), state.charged()
        giving = {name for each in victims for theirs in queues_of(each) for name in forest.path(theirs)}
        for name in forest.path(leaf)[:-1]:
            for sibling in forest.children(forest.queues[name]["parent"]):
                if sibling == name or sibling not in giving:
                    continue
                for resource in forest.limited(name):
                    mine, theirs = (self.shares[each].fair or {} for each in (name, sibling))
                    use = forest.plain(name, resource, charged) + demand[resource]
                    if not demand[resource] or use <= mine[resource] or not theirs[resource]:
                        continue
                    its_use = forest.plain(sibling, resource, charged)
                    if not mine[resource] or use * theirs[resource] >= its_use * mine[resource]:
                        return False
        return True

    def _without(self, victims: list[Json]) -> State:
        names = {each["name"] for each in victims}
        free = {
            cluster: {node: dict(amounts) for node, amounts in nodes.items()}
            for cluster, nodes in self.later.free.items()
        }
        for victim in victims:
            take_bound(victim, free[victim["cluster"]], -1)
        gangs = {name: gang for name, gang in self.later.gangs.items() if name not in names}
        return State(gangs, free, self.later.promised)

    def _leave(self, victims: list[Json]) -> None:
        self.later = self._without(victims)

    def _promise(self, gang: Json, cluster: str) -> None:
        self.later.gangs[gang["name"]] = gang
        self.later.promised.setdefault(cluster, []).append(gang)

    def _check_waiting(self, gang: Json, outcome: Any) -> None:  # noqa: ANN401  # all other outcomes
        reason = outcome.pending.reason
        self.count(reason)
        self._check_facts(gang, outcome.pending)
        if reason == "InsufficientQuota":
            assert self.missing(gang, self.now, without_holds=True), "it has quota"
            self._check_truth(gang, outcome.pending.queue, outcome.pending.message)
        elif reason == "OverNominalQuota":
            assert self.over_nominal(gang, self.now), "it has nominal quota"
        elif reason in {"InsufficientResources", "ReservedForAnother"}:
            assert not self.missing(gang, self.now, without_holds=True), "it has no quota"
            if reason == "InsufficientResources":
                assert not any(
                    have_places([gang], each, self.now.free[name]) for name, each in self.clusters.items()
                )
            else:
                assert any(
                    have_places([gang], each, self.now.free[name]) for name, each in self.clusters.items()
                )
        elif reason == "AwaitingRelease":
            assert not self.missing(gang, self.later), "it has no quota later"
            self._promise_somewhere(gang)
        self._note_head(gang, outcome)

    def _check_facts(self, gang: Json, pending: Pending) -> None:
        """The queue is one of its own, and the amounts are those of that queue's account, by plain arithmetic."""
        assert pending.queue in queues_of(gang)
        assert (pending.quota is not None) == (pending.reason in LACKS_QUOTA)
        if pending.quota is None:
            return
        forest, leaf, resource = self.forest, pending.queue, pending.resource
        charged = self.now.charged()
        assert [pending.quota.nominal, pending.quota.used] == [
            str(forest.total(leaf, resource)),
            str(forest.plain(leaf, resource, charged)),
        ]
        free, most, borrowed = (
            str(forest.available(leaf, resource, charged)),
            str(forest.most(leaf, resource)),
            [],
        )
        for each in forest.leaves():
            amount = forest.used(each, resource, charged) - forest.own(each, resource)
            if each != leaf and forest.path(each)[-1] == forest.path(leaf)[-1] and amount > 0:
                borrowed.append((-amount, each))
        if forest.sharing(leaf) == "Division":
            limits = [(each, forest.limit(each, resource)) for each in forest.path(leaf)]
            known = [(each, limit) for each, limit in limits if limit is not None]
            left = [limit - forest.plain(each, resource, charged) for each, limit in known]
            free, most, borrowed = _least(left), _least(limit for _, limit in known), []
        assert (pending.quota.available, pending.quota.most) == (free, most)
        told = [(each.queue, each.amount) for each in pending.quota.borrowers]
        assert told == [(name, str(-amount)) for amount, name in sorted(borrowed)[:MOST_BORROWERS]]
        self.count(f"{len(told)} borrowers")
        if pending.reason == "InsufficientQuota":
            demand = demand_of(gang)
            missing = self.missing(gang | {"queue": leaf}, self.now, without_holds=True)
            ratios = {each: Fraction(amount, demand[each]) for each, amount in missing.items()}
            assert ratios[resource] == max(ratios.values()), "another resource is shorter"
            self.count("shortest of several", len(missing) > 1)

    def _promise_somewhere(self, gang: Json) -> None:
        """The cluster of a promise is not told; one with room for it is taken, or the rest cannot be checked."""
        fitting = [name for name in self.clusters if self._has_room(gang, name, self.later)]
        assert fitting, "it has no room later"
        if len(fitting) > 1:
            raise UnknownPromise
        self._promise(gang, fitting[0])

    def _check_truth(self, gang: Json, leaf: str, message: str) -> None:
        """The missing amount of nominal quota gives the gang quota in a leaf, and one unit less does not."""
        demand, charged = demand_of(gang), self.now.charged()
        if any(self._keeps_more_than_it_has(name) for name in self.forest.path(leaf)):
            return
        if self.forest.is_firm(leaf, gang["priority"]):
            return
        told = re.findall(r"(\S+): needs (\d+), (-?\d+) available", message)
        missing = {resource: int(needs) - int(available) for resource, needs, available in told}
        assert missing == self.forest.missing(leaf, demand, charged), "another amount is told"
        assert not self._raised(leaf, missing).missing(leaf, demand, charged), (
            "the missing amount is not enough"
        )
        for resource, amount in missing.items():
            less = missing | {resource: amount - 1}
            assert self._raised(leaf, less).missing(leaf, demand, charged), (
                "less than the missing amount is enough"
            )
        self.count("truth")

    def _keeps_more_than_it_has(self, name: str) -> bool:
        forest = self.forest
        return any(
            forest.total(each, resource) < sum(forest.kept(below, resource) for below in forest.below(each))
            for each in (name, *forest.below(name))
            for resource in RESOURCES
        )

    def _raised(self, leaf: str, amounts: dict[str, int]) -> NaiveForest:
        """The forest with more nominal quota of the leaf and of each queue above it that names the resource."""
        queues = {name: dict(queue) for name, queue in self.forest.queues.items()}
        for name in self.forest.path(leaf):
            resources = dict(queues[name].get("resources", {}))
            for resource, amount in amounts.items():
                quota = resources.get(resource, {"nominalQuota": 0} if name == leaf else None)
                if quota is not None:
                    resources[resource] = quota | {"nominalQuota": quota["nominalQuota"] + amount}
            queues[name]["resources"] = resources
        return NaiveForest(queues.values())

    def _note_head(self, gang: Json, outcome: Any) -> None:  # noqa: ANN401
        if outcome.pending.reservation:
            self.kept.add(outcome.pending.cluster)
        elif outcome.pending.reason == "InsufficientResources" and gang.get("blocked", 0) >= STARVED:
            # It fitted until another starved gang was placed: a cluster is kept for it from here on, and told later.
            self.kept.update(
                name
                for name, each in self.clusters.items()
                if have_places([gang], each, self.free_before[name])
            )
        leads = [leaf for leaf in queues_of(gang) if leaf not in self.heads]
        if getattr(outcome, "is_head", False):
            self.heads.update(leads)
        if outcome.pending.reason != "InsufficientQuota":
            return
        first, *_ = queues_of(gang)
        bound = self.forest.setting(first, "queueingStrategy", "") != "StrictFIFO"
        is_starved = bound and gang["name"] in self.reserved
        for leaf in queues_of(gang):
            may_reclaim = self.forest.queues[leaf].get("preemption", {}).get("reclaim") == "Any"
            if is_starved or (outcome.is_head and leaf in leads and not may_reclaim):
                self.holds.append((leaf, demand_of(gang), is_starved))


def _least(amounts: Iterable[int]) -> str:
    """The least amount as text; empty if there is none."""
    return next(map(str, sorted(amounts)), "")


class UnknownPromise(Exception):
    """The replay cannot know on which cluster a gang was promised its capacity."""


# --- the tests -------------------------------------------------------------------------------------------


SEEDS = st.integers(0, 2**32)
FEW, MANY = range(300), range(300, 15_000)
IN_TWO_TREES = 0.6
"""The part of the gangs that are in a leaf of each of two trees, in forests with such gangs."""
PARTS_IN_TWO_TREES = st.sampled_from([0, IN_TWO_TREES])


def replayed(seeds: range, in_two_trees: float = 0) -> Counter[str]:
    """How often each decision was checked, over the cycles of these seeds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        document = random_document(Random(seed), in_two_trees=in_two_trees)  # noqa: S311 - repeatable
        shares, outcomes = parse_scenario(document).plan_queues()
        replay = Replay(document, dict(shares))
        try:
            replay.check(outcomes)
        except UnknownPromise:
            counts["unknown promise"] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts.update(replay.counts)
    return counts


def test_each_decision_of_a_cycle_is_right_by_definition() -> None:
    counts = replayed(FEW)
    seldom = {"OverNominalQuota", "AwaitingRelease", "several victims"}
    assert all(counts[each] > 0 for each in seldom)
    assert counts["dispatch"] > 100
    assert counts["preempt"] > 20
    assert counts["truth"] > 80
    assert counts["unknown promise"] < 10
    assert all(counts[each] > 0 for each in ("1 borrowers", "2 borrowers", "shortest of several"))


def test_each_decision_about_gangs_in_two_trees_is_right_by_definition() -> None:
    counts = replayed(FEW, IN_TWO_TREES)
    assert counts["preempt"] > 20
    assert counts["several victims"] > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("in_two_trees", [0, IN_TWO_TREES])
def test_each_decision_of_many_cycles_is_right_by_definition(in_two_trees: float) -> None:
    assert replayed(MANY, in_two_trees)["preempt"] > 1000


def check_memory(seed: int, in_two_trees: float) -> None:
    """Four gangs of each kind are decided as if each were the only one of its kind."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, arrivals=8, in_two_trees=in_two_trees)
    document["pending"] = [
        gang | {"name": f"{gang['name']}-{number}", "age": gang["age"] + number % 2}
        for number in range(4)
        for gang in document["pending"]
    ]
    world = parse_scenario(document)
    assert world.plan_queues(remembers=False) == world.plan_queues()


@settings(max_examples=sweeps.examples(80))
@given(SEEDS, PARTS_IN_TWO_TREES)
def test_a_remembered_rejection_equals_a_new_decision(seed: int, in_two_trees: float) -> None:
    check_memory(seed, in_two_trees)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=4000)
@given(SEEDS, PARTS_IN_TWO_TREES)
def test_many_remembered_rejections_equal_new_decisions(seed: int, in_two_trees: float) -> None:
    check_memory(seed, in_two_trees)


def check_order(seed: int, sharing: str, in_two_trees: float) -> None:
    """Ties between queues are broken by their declaration only under Division, and where several are drained."""
    chance = Random(seed)  # noqa: S311 - repeatable
    document = random_document(chance, sharing=sharing, in_two_trees=in_two_trees)
    answer = answer_of(parse_scenario(document))
    document["running"] = chance.sample(document["running"], len(document["running"]))
    assert answer_of(parse_scenario(document)) == answer
    roots = {queue.get("sharing") for queue in document["queues"]}
    if "Division" not in roots and all(
        each.get("stopPolicy") != "HoldAndDrain" for each in document["queues"]
    ):
        document["queues"] = chance.sample(document["queues"], len(document["queues"]))
        assert answer_of(parse_scenario(document)) == answer


@settings(max_examples=sweeps.examples(80))
@given(SEEDS, st.sampled_from(SHARINGS), PARTS_IN_TWO_TREES)
def test_the_order_of_running_gangs_and_queues_does_not_matter(
    seed: int, sharing: str, in_two_trees: float
) -> None:
    check_order(seed, sharing, in_two_trees)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@settings(max_examples=3000)
@given(SEEDS, st.sampled_from(SHARINGS), PARTS_IN_TWO_TREES)
def test_the_order_of_many_running_gangs_and_queues_does_not_matter(
    seed: int, sharing: str, in_two_trees: float
) -> None:
    check_order(seed, sharing, in_two_trees)

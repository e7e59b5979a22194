"""DispatchQueues that are applied to the rules of a snapshot count as they would for the leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.queues.declared_queues import (
    DeclaredQueues,
    DispatchQueue,
    last_valid,
    read_dispatch_queue,
)
from dispatcher.core.queues.forest import Defaults, Forest
from dispatcher.core.queues.queue import Access, Queue, Quota
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules, with_queues_of
from dispatcher.core.scheduling.explain.world import World
from dispatcher.session_rules import with_queues, without_queues
from tests.builders import NOW

Json = dict[str, Any]
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
SUBTREE: Final[Json] = {
    "apiVersion": "quota.codeflare.dev/v1alpha1",
    "metadata": {"namespace": "kube-system", "name": "root", "labels": {"tree": "context"}},
    "spec": {"children": [{"name": "gold", "quotas": {"requests": {"cpu": 1}}}]},
}


class Leader(NamedTuple):
    """What a leader knows of queues: those that are there, those that linger, and the last valid declarations."""

    there: Sequence[DispatchQueue]
    lingering: frozenset[str] = frozenset()
    last: Mapping[str, Queue] = {}
    access: Access = Access.SELECTED
    subtrees: Sequence[Json] = ()

    @property
    def declared(self) -> DeclaredQueues:
        return DeclaredQueues.of(
            self.there,
            self.subtrees,
            Defaults(access=self.access),
            self.lingering,
            self.last,
            dict.fromkeys(self.lingering, NOW),
        )

    def after(self, *applied: Queue) -> Leader:
        """The leader that has seen these DispatchQueues applied."""
        names = {each.name for each in applied}
        there = {each.queue.name: each for each in self.there}
        for each in applied:
            created = there[each.name].created if each.name in there else LATE
            there[each.name] = DispatchQueue(each, created=created)
        last = {**self.last, **last_valid([self.declared.valid])}
        return self._replace(there=tuple(there.values()), lingering=self.lingering - names, last=last)

    @property
    def rules(self) -> SchedulingRules:
        """The rules in its snapshot."""
        declared = self.declared
        rules = SchedulingRules(access=self.access, last=declared.not_valid_now(self.last))
        if not declared.is_declared:
            return without_queues(rules, {})
        return with_queues(rules, QueueRules(declared.forest), declared)


def facts(forest: Forest) -> Json:
    """All that a forest says, but for the order of declaration."""
    return {
        "places": {name: (place.queue, place.path) for name, place in forest.places.items()},
        "for quota": {name: (place.queue, place.path) for name, place in forest.for_quota.places.items()},
        "charged": dict(forest.charged_in),
        "problems": dict(forest.problems),
        "deleted": dict(forest.deleted),
    }


def check(leader: Leader, *applied: Queue) -> Forest:
    """The forest after these DispatchQueues were applied, which is that of the leader."""
    rules, after = leader.rules.with_declared(applied), leader.after(*applied).declared
    forest = with_queues_of(World(access=leader.access), rules).forest
    assert facts(forest) == facts(after.forest)
    assert rules.names == after.names
    return forest


def early(*queues: Queue) -> list[DispatchQueue]:
    return [DispatchQueue(each, created=EARLY) for each in queues]


def malformed(name: str) -> DispatchQueue:
    return read_dispatch_queue({"metadata": {"name": name}, "spec": {"weight": "much"}}, name, "u", EARLY)


RESEARCH: Final = Queue("research", resources={"cpu": Quota(4000)})
VISION: Final = Queue("vision", "research", {"cpu": Quota(2000)})
LEFT: Final = Queue("left", "vision")
LAST: Final = {each.name: each for each in (RESEARCH, VISION, LEFT)}


@pytest.mark.parametrize("access", Access)
def test_first_queue_ends_the_queue_without_a_declaration_unless_queues_are_open(access: Access) -> None:
    forest = check(Leader((), access=access), VISION, RESEARCH)
    assert ("default" in forest.places) is (access is Access.OPEN)


def test_first_queue_beside_a_tree_of_mcad_ends_the_queue_without_a_declaration() -> None:
    leader = Leader((), subtrees=[SUBTREE])
    assert "default" in leader.declared.forest.places
    assert set(check(leader, RESEARCH).places) == {"context/gold", "research"}


def test_queue_that_was_deleted_bears_its_own_charges_once_it_is_declared_again() -> None:
    leader = Leader(early(RESEARCH), frozenset({"vision"}), LAST)
    assert leader.rules.charged_in["vision"] == "research"
    forest = check(leader, VISION)
    assert [place.name for place in forest.places_of(["vision", "left"])] == ["vision", "vision"]
    assert (forest.held, forest.deleted) == ((), {})


@pytest.mark.parametrize("lingering", [frozenset[str](), frozenset({"research"})])
def test_queues_below_a_missing_parent_are_valid_once_it_is_declared(lingering: frozenset[str]) -> None:
    leader = Leader([*early(VISION), malformed("left")], lingering, LAST)
    assert leader.rules.problems == {"vision": "ParentNotFound", "left": "Malformed"}
    forest = check(leader, RESEARCH)
    assert (forest.problems, forest.held) == ({"left": "Malformed"}, (LEFT,))
    assert [place.name for place in forest.places_of(["vision"])] == ["vision"]


def test_queue_that_is_moved_below_no_queue_is_held_with_all_below_it() -> None:
    forest = check(Leader(early(RESEARCH, VISION, LEFT)), Queue("vision", "reserch"))
    assert forest.problems == {"vision": "ParentNotFound", "left": "ParentNotFound"}
    assert forest.held == (LEFT, VISION)


def test_nodes_of_mcad_stay_as_they_are() -> None:
    last = {"context/all": Queue("context/all"), "context/old": Queue("context/old", "context/gold")}
    lingering = frozenset({"context/", "context/all", "context/old"})
    leader = Leader(early(RESEARCH), lingering, last, subtrees=[SUBTREE])
    assert [each.name for each in check(leader, VISION).held] == ["context/all", "context/old"]


NAMES: Final = ["default", "a", "b", "c", "d"]
QUEUES: Final = st.builds(
    Queue,
    st.sampled_from(NAMES),
    st.sampled_from([None, *NAMES, "nowhere"]),
    st.sampled_from([{}, {"cpu": Quota(1000)}]),
)
BY_NAME: Final = st.lists(QUEUES, unique_by=lambda each: each.name)


@given(BY_NAME, st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), BY_NAME, BY_NAME, st.data())
def test_whatever_is_applied_counts_as_for_the_leader(
    queues: list[Queue],
    broken: set[str],
    gone: set[str],
    last: list[Queue],
    applied: list[Queue],
    data: st.DataObject,
) -> None:
    found = [malformed(each.name) if each.name in broken else DispatchQueue(each) for each in queues]
    lingering = frozenset(gone - {each.name for each in queues})
    access = data.draw(st.sampled_from(Access))
    leader = Leader(found, lingering, {each.name: each for each in last}, access)
    if applied:
        check(leader, *applied)

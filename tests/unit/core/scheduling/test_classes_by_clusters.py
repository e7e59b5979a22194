"""Gangs that clusters do not tell apart are one class, and each fares as if its queue told it apart from the others.

The other side are the classes of `QueuedGangs` without a forest, by all that may decide about a gang in any queue:
namespace, priority, preemptions and shape. Compared is one cycle from scratch, by gang: whether it is dispatched and
where, why it waits else, and whether it is the head; and the order of the dispatches. Nothing is left out: a refusal
holds for the rest of a class until the cycle ends (decision 12), and in a queue without limits, in which no gang makes
way for another one, free capacity only shrinks until then.
"""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.core.model.records.record import Record
from dispatcher.core.queues.queue import Queue, QueueingStrategy
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueCycle
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.core.scheduling.explain.world import KnownSnapshots, World
from dispatcher.core.scheduling.queued.queued_gangs import QueuedGangs
from tests.unit.core.scheduling.scenarios import documents

STRICT = QueueingStrategy.STRICT_FIFO
DECLARED = [None, (Queue("default"), Queue("other")), (Queue("default", strategy=STRICT), Queue("other"))]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Gangs of few shapes, of several namespaces and priorities, in queues without limits or where none is declared."""
    world = replace(
        parse_scenario(draw(documents())),
        policy=draw(st.sampled_from(QueueingStrategy)),
        queues=draw(st.sampled_from(DECLARED)),
    )
    pending: list[Record] = []
    for record in world.pending:
        for _ in range(draw(st.integers(1, 3))):
            number = len(pending)
            pending.append(
                replace(
                    record,
                    uid=f"uid-{number}",
                    name=f"p{number}",
                    namespace=draw(st.sampled_from(["a", "b", "c"])),
                    priority=draw(st.integers(-1, 1)),
                    queue=draw(st.sampled_from(["default", "default", "other"])),
                    created_at=record.created_at + timedelta(seconds=draw(st.integers(0, 2))),
                    enqueue_seq=number,
                    pods_never_preempt=draw(st.booleans()),
                    preempted_at=draw(st.sampled_from([(), (world.now - timedelta(hours=1),)])),
                )
            )
    return replace(world, pending=tuple(pending))


def decided(world: World, queued: QueuedGangs) -> list[Outcome]:
    facts = replace(world.queue_facts(), queued=queued)
    outcomes = QueueCycle(facts, KnownSnapshots().of(world)).run()
    return [each for each in outcomes if not isinstance(each, Drained)]


@settings(max_examples=40)
@given(worlds())
def test_each_gang_fares_as_in_a_class_of_its_namespace_and_priority(world: World) -> None:
    by_clusters = decided(world, QueuedGangs.of(world.pending, world.now, world.forest))
    waiting = [replace(each, queue=world.forest.queues_of(each.leaves)[0]) for each in world.pending]
    by_themselves = decided(world, QueuedGangs.of(waiting, world.now))

    records = {each.uid: each for each in waiting}
    found = {each.record.uid: replace(each, record=records[each.record.uid]) for each in by_clusters}
    assert found == {each.record.uid: each for each in by_themselves}
    assert placed(by_clusters) == placed(by_themselves)


def placed(outcomes: list[Outcome]) -> list[str]:
    return [each.record.uid for each in outcomes if isinstance(each, Placed)]


@settings(max_examples=20)
@given(worlds())
def test_classes_by_clusters_are_other_ones(world: World) -> None:
    """Else the comparison would show nothing: no class there has a namespace, unless its gangs need a search."""
    queued = QueuedGangs.of(world.pending, world.now, world.forest)
    decided(world, queued)
    classes = list(queued.classes())
    assert all(each.key.is_by_clusters for each in classes)
    simple = [each for each in classes if not queued.first_of(each).gang.may_need_search]
    assert {each.key.namespace for each in simple} <= {""}

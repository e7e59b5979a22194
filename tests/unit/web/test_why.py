"""Why a pending AppWrapper waits, drawn on the nodes, and where it goes after each change that would dispatch it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.cli.query import NO_LEADER
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.web.cells import CELL
from dispatcher.web.why import MOST_NODES, NodePicture, Why, why_of
from tests.unit.web.waiting import waiting


def why(after: int | None = None) -> Why:
    snapshot = waiting()
    return why_of(snapshot, snapshot.world, snapshot.world.pending[0], after)


def cells(node: NodePicture) -> list[tuple[str, int]]:
    """The classes of a node's cells, gangs without their colour, with the number of each."""
    return [(run.css.partition("-")[0], run.width // CELL) for run in node.cells]


def test_each_cluster_has_its_nodes_with_holes_that_count_holders_and_reasons() -> None:
    east, west = why().strips
    assert (east.cluster, east.heading) == ("east", "Pods that fit")
    assert east.sentence == "2 of 8 pods would fit now, each asks for 4 nvidia.com/gpu"
    assert [(each.name, each.pods, each.free, cells(each)) for each in east.nodes] == [
        ("gpu-1", 1, "4", [("gang", 4), ("counted", 4)]),
        ("gpu-2", 1, "4", [("gang", 4), ("counted", 4)]),
        ("gpu-3", 0, "2", [("gang", 6), ("free", 2)]),
        ("gpu-4", 0, "2", [("gang", 6), ("free", 2)]),
        ("gpu-0", 0, "0", [("gang", 4), ("gang", 4)]),
    ]
    assert west.sentence.endswith("; 1 of 4 nodes excluded")
    assert {each.name: each.why for each in west.nodes if each.why} == {
        "b": "with taint team=speech not tolerated"
    }
    assert {each.holders for each in east.nodes} >= {"nlp/tokenise 4", "nlp/finetune-13b 6"}


def test_capacity_that_is_kept_and_other_pods_are_said() -> None:
    snapshot = waiting()
    (pending,) = snapshot.world.pending
    worker, now = pending.gang.pod_sets[0], snapshot.world.now
    leader = replace(worker, count=1, requests=Resources({"cpu": 1000}))
    larger = replace(pending, gang=replace(pending.gang, pod_sets=(worker, leader)))
    first = replace(pending, uid="first", name="first", blocked_since=now - timedelta(hours=1))
    kept = Reservation("east", now, now, now, assignment=Assignment(((("gpu-1", 1),),)))
    world = replace(snapshot.world, pending=(first, larger), reservations={"first": kept})
    east, _ = why_of(snapshot, world, larger).strips
    assert (
        east.sentence == "1 of 8 pods would fit now without its 1 other pod, each asks for 4 nvidia.com/gpu"
    )
    assert {each.name: each.holders for each in east.nodes}["gpu-1"] == "kept for nlp/first 4, nlp/tokenise 4"


def test_gang_has_one_colour_on_all_nodes_and_in_the_legend() -> None:
    (east, _) = why().strips
    legend = {each.key: (each.css, each.amount) for each in east.gangs}
    assert {key: amount for key, (_, amount) in legend.items()} == {
        "nlp/tokenise": "12",
        "nlp/finetune-13b": "12",
        "nlp/ablation": "4",
    }
    drawn = {
        run.title.partition(": ")[2].rpartition(" ")[0]: run.css
        for node in east.nodes
        for run in node.cells
        if run.css.startswith("gang")
    }
    assert drawn == {key: css for key, (css, _) in legend.items()}


def test_each_change_is_drawn_with_the_pods_where_they_would_go() -> None:
    changes = why().changes
    assert len(changes) > 1
    for number, words in enumerate(changes):
        after = why(number)
        assert (after.after, after.note, after.changes) == (number, "", changes)
        (strip,) = after.strips
        assert sum(each.pods for each in strip.nodes) == 8, words
        assert sum(count for each in strip.nodes for css, count in cells(each) if css == "own") == 32
        assert strip.heading == "Its pods"


def test_changes_are_links_and_no_lines_of_the_explanation_as_well() -> None:
    found = why()
    lines = [line.strip() for block in found.blocks for line in block.below]
    assert not set(lines) & set(found.changes)
    assert any(found.changes[0] in line for block in found.document.blocks for line in block.below)


def test_change_that_is_none_any_more_is_said() -> None:
    found = why(99)
    assert (found.after, "any more" in found.note) == (None, True)
    assert found.strips == why().strips


def test_hub_that_nobody_leads_is_said() -> None:
    snapshot = replace(waiting(), has_leader=False)
    assert why_of(snapshot, snapshot.world, snapshot.world.pending[0]).note == NO_LEADER


@pytest.mark.parametrize("nodes", [MOST_NODES + 1])
def test_most_nodes_are_drawn_and_all_are_counted(nodes: int) -> None:
    snapshot = waiting()
    (east, *others) = snapshot.world.clusters
    more = [replace(east.nodes[0], name=f"more-{number}") for number in range(nodes)]
    world = replace(snapshot.world, clusters=(replace(east, nodes=(*east.nodes, *more)), *others))
    (strip,) = why_of(snapshot, world, world.pending[0]).strips  # it fits now
    assert (len(strip.nodes), strip.of_all) == (MOST_NODES, nodes + 5)
    assert (sum(each.pods for each in strip.nodes), strip.has_places) == (8, True)

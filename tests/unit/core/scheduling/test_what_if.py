"""Changes of a world as people write them, and what they are told about a wrong one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.model.nodes import HOSTNAME, Node, Taint
from dispatcher.core.model.quantity import ALLOWED
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.repair import AddNodes, RemoveTaints, Repair
from dispatcher.core.scheduling.what_if import FORMS, MOST_ADDED, ChangeError, check_cluster, parse_change
from dispatcher.core.scheduling.world import World
from dispatcher.core.scheduling.world_facts import Cluster

GPU = Resources({"cpu": 8000, "nvidia.com/gpu": 4})
TAINT = Taint("gpu", "", "NoSchedule")
N1 = Node("n1", GPU, taints=(TAINT,), labels={HOSTNAME: "n1", "zone": "a"}, most_pods=9)
DOWN = Node("down", GPU, usable=False, ready=False)
ONE = World((Cluster("east", (N1, DOWN)),))
TWO = World((Cluster("east", (N1, DOWN)), Cluster("west", (Node("n1", GPU), Node("n2", GPU)))))


@pytest.mark.parametrize(
    ("world", "written", "expected"),
    [
        (ONE, "nodes+2:cpu=8", AddNodes("east", 2, Node("", Resources({"cpu": 8000})))),
        (ONE, "east/nodes+2:cpu=8", AddNodes("east", 2, Node("", Resources({"cpu": 8000})))),
        (ONE, f"nodes+{MOST_ADDED}:pods=3", AddNodes("east", MOST_ADDED, Node("", Resources({"pods": 3})))),
        (
            TWO,
            "west/nodes+1:cpu=500m,memory=1Gi,nvidia.com/gpu=1",
            AddNodes("west", 1, Node("", Resources({"cpu": 500, "memory": 2**30, "nvidia.com/gpu": 1}))),
        ),
        (ONE, "nodes+1:cpu=0", AddNodes("east", 1, Node("", Resources()))),
        (
            ONE,
            "nodes+003:like=n1",
            AddNodes("east", 3, Node("", GPU, taints=(TAINT,), labels={"zone": "a"}, most_pods=9)),
        ),
        (ONE, "nodes+1:like=down", AddNodes("east", 1, Node("", GPU))),
        (TWO, "nodes+1:like=n2", AddNodes("west", 1, Node("", GPU))),
        (TWO, "west/nodes+1:like=n1", AddNodes("west", 1, Node("", GPU))),
        (ONE, "untaint:n1", RemoveTaints("east", ("n1",))),
        (TWO, "untaint:down,n1", RemoveTaints("east", ("down", "n1"))),
        (TWO, "west/untaint:n1,n2", RemoveTaints("west", ("n1", "n2"))),
    ],
)
def test_a_text_describes_a_change(world: World, written: str, expected: Repair) -> None:
    assert parse_change(written, world) == expected


BOTH = "the clusters are east, west"


@pytest.mark.parametrize(
    ("world", "written", "message"),
    [
        (TWO, "south/nodes+1:cpu=1", f"there is no cluster 'south': {BOTH}"),
        (World(), "east/nodes+1:cpu=1", "there is no cluster 'east': no cluster is known"),
        (World(), "nodes+1:cpu=1", "no cluster is known"),
        (TWO, "nodes+1:cpu=1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "nodes+1:like=n1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "untaint:n1", f"say in which cluster, such as east/…: {BOTH}"),
        (TWO, "untaint:n9", "no cluster has a node 'n9'"),
        (ONE, "nodes+1:like=n9", "no cluster has a node 'n9'"),
        (TWO, "west/untaint:n2,down", "cluster west has no node 'down'"),
        (ONE, "east/nodes+1:like=n9", "cluster east has no node 'n9'"),
        (ONE, "untaint:n1,", "cluster east has no node ''"),
        (ONE, "nodes+1:like=", "cluster east has no node ''"),
        (ONE, "nodes+0:cpu=1", f"'nodes+0:cpu=1': from 1 to {MOST_ADDED} nodes can be added"),
        (ONE, "nodes+10001:cpu=1", f"'nodes+10001:cpu=1': from 1 to {MOST_ADDED} nodes can be added"),
        (ONE, "nodes+1:cpu=1,cpu=2", "'nodes+1:cpu=1,cpu=2': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu", "'nodes+1:cpu': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:=8", "'nodes+1:=8': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu=1,", "'nodes+1:cpu=1,': write each resource once, such as cpu=8"),
        (ONE, "nodes+1:cpu=8Q", f"'nodes+1:cpu=8Q': cpu: '8Q' is not a quantity; {ALLOWED}"),
        (ONE, "nodes+1:cpu=8=9", f"'nodes+1:cpu=8=9': cpu: '8=9' is not a quantity; {ALLOWED}"),
        (ONE, "nodes+1:cpu=-1", f"'nodes+1:cpu=-1': cpu: '-1' is negative; {ALLOWED}"),
    ],
)
def test_an_invalid_change_is_answered_with_the_valid_forms(world: World, written: str, message: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, world)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    "written",
    [
        "",
        "nodes",
        "nodes+:cpu=1",
        "nodes+-1:cpu=1",
        "nodes+1000000:cpu=1",
        "nodes+²:cpu=1",
        "nodes+1:",
        "nodes+1",
        "untaint:",
        "untaint",
        "/untaint:n1",
        "east/west/untaint:n1",
        "Untaint:n1",
        "untaint:n1\nrm -rf",
        "nodes+1:cpu=1\n",
        " nodes+1:cpu=1",
    ],
)
def test_another_text_is_answered_with_the_forms(written: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, ONE)
    assert str(wrong.value) == f"{written!r} is no change: write {FORMS}"


@pytest.mark.parametrize(
    "written",
    [
        "x" * 10_000,
        "nodes+1:" + "x" * 10_000,
        "nodes+1:cpu=" + "9" * 10_000,
        "x" * 10_000 + "/nodes+1:cpu=1",
        "nodes+1:like=" + "x" * 10_000,
        "untaint:" + "x" * 10_000,
        "east/untaint:" + "x" * 10_000,
        "nodes+1:" + ",".join(f"r{index}=1" for index in range(2000)) + ",r0=1",
    ],
    ids=lambda written: written[:16],
)
def test_a_long_text_is_not_repeated_in_full(written: str) -> None:
    with pytest.raises(ChangeError) as wrong:
        parse_change(written, TWO)
    assert len(str(wrong.value)) < 1000


@given(
    st.text(st.characters(), max_size=30), st.sampled_from(["", "nodes+1:", "nodes+1:like=", "east/untaint:"])
)
def test_any_text_is_a_change_or_an_error_in_one_line(rest: str, begins: str) -> None:
    assert answer_to(begins + rest).isprintable()


def answer_to(written: str) -> str:
    try:
        return repr(parse_change(written, TWO))
    except ChangeError as error:
        return str(error)


def test_a_cluster_must_be_known_to_be_left_out() -> None:
    check_cluster(TWO, "west")
    with pytest.raises(ChangeError, match=f"^there is no cluster 'south': {BOTH}$"):
        check_cluster(TWO, "south")

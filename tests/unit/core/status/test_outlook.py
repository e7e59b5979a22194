"""The outlook of a waiting gang: positions that rarely change, and advice without names of other namespaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatcher.core.model import incremental
from dispatcher.core.model.gang import Gang, PodSet, Spread
from dispatcher.core.model.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
)
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.advice import Advice
from dispatcher.core.scheduling.leader_snapshot import ClusterFacts, OwnedPods
from dispatcher.core.scheduling.node_snapshot import Place
from dispatcher.core.scheduling.repair import AddNodes, AddQuota, RemoveGangs, RemoveTaints, Repair
from dispatcher.core.scheduling.world import Cluster
from dispatcher.core.status import outlook
from dispatcher.core.status.conditions import Shown, project
from dispatcher.core.status.outlook import (
    Positions,
    advise_first,
    outlook_in,
    positions,
    rounded,
    shown_advice,
)
from tests.builders import WAITS, at, make_blocked, make_core_node, make_gang, make_record
from tests.unit.core.status.test_conditions import SCHEMA, fits

Json = dict[str, Any]


def queued(name: str, seconds: float = 0, **fields: Any) -> Record:  # noqa: ANN401
    return make_record(uid=name, name=name, created_at=at(seconds), **{"pending": WAITS, **fields})


def running(name: str, namespace: str, **fields: Any) -> Record:  # noqa: ANN401
    record = make_record(Phase.RUNNING, uid=name, name=name, namespace=namespace, **fields)
    assert record.attempt is not None
    return replace(record, attempt=replace(record.attempt, decided_at=at(5)))


def found(*records: Record, has_queues: bool = False) -> Positions:
    return incremental.run(positions(records, at(100), has_queues=has_queues))


# --- positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        *(
            (1, 1),
            (19, 19),
            (20, 20),
            (21, 20),
            (49, 20),
            (50, 50),
            (99, 50),
            (100, 100),
            (199, 100),
            (200, 200),
        ),
        *((499, 200), (500, 500), (999, 500), (1000, 1000), (9999, 5000), (10_000, 10_000), (25_000, 20_000)),
    ],
)
def test_late_positions_are_rounded_down(position: int, shown: int) -> None:
    assert rounded(position) == shown


def test_positions_follow_priority_and_age() -> None:
    none = queued("later", eligible_at=at(101)), queued("new", pending=None)
    shown = found(queued("young", 9), queued("old", 1), queued("urgent", 50, priority=1), *none).outlooks
    assert shown == {
        "urgent": {"position": 1, "queueLength": 3},
        "old": {"position": 2, "queueLength": 3},
        "young": {"position": 3, "queueLength": 3},
    }


@pytest.mark.parametrize("reason", ["LargerThanCluster", "LargerThanQuota"])
def test_gang_that_is_too_large_has_no_position_and_still_gets_advice(reason: str) -> None:
    too_large = queued("large", priority=9, pending=replace(WAITS, reason=reason))
    shown = found(too_large, queued("old", 1), queued("young", 9))
    assert shown.outlooks == {
        "large": {},
        "old": {"position": 1, "queueLength": 2},
        "young": {"position": 2, "queueLength": 2},
    }
    assert set(shown.first) == {"large", "old", "young"}


def test_each_queue_has_its_positions_and_its_first_gangs_get_advice_first() -> None:
    records = [queued(f"{queue}{n}", n, queue=queue) for queue in "ab" for n in range(7)]
    with_queues = found(*records, has_queues=True)
    assert with_queues.outlooks["b6"] == {"position": 7, "queueLength": 7}
    assert with_queues.first == ("a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4")
    assert found(*records).outlooks["b6"] == {"position": 14, "queueLength": 14}


def test_of_many_queues_the_first_gangs_get_advice() -> None:
    records = [queued(f"{queue}-{n}", n, queue=f"q{queue:02}") for queue in range(30) for n in range(2)]
    first = found(*records, has_queues=True).first
    assert (len(first), {name.partition("-")[2] for name in first}) == (outlook.MOST_ADVISED, {"0"})


def test_one_gang_that_leaves_changes_few_outlooks() -> None:
    records = [queued(str(n), n) for n in range(10_000)]
    before, after = found(*records).outlooks, found(*records[1:]).outlooks
    changed = [uid for uid in after if after[uid] != before[uid]]
    assert len(changed) == outlook.MOST_EXACT + len([50, 100, 200, 500, 1000, 2000, 5000, 10_000])


def test_rounded_outlooks_share_one_value() -> None:
    shown = found(*(queued(str(n), n) for n in range(100))).outlooks
    assert shown["30"] is shown["40"]


# --- advice -------------------------------------------------------------------------------------------------

MINE = make_record(name="mine", uid="mine", namespace="red")
OTHERS = {
    each.uid: each
    for each in (
        *(running(f"red-{n}", "red", user="alice" if n else "") for n in range(12)),
        *(running(f"blue-{n}", "blue", user="bob") for n in range(3)),
    )
}


def advised(*holders: str, repair: Repair | None = None, record: Record = MINE) -> Json:
    return dict(shown_advice(record, Advice(holders, (repair,) if repair else ()), OTHERS))


def holder(name: str, **fields: str) -> Json:
    return {"name": name, "namespace": "red", "since": "2026-11-20T08:58:11Z", **fields}


def test_holders_of_other_namespaces_are_counted_and_not_named() -> None:
    shown = advised("red-1", "blue-0", "red-0", "blue-1")
    assert shown == {"holders": [holder("red-1", user="alice"), holder("red-0")], "otherHolders": 2}
    assert advised("blue-0") == {"otherHolders": 1}
    assert advised() == {}


def test_at_most_five_holders_are_named() -> None:
    shown = advised(*(f"red-{n}" for n in range(7)), "blue-0")
    assert [each["name"] for each in shown["holders"]] == [f"red-{n}" for n in range(5)]
    assert shown["otherHolders"] == 3


LABELS = {"pool": "a", "zone": "z", "rack": "r", "host": "h", "secret": "s"}
SHAPE = Node(
    "", Resources({"cpu": 8000, "pods": 110}), labels=LABELS, taints=(Taint("only", "gpu", "NoSchedule"),)
)
ASKS = PodSet(
    1,
    Resources({"cpu": 1000}),
    nodes=NodeRequirements((("pool", "a"),), (NodeTerm((LabelRequirement("zone", LabelOperator.EXISTS),)),)),
    apart=("host",),
    spread=(Spread("rack"),),
)
IT_WOULD = "it would be dispatched"


@pytest.mark.parametrize(
    ("repair", "words", "terms"),
    [
        pytest.param(
            AddNodes("hub", 2, SHAPE),
            "with 2 more nodes in hub (cpu 8, pods 110; taints only=gpu:NoSchedule)",
            {
                "add_nodes": {
                    "cluster": "hub",
                    "count": 2,
                    "allocatable": {"cpu": "8", "pods": "110"},
                    "taints": [{"key": "only", "value": "gpu", "effect": "NoSchedule"}],
                }
            },
            id="nodes",
        ),
        pytest.param(
            RemoveTaints("hub", ("n1", "n2")),
            "without the taints of 2 nodes in hub",
            {"untaint": {"cluster": "hub", "count": 2}},
            id="taints",
        ),
        pytest.param(
            AddQuota("a", "cpu", 1500),
            "with a nominal quota of queue a that has 1500m more cpu",
            {"add_quota": {"queue": "a", "resource": "cpu", "amount": "1500m"}},
            id="quota",
        ),
        pytest.param(
            RemoveGangs(("red-1", "red-2")), "without red-1, red-2", {"remove": ["red-1", "red-2"]}, id="own"
        ),
        pytest.param(
            RemoveGangs(("red-1", "blue-0")),
            "without red-1 and 1 gang not named here",
            {"remove": ["red-1"], "removeOthers": 1},
            id="own-and-other",
        ),
        pytest.param(
            RemoveGangs(("blue-0", "blue-1")),
            "without 2 gangs not named here",
            {"removeOthers": 2},
            id="others",
        ),
        pytest.param(
            RemoveGangs(tuple(f"red-{n}" for n in range(12))),
            f"without {', '.join(f'red-{n}' for n in range(10))} and 2 gangs not named here",
            {"remove": [f"red-{n}" for n in range(10)], "removeOthers": 2},
            id="many",
        ),
    ],
)
def test_repair_is_in_words_and_in_terms_and_in_the_schema(repair: Repair, words: str, terms: Json) -> None:
    shown = advised("red-1", "blue-0", repair=repair)
    assert shown["repair"] == {"message": f"{IT_WOULD} {words}", **terms}
    fits(project(make_blocked(), Shown(outlook={"position": 1, "queueLength": 1, **shown})), SCHEMA, "status")


def test_of_a_node_to_add_only_the_labels_are_shown_that_the_gang_asks_for() -> None:
    record = replace(MINE, gang=Gang(ASKS.requests, pod_sets=(ASKS,)))
    shown = advised(repair=AddNodes("hub", 1, SHAPE), record=record)["repair"]["add_nodes"]["labels"]
    assert shown == {"pool": "a", "zone": "z", "rack": "r", "host": "h"}


def test_schema_has_room_for_the_names_and_knows_every_field() -> None:
    waiting = SCHEMA["properties"]["waiting"]["properties"]
    assert waiting["holders"]["maxItems"] == outlook.MOST_HOLDERS
    assert waiting["repair"]["properties"]["remove"]["maxItems"] == outlook.MOST_REMOVED
    assert waiting.keys() >= outlook.FIELDS


def test_advice_is_found_from_the_facts_of_the_leader() -> None:
    """A node of 4 CPUs has a gang of 3; the first gang needs 2, and the second fits."""
    holds, cpu = running("holds", "red", gang=make_gang(cpu=3000)), Resources({"cpu": 3000})
    facts = ClusterFacts(
        Cluster("hub", (make_core_node("n", cpu=4000),)), (OwnedPods("holds", Place("n", cpu, 1)),)
    )
    first, second = (
        queued("first", 1, gang=make_gang(cpu=2000)),
        queued("second", 2, gang=make_gang(cpu=1000)),
    )
    shown = advise_first([facts], [holds, first, second], ["first", "second"], at(9))
    assert shown.keys() == {"first"}
    assert shown["first"]["repair"]["add_nodes"]["count"] == 1
    assert shown["first"]["otherHolders"] == 1


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, {}),
        ({"waiting": "?"}, {}),
        ({"waiting": {"reason": "r", "position": 3, "repair": {}}}, {"position": 3, "repair": {}}),
    ],
)
def test_outlook_is_read_from_a_status(status: Json, shown: Json) -> None:
    assert outlook_in(status) == shown

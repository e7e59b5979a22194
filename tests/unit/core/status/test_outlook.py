"""The outlook of a waiting gang: positions that rarely change, and advice without names of other namespaces."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
)
from dispatcher.core.model.gangs.gang import Gang, PodSet, Spread
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain import trials
from dispatcher.core.scheduling.explain.advice import Advice
from dispatcher.core.scheduling.explain.estimates import UnknownStart, Why
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, OwnedPods, SchedulingRules
from dispatcher.core.scheduling.explain.repair import (
    AddNodes,
    AddQuota,
    AddQuotas,
    RemoveGangs,
    RemoveTaints,
    Repair,
)
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.status import outlook
from dispatcher.core.status.conditions import Shown, project
from dispatcher.core.status.outlook import (
    MOST_BUSY_WRITES,
    MOST_DISPATCHED,
    MOST_PASSED,
    MOST_WRITES,
    Outlook,
    Positions,
    Round,
    joined,
    outlook_in,
    positions,
    rounded,
    search,
    shown_advice,
    shown_start,
    steady,
    to_write,
)
from tests.builders import WAITS, at, attempt_of, make_blocked, make_core_node, make_gang, make_record
from tests.unit.core.status.test_conditions import SCHEMA, fits

Json = dict[str, Any]


def queued(name: str, seconds: float = 0, **fields: Any) -> Record:  # noqa: ANN401
    return make_record(uid=name, name=name, created_at=at(seconds), **{"pending": WAITS, **fields})


def running(name: str, namespace: str, **fields: Any) -> Record:  # noqa: ANN401
    record = make_record(Phase.RUNNING, uid=name, name=name, namespace=namespace, **fields)
    return replace(record, attempt=replace(attempt_of(record), decided_at=at(5)))


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
        "large": {"estimateUnknown": "it would not start if nothing else ran"},
        "old": {"position": 1, "queueLength": 2},
        "young": {"position": 2, "queueLength": 2},
    }
    assert set(shown.first) == {"large", "old", "young"}


@pytest.mark.parametrize("reason", ["NamespaceNotAllowed", "QueueNotFound", "QueueNotLeaf"])
@pytest.mark.parametrize("has_queues", [True, False])
def test_gang_that_its_queue_does_not_take_changes_neither_positions_nor_advice_there(
    reason: str, *, has_queues: bool
) -> None:
    strangers = [
        queued(f"stranger-{n}", priority=50, pending=replace(WAITS, reason=reason), namespace="elsewhere")
        for n in range(30)
    ]
    shown = found(*strangers, queued("old", 1), queued("young", 9), has_queues=has_queues)
    assert shown == replace(
        found(queued("old", 1), queued("young", 9), has_queues=has_queues), outlooks=shown.outlooks
    )
    assert shown.outlooks == {
        **{
            each.uid: {"estimateUnknown": "it waits for a queue that takes it, not for capacity"}
            for each in strangers
        },
        "old": {"position": 1, "queueLength": 2},
        "young": {"position": 2, "queueLength": 2},
    }


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
            AddQuotas((AddQuota("a", "cpu", 1500), AddQuota("a", "pods", 2))),
            "with a nominal quota of queue a that has 1500m more cpu and 2 more pods",
            {
                "add_quotas": [
                    {"queue": "a", "resource": "cpu", "amount": "1500m"},
                    {"queue": "a", "resource": "pods", "amount": "2"},
                ]
            },
            id="quota-of-two-resources",
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


def test_advice_and_starts_are_found_from_the_facts_of_the_leader() -> None:
    """A node of 4 CPUs has a gang of 3; the first gang needs 2, the second fits, and the third waits for it."""
    holds, cpu = running("holds", "red", gang=make_gang(cpu=3000)), Resources({"cpu": 3000})
    facts = ClusterFacts(
        Cluster("hub", (make_core_node("n", cpu=4000),)), (OwnedPods("holds", Place("n", cpu, 1)),)
    )
    first, second, third = (
        queued("first", 1, gang=make_gang(cpu=2000)),
        queued("second", 2, gang=make_gang(cpu=1000), limit_seconds=60),
        queued("third", 3, gang=make_gang(cpu=1000)),
    )
    sought = Positions({}, ("first", "second"), ("first", "second", "third"))
    found = search([facts], [holds, first, second, third], sought, at(9))
    assert found.outlooks.keys() == {"first", "second", "third"}
    assert found.outlooks["first"]["repair"]["add_nodes"]["count"] == 1
    assert found.outlooks["first"]["otherHolders"] == 1
    assert found.outlooks["first"]["estimateUnknown"] == (
        "no end is known for third (cpu 1, no dispatchDuration) and 1 AppWrapper of other namespaces"
    )
    assert (found.outlooks["second"], found.outlooks["third"]) == ({}, {"estimatedStart": written(69)})


@pytest.mark.parametrize(
    ("namespace", "shown"), [("team-a", {"leastPriority": 8}), ("capped", {})], ids=["free", "above-ceiling"]
)
def test_least_priority_that_suffices_is_shown_up_to_the_ceiling_of_the_namespace(
    namespace: str, shown: Json
) -> None:
    """A node of 1 CPU; the first gang has priority 7, and the second one needs the same CPU."""
    rules = SchedulingRules(ceilings={"capped": 7})
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", cpu=1000),)), rules=rules)
    first = queued("first", 1, gang=make_gang(cpu=1000), priority=7)
    second = queued("second", 2, gang=make_gang(cpu=1000), namespace=namespace)
    outlooks = search([facts], [first, second], Positions({}, ("second",)), at(9)).outlooks
    assert {field: each for field, each in outlooks["second"].items() if field == "leastPriority"} == shown


@pytest.mark.parametrize(("slope", "shown"), [(0.0, {8}), (0.05, {None})], ids=["equal", "apart"])
def test_least_priority_is_not_shown_while_effective_priorities_drift_apart(
    slope: float, shown: set[int | None]
) -> None:
    """It would be another one with each search, and its status would be written for nothing."""
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", cpu=1000),)))
    first = replace(queued("first", 1, gang=make_gang(cpu=1000), priority=7), priority_slope=slope)
    records = [first, queued("second", 2, gang=make_gang(cpu=1000))]
    searches = [search([facts], records, Positions({}, ("second",)), at(seconds)) for seconds in (9, 69, 129)]
    assert {each.outlooks["second"].get("leastPriority") for each in searches} == shown


def test_starts_are_sought_for_the_exact_positions_of_each_queue_and_for_no_later_ones() -> None:
    records = [queued(f"{queue}{n}", n, queue=queue) for queue in "ab" for n in range(30)]
    shown = found(*records, has_queues=True)
    assert sorted(shown.exact) == sorted(f"{queue}{n}" for queue in "ab" for n in range(20))
    assert shown.outlooks["b25"] == {
        "position": 20,
        "estimateUnknown": "a start is estimated for the first 20 of a queue",
    }


def test_gang_that_left_the_queue_after_its_position_was_counted_keeps_no_other_from_an_estimate() -> None:
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", cpu=4000),)))
    there = queued("q", gang=make_gang(cpu=4000)), running("dispatched", "red", gang=make_gang(cpu=1000))
    sought = Positions({}, ("deleted", "q"), ("deleted", "dispatched", "q"))
    outlooks = search([facts], there, sought, at(9)).outlooks
    assert outlooks.keys() == {"q"}
    assert outlooks["q"]["estimateUnknown"].startswith("no end is known for ")


def test_queues_that_are_too_large_for_a_search_have_no_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_PLANNED", 9)
    rules = SchedulingRules(queues=(Queue("team"),))
    facts = ClusterFacts(Cluster("hub", (make_core_node("n", cpu=4000),)), rules=rules)
    found_there = search([facts], [queued("q")], Positions({}, ("q",), ("q",)), at(9))
    assert found_there.outlooks == {
        "q": {"estimateUnknown": "the clusters and queues are too large for an estimate"}
    }


def written(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_start_is_in_the_schema_and_a_gang_that_is_about_to_start_has_none() -> None:
    start, unknown = (
        shown_start(MINE, at(99), {}, at(9)),
        shown_start(MINE, UnknownStart(Why.TOO_FAR), {}, at(9)),
    )
    assert (start, unknown) == (
        {"estimatedStart": written(99)},
        {"estimateUnknown": "too many AppWrappers start or end before it"},
    )
    assert shown_start(MINE, at(9), {}, at(9)) == {}
    for each in (start, unknown):
        fits(project(make_blocked(), Shown(outlook=each)), SCHEMA, "status")


@pytest.mark.parametrize(
    ("shown", "estimate", "stays"),
    [
        pytest.param(written(1000), 1060, True, id="a-minute-later"),
        pytest.param(written(1000), 940, True, id="a-minute-earlier"),
        pytest.param(written(500), 570, False, id="more-than-a-minute-and-a-tenth"),
        pytest.param(written(9500), 10_000, True, id="less-than-a-tenth-of-the-time-left"),
        pytest.param(written(9000), 10_100, False, id="more-than-a-tenth-of-the-time-left"),
        pytest.param(written(-10), 20, False, id="it-has-passed"),
        pytest.param("tomorrow", 20, False, id="no-time"),
    ],
)
def test_shown_start_stays_while_the_estimate_moves_a_little(
    shown: str, estimate: float, *, stays: bool
) -> None:
    new = {"position": 2, "estimatedStart": written(estimate)}
    assert steady({"estimatedStart": shown}, new, at(0))["estimatedStart"] == (
        shown if stays else written(estimate)
    )


def test_start_is_not_kept_where_one_of_both_is_unknown() -> None:
    known, unknown = {"estimatedStart": written(50)}, {"estimateUnknown": "why"}
    assert (steady(known, unknown, at(0)), steady(unknown, known, at(0))) == (unknown, known)


def test_start_that_a_search_found_is_dropped_once_the_position_says_that_it_is_unknown() -> None:
    start = {"estimatedStart": written(50), "otherHolders": 1}
    far = {"position": 20, "estimateUnknown": "why"}
    assert joined(far, start) == {**far, "otherHolders": 1}
    assert joined({"position": 2}, start) == {"position": 2, **start}


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


# --- Outlooks give way to dispatches, and a round changes a bounded number of statuses ---------------------


QUIET, BUSY = MOST_DISPATCHED, MOST_DISPATCHED + 1
EXACT: Outlook = {"position": 1, "queueLength": 500}
ROUNDED: Outlook = {"position": 200}


@pytest.mark.parametrize(
    ("dispatched", "renewed"),
    [
        pytest.param([0, QUIET, QUIET], [True, True, True], id="few-dispatches"),
        pytest.param([BUSY, QUIET, BUSY], [False, True, False], id="a-quiet-round-ends-the-row"),
        pytest.param(
            (MOST_PASSED + 1) * [BUSY] + [BUSY], MOST_PASSED * [False] + [True, False], id="busy-for-long"
        ),
    ],
)
def test_so_many_busy_rounds_in_a_row_are_passed_over(dispatched: list[int], renewed: list[bool]) -> None:
    rounds = accumulate(accumulate(dispatched), Round.next, initial=Round(0))
    assert [not each.is_passed_over for each in rounds][1:] == renewed


@pytest.mark.parametrize(
    ("behind", "first", "is_busy", "expected"),
    [
        pytest.param({}, {"a"}, False, [], id="none-is-behind"),
        pytest.param({"a": ROUNDED, "b": EXACT}, {"a"}, False, ["b", "a"], id="exact-positions-first"),
        pytest.param({"a": EXACT, "b": ROUNDED}, {"b"}, True, ["b", "a"], id="busy-first-gangs-first"),
        pytest.param({"b": EXACT, "a": EXACT}, {}, False, ["b", "a"], id="in-the-order-in-which-they-fell"),
    ],
)
def test_urgent_statuses_are_written_before_others(
    behind: dict[str, Outlook], first: set[str], is_busy: bool, expected: list[str]
) -> None:
    assert to_write(behind, first, is_busy=is_busy) == expected


@pytest.mark.parametrize(
    ("is_busy", "others"), [(False, MOST_WRITES), (True, MOST_BUSY_WRITES)], ids=["quiet", "busy"]
)
def test_statuses_of_each_kind_are_bounded(is_busy: bool, others: int) -> None:
    urgent = [f"urgent-{number}" for number in range(MOST_WRITES + 1)]
    behind: dict[str, Outlook] = {
        **dict.fromkeys(urgent, EXACT),
        **{f"other-{number}": ROUNDED for number in range(MOST_WRITES + 1)},
    }
    written = to_write(behind, frozenset(urgent), is_busy=is_busy)
    assert written == [*urgent[:MOST_WRITES], *(f"other-{number}" for number in range(others))]

"""The states of declared queues, and what a DispatchQueue shows of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model import incremental
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue, read_dispatch_queue
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.status.queue_status import (
    AT_ONCE,
    MOST_RESOURCES,
    QueueCounter,
    QueueGangs,
    QueueState,
    QueueStatuses,
)
from tests.builders import NOW, at, make_record

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
SINCE, LATER = "2026-11-20T08:58:06Z", "2026-11-20T08:59:46Z"
NO_PARENTS: Mapping[str, str | None] = {}


def queue(name: str, **spec: object) -> DispatchQueue:
    return read_dispatch_queue({"metadata": {"name": name}, "spec": spec}, name, f"uid-of-{name}", SINCE)


def gpus(nominal: int, **limits: int) -> Json:
    return {GPU: {"nominalQuota": nominal, **limits}}


def demanding(leaves: Sequence[str], phase: Phase, **amounts: int) -> Record:
    demand = Resources({{"gpu": GPU}.get(name, name): amount for name, amount in amounts.items()})
    first, *more = leaves
    return make_record(phase, queue=first, more_queues=tuple(more), gang=Gang(demand))


def pending(*leaves: str, seconds: float | None = None, **amounts: int) -> Record:
    """A gang that waits; with `seconds`, that many more before it may be dispatched."""
    record = demanding(leaves, Phase.QUEUED, **amounts)
    return record if seconds is None else replace(record, eligible_at=at(seconds))


def active(*leaves: str, leaving: bool = False, **amounts: int) -> ActiveGang:
    record = demanding(leaves, Phase.RUNNING, **amounts)
    return ActiveGang(record, "hub", NOW, is_leaving=leaving)


def last_of(parents: Mapping[str, str | None]) -> dict[str, Queue]:
    """Last valid declarations with these parents, without quota."""
    return {name: Queue(name, parent) for name, parent in parents.items()}


def states(
    queues: Sequence[DispatchQueue],
    *gangs: Record | ActiveGang,
    capacities: Mapping[str, Resources] | None = None,
    subtrees: Sequence[Json] = (),
    parents: Mapping[str, str | None] = NO_PARENTS,
) -> dict[str, QueueState]:
    declared = DeclaredQueues.of(queues, subtrees, last=last_of(parents))
    found = QueueGangs(
        [each for each in gangs if isinstance(each, Record)],
        [each for each in gangs if isinstance(each, ActiveGang)],
        NOW,
        capacities or {},
    )
    return incremental.run(QueueCounter(declared.forest).count_in_steps(found))


def status(
    name: str,
    queues: Sequence[DispatchQueue],
    *gangs: Record | ActiveGang,
    present: object = None,
    parents: Mapping[str, str | None] = NO_PARENTS,
) -> Json:
    """The status of one queue, a hundred seconds after the conditions of `present` came about."""
    document = QueueStatuses(DeclaredQueues.of(queues, [], last=last_of(parents)), queues)
    state = states(queues, *gangs, parents=parents)[name]
    return document.status_of(state, present, at(100 if present else 0))


def condition(type_: str, status: str, since: str = SINCE, **why: str) -> Json:
    return {"type": type_, "status": status, "lastTransitionTime": since, **why}


SOUND = [condition("Valid", "True"), condition("Stopped", "False"), condition("Ignored", "False")]

ORG = [
    queue("org"),
    queue("a", parent="org", resources=gpus(10, lendingLimit=4, borrowingLimit=3)),
    queue("b", parent="org", resources=gpus(6), weight=2),
    queue("c", parent="org", resources=gpus(8)),
    queue("c1", parent="c", resources=gpus(4)),
    queue("c2", parent="c", resources=gpus(2, borrowingLimit=1)),
]
CHARGED = [
    active("a", gpu=7),
    active("b", gpu=8),
    active("b", gpu=1, leaving=True),
    active("c1", gpu=3),
    active("c2", gpu=1),
]


@pytest.mark.parametrize(
    ("name", "nominal", "used", "borrowed", "available", "running"),
    [
        ("org", 24, 20, 0, 4, 5),
        ("a", 10, 7, 0, 4, 1),
        ("b", 6, 9, 3, 4, 2),
        ("c", 8, 4, 0, 4, 2),
        ("c1", 4, 3, 0, 4, 1),
        ("c2", 2, 1, 0, 2, 1),
    ],
)
def test_the_table_of_a_tree_with_lending_and_borrowing_limits(
    name: str, nominal: int, used: int, borrowed: int, available: int, running: int
) -> None:
    assert states(ORG, *CHARGED, pending(name, gpu=1))[name] == QueueState(
        name,
        pending=1,
        running=running,
        nominal={GPU: nominal},
        used={GPU: used},
        borrowed={GPU: borrowed},
        available={GPU: available},
    )


def test_pending_gangs_count_in_each_queue_above_whether_they_may_go_yet_or_not() -> None:
    found = states(ORG, pending("c1"), pending("c2", seconds=60), pending("a"), pending("nowhere"))
    assert {name: each.pending for name, each in found.items()} == {
        "org": 3,
        "a": 1,
        "b": 0,
        "c": 2,
        "c1": 1,
        "c2": 1,
        "default": 0,
    }


def refused(reason: str, *leaves: str, **amounts: int) -> Record:
    """A gang of any user that names these queues, and is in none of them."""
    return replace(pending(*leaves, **amounts), pending=Pending(reason, "", queue=leaves[0]))


@pytest.mark.parametrize("reason", ["NamespaceNotAllowed", "QueueNotFound", "QueueNotLeaf"])
def test_gang_that_its_queue_does_not_take_is_not_pending_there(reason: str) -> None:
    found = states(ORG, refused(reason, "a", "nowhere"), refused(reason, "c"), pending("a"))
    assert {name: each.pending for name, each in found.items() if each.pending} == {"org": 1, "a": 1}


def test_gang_that_waits_for_a_queue_to_be_valid_is_pending_there_and_in_no_other() -> None:
    queues = [*ORG, queue("lost", parent="nobody")]
    found = states(queues, refused("QueueNotFound", "a", "lost"))
    assert {name: each.pending for name, each in found.items() if each.pending} == {"lost": 1}


def test_gang_in_several_trees_counts_in_each() -> None:
    tree = {
        "metadata": {"namespace": "kube-system", "name": "tree", "labels": {"tree": "gold"}},
        "spec": {"children": [{"name": "ml", "quotas": {"requests": {"cpu": "2"}}}]},
    }
    found = states(
        [queue("team", resources=gpus(4))], active("team", "gold/ml", gpu=1, cpu=500), subtrees=[tree]
    )
    assert found["team"].used == {GPU: 1}
    assert found["gold/ml"] == QueueState(
        "gold/ml",
        running=1,
        nominal={"cpu": 2000},
        used={"cpu": 500},
        borrowed={"cpu": 0},
        available={"cpu": 1500},
    )


def shown_share(name: str, *queues: DispatchQueue) -> object:
    found = states(queues, *CHARGED)[name]
    return None if found.share is None else (found.share.shown, found.share.is_infinite)


def test_share_is_of_what_the_parent_could_lend_and_rounded_up() -> None:
    queues = [queue("org", sharing="DominantShare"), *ORG[1:]]
    assert [shown_share(name, *queues) for name in ("org", "a", "b")] == [(0, False), (0, False), (84, False)]
    assert shown_share("b", *ORG) is None


def test_queue_of_weight_0_that_borrows_has_no_share_to_show() -> None:
    queues = [
        queue("org", sharing="DominantShare"),
        queue("lender", parent="org", resources=gpus(8)),
        queue("b", parent="org", resources=gpus(4), weight=0),
    ]
    assert shown_share("b", *queues) == (None, True)
    assert "share" not in status("b", queues, *CHARGED)
    assert status("lender", queues, *CHARGED)["share"] == 0


DIVIDED = [
    queue("org", sharing="Division"),
    queue("q1", parent="org", resources=gpus(2)),
    queue("q2", parent="org", resources=gpus(2, borrowingLimit=3), weight=3),
    queue("q3", parent="org", resources=gpus(4, lendingLimit=0), weight=2),
]


def test_fair_shares_divide_what_the_clusters_have() -> None:
    found = states(
        DIVIDED,
        active("q1", gpu=4),
        active("q1", gpu=5, leaving=True),
        pending("q1", gpu=6),
        pending("q1", gpu=100, seconds=60),
        active("q2", gpu=3),
        pending("q2", gpu=2),
        pending("q3", gpu=1),
        capacities={"org": Resources({GPU: 12, "cpu": 96_000})},
    )
    assert {name: found[name].fair for name in ("org", "q1", "q2", "q3", "default")} == {
        "org": {GPU: 12},
        "q1": {GPU: 6},
        "q2": {GPU: 5},
        "q3": {GPU: 1},
        "default": None,
    }
    assert (found["q1"].used, found["q1"].borrowed, found["q1"].available) == ({GPU: 9}, {GPU: 7}, {})
    assert (found["q2"].borrowed, found["q2"].available) == ({GPU: 1}, {GPU: 2})
    assert found["q3"].borrowed == {GPU: 0}


def test_gang_that_its_queue_does_not_take_has_no_part_in_fair_shares() -> None:
    capacities = {"org": Resources({GPU: 12})}
    honest = active("q1", gpu=4), pending("q1", gpu=6)
    stranger = refused("NamespaceNotAllowed", "q2", gpu=12)
    with_stranger = states(DIVIDED, *honest, stranger, capacities=capacities)
    assert with_stranger == states(DIVIDED, *honest, capacities=capacities)
    assert with_stranger["q1"].fair == {GPU: 10}


def test_whole_status_of_a_queue() -> None:
    resources = {
        "cpu": {"nominalQuota": "1500m"},
        "memory": {"nominalQuota": "64Gi"},
        GPU: {"nominalQuota": 8},
    }
    queues = [queue("team", resources=resources)]
    assert status("team", queues, active("team", cpu=2000, memory=2**30), pending("team")) == {
        "conditions": SOUND,
        "state": "Active",
        "pending": 1,
        "running": 1,
        "nominal": {"cpu": "1500m", "memory": "64Gi", GPU: "8"},
        "used": {"cpu": "2", "memory": "1Gi", GPU: "0"},
        "borrowed": {"cpu": "500m", "memory": "0", GPU: "0"},
        "available": {"cpu": "-500m", "memory": "63Gi", GPU: "8"},
    }


def test_whole_status_of_a_queue_with_a_fair_share() -> None:
    found = status("q2", DIVIDED, active("q2", gpu=1))
    assert found == {
        "conditions": SOUND,
        "state": "Active",
        "pending": 0,
        "running": 1,
        "nominal": {GPU: "2"},
        "used": {GPU: "1"},
        "borrowed": {GPU: "0"},
        "available": {GPU: "4"},
        "fairShare": {GPU: "1"},
    }


INVALID = [
    queue("lost", parent="nobody"),
    queue("below-lost", parent="lost"),
    queue("x", parent="z"),
    queue("y", parent="x"),
    queue("z", parent="y"),
    queue("tail", parent="x"),
    queue("broken", resources={GPU: {"nominalQuota": "many"}}),
    queue("below-broken", parent="broken", stopPolicy="Hold"),
]


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("lost", "ParentNotFound", "its parent, queue nobody, does not exist"),
        (
            "below-lost",
            "ParentNotFound",
            "the parent of queue lost above it, queue nobody, does not exist",
        ),
        ("x", "Circle", "its parents form a circle: x -> z -> y -> x"),
        ("tail", "Circle", "its parents form a circle: x -> z -> y -> x"),
        (
            "broken",
            "Malformed",
            "spec.resources[\"nvidia.com/gpu\"].nominalQuota: 'many' is not a quantity; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
        ),
        ("below-broken", "ParentNotFound", "queue broken above it is malformed"),
    ],
)
def test_queue_that_is_not_valid_says_why_and_counts_what_runs_in_it(
    name: str, reason: str, message: str
) -> None:
    nowhere = "; its AppWrappers that hold capacity are charged in no queue until it is valid again"
    assert status(name, INVALID, active(name, gpu=1), pending(name, gpu=1), pending(name, gpu=1)) == {
        "conditions": [
            condition("Valid", "False", reason=reason, message=f"{message}{nowhere}"),
            condition("Stopped", "Unknown"),
            condition("Ignored", "Unknown"),
        ],
        "state": reason,
        "pending": 2,
        "running": 1,
    }


@pytest.mark.parametrize(
    ("root", "reason", "message"),
    [
        (None, "TooDeep", "it is more than 1000 levels deep in its tree"),
        ("nobody", "ParentNotFound", "more than 1000 queues above it have no valid root"),
        ("q1049", "Circle", "more than 1000 queues above it have no valid root"),
    ],
)
def test_message_about_a_long_chain_follows_only_a_bounded_part_of_it(
    root: str | None, reason: str, message: str
) -> None:
    top = queue("q0") if root is None else queue("q0", parent=root)
    chain = [top, *(queue(f"q{number}", parent=f"q{number - 1}") for number in range(1, 1050))]
    found = status("q1049", chain)["conditions"][0]
    assert (found["reason"], found["message"]) == (reason, message)


def test_message_about_a_circle_of_many_queues_names_only_a_few() -> None:
    circle = [queue(f"q{number}", parent=f"q{(number + 1) % 50}") for number in range(50)]
    found = status("q0", circle)["conditions"][0]["message"]
    assert (
        found
        == "its parents form a circle: "
        + " -> ".join(f"q{number}" for number in range(8))
        + " -> and 43 more"
    )


@pytest.mark.parametrize(
    ("name", "state", "message"),
    [
        ("top", "Hold", "it has the stopPolicy Hold"),
        ("below", "Hold", "queue top above it has the stopPolicy Hold"),
        ("drained", "HoldAndDrain", "it has the stopPolicy HoldAndDrain"),
    ],
)
def test_stopped_queue_says_who_stopped_it(name: str, state: str, message: str) -> None:
    queues = [
        queue("top", stopPolicy="Hold"),
        queue("below", parent="top"),
        queue("drained", parent="top", stopPolicy="HoldAndDrain"),
    ]
    found = status(name, queues)
    assert found["state"] == state
    assert found["conditions"][1] == condition("Stopped", "True", reason=state, message=message)


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        (
            [queue("org"), queue("team", parent="org", sharing="Division", priority=1)],
            "sharing: the root of the tree decides; priority: has an effect under sharing Division only",
        ),
        (
            [
                queue("org", sharing="Division"),
                queue("team", parent="org", resources=gpus(4, lendingLimit=1)),
            ],
            "resources.nvidia.com/gpu.lendingLimit: has no effect under sharing Division",
        ),
        (
            [queue("team", weight=2, queueingStrategy="StrictFIFO", starvationBoundSeconds=5)],
            "weight: has no effect in a root; starvationBoundSeconds: has no effect under StrictFIFO",
        ),
        (
            [queue("team", resources={"services": {"nominalQuota": 3}, "pods": {"nominalQuota": 3}})],
            "resources.services: no gang can ask for this resource",
        ),
        (
            [queue("org"), queue("team", parent="org", weight=2)],
            "weight: has no effect under sharing Priority",
        ),
        (
            [queue("team", order="Usage", preemption={"reclaim": "Any"}), queue("below", parent="team")],
            "order: has an effect in queues without children only; "
            "preemption.reclaim: has an effect in queues without children only",
        ),
        (
            [queue("team", sharing="DominantShare", preemption={"reclaim": "Any", "whileBorrowing": {}})],
            "preemption.whileBorrowing: has an effect under sharing Priority only",
        ),
    ],
)
def test_fields_without_effect_are_named(queues: list[DispatchQueue], message: str) -> None:
    found = status("team", queues)["conditions"]
    assert found == [*SOUND[:2], condition("Ignored", "True", reason="NoEffect", message=message)]


def test_status_of_a_parent_says_that_its_children_have_more_quota() -> None:
    queues = [
        queue("org", resources={**gpus(8), "cpu": {"nominalQuota": 4}}),
        queue("team", parent="org"),
        queue("a", parent="team", resources={**gpus(6), "cpu": {"nominalQuota": 4}}),
        queue("b", parent="org", resources=gpus(6)),
    ]
    message = "the queues below it have more quota than the queue itself: nvidia.com/gpu 12 of 8"
    assert status("org", queues)["conditions"][0] == condition(
        "Valid", "True", reason="ChildrenExceedQuota", message=message
    )
    assert status("team", queues)["conditions"] == SOUND


def test_status_is_the_same_as_long_as_nothing_changes() -> None:
    found = status("b", ORG, *CHARGED)
    assert status("b", ORG, *CHARGED, present=found) == found


def test_condition_has_the_time_of_its_last_change_of_status() -> None:
    held = [queue("team", stopPolicy="Hold")]
    drained = [queue("team", stopPolicy="HoldAndDrain")]
    before = status("team", [queue("team")])
    then = status("team", held, present=before)
    assert [each["lastTransitionTime"] for each in then["conditions"]] == [SINCE, LATER, SINCE]
    after = status("team", drained, present=then)
    assert after["conditions"][1] == condition(
        "Stopped", "True", LATER, reason="HoldAndDrain", message="it has the stopPolicy HoldAndDrain"
    )


@pytest.mark.parametrize(
    "present",
    [
        [],
        {"conditions": {}},
        {
            "conditions": [
                "Valid",
                {"type": "Valid"},
                {"type": ["Valid"], "status": {}, "lastTransitionTime": 7},
            ]
        },
    ],
)
def test_queue_status_written_by_another_client_is_replaced(present: object) -> None:
    found = status("team", [queue("team")], present=present)
    since = LATER if present else SINCE
    assert [each["lastTransitionTime"] for each in found["conditions"]] == [since] * 3


def test_status_in_a_tree_with_too_many_resources_shows_those_of_the_queue_itself() -> None:
    def of(first: str) -> Json:
        return {f"{first}.example/{number}": {"nominalQuota": 1} for number in range(64)}

    queues = [queue("org"), *(queue(name, parent="org", resources=of(name)) for name in "abcdef")]
    found = states(queues)["f"]
    assert len(found.nominal) == MOST_RESOURCES
    assert {name for name, amount in found.nominal.items() if amount} == set(of("f"))


def test_tree_of_many_queues_is_counted_in_steps() -> None:
    queues = [queue("q0", resources=gpus(1))]
    queues += [queue(f"q{number}", parent=f"q{number - 1}") for number in range(1, 300)]
    gangs = QueueGangs([pending("q299", gpu=1)] * 500, [active("q299", gpu=1)] * 500, NOW)
    steps = QueueCounter(DeclaredQueues.of(queues, []).forest).count_in_steps(gangs)
    assert sum(1 for _ in steps) >= (300 + 500) / AT_ONCE
    found = states(queues, active("q299", gpu=3))
    assert (found["q0"].used, found["q0"].available, found["q299"].running) == ({GPU: 3}, {GPU: -2}, 1)


# --- gangs whose queue is not valid any more --------------------------------------------------------------------------

ABOVE: Mapping[str, str | None] = {"a": "org", "b": "org", "b1": "b"}
"""The last valid parents of the queues of `BEREFT`."""
BEREFT = [queue("org", resources=gpus(10)), queue("a", parent="org", resources=gpus(4))]
MISSPELT = queue("b", parent="orgg", resources=gpus(6))


def orphaned_use(message: str) -> Json:
    return condition("OrphanedUse", "True", reason="QueueNotValid", message=message)


def test_queue_that_is_charged_for_gangs_of_invalid_queues_counts_and_names_them() -> None:
    gangs: list[Record | ActiveGang] = [
        active("a", gpu=1),
        active("b", gpu=2),
        active("b1", gpu=3),
        active("b1", gpu=1),
        pending("b", gpu=1),
    ]
    found = status("org", BEREFT, *gangs, parents=ABOVE)
    assert (found["running"], found["pending"], found["used"]) == (4, 0, {GPU: "7"})
    said = (
        "3 AppWrappers are charged here, as the queues that they are in are not valid any more: b (1), b1 (2)"
    )
    assert found["conditions"] == [*SOUND, orphaned_use(said)]
    assert status("a", BEREFT, *gangs, parents=ABOVE)["conditions"] == SOUND


def test_queue_names_few_of_many_invalid_queues() -> None:
    parents: dict[str, str | None] = {f"team-{number}": "org" for number in range(10)}
    gangs = [active(name, gpu=1) for name in parents]
    *_, last = status("org", BEREFT, *gangs, parents=parents)["conditions"]
    named = ", ".join(f"team-{number} (1)" for number in range(8))
    many = "10 AppWrappers are charged here, as the queues that they are in are not valid any more: "
    assert last == orphaned_use(f"{many}{named}, and 2 more")


def test_condition_of_orphaned_use_ends_once_the_queue_is_valid_again() -> None:
    gangs = [active("b", gpu=2)]
    before = status("org", BEREFT, *gangs, parents=ABOVE)
    again = [*BEREFT, queue("b", parent="org", resources=gpus(6))]
    after = status("org", again, *gangs, present=before, parents=ABOVE)
    assert (before["running"], len(before["conditions"])) == (1, 4)
    assert (after["running"], after["conditions"]) == (1, SOUND)


@pytest.mark.parametrize(
    ("queues", "gangs", "said"),
    [
        pytest.param(
            [*BEREFT, MISSPELT],
            [active("b", gpu=2)],
            "; its AppWrappers that hold capacity stay charged in queue org",
            id="the-queue-above-is-charged",
        ),
        pytest.param(
            [MISSPELT],
            [active("b", gpu=2)],
            "; its AppWrappers that hold capacity are charged in no queue until it is valid again",
            id="the-tree-is-gone",
        ),
        pytest.param([*BEREFT, MISSPELT], [pending("b", gpu=2)], "", id="none-holds-capacity"),
    ],
)
def test_invalid_queue_says_where_its_gangs_are_charged(
    queues: Sequence[DispatchQueue], gangs: Sequence[Record | ActiveGang], said: str
) -> None:
    valid, *_ = status("b", queues, *gangs, parents=ABOVE)["conditions"]
    message = f"its parent, queue orgg, does not exist{said}"
    assert valid == condition("Valid", "False", reason="ParentNotFound", message=message)


def test_invalid_root_stays_charged_itself() -> None:
    valid, *_ = status("b", [MISSPELT], active("b", gpu=2), parents={"b": None})["conditions"]
    assert valid["message"].endswith("; its AppWrappers that hold capacity stay charged in queue b")

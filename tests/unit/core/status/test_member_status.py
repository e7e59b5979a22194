"""What a MemberCluster shows of itself: whether it is reached, what is free there, and why nothing goes there."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.model.records import pending_reasons
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.status.clusters import (
    ClusterChange,
    ClusterEvent,
    ClusterState,
    MemberState,
    PoolState,
    changes,
    status_of,
)

Json = dict[str, Any]

SINCE = datetime(2026, 11, 20, 9, 58, 6, 842261, tzinfo=timezone(timedelta(hours=1)))
SINCE_IN_WORDS = "2026-11-20T08:58:06Z"


def condition(type_: str, status: str, **why: str) -> Json:
    return {"type": type_, "status": status, "lastTransitionTime": SINCE_IN_WORDS, **why}


def test_whole_status_of_a_member_that_takes_gangs() -> None:
    known = MemberState(
        SINCE,
        cluster_uid="uid-of-kube-system",
        allocatable=Resources({"memory": 64 * 2**30, "cpu": 16_000, "nvidia.com/gpu": 8}),
        free=Resources({"memory": 2**30, "cpu": 1_500}),
        running=3,
    )
    assert status_of(known) == {
        "conditions": [condition("Reachable", "True"), condition("Authenticated", "True")],
        "running": 3,
        "clusterUID": "uid-of-kube-system",
        "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "free": {"cpu": "1500m", "memory": "1Gi"},
    }


def test_member_of_which_nothing_is_known_yet_shows_neither_uid_nor_amounts() -> None:
    closed = Closed(pending_reasons.NOT_REPORTED, "it has not reported its nodes yet")
    why = {"reason": closed.reason, "message": closed.message}
    assert status_of(MemberState(SINCE, closed)) == {
        "conditions": [
            condition("Reachable", "Unknown", **why),
            condition("Authenticated", "Unknown", **why),
        ],
        "running": 0,
        **why,
    }


def test_member_that_is_full_shows_that_nothing_is_free() -> None:
    status = status_of(MemberState(SINCE, allocatable=Resources({"cpu": 8_000}), free=NOTHING))
    assert (status["allocatable"], status["free"]) == ({"cpu": "8"}, {})


def test_member_that_owes_more_than_it_has_shows_the_debt() -> None:
    known = MemberState(SINCE, allocatable=Resources({"cpu": 8_000}), free=Resources({"cpu": -2_000}))
    assert status_of(known)["free"] == {"cpu": "-2"}


CLOSED = [
    (pending_reasons.NOT_REPORTED, "Unknown", "Unknown"),
    (pending_reasons.NOT_CONNECTED, "False", "Unknown"),
    (pending_reasons.UNREACHABLE, "False", "Unknown"),
    (pending_reasons.ANOTHER_CLUSTER, "False", "Unknown"),
    (pending_reasons.CREDENTIALS_REFUSED, "True", "False"),
    (pending_reasons.ANSWERS_TOO_LARGE, "True", "True"),
    (pending_reasons.CORDONED, "True", "True"),
    (pending_reasons.DRAINING, "True", "True"),
]


@pytest.mark.parametrize(("reason", "reachable", "authenticated"), CLOSED)
def test_closed_member_says_why_and_each_condition_that_does_not_hold_says_so_too(
    reason: str, reachable: str, authenticated: str
) -> None:
    why = {"reason": reason, "message": "a sentence"}

    status = status_of(MemberState(SINCE, Closed(reason, "a sentence"), running=2))

    assert status == {
        "conditions": [
            condition("Reachable", reachable, **({} if reachable == "True" else why)),
            condition("Authenticated", authenticated, **({} if authenticated == "True" else why)),
        ],
        "running": 2,
        **why,
    }


def test_member_that_fell_silent_under_another_leader_says_since_when() -> None:
    silent = MemberState(
        SINCE + timedelta(hours=1), Closed(pending_reasons.UNREACHABLE, "no answer"), unreachable_since=SINCE
    )
    assert status_of(silent)["unreachableSince"] == SINCE_IN_WORDS


def test_pools_are_listed_with_the_end_of_a_distrust() -> None:
    known = MemberState(SINCE, pools=(PoolState("l4", 2, 8, SINCE), PoolState("cpu", 0, 10)))
    assert status_of(known)["potential"] == [
        {"name": "l4", "nodes": 2, "potential": 8, "distrustedUntil": SINCE_IN_WORDS},
        {"name": "cpu", "nodes": 0, "potential": 10},
    ]


def test_facts_of_a_member_stay_while_it_is_unreachable() -> None:
    known = MemberState(
        SINCE,
        Closed(pending_reasons.UNREACHABLE, "no answer"),
        cluster_uid="uid-of-kube-system",
        allocatable=Resources({"cpu": 8_000}),
        free=Resources({"cpu": 1_000}),
        running=1,
    )
    status = status_of(known)
    assert {key: status[key] for key in ("clusterUID", "allocatable", "free", "running")} == {
        "clusterUID": "uid-of-kube-system",
        "allocatable": {"cpu": "8"},
        "free": {"cpu": "1"},
        "running": 1,
    }


# --- What history is told of a cluster: every change of how it stands, once, in one order ------------------


WELL = ClusterState()
REMOVED = ClusterState(is_declared=False)
CORDONED = ClusterState(is_cordoned=True, said="new switches")
DRAINING = ClusterState(is_draining=True, said="it moves")
REFUSED = ClusterState(closed_reason="ClusterCredentialsRefused", closed_message="no entry")
ANOTHER = ClusterState(closed_reason="ClusterIsAnother", closed_message="it is the same cluster as west")

SAID_CORDONED = ClusterChange(ClusterEvent.CORDONED, "ClusterCordoned", "new switches")
SAID_DRAINING = ClusterChange(ClusterEvent.DRAINING, "ClusterDraining", "it moves")
SAID_REFUSED = ClusterChange(ClusterEvent.CLOSED, "ClusterCredentialsRefused", "no entry")
SAID_ANOTHER = ClusterChange(ClusterEvent.CLOSED, "ClusterIsAnother", "it is the same cluster as west")
UNCORDONED = ClusterChange(ClusterEvent.UNCORDONED)
OPENED = ClusterChange(ClusterEvent.OPENED)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(WELL, CORDONED, [SAID_CORDONED], id="cordoned"),
        pytest.param(CORDONED, WELL, [UNCORDONED], id="uncordoned"),
        pytest.param(WELL, DRAINING, [SAID_DRAINING], id="draining"),
        pytest.param(DRAINING, WELL, [UNCORDONED], id="emptied-no-longer"),
        pytest.param(DRAINING, replace(CORDONED, is_draining=True), [], id="cordoned-while-draining"),
        pytest.param(replace(DRAINING, is_cordoned=True), CORDONED, [SAID_CORDONED], id="only-cordoned"),
        pytest.param(WELL, REFUSED, [SAID_REFUSED], id="closed"),
        pytest.param(REFUSED, ANOTHER, [SAID_ANOTHER], id="closed-for-another-reason"),
        pytest.param(ANOTHER, WELL, [OPENED], id="opened"),
        pytest.param(WELL, REMOVED, [ClusterChange(ClusterEvent.REMOVED)], id="removed"),
        pytest.param(
            replace(REFUSED, is_cordoned=True), REMOVED, [ClusterChange(ClusterEvent.REMOVED)], id="no-more"
        ),
        pytest.param(REMOVED, WELL, [ClusterChange(ClusterEvent.DECLARED)], id="declared"),
        pytest.param(
            REMOVED,
            replace(CORDONED, closed_reason="ClusterIsAnother", closed_message=ANOTHER.closed_message),
            [ClusterChange(ClusterEvent.DECLARED), SAID_CORDONED, SAID_ANOTHER],
            id="all-at-once",
        ),
    ],
)
def test_each_change_of_a_cluster_state_gives_an_event(
    before: ClusterState, after: ClusterState, expected: list[ClusterChange]
) -> None:
    assert changes(before, after) == expected


@pytest.mark.parametrize("state", [WELL, REMOVED, CORDONED, DRAINING, REFUSED, ANOTHER])
def test_unchanged_cluster_state_is_not_recorded_again_in_other_words(state: ClusterState) -> None:
    otherwise = replace(state, said="other words", closed_message="other words")
    assert (changes(state, otherwise), otherwise == state) == ([], True)


def test_unknown_part_of_a_cluster_state_stays_as_it_was() -> None:
    unknown = ClusterState(is_cordoned=True, closed_reason=None)
    assert unknown.following(REFUSED) == ClusterState(
        is_cordoned=True, closed_reason="ClusterCredentialsRefused"
    )
    assert WELL.following(REFUSED) == WELL

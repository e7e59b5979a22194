"""What history is told of a cluster: every change of how it stands, once, in one order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dispatcher.core.status.clusters import ClusterChange, ClusterEvent, ClusterState, changes

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

"""Growth that is granted is charged before its pods start; growth that waits says why."""

from __future__ import annotations

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.growth import GrowthRequest
from dispatcher.core.model.record import Growth, Phase, Record
from dispatcher.core.model.resources import Resources
from tests.builders import at, attempt_of, make_gang, make_record

ONE = Resources({"cpu": 1000, "nvidia.com/gpu": 1})
"""The demand of a gang of one pod, and the requests of each of its pods."""


def gang() -> Record:
    return make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000, gpu=1))


def waits(pods: int, reason: str = "InsufficientQuota", seconds: float = 20) -> GrowthRequest:
    return GrowthRequest(pods, ONE * pods, at(seconds), reason, f"{pods} pods wait")


def test_granted_growth_is_charged_before_its_pods_start() -> None:
    granted = run_changes.grant(gang(), ONE * 2, None, "2 more pods", at(20))
    assert granted.after.charge == ONE * 3
    assert attempt_of(granted.after).growth == (Growth(at(20), ONE * 2),)
    assert (granted.events[0].cause, granted.events[0].message) == ("granted", "2 more pods")


def test_growth_that_is_granted_in_part_waits_for_the_rest() -> None:
    noted = run_changes.note_growth_request(gang(), waits(3), at(20))
    assert (noted.events[0].reason, noted.events[0].message) == ("InsufficientQuota", "3 pods wait")
    granted = run_changes.grant(noted.after, ONE, waits(2, seconds=30), "1 more pod", at(30))
    # Since the first of them waited, not since the grant.
    assert granted.after.growth_request == waits(2)
    over = run_changes.note_growth_request(granted.after, None, at(40))
    assert over.after.growth_request is None
    assert over.events[0].reason == ""


def test_growth_waits_no_more_once_the_gang_leaves() -> None:
    waiting = run_changes.note_growth_request(gang(), waits(3), at(20)).after
    evicted = run_changes.evict(waiting, EvictionReason("MinPodsNotRunning", "too few"), at(50), 60, at(30))
    assert evicted.after.growth_request is None
    assert removal.delete(waiting, at(30)).after.growth_request is None

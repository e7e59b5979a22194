"""A gang whose pods hold more than its demand is charged for that, and for its demand at least."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.growth import (
    LONGEST_GROWTH_PAUSE,
    admissible,
    count_of,
    growth_of,
    growth_pause,
    in_words_of,
    pods_soon,
    requested,
    unplaced_in,
    with_pods,
)
from dispatcher.core.lifecycle.health import missing_pods
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import NOOP, Act, Commit, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.growth import GatedPod, GrowthRequest, PodsByTemplate, SurplusPod
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.record import MOST_GROWTHS_KEPT, Growth, Phase, Record
from dispatcher.core.model.resources import LARGEST_AMOUNT, NOTHING, Resources
from tests.builders import at, attempt_of, make_gang, make_objects, make_observation, make_policy, make_record
from tests.unit.core.lifecycle.dispatched import Outline, act_of, by, outline, step_of

ONE = Resources({"cpu": 1000, "nvidia.com/gpu": 1})
"""The demand of a gang of one pod, and the requests of each of its pods."""


def gang(phase: Phase = Phase.RUNNING) -> Record:
    return make_record(phase, gang=make_gang(1, cpu=1000, gpu=1))


def grown(record: Record, pods: int, seconds: float = 10) -> Record:
    return run_changes.note_growth(record, ONE * pods, at(seconds)).after


def decided(record: Record, bound: Resources | None, seconds: float = 10) -> Outline:
    objects = replace(make_objects(), taken=bound)
    return outline(decide(make_observation(record, seconds, objects=objects)))


@pytest.mark.parametrize(
    ("bound", "growth"),
    [
        pytest.param(NOTHING, NOTHING, id="no-pods-yet"),
        pytest.param(ONE, NOTHING, id="as-many-as-asked-for"),
        pytest.param(ONE * 3, ONE * 2, id="three-times-as-many"),
        pytest.param(Resources({"nvidia.com/gpu": 3}), Resources({"nvidia.com/gpu": 2}), id="by-resource"),
        pytest.param(ONE + {"memory": 5}, Resources({"memory": 5}), id="a-resource-it-did-not-ask-for"),
        pytest.param(
            Resources({"memory": LARGEST_AMOUNT * 2}),
            Resources({"memory": LARGEST_AMOUNT}),
            id="no-more-than-fits",
        ),
    ],
)
def test_growth_is_the_requests_of_bound_pods_beyond_the_demand(bound: Resources, growth: Resources) -> None:
    assert growth_of(ONE, bound) == growth


@pytest.mark.parametrize(
    ("bound", "seconds", "decision"),
    [
        pytest.param(ONE * 2, 12, by(Cause.SHRANK), id="less"),
        pytest.param(ONE * 3, 12, Do(Act.NOOP), id="as-much"),
        pytest.param(ONE * 4, 12, Do(Act.NOOP, until=at(15)), id="more"),
        pytest.param(ONE + {"memory": 5}, 12, Do(Act.NOOP, until=at(15)), id="less-and-more"),
    ],
)
def test_growth_that_no_pod_uses_is_noted_without_a_pause_while_a_gang_waits_for_it(
    bound: Resources, seconds: float, decision: Outline
) -> None:
    objects = replace(make_objects(), taken=bound)
    seen = make_observation(grown(gang(), 3), seconds, objects=objects, growth_is_awaited=True)
    assert outline(decide(seen)) == decision


def gated(name: str, requests: Resources = ONE, *, is_base: bool = False) -> GatedPod:
    return GatedPod("team-a", name, name, requests, "2026-01-01T00:00:00Z", is_base=is_base)


CPU, MEMORY = Resources({"cpu": 1000}), Resources({"memory": 5})
GPU = Resources({"cpu": 2000, "nvidia.com/gpu": 1})


@pytest.mark.parametrize(
    ("held", "admitted", "pods", "admissible_ones"),
    [
        pytest.param(ONE, NOTHING, [gated("a")], "a", id="base-gang"),
        pytest.param(ONE * 2, ONE, [gated("a"), gated("b")], "a", id="as-many-as-it-holds-oldest-first"),
        pytest.param(ONE, ONE, [gated("a")], "", id="growth-needs-a-grant"),
        pytest.param(ONE * 3, ONE, [gated("a"), gated("b")], "ab", id="granted"),
        pytest.param(ONE * 2, ONE, [gated("a", ONE * 2), gated("b")], "b", id="larger-pod-stops-no-other"),
        pytest.param(CPU * 2, CPU, [gated("a", MEMORY), gated("b", CPU)], "b", id="by-resource"),
        pytest.param(CPU * 2, CPU + MEMORY, [gated("a", CPU)], "a", id="excess-of-another-resource"),
        pytest.param(CPU * 2, CPU * 3, [gated("a", CPU)], "", id="more-admitted-than-held"),
        pytest.param(NOTHING, NOTHING, [gated("a", NOTHING)], "a", id="pod-without-requests"),
        pytest.param(
            CPU + GPU, CPU, [gated("a", CPU), gated("b", GPU)], "b", id="granted-past-a-smaller-one"
        ),
        pytest.param(
            CPU * 2 + GPU,
            CPU,
            [gated("a", CPU), gated("b", CPU), gated("c", GPU)],
            "ac",
            id="granted-with-one-of-two-smaller-ones",
        ),
        pytest.param(CPU * 3, CPU, [gated("a", GPU), gated("b", CPU), gated("c", CPU)], "bc", id="no-gpu"),
        pytest.param(CPU * 3 + GPU, CPU, [gated("a", CPU), gated("b", GPU)], "ab", id="more-than-is-asked"),
        pytest.param(ONE, NOTHING, [], "", id="no-pods"),
        pytest.param(ONE, NOTHING, [gated("a", ONE * 2, is_base=True)], "a", id="base-pod-with-a-side-car"),
        pytest.param(
            ONE * 2, ONE, [gated("a"), gated("b", is_base=True)], "b", id="base-gang-before-older-growth"
        ),
    ],
)
def test_gated_pods_are_admitted_within_the_resources_the_gang_holds(
    held: Resources, admitted: Resources, pods: list[GatedPod], admissible_ones: str
) -> None:
    others = [each for each in pods if each.name not in admissible_ones]

    assert "".join(each.name for each in admissible(held, admitted, pods)) == admissible_ones
    assert requested(held, admitted, pods) == others


def of(template: str, name: str, beyond: int = 0) -> GatedPod:
    return replace(gated(name), template=template, beyond=beyond)


@pytest.mark.parametrize(
    ("granted", "pods", "admissible_ones"),
    [
        pytest.param((("w", 1),), [of("e", "a"), of("w", "b")], "b", id="of-the-granted-template"),
        pytest.param((("w", 1),), [of("w", "a"), of("w", "b")], "a", id="as-many-as-granted"),
        pytest.param((("w", 1),), [of("w", "a", beyond=1)], "", id="one-is-admitted-already"),
        pytest.param((("w", 2),), [of("w", "a", beyond=1)], "a", id="one-of-two-is-admitted"),
        pytest.param((), [of("w", "a")], "", id="nothing-granted"),
        pytest.param((), [gated("a")], "a", id="pod-that-names-no-template"),
        pytest.param(None, [of("e", "a"), of("w", "b")], "a", id="grant-of-an-older-release"),
    ],
)
def test_gated_pods_are_admitted_by_the_template_that_was_granted(
    granted: PodsByTemplate | None, pods: list[GatedPod], admissible_ones: str
) -> None:
    found = admissible(ONE * 2, ONE, pods, granted)
    assert "".join(each.name for each in found) == admissible_ones


def test_growth_has_the_pods_beyond_the_base_gang_by_template() -> None:
    base = replace(of("w", "base"), is_base=True)
    assert with_pods((("w", 1),), [of("w", "a"), of("e", "b"), base, gated("c")]) == (("e", 1), ("w", 2))


@pytest.mark.parametrize(
    ("declared", "granted"),
    [
        pytest.param(ONE, (), id="demand-of-its-templates"),
        pytest.param(ONE * 2, None, id="larger-declared-demand"),
    ],
)
def test_gang_without_growth_has_the_pods_of_its_demand(
    declared: Resources, granted: PodsByTemplate | None
) -> None:
    assert replace(gang(), gang=replace(gang().gang, demand=declared)).granted == granted


@pytest.mark.parametrize("phase", [Phase.DISPATCHED, Phase.RUNNING, Phase.RUNNING_HOLD_COMPLETION])
def test_growth_and_its_end_are_committed(phase: Phase) -> None:
    record = replace(gang(), phase=phase)
    larger = run_changes.note_growth(record, ONE * 3, at(10))
    smaller = run_changes.note_growth(larger.after, ONE * 2, at(20))
    as_asked = run_changes.note_growth(smaller.after, NOTHING, at(30))

    assert [each.events[0].cause for each in (larger, smaller, as_asked)] == ["grew", "shrank", "shrank"]
    assert [each.after.charge for each in (larger, smaller, as_asked)] == [ONE * 3, ONE * 2, ONE]
    assert attempt_of(as_asked.after).growth == (
        Growth(at(10), ONE * 2),
        Growth(at(20), ONE),
        Growth(at(30), NOTHING),
    )


def test_pods_without_requests_are_growth_by_their_number() -> None:
    objects = replace(make_objects(), taken=ONE, taken_pods=3)
    decided = decide(make_observation(gang(), 10, objects=objects))
    assert isinstance(decided, Commit)
    change = run_changes.note_growth(gang(), ONE, at(10), count=2)
    assert decided.change.after == change.after
    (event,) = change.events
    assert (event.cause, event.message) == ("grew", "pods: holds 3, before 1, demand 1")
    assert (change.after.grown, change.after.charge, change.after.quota_charge) == (
        NOTHING,
        ONE,
        ONE + {"pods": 3},
    )
    assert decide(make_observation(change.after, 20, objects=objects)) == NOOP
    fewer = run_changes.note_growth(change.after, ONE, at(20), count=1)
    assert [each.cause for each in fewer.events] == ["shrank"]
    assert replace(change.after, phase=Phase.QUEUED).growth_charge == NOTHING


def test_granted_pods_count_once_while_they_are_admitted() -> None:
    granted = run_changes.grant(gang(), ONE * 2, None, "2 pods", at(10), count=2).after
    waiting = [gated("a"), gated("b"), gated("c")]
    within = admissible(granted.allowed, ONE, waiting, granted.granted)
    assert [each.name for each in within] == ["a", "b"]
    for taken, left in ((1, within), (2, within[1:]), (3, ())):
        assert count_of(granted, pods_soon(granted, taken, left)) == 2


def test_a_gang_that_holds_more_of_one_resource_and_less_of_another_grew() -> None:
    record = run_changes.note_growth(gang(), ONE + {"cpu": 500}, at(10)).after
    change = run_changes.note_growth(record, ONE + {"memory": 2**30}, at(20))
    (event,) = change.events
    assert (event.cause, event.message) == (
        "grew",
        "cpu: holds 1, before 1500m, demand 1, memory: holds 1Gi, before 0, demand 0",
    )


def test_history_gives_the_resources_a_gang_holds_in_the_units_of_users() -> None:
    assert in_words_of(ONE, ONE, ONE * 2) == (
        "cpu: holds 3, before 2, demand 1, nvidia.com/gpu: holds 3, before 2, demand 1"
    )


@pytest.mark.parametrize(
    ("record", "bound", "seconds", "decision"),
    [
        pytest.param(gang(), ONE, 10, Do(Act.NOOP), id="as-asked"),
        pytest.param(gang(), None, 10, Do(Act.NOOP), id="its-pods-are-not-known"),
        pytest.param(gang(), ONE * 3, 10, by(Cause.GREW), id="grew"),
        pytest.param(gang(Phase.DISPATCHING), ONE * 3, 10, Do(Act.CREATE), id="not-while-it-is-created"),
        pytest.param(gang(Phase.REQUEUEING), ONE * 3, 10, Do(Act.REMOVE), id="nor-while-it-is-removed"),
        pytest.param(grown(gang(), 3), ONE * 3, 99, Do(Act.NOOP), id="once"),
        pytest.param(grown(gang(), 3), ONE, 12, Do(Act.NOOP, until=at(15)), id="not-at-once-again"),
        pytest.param(grown(gang(), 3), ONE, 15, by(Cause.SHRANK), id="after-a-pause"),
        pytest.param(grown(gang(), 3), None, 20, Do(Act.NOOP), id="a-cluster-that-is-listed-anew"),
    ],
)
def test_growth_is_noted_when_it_is_due(
    record: Record, bound: Resources | None, seconds: float, decision: Outline
) -> None:
    assert decided(record, bound, seconds) == decision


def test_the_steps_of_its_life_come_first() -> None:
    record = gang(Phase.DISPATCHED)
    objects = replace(make_objects(PodCounts(running=3)), taken=ONE * 3)
    assert step_of(decide(make_observation(record, objects=objects))) is Cause.PODS_RUNNING


def test_a_deadline_is_not_missed_while_a_change_waits_for_its_turn() -> None:
    objects = replace(make_objects(), taken=ONE)
    policy = make_policy(limit=timedelta(seconds=12))
    seen = make_observation(grown(gang(), 3), 12, objects=objects, policy=policy)
    assert act_of(decide(replace(seen, policy=make_policy()))).until == at(15)
    usual = act_of(decide(replace(seen, objects=make_objects())))
    assert act_of(decide(seen)).until == usual.until != at(15)


@pytest.mark.parametrize(
    ("recent", "seconds"), [(1, 5), (4, 5), (5, 10), (6, 20), (9, 160), (10, 300), (MOST_GROWTHS_KEPT, 300)]
)
def test_pauses_grow_with_the_changes_of_an_hour(recent: int, seconds: int) -> None:
    assert growth_pause(recent) == timedelta(seconds=seconds)


def test_a_flapping_autoscaler_does_not_flood_history() -> None:
    """It has another number of pods each second of three hours."""
    record, events, seconds = gang(), 0, 3 * 3600
    for second in range(10, seconds):
        if step_of(decided(record, ONE * (2 + second % 2), second)) in {Cause.GREW, Cause.SHRANK}:
            record, events = grown(record, 2 + second % 2, second), events + 1
    assert 30 < events < seconds / LONGEST_GROWTH_PAUSE.total_seconds() + 10


def test_a_gang_that_leaves_its_cluster_is_charged_for_its_growth_until_its_pods_are_gone() -> None:
    leaving = removal.delete(grown(gang(), 3), at(20)).after
    assert leaving.charge == ONE * 3
    gone = removal.release(leaving, at(30)).after
    assert gone.charge == ONE
    assert attempt_of(gone).growth == (Growth(at(10), ONE * 2),)


def test_the_next_attempt_begins_with_the_demand() -> None:
    preempted = run_changes.preempt(grown(gang(), 3), "FairShare", "for another", at(20), "uid").after  # type: ignore[arg-type]
    queued = removal.removed(preempted, at(30)).after
    assert (preempted.charge, queued.charge) == (ONE * 3, ONE)


GRANTED = replace(gang(), attempt=replace(attempt_of(gang()), growth=(Growth(at(0), ONE),)))


@pytest.mark.parametrize(
    ("record", "taken", "pods", "expected"),
    [
        pytest.param(gang(), NOTHING, "a", Do(Act.ADMIT_PODS, pods=(gated("a"),)), id="base-gang"),
        pytest.param(gang(), ONE, "a", Do(Act.NOOP), id="growth-request"),
        pytest.param(gang(), None, "a", Do(Act.NOOP), id="its-pods-are-not-known"),
        pytest.param(GRANTED, ONE, "ab", Do(Act.ADMIT_PODS, pods=(gated("a"),)), id="granted"),
        pytest.param(GRANTED, ONE * 2, "b", Do(Act.NOOP), id="admitted"),
        pytest.param(GRANTED, ONE, "", by(Cause.SHRANK), id="granted-pods-are-gone"),
        pytest.param(GRANTED, ONE * 3, "b", by(Cause.GREW), id="others-grew-without-the-gate"),
    ],
)
def test_pods_are_admitted_within_the_held_resources_and_a_grant_stays_until_then(
    record: Record, taken: Resources | None, pods: str, expected: Outline
) -> None:
    objects = replace(make_objects(), taken=taken, gated=tuple(map(gated, pods)))

    assert outline(decide(make_observation(record, 99, objects=objects))) == expected


def test_admission_comes_after_every_other_step_of_the_gang() -> None:
    objects = replace(make_objects(), taken=NOTHING, gated=(gated("a"),))
    seen = make_observation(gang(Phase.DISPATCHED), objects=objects)

    assert step_of(decide(seen)) is Cause.PODS_RUNNING
    assert step_of(decide(replace(seen, record=gang(), draining="it is drained"))) is Act.REQUEUE
    assert step_of(decide(replace(seen, record=gang(), unreachable="silence"))) is not Act.ADMIT_PODS


def test_deadline_is_looked_at_in_time_while_pods_are_admitted() -> None:
    objects = replace(make_objects(), taken=NOTHING, gated=(gated("a"),))
    policy = make_policy(limit=timedelta(minutes=1))
    decision = act_of(decide(make_observation(gang(), objects=objects, policy=policy)))

    assert decision.act is Act.ADMIT_PODS
    assert decision.until is not None


@pytest.mark.parametrize("has_components", [False, True])
def test_pods_that_wait_for_a_grant_are_no_health_issue_of_a_gang_that_was_scaled_down(
    has_components: bool,
) -> None:
    policy = make_policy(has_components=has_components)
    record = replace(gang(), gang=make_gang(2, cpu=1000, gpu=1))

    def issue(pods: PodCounts) -> bool:
        return missing_pods(record, policy, pods) is not None

    assert not issue(PodCounts(pending=1, running=1, gated=1))
    assert issue(PodCounts(pending=2, running=1, gated=1))


def surplus(name: str, node: str = "", slice_: str = "") -> SurplusPod:
    return SurplusPod("team-a", name, name, ONE, node, "2026-01-01T00:00:00Z", slice=slice_)


@pytest.mark.parametrize(
    ("pods", "unplaced"),
    [
        pytest.param([surplus("a", "n1"), surplus("b")], "b", id="pods-by-themselves"),
        pytest.param([surplus("a", "n1", "s"), surplus("b", "n2", "s")], "", id="whole-slice"),
        pytest.param(
            [surplus("a", "n1", "s"), surplus("b", "", "s"), surplus("c", "n1", "t")], "ab", id="half-a-slice"
        ),
    ],
)
def test_slice_with_a_host_without_a_node_has_no_place(pods: list[SurplusPod], unplaced: str) -> None:
    assert "".join(pod.name for pod in unplaced_in(pods)) == unplaced


# --- Growth that is granted is charged before its pods start; growth that waits says why -------------------


def gang_of_workers() -> Record:
    return make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000, gpu=1))


def waits(pods: int, reason: str = "InsufficientQuota", seconds: float = 20) -> GrowthRequest:
    return GrowthRequest(pods, ONE * pods, at(seconds), reason, f"{pods} pods wait")


def test_granted_growth_is_charged_before_its_pods_start() -> None:
    granted = run_changes.grant(gang_of_workers(), ONE * 2, None, "2 more pods", at(20))
    assert granted.after.charge == ONE * 3
    assert attempt_of(granted.after).growth == (Growth(at(20), ONE * 2),)
    assert (granted.events[0].cause, granted.events[0].message) == ("granted", "2 more pods")


def test_growth_that_is_granted_in_part_waits_for_the_rest() -> None:
    noted = run_changes.note_growth_request(gang_of_workers(), waits(3), at(20))
    assert (noted.events[0].reason, noted.events[0].message) == ("InsufficientQuota", "3 pods wait")
    granted = run_changes.grant(noted.after, ONE, waits(2, seconds=30), "1 more pod", at(30))
    # Since the first of them waited, not since the grant.
    assert granted.after.growth_request == waits(2)
    over = run_changes.note_growth_request(granted.after, None, at(40))
    assert over.after.growth_request is None
    assert over.events[0].reason == ""


def test_growth_waits_no_more_once_the_gang_leaves() -> None:
    waiting = run_changes.note_growth_request(gang_of_workers(), waits(3), at(20)).after
    evicted = run_changes.evict(waiting, EvictionReason("MinPodsNotRunning", "too few"), at(50), 60, at(30))
    assert evicted.after.growth_request is None
    assert removal.delete(waiting, at(30)).after.growth_request is None

"""Growth that trusts in potential nodes has a time in which they must come; then its pods are taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api import conditions as words
from dispatcher.core.lifecycle import run_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.growth import without_unplaced
from dispatcher.core.lifecycle.step import Act, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.growth import GatedPod, GrowthTrust, PodRef, Shrinking, SurplusPod
from dispatcher.core.model.pods import PodCounts
from dispatcher.core.model.record import Growth, Phase, Record
from dispatcher.core.model.resources import Resources
from tests.builders import at, attempt_of, make_gang, make_objects, make_observation, make_record
from tests.unit.core.lifecycle.dispatched import Outline, by, outline, step_of

ONE = Resources({"cpu": 1000})
"""The demand of a gang of one pod, and the requests of each of its pods."""
NODES = ("potential/l4/0", "potential/l4/1")


def granted(trusted: tuple[str, ...] = NODES) -> Record:
    """A gang of one pod that was granted two more."""
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000))
    return run_changes.grant(record, ONE * 2, None, "2 pods may start", at(20), trusted=trusted).after


def surplus(name: str, *, is_gated: bool = False) -> SurplusPod:
    return SurplusPod("team-a", name, f"uid-of-{name}", ONE, "", "2026-01-01T00:00:00Z", is_gated=is_gated)


A, B, GATED = surplus("a"), surplus("b"), surplus("c", is_gated=True)
TAKEN_BACK = Do(
    Act.TAKE_BACK_GROWTH,
    words.POTENTIAL_NODES_MISSING,
    "granted pods without a node 60 s after the grant: 1; it trusted 2 nodes of pool l4 to come",
)


def decided(
    record: Record,
    unplaced: tuple[SurplusPod, ...],
    seconds: float,
    awaited: tuple[str, ...] = ("l4",),
    taken: int = 3,
    gated: tuple[GatedPod, ...] = (),
) -> Outline:
    objects = replace(make_objects(PodCounts(running=1)), taken=ONE * taken, unplaced=unplaced, gated=gated)
    seen = make_observation(record, seconds, objects=objects)
    trusts = attempt_of(record).growth_trust is not None
    bind_within = timedelta(seconds=60) if trusts else None
    return outline(decide(replace(seen, growth_bind_within=bind_within, awaited_pools=frozenset(awaited))))


@pytest.mark.parametrize(
    ("unplaced", "seconds", "awaited", "expected"),
    [
        pytest.param((A,), 79, ("l4",), Do(Act.NOOP, until=at(80)), id="in-time"),
        pytest.param((A,), 80, ("l4",), TAKEN_BACK, id="too-late"),
        pytest.param((A,), 80, (), Do(Act.NOOP), id="its-nodes-came"),
        pytest.param((), 30, (), by(Cause.GREW), id="all-have-nodes"),
    ],
)
def test_granted_pods_have_a_time_in_which_the_trusted_nodes_must_come(
    unplaced: tuple[SurplusPod, ...], seconds: float, awaited: tuple[str, ...], expected: Outline
) -> None:
    assert decided(granted(), unplaced, seconds, awaited) == expected


def test_growth_that_trusts_in_no_potential_nodes_has_no_such_time() -> None:
    assert decided(granted(()), (A,), 10**6) == Do(Act.NOOP)


def test_later_grant_on_trust_begins_the_time_anew_and_another_grant_does_not() -> None:
    more = run_changes.grant(granted(), ONE * 3, None, "1 pod", at(30), trusted=("potential/cpu/0",)).after
    trust = GrowthTrust(at(30), ("potential/cpu/0", *NODES))
    assert attempt_of(more).growth_trust == trust
    assert trust.pools == (("cpu", 1), ("l4", 2))
    again = run_changes.grant(more, ONE * 4, None, "1 pod", at(40)).after
    assert attempt_of(again).growth_trust == trust


def test_only_pods_without_nodes_are_given_up_and_gated_ones_need_no_deletion() -> None:
    assert without_unplaced(ONE * 3, (A, GATED)) == Shrinking((PodRef("team-a", "a", "uid-of-a"),), ONE, "")


def test_pods_that_are_taken_back_are_charged_until_they_are_gone() -> None:
    change = run_changes.take_back_growth(granted(), without_unplaced(ONE * 2, (A,)), "no nodes", at(80))
    record = change.after
    assert [(each.cause, each.reason, each.message) for each in change.events] == [
        ("growth-taken-back", words.POTENTIAL_NODES_MISSING, "no nodes")
    ]
    assert (record.phase, record.charge, record.allowed) == (Phase.RUNNING, ONE * 3, ONE * 2)
    assert step_of(decided(record, (A,), 10**6)) is Cause.SHRANK  # they are gone: none is to be deleted
    gone = run_changes.note_growth(record, ONE * 2, at(90)).after
    assert attempt_of(gone).growth[-1] == Growth(at(90), ONE)  # taken for no other gang
    assert gone.preempted_at == ()


def test_growth_whose_pods_all_have_nodes_trusts_no_more() -> None:
    change = run_changes.note_growth(granted(), ONE * 3, at(40))
    assert attempt_of(change.after).growth_trust is None
    assert change.after.charge == ONE * 3
    assert [(each.cause, each.message) for each in change.events] == [
        ("grew", "all pods of its growth have nodes")
    ]
    assert run_changes.has_nodes(attempt_of(granted()), attempt_of(change.after))


def test_growth_that_shrinks_while_it_waits_for_nodes_goes_on_trusting() -> None:
    change = run_changes.note_growth(granted(), ONE * 2, at(40), keeps_trust=True)
    assert attempt_of(change.after).growth_trust == attempt_of(granted()).growth_trust
    assert not run_changes.has_nodes(attempt_of(granted()), attempt_of(change.after))
    gone = run_changes.note_growth(granted(), ONE * 2, at(40)).after
    assert not run_changes.has_nodes(attempt_of(granted()), attempt_of(gone))

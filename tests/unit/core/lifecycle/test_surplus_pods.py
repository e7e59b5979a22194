"""A gang that gives up surplus pods is charged for them until they are gone, and admits no pods in their place."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.core.kinds.asked import NOT_KNOWN, Asked
from dispatcher.core.kinds.completion import CompletionRule
from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.decision import decide
from dispatcher.core.lifecycle.missing_pods import NONE_WITHHELD, Withheld, withheld_by
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.lifecycle.step import Act, Do
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.gangs.growth import GatedPod, PodRef, Shrinking
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import NOTHING, Resources
from tests.builders import at, attempt_of, make_gang, make_objects, make_observation, make_record, make_ref
from tests.unit.core.lifecycle.dispatched import Outline, by, outline, step_of

ONE = Resources({"cpu": 1000})
"""The demand of a gang of one pod, and the requests of each of its pods."""


def shrinking() -> Record:
    """A gang of one pod with two surplus pods, of which it gives up one."""
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000))
    record = run_changes.grant(record, ONE * 2, None, "2 more pods", at(20)).after
    given = Shrinking((PodRef("team-a", "w-2", "uid-2"),), ONE, "uid-of-another")
    return run_changes.give_up(record, given, Reason.PRIORITY_IN_QUEUE, "1 surplus pod", at(30)).after


def test_pods_that_are_given_up_are_charged_and_no_others_admitted_in_their_place() -> None:
    record = shrinking()
    assert (record.charge, record.allowed, record.phase) == (ONE * 3, ONE * 2, Phase.RUNNING)


@pytest.mark.parametrize(
    ("taken", "cause", "note"),
    [
        pytest.param(2, "shrank", "cpu: holds 2, before 3, demand 1", id="less"),
        pytest.param(
            3, "shrank", "the pods that it gave up are gone; it holds as much as before", id="as-much"
        ),
        pytest.param(4, "grew", "cpu: holds 4, before 3, demand 1", id="more"),
    ],
)
def test_gang_gives_up_nothing_more_once_its_growth_is_noted(taken: int, cause: str, note: str) -> None:
    change = run_changes.note_growth(shrinking(), ONE * taken, at(40))
    assert attempt_of(change.after).shrinking is None
    assert change.after.allowed == change.after.charge == ONE * taken
    assert [(event.cause, event.message) for event in change.events] == [(cause, note)]


def test_gang_that_leaves_gives_up_nothing_more() -> None:
    record = shrinking()
    for change in (
        run_changes.evict(record, EvictionReason("MinPodsNotRunning", "too few"), at(50), 60, at(40)),
        run_changes.preempt(record, Reason.PRIORITY_IN_QUEUE, "preempted", at(40), "uid-of-another"),
        run_changes.complete(record, (), at(100), at(40)),
        removal.delete(record, at(40)),
    ):
        assert attempt_of(change.after).shrinking is None
        assert change.after.grown == (ONE * 2 if change.after.holds_capacity else NOTHING)


PODS = (PodRef("team-a", "w-2", "uid-2"),)
LIVE = {"gives_up": True, "to_delete": PODS}
ENDING = {"gives_up": True}
GONE: dict[str, object] = {}


def gated(name: str, *, is_base: bool = False) -> GatedPod:
    return GatedPod("team-a", name, name, ONE, "2026-01-01T00:00:00Z", is_base=is_base)


def admits(*pods: GatedPod) -> Outline:
    return Do(Act.ADMIT_PODS, pods=pods)


A, BASE = gated("a"), gated("b", is_base=True)


@pytest.mark.parametrize(
    ("given_up", "taken", "waits", "expected"),
    [
        pytest.param(LIVE, 3, (), Do(Act.DELETE_PODS), id="live"),
        pytest.param(ENDING, 3, (), Do(Act.NOOP), id="ending"),
        pytest.param(ENDING, 1, (), Do(Act.NOOP), id="ending-and-others-are-gone"),
        pytest.param(ENDING, 2, (A,), Do(Act.NOOP), id="nothing-is-admitted-in-their-place"),
        pytest.param(ENDING, 1, (A,), admits(A), id="what-it-keeps-is-admitted"),
        pytest.param(LIVE, 3, (BASE,), admits(BASE), id="base-gang-first"),
        pytest.param(LIVE, None, (), Do(Act.NOOP), id="its-pods-are-not-known"),
        pytest.param(GONE, 2, (), by(Cause.SHRANK), id="gone"),
        pytest.param(GONE, 3, (), by(Cause.SHRANK), id="gone-and-it-holds-as-much-as-before"),
        pytest.param(GONE, 2, (A,), by(Cause.SHRANK), id="gone-and-made-again"),
    ],
)
def test_given_up_pods_are_deleted_once_and_its_growth_is_noted_once_they_are_gone(
    given_up: dict[str, Any], taken: int | None, waits: tuple[GatedPod, ...], expected: Outline
) -> None:
    objects = replace(
        make_objects(PodCounts(running=1)),
        taken=None if taken is None else ONE * taken,
        gated=waits,
        **given_up,
    )
    # It has just grown, so a growth that is noted for another reason would have to wait.
    assert outline(decide(make_observation(shrinking(), 30, objects=objects))) == expected


def test_deletion_comes_after_every_other_step_of_the_gang() -> None:
    objects = replace(make_objects(PodCounts(running=1)), taken=ONE * 3, gives_up=True, to_delete=PODS)
    seen = make_observation(shrinking(), 30, objects=objects)
    assert step_of(decide(replace(seen, draining="it is drained"))) is Act.REQUEUE
    assert step_of(decide(replace(seen, unreachable="silence"))) is Act.NOTE_HEALTH_ISSUE


# --- What the objects of a gang do not ask for, and of which objects that is not known ---------------------


SERVER = CompletionRule(holds=True, pods=3, asks=3)
WITHOUT_PODS = CompletionRule()
OF_UNKNOWN_KIND = CompletionRule(holds=True, pods=3)
NONE_OF_THREE = "Deployment default/deployment-0 asks for none of its 3 pods"
IS_SUSPENDED = "Deployment default/deployment-0 is suspended"
IS_MANAGED = "Deployment default/deployment-0 is managed by example.com/x"


@pytest.mark.parametrize(
    ("rule", "asked", "is_done", "expected"),
    [
        pytest.param(SERVER, Asked(3), False, NONE_WITHHELD, id="all-of-its-template"),
        pytest.param(SERVER, Asked(5), False, NONE_WITHHELD, id="more-than-its-template"),
        pytest.param(SERVER, NOT_KNOWN, False, NONE_WITHHELD, id="read-but-malformed"),
        pytest.param(
            SERVER, Asked(0), False, Withheld(3, NONE_OF_THREE, why=NONE_OF_THREE), id="scaled-to-zero"
        ),
        pytest.param(
            SERVER,
            Asked(0, is_suspended=True),
            False,
            Withheld(3, IS_SUSPENDED, why=IS_SUSPENDED),
            id="suspended",
        ),
        pytest.param(
            WITHOUT_PODS,
            Asked(0, is_suspended=True),
            False,
            Withheld(suspended=IS_SUSPENDED, why=IS_SUSPENDED),
            id="suspended-by-its-template",
        ),
        pytest.param(
            SERVER,
            Asked(3, manager="example.com/x"),
            False,
            Withheld(why=IS_MANAGED),
            id="managed-by-another",
        ),
        pytest.param(
            SERVER,
            None,
            False,
            Withheld(unread="Deployment default/deployment-0", unread_pods=3),
            id="not-read",
        ),
        pytest.param(
            OF_UNKNOWN_KIND,
            None,
            False,
            Withheld(unread="Deployment default/deployment-0"),
            id="not-read-and-its-template-tells-no-number",
        ),
        pytest.param(WITHOUT_PODS, None, False, NONE_WITHHELD, id="not-read-and-makes-no-pods"),
        pytest.param(SERVER, None, True, NONE_WITHHELD, id="done-and-not-read"),
        pytest.param(SERVER, Asked(0), True, NONE_WITHHELD, id="done"),
    ],
)
def test_object_withholds_the_pods_of_its_template_that_it_does_not_ask_for(
    rule: CompletionRule, asked: Asked | None, is_done: bool, expected: Withheld
) -> None:
    assert withheld_by((make_ref(0, "Deployment", done=is_done),), (rule,), (asked,)) == expected


def test_object_that_is_not_read_hides_no_other() -> None:
    refs = (make_ref(0, "Deployment"), make_ref(1, "Deployment"))
    withheld = withheld_by(refs, (SERVER, SERVER), (Asked(0), None))
    assert (withheld.pods, withheld.unread_pods) == (3, 3)

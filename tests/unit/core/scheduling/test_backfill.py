"""Backfill reservations: where capacity is kept, for how long, and what comes after."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.cycle.outcomes import Impossible, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.backfill import Backfill, Running, State
from dispatcher.core.scheduling.fit.backfill_reservation import (
    Awaited,
    Before,
    Bounds,
    Option,
    Reservation,
    Rest,
    following,
    noted,
    rest_after,
)
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.fit.estimated_ends import LAST_RESORT, End, estimated_end, soonest, stated_end
from tests.builders import (
    at,
    attempt_of,
    make_gang,
    make_record,
    make_snapshot,
    make_snapshots,
    times_told,
)
from tests.one_queue import plan
from tests.unit.core.scheduling.month import HOUR, MINUTE, cpus, make_cluster

BOUNDS = Bounds(kept=HOUR, rest=10 * MINUTE)
BEGUN = Reservation("a", at(0), at(3600), at(0), ("a",))
BOTH = (Option(at(10), "a"), Option(at(20), "b"))
NEVER = Option(LAST_RESORT, "a")


def running_since(
    seconds: float, phase: Phase = Phase.RUNNING, *, expected: int = 0, limit: int = 0, cpu: int = 1000
) -> Record:
    """Dispatched so many seconds after `NOW`."""
    record = make_record(phase, gang=make_gang(cpu=cpu), expected_seconds=expected, limit_seconds=limit)
    return replace(record, attempt=replace(attempt_of(record), decided_at=at(seconds)))


# --- when the capacity of what runs is free ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "limit", "stated", "estimated"),
    [
        pytest.param(0, 0, None, 200, id="as-long-again-as-it-has-run"),
        pytest.param(150, 0, 150, 150, id="when-its-user-expects"),
        pytest.param(0, 120, 120, 120, id="at-its-limit"),
        pytest.param(150, 120, 120, 120, id="at-the-first-of-both"),
        pytest.param(90, 120, 120, 120, id="at-its-limit-when-it-takes-longer-than-expected"),
        pytest.param(90, 0, None, 200, id="it-takes-longer-than-expected"),
        pytest.param(90, 80, None, 200, id="its-limit-is-over-and-it-still-runs"),
    ],
)
def test_end_is_estimated_from_the_stated_duration_or_else_from_the_time_run(
    expected: int, limit: int, stated: float | None, estimated: float
) -> None:
    record = running_since(0, expected=expected, limit=limit)
    assert stated_end(record, at(100)) == (None if stated is None else at(stated))
    assert estimated_end(record, at(100)) == at(estimated)


def test_gang_that_is_being_removed_or_past_its_end_ends_now() -> None:
    removing = [
        running_since(0, phase, limit=3600) for phase in (Phase.DELETING, Phase.FAILING, Phase.SUSPENDING)
    ]
    assert {(stated_end(record, at(100)), estimated_end(record, at(100))) for record in removing} == {
        (None, at(100))
    }
    assert estimated_end(running_since(130), at(100)) == at(100)
    assert estimated_end(running_since(0, Phase.DISPATCHING), at(100)) == at(200)


@pytest.mark.parametrize(
    ("demand", "fits_at"),
    [
        pytest.param(2, at(0), id="now"),
        pytest.param(3, at(5), id="with-the-first-that-ends"),
        pytest.param(5, at(9), id="with-the-second"),
        pytest.param(6, LAST_RESORT, id="only-if-others-end"),
    ],
)
def test_gang_fits_once_enough_has_ended_in_the_order_of_the_ends(demand: int, fits_at: datetime) -> None:
    ends = [End(at(5), cpus(1)), End(at(9), cpus(2))]
    assert soonest(cpus(demand), cpus(2), ends, at(0)) == fits_at


# --- one reservation after another ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        pytest.param(None, (), None, id="nothing-to-keep"),
        pytest.param(None, BOTH, BEGUN, id="the-best-first"),
        pytest.param(
            replace(BEGUN, since=at(-3600), until=at(0), began=at(-3600)),
            BOTH,
            Reservation("b", at(0), at(3600), at(-3600), ("a", "b")),
            id="then-the-next-best-that-was-not-tried",
        ),
        pytest.param(
            Reservation("b", at(-3600), at(0), at(-7200), ("a", "b")),
            BOTH,
            Reservation("", at(0), at(7200), at(-7200), ("a", "b"), doublings=1),
            id="then-others-for-as-long-as-it-was-kept",
        ),
        pytest.param(
            replace(BEGUN, until=at(0), began=at(-60)),
            (),
            Reservation("", at(0), at(600), at(-60), ("a",), doublings=1),
            id="but-at-least-for-the-rest",
        ),
        pytest.param(
            Reservation("", at(-600), at(0), at(-7200), ("a", "b"), doublings=1),
            BOTH,
            Reservation("a", at(0), at(7200), at(0), ("a",), doublings=1),
            id="then-again-with-twice-the-bound",
        ),
        pytest.param(
            Reservation("", at(-600), at(0), at(-7200), ("a",), doublings=9),
            BOTH,
            Reservation("a", at(0), at(16 * 3600), at(0), ("a",), doublings=9),
            id="but-not-for-ever-longer",
        ),
        pytest.param(
            Reservation("", at(-600), at(0), at(-7200), ("a", "b"), doublings=1),
            (),
            Reservation("", at(-600), at(0), at(-7200), ("a", "b"), doublings=1, is_over=True),
            id="it-rests-on-while-there-is-nothing-to-keep",
        ),
        pytest.param(
            None, (NEVER,), replace(BEGUN, is_hopeful=False), id="a-last-resort-is-kept-without-much-hope"
        ),
        pytest.param(
            Reservation("a", at(-3600), at(0), at(-3600), ("a",), is_hopeful=False, fruitless=2),
            (NEVER,),
            Reservation("", at(0), at(4 * 3600), at(-3600), ("a",), is_hopeful=False, fruitless=3),
            id="and-then-the-pause-doubles-instead-of-the-bound",
        ),
    ],
)
def test_reservation_that_is_over_is_followed_by(
    before: Reservation | None, options: tuple[Option, ...], after: Reservation | None
) -> None:
    assert following(before, options, at(0), BOUNDS) == after


# --- from one cycle to the next ------------------------------------------------------------------------------


def busy(cpu: int = 8000, free: int = 0) -> CapacityLedger:
    """A cluster of so many cpus, of which `free` are left by what runs."""
    ledger = CapacityLedger(FitMode.AGGREGATE)
    ledger.set_node(Node("n1", Resources({"cpu": cpu})))
    ledger.reserve("running", Gang(Resources({"cpu": cpu - free})))
    return ledger


def snapshots_of(**free: int) -> dict[str, ClusterSnapshot]:
    return make_snapshots(**{name: busy(free=cpu).snapshot() for name, cpu in free.items()})


LARGE = make_record(name="large", gang=make_gang(cpu=8000))
OTHER = make_record(name="other", gang=make_gang(cpu=8000))


def kept(reservations: Mapping[str, Reservation]) -> dict[str, str]:
    return {uid.removeprefix("uid-of-"): each.cluster for uid, each in reservations.items()}


def test_capacity_is_kept_where_the_gang_is_estimated_to_fit_soonest() -> None:
    runs = {"a": [running_since(-86400, cpu=8000)], "b": [running_since(-60, cpu=8000)], "c": []}
    running = Running(lambda name: runs[name])
    reservations = Backfill(BOUNDS, running).renew([LARGE, OTHER], snapshots_of(a=0, b=0, c=0), at(0))
    assert kept(reservations) == {"large": "b", "other": "a"}


def test_tie_is_settled_by_name_and_kept_though_another_cluster_looks_better_later() -> None:
    backfill = Backfill(BOUNDS)
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=0), at(0))) == {"large": "a"}
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=8000), at(3599))) == {"large": "a"}
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=8000), at(3600))) == {"large": "b"}
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=0), at(7200))) == {"large": ""}
    assert kept(backfill.renew([], snapshots_of(a=0, b=0), at(7201))) == {}
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=0), at(7202))) == {"large": "a"}


def test_existing_reservation_goes_before_a_new_one_whatever_their_order() -> None:
    backfill = Backfill(BOUNDS)
    backfill.renew([OTHER], snapshots_of(a=0), at(0))
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(1))) == {"other": "a"}
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(3600))) == {"large": "", "other": ""}
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(7200))) == {"large": "a", "other": ""}
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(10800))) == {"large": "", "other": ""}
    # No end is in sight: the second rest in a row takes twice as long.
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(17999))) == {"large": "", "other": ""}
    assert kept(backfill.renew([LARGE, OTHER], snapshots_of(a=0), at(18000))) == {"large": "", "other": "a"}


def test_cluster_rests_after_a_gang_that_goes_in_vain_is_deleted_or_directed_elsewhere() -> None:
    elsewhere = replace(OTHER, requirements=ClusterRequirements(selector=parse_selector("region=eu", "")))
    for left in ([], [elsewhere]):
        backfill = Backfill(BOUNDS)
        backfill.renew([OTHER], snapshots_of(a=0), at(0))
        backfill.renew(left, snapshots_of(a=0), at(3000))
        waits = backfill.renew([LARGE], snapshots_of(a=0), at(3001))[LARGE.uid]
        assert (waits.cluster, waits.until) == ("", at(6000))
        assert kept(backfill.renew([LARGE], snapshots_of(a=0), at(6000))) == {"large": "a"}


@pytest.mark.parametrize(
    "cpus_now",
    [pytest.param({"a": 8000, "b": 0}, id="there"), pytest.param({"a": 0, "b": 8000}, id="elsewhere")],
)
def test_cluster_does_not_rest_after_a_gang_that_was_dispatched(cpus_now: dict[str, int]) -> None:
    backfill = Backfill(BOUNDS)
    assert kept(backfill.renew([OTHER], snapshots_of(a=0, b=0), at(0))) == {"other": "a"}
    backfill.renew([OTHER], snapshots_of(**cpus_now), at(3000))
    assert kept(backfill.renew([LARGE], snapshots_of(a=0, b=0), at(3001))) == {"large": "a"}


def test_reservation_that_is_complete_at_its_end_is_not_in_vain() -> None:
    backfill = Backfill(BOUNDS)
    backfill.renew([OTHER], snapshots_of(a=0), at(0))
    backfill.renew([OTHER], snapshots_of(a=8000), at(3600))
    assert kept(backfill.renew([LARGE], snapshots_of(a=0), at(3601))) == {"large": "a"}


def test_complete_reservation_ends_the_series_of_fruitless_reservations() -> None:
    vain = Rest(at(0), at(0), fruitless=3)
    backfill = Backfill(BOUNDS, state=State(rests={"a": vain}))
    backfill.renew([OTHER], snapshots_of(a=0), at(0))
    backfill.renew([OTHER], snapshots_of(a=8000), at(1))
    assert backfill.renew([], snapshots_of(a=0), at(2)) == {}
    assert backfill.state.rests == {}


def test_gang_that_waits_goes_on_once_a_reservation_of_another_ends_early() -> None:
    backfill = Backfill(BOUNDS)
    backfill.renew([OTHER], snapshots_of(a=0, b=0), at(0))
    assert kept(backfill.renew([OTHER, LARGE], snapshots_of(a=0, b=0), at(60))) == {
        "other": "a",
        "large": "b",
    }
    later = snapshots_of(a=0, b=0)
    assert kept(backfill.renew([OTHER, LARGE], later, at(3600))) == {"other": "", "large": "b"}
    waits = backfill.renew([OTHER, LARGE], later, at(3600))[OTHER.uid]
    assert waits == Reservation("", at(3600), at(3660), at(0), ("a",), is_hopeful=False, waits=True)
    backfill.renew([OTHER, LARGE], snapshots_of(a=0, b=8000), at(3601))
    assert kept(backfill.renew([OTHER], snapshots_of(a=0, b=0), at(3602))) == {"other": "b"}


@pytest.mark.parametrize(
    ("kept_for", "is_hopeful", "before", "rest"),
    [
        pytest.param(3600, True, None, Rest(at(3600), at(3600)), id="as-long-as-it-was-kept"),
        pytest.param(5, True, None, Rest(at(600), at(600)), id="but-at-least-the-rest"),
        pytest.param(3600, False, None, Rest(at(3600), at(3600), 1), id="the-first-without-hope"),
        pytest.param(
            3600,
            False,
            Rest(at(0), at(0), 2),
            Rest(at(3600), at(4 * 3600), 3),
            id="longer-for-those-without-hope",
        ),
        pytest.param(
            8 * 3600, False, Rest(at(0), at(0), 9), Rest(at(8 * 3600), at(16 * 3600), 10), id="up-to-a-bound"
        ),
        pytest.param(
            3600, True, Rest(at(0), at(0), 2), Rest(at(3600), at(4 * 3600), 2), id="hope-adds-nothing"
        ),
        pytest.param(
            60,
            True,
            Rest(at(0), at(9 * 3600), 2),
            Rest(at(600), at(9 * 3600), 2),
            id="a-short-one-shortens-nothing",
        ),
    ],
)
def test_cluster_rests_for_as_long_as_it_was_kept_in_vain(
    kept_for: float, is_hopeful: bool, before: Rest | None, rest: Rest
) -> None:
    vain = replace(BEGUN, since=at(-kept_for), until=at(0), is_hopeful=is_hopeful)
    assert rest_after(vain, before, at(0), BOUNDS) == rest


@pytest.mark.parametrize(
    ("requirements", "snapshot", "rests"),
    [
        pytest.param(
            ClusterRequirements(), {"capacity": make_snapshot(cpu=4000)}, False, id="a-node-is-not-ready"
        ),
        pytest.param(
            ClusterRequirements(),
            {"closed": Closed("ClusterCordoned", "new racks")},
            False,
            id="it-is-cordoned",
        ),
        pytest.param(
            ClusterRequirements(selector=parse_selector("zone=east", "")),
            {},
            True,
            id="the-gang-is-redirected",
        ),
    ],
)
def test_cluster_does_not_rest_because_it_is_out_of_the_question_for_a_while(
    requirements: ClusterRequirements, snapshot: dict[str, object], rests: bool
) -> None:
    """Else every large gang would wait for as long as one had waited before a node was restarted."""
    backfill, snapshots = Backfill(BOUNDS), snapshots_of(a=0, b=0)
    backfill.renew([LARGE], snapshots, at(0))
    snapshots["a"] = replace(snapshots["a"], **snapshot)  # type: ignore[arg-type]  # Site's own fields
    backfill.renew([replace(LARGE, requirements=requirements)], snapshots, at(3000))
    assert bool(backfill.state.rests) is rests


def test_rests_of_clusters_that_have_left_are_forgotten() -> None:
    vain = Rest(at(9000), at(9000))
    backfill = Backfill(BOUNDS, state=State(rests={"a": vain, "gone": vain}))
    backfill.renew([LARGE], snapshots_of(a=0), at(0))
    assert backfill.state.rests == {"a": vain}


def test_gang_goes_on_waiting_for_its_turn_while_a_cluster_is_silent_for_a_moment() -> None:
    backfill, snapshots = Backfill(BOUNDS), snapshots_of(a=0, b=0)
    waits = Reservation("", at(-90), at(70), at(-3690), ("a",), waits=True, before=Before.REST)
    backfill.state = State({LARGE.uid: waits}, {"b": Rest(at(70), at(70))})
    silent = {**snapshots, "b": replace(snapshots["b"], closed=Closed("ClusterUnreachable", "timed out"))}
    assert backfill.renew([LARGE], silent, at(1))[LARGE.uid] == replace(
        waits, until=at(601), before=Before.RETURN
    )
    assert backfill.renew([LARGE], snapshots, at(2))[LARGE.uid] == waits


def test_wait_for_a_turn_does_not_lengthen_the_rest_of_a_gang() -> None:
    waits = Reservation("", at(-9000), at(0), at(-9060), ("a",), is_hopeful=False, fruitless=1, waits=True)
    rests = following(waits, (), at(0), BOUNDS)
    assert rests is not None
    assert (rests.cluster, rests.until - rests.since) == ("", timedelta(minutes=20))


def test_gang_without_a_reservation_so_far_has_its_turn_first() -> None:
    backfill, never = Backfill(BOUNDS), replace(LARGE, blocked_since=at(-500))
    backfill.state = State({OTHER.uid: Reservation("", at(-3690), at(-90), at(-7200), ("a", "b"))})
    assert kept(backfill.renew([OTHER, never], snapshots_of(a=0), at(0))) == {"other": "", "large": "a"}


def test_gang_with_an_estimate_skips_the_rest_caused_by_gangs_without_an_estimate() -> None:
    rests = {"a": Rest(at(0), at(9000), fruitless=4)}
    running = Running(lambda _: [running_since(-60, cpu=8000)])
    for found, cluster in ((Running(), ""), (running, "a")):
        backfill = Backfill(BOUNDS, found, State(rests=rests))
        assert kept(backfill.renew([LARGE], snapshots_of(a=0), at(1))) == {"large": cluster}


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        pytest.param(
            None,
            (),
            Reservation("", at(0), at(50), at(0), is_hopeful=False, waits=True),
            id="it-waits-for-the-first-that-opens",
        ),
        pytest.param(None, BOTH, BEGUN, id="it-does-not-where-one-is-open"),
        pytest.param(
            replace(BEGUN, since=at(-3600), until=at(0), began=at(-3600)),
            (),
            Reservation("", at(0), at(70), at(-3600), ("a",), waits=True),
            id="within-a-round-it-waits-for-one-that-was-not-tried",
        ),
        pytest.param(
            Reservation("", at(-90), at(0), at(-3690), ("a",), waits=True),
            (),
            Reservation("", at(-90), at(70), at(-3690), ("a",), waits=True),
            id="it-waits-since-it-began-to",
        ),
        pytest.param(
            Reservation("", at(-90), at(0), at(-3690), ("a",), waits=True),
            BOTH,
            Reservation("b", at(0), at(3600), at(-3600), ("a", "b")),
            id="what-it-waited-is-no-part-of-the-round",
        ),
        pytest.param(
            Reservation("", at(-3690), at(-90), at(-7200), ("a", "b"), doublings=1),
            (),
            Reservation("", at(-90), at(50), at(-90), is_hopeful=False, doublings=1, waits=True),
            id="after-a-round-it-waits-since-its-rest-is-over",
        ),
    ],
)
def test_gang_waits_for_its_turn(
    before: Reservation | None, options: tuple[Option, ...], after: Reservation
) -> None:
    closed = [Awaited(at(70), "b"), Awaited(at(50), "a")]
    assert following(before, options, at(0), BOUNDS, closed) == after


def test_pending_reason_gives_the_time_from_which_a_reservation_can_begin() -> None:
    waits = Reservation("", at(0), at(3600), at(0), ("a",), waits=True)
    assert noted(WAITS_ON_A, waits).reservation == (
        "can begin after 2026-11-20 09:58:06 UTC: reservations of other gangs go first, "
        "after a was not complete in time"
    )
    assert waits.is_resting


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (Before.OTHERS, "reservations of other gangs go first"),
        (Before.REST, "a reservation before was not complete, and others may use the quota until then"),
        (Before.RETURN, "a cluster that it may go to is closed for now"),
    ],
)
def test_gang_is_told_what_its_reservation_waits_for(before: Before, why: str) -> None:
    closed = [Awaited(at(70), "b"), Awaited(at(3600), "c"), Awaited(at(50), "a", before)]
    found = following(BEGUN, (), at(0), BOUNDS, closed)
    assert found is not None
    assert found.before is Before.OTHERS  # a was tried, b opens next
    waits = following(None, (), at(0), BOUNDS, closed)
    assert waits is not None
    assert waits.words_of_quota == f"can begin after 2026-11-20 08:58:56 UTC: {why}"


RESTED = Reservation("", at(-7200), at(-60), at(-9000), ("a", "b"), doublings=1)
WAITED = Reservation("", at(-7200), at(-60), at(-7200), waits=True)
OVER = replace(BEGUN, since=at(-3600), until=at(-60), began=at(-3600))


@pytest.mark.parametrize("closed", [(), (Awaited(at(50), "c", Before.REST),)], ids=["none-rests", "c-rests"])
@pytest.mark.parametrize("options", [(), (Option(at(10), "c"),), (NEVER,)], ids=["none", "c", "no-hope"])
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="the-first"),
        pytest.param(OVER, id="one-that-is-over"),
        pytest.param(replace(OVER, is_hopeful=False, fruitless=9), id="the-tenth-in-vain"),
        pytest.param(RESTED, id="a-rest-that-is-over"),
        pytest.param(WAITED, id="a-wait-that-is-over"),
        pytest.param(replace(WAITED, tried=("a",)), id="a-wait-within-a-round-that-is-over"),
    ],
)
def test_no_reservation_tells_a_time_that_is_over(
    before: Reservation | None, options: tuple[Option, ...], closed: tuple[Awaited, ...]
) -> None:
    found = before
    for seconds in (0, 1):
        found = following(found, options, at(seconds), BOUNDS, closed)
        told = times_told(found.words + found.words_of_quota) if found is not None else []
        assert [each for each in told if each <= at(seconds)] == []


def test_gang_that_follows_a_deleted_one_waits_for_the_rest_of_the_cluster_and_for_no_other_gang() -> None:
    backfill, snapshots = Backfill(BOUNDS), snapshots_of(a=0)
    backfill.renew([LARGE], snapshots, at(0))
    backfill.renew([], snapshots, at(4))
    again = replace(LARGE, uid="again")
    waits = backfill.renew([again], snapshots, at(5))["again"]
    assert waits.words == (
        "can begin after 2026-11-20 09:08:10 UTC: a reservation before was not complete, and others may use the "
        "capacity until then"
    )
    assert kept(backfill.renew([again], snapshots, at(604))) == {"again": "a"}


@pytest.mark.parametrize(
    ("snapshot", "cluster"),
    [
        pytest.param({"closed": Closed("ClusterUnreachable", "timed out")}, "a", id="silent-for-a-moment"),
        pytest.param({"closed": Closed("ClusterCordoned", "new racks")}, "b", id="cordoned"),
        pytest.param({"closed": Closed("ClusterDraining", "it is being emptied")}, "b", id="being-emptied"),
        pytest.param({"capacity": make_snapshot(cpu=4000)}, "b", id="too-small-now"),
        pytest.param({"missing_namespaces": frozenset({"team"})}, "b", id="not-for-it-any-more"),
    ],
)
def test_reservation_leaves_a_cluster_that_is_out_of_the_question_before_its_bound(
    snapshot: dict[str, object], cluster: str
) -> None:
    backfill, record = Backfill(BOUNDS), replace(LARGE, requirements=ClusterRequirements(namespace="team"))
    snapshots = snapshots_of(a=0, b=0)
    backfill.renew([record], snapshots, at(0))
    snapshots["a"] = replace(snapshots["a"], **snapshot)  # type: ignore[arg-type]  # Site's own fields
    assert kept(backfill.renew([record], snapshots, at(1))) == {"large": cluster}
    del snapshots["a"]
    assert kept(backfill.renew([record], snapshots, at(2))) == {"large": "b"}


def test_nothing_is_kept_where_the_gang_may_not_go_and_on_the_hub_alone_there_is_no_choice() -> None:
    record = replace(LARGE, requirements=ClusterRequirements(selector=parse_selector("region=eu", "")))
    assert kept(Backfill(BOUNDS, Running()).renew([record], snapshots_of(a=0), at(0))) == {}
    assert kept(Backfill(BOUNDS, Running()).renew([record], snapshots_of(hub=0), at(0))) == {"large": "hub"}


@pytest.mark.parametrize("selector", ["", "zone=east"])
def test_nothing_is_kept_on_the_hub_alone_while_it_is_closed(selector: str) -> None:
    record = replace(LARGE, requirements=ClusterRequirements(selector=parse_selector(selector, "")))
    backfill, opened = Backfill(BOUNDS), snapshots_of(hub=0)
    cordoned = {"hub": replace(opened["hub"], closed=Closed("ClusterCordoned", "new racks"))}
    assert backfill.renew([record], cordoned, at(0)) == {}
    assert kept(backfill.renew([record], opened, at(1))) == {"large": "hub"}
    assert kept(backfill.renew([record], cordoned, at(2))) == {"large": ""}
    assert backfill.state.rests == {}


@pytest.mark.parametrize("selector", ["", "zone=east"])
@pytest.mark.parametrize("reason", ["MembersUnknown", "ClusterUnreachable"])
def test_reservation_on_the_hub_alone_outlasts_a_moment_without_an_answer(selector: str, reason: str) -> None:
    record = replace(LARGE, requirements=ClusterRequirements(selector=parse_selector(selector, "")))
    backfill, opened = Backfill(BOUNDS), snapshots_of(hub=0)
    before = backfill.renew([record], opened, at(0))
    silent = {"hub": replace(opened["hub"], closed=Closed(reason, "timed out"))}
    assert backfill.renew([record], silent, at(1)) == before


def test_no_reservation_begins_where_daemonsets_take_the_needed_capacity() -> None:
    snapshots = make_snapshots(
        a=make_cluster(1, 8, daemons=0.1).snapshot(), b=make_cluster(1, 8, foreign=1).snapshot()
    )
    assert kept(Backfill(BOUNDS, Running()).renew([LARGE], snapshots, at(0))) == {"large": "b"}


# --- in the plan ---------------------------------------------------------------------------------------------


def planned(
    snapshots: dict[str, ClusterSnapshot], reservation: Reservation | None, *others: Record
) -> list[Outcome]:
    reservations = {LARGE.uid: reservation} if reservation else {}
    return plan([LARGE, *others], snapshots, starved={LARGE.uid}, reservations=reservations)


SMALL = make_record(name="small")


def test_reservation_on_one_cluster_is_named_and_other_clusters_stay_open() -> None:
    large, small = planned(snapshots_of(a=2000, b=1000), replace(BEGUN, cluster="b", tried=("a", "b")), SMALL)
    assert isinstance(large, Waiting)
    assert large.pending == Pending(
        "InsufficientResources",
        "a (cpu: needs 8, 2 free), b (cpu: needs 8, 1 free); a backfill reservation keeps capacity for it on b "
        "until 2026-11-20 09:58:06 UTC, after a was not complete in time",
        "cpu",
        "b",
        clusters=(
            Rejection("a", "InsufficientResources", "cpu: needs 8, 2 free", "cpu"),
            Rejection("b", "InsufficientResources", "cpu: needs 8, 1 free", "cpu"),
        ),
    )
    assert large.is_head
    assert isinstance(small, Placed)
    assert small.cluster == "a"


def test_gang_whose_reservation_ended_keeps_nothing_and_the_next_is_the_head() -> None:
    rests = following(replace(BEGUN, until=at(0)), (), at(0), BOUNDS)
    other, small = make_record(name="other", gang=make_gang(cpu=3000)), SMALL
    outcomes = planned(snapshots_of(hub=1000), rests, other, small)
    assert [(type(each), getattr(each, "is_head", None)) for each in outcomes] == [
        (Waiting, False),
        (Waiting, True),
        (Placed, None),
    ]


def test_gang_that_fits_is_placed_whatever_is_reserved() -> None:
    (outcome,) = planned(snapshots_of(a=0, b=8000), BEGUN)
    assert isinstance(outcome, Placed)
    assert outcome.cluster == "b"


def test_each_backfill_reservation_is_noted_once_and_makes_one_event() -> None:
    record = queue_changes.block(make_record(), WAITS_ON_A, at(1))
    assert record is not None
    begun, again, moved, over = [
        queue_changes.block(record.after, pending, at(2))
        for pending in (
            noted(WAITS_ON_A, BEGUN),
            WAITS_ON_A,
            noted(WAITS_ON_A, replace(BEGUN, cluster="b")),
            noted(WAITS_ON_A, replace(BEGUN, cluster="")),
        )
    ]
    assert again is None
    for change in (begun, moved, over):
        assert change is not None
        assert [(event.cause, event.message) for event in change.events] == [
            ("blocked", change.after.pending.message if change.after.pending else "")
        ]
        assert queue_changes.block(change.after, change.after.pending or WAITS_ON_A, at(3)) is None
        assert queue_changes.block(change.after, WAITS_ON_A, at(3)) is not None


WAITS_ON_A = Pending("InsufficientResources", "cluster a: cpu: needs 8, 0 free", "cpu", "a")


def test_message_of_a_pending_gang_has_the_words_of_its_reservation() -> None:
    assert WAITS_ON_A.reservation == ""
    assert noted(WAITS_ON_A, BEGUN).reservation == BEGUN.words


def test_rejection_gives_the_amount_that_daemonsets_take_of_the_needed_capacity() -> None:
    (outcome,) = plan([LARGE], make_snapshots(hub=make_cluster(1, 8, daemons=0.25).snapshot()))
    said = (
        "cluster hub: cpu: needs 8, 7750m in all of it (of 8, 250m are taken by DaemonSets and static pods)"
    )
    assert outcome == Impossible(LARGE, Pending("LargerThanCluster", said, "cpu", "hub"))

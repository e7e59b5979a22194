"""One hub and many clusters: who goes to which, and what those that wait are told of each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements, Rejection
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.queues.queue import QueueingStrategy
from dispatcher.core.scheduling.cycle.outcomes import Impossible, NotEvaluated, Outcome, Placed, Waiting
from dispatcher.core.scheduling.fit.cluster_filters import Closed, ClusterSnapshot, rejection, score
from tests import sweeps
from tests.builders import make_gang, make_record, make_snapshot
from tests.one_queue import plan
from tests.unit.core.scheduling.clusters import JOB, KNOWN, RAY, WHERES, Known

UNREACHABLE = Closed("ClusterUnreachable", "its API server has not answered for 3 minutes")
EU = ClusterRequirements(selector=parse_selector("region=eu", ""))


def make_snapshot_of(name: str, cpu: int = 8000, taken: int = 0, **known: Any) -> ClusterSnapshot:  # noqa: ANN401
    """A cluster of so many cpus, of which so many are taken."""
    snapshot = make_snapshot(cpu=cpu, gpu=known.pop("gpu", 0))
    snapshot.take(Gang(Resources({"cpu": taken})))
    return ClusterSnapshot(name, snapshot, **known)


def by_name(*snapshots: ClusterSnapshot) -> dict[str, ClusterSnapshot]:
    return {snapshot.name: snapshot for snapshot in snapshots}


def outcome_of(cpu: int, requirements: ClusterRequirements, *snapshots: ClusterSnapshot) -> Outcome:
    (outcome,) = plan([make_record(gang=make_gang(cpu=cpu), requirements=requirements)], by_name(*snapshots))
    return outcome


def places(outcomes: list[Outcome]) -> list[str]:
    """The cluster of what is placed, else in a word what became of it."""
    return [each.cluster if isinstance(each, Placed) else type(each).__name__ for each in outcomes]


# --- who goes where ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirements", "snapshots", "expected"),
    [
        pytest.param(
            ANYWHERE, [make_snapshot_of("a", 64000), make_snapshot_of("b", 8000)], "b", id="the-one-it-fills"
        ),
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", 4000, closed=UNREACHABLE), make_snapshot_of("b")],
            "b",
            id="closed-is-passed-by",
        ),
        pytest.param(
            EU,
            [make_snapshot_of("a", 4000), make_snapshot_of("b", labels={"region": "eu"})],
            "b",
            id="selected",
        ),
        pytest.param(
            ClusterRequirements(kinds=frozenset({RAY})),
            [make_snapshot_of("a", 4000, missing_kinds=frozenset({RAY})), make_snapshot_of("b")],
            "b",
            id="kind-is-served",
        ),
        pytest.param(
            ClusterRequirements(ruled_out=frozenset({("a", "taken")})),
            [make_snapshot_of("a", 4000), make_snapshot_of("b")],
            "b",
            id="name-is-free",
        ),
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", 4000, taken=1), make_snapshot_of("b", 64000)],
            "b",
            id="too-full-for-it",
        ),
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", 2000), make_snapshot_of("b", 2000)],
            "Impossible",
            id="never-split",
        ),
        pytest.param(
            EU, [make_snapshot_of("a"), make_snapshot_of("b")], "Impossible", id="nobody-is-selected"
        ),
        pytest.param(
            ANYWHERE, [make_snapshot_of("a", closed=UNREACHABLE)], "Impossible", id="the-only-one-is-closed"
        ),
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", closed=UNREACHABLE), make_snapshot_of("b", 4000, taken=1)],
            "Waiting",
            id="for-others-to-finish",
        ),
    ],
)
def test_gang_of_four_cpus_goes_to(
    requirements: ClusterRequirements, snapshots: list[ClusterSnapshot], expected: str
) -> None:
    assert places([outcome_of(4000, requirements, *snapshots)]) == [expected]


def test_each_takes_from_the_cluster_it_goes_to() -> None:
    queue = [make_record(name=f"aw-{cpu}", gang=make_gang(cpu=1000 * cpu)) for cpu in (6, 7, 2, 1)]
    assert places(plan(queue, by_name(make_snapshot_of("a", 8000), make_snapshot_of("b", 7000)))) == [
        "b",
        "a",
        "Waiting",
        "a",
    ]


def test_gang_rejected_by_every_cluster_blocks_no_other_even_in_a_strict_queue() -> None:
    queue = [make_record(name="nowhere", requirements=EU), make_record(name="anywhere")]
    outcomes = plan(
        queue, by_name(make_snapshot_of("a"), make_snapshot_of("b")), QueueingStrategy.STRICT_FIFO
    )
    assert places(outcomes) == ["Impossible", "a"]


# --- what the others are told ------------------------------------------------------------------------


def test_every_cluster_has_its_rejection_and_the_nearest_gives_the_pending_reason() -> None:
    requirements = ClusterRequirements(
        selector=parse_selector("!spot", ""),
        namespace="team-a",
        kinds=frozenset({JOB}),
        ruled_out=frozenset({("f", "Job train is not ours")}),
    )
    outcome = outcome_of(
        4000,
        requirements,
        make_snapshot_of("g", 8000, taken=6000),
        make_snapshot_of("f"),
        make_snapshot_of("e", missing_namespaces=frozenset({"team-a"})),
        make_snapshot_of("d", missing_kinds=frozenset({JOB})),
        make_snapshot_of("c", closed=UNREACHABLE),
        make_snapshot_of("b", labels={"spot": ""}),
        make_snapshot_of("a", 2000),
    )
    larger, short = "cpu: needs 4, 2 in all of it", "cpu: needs 4, 2 free"
    expected = Pending(
        "InsufficientResources",
        "g (cpu: needs 4, 2 free), c (its API server has not answered for 3 minutes), "
        "d (it does not serve Job of batch/v1: install the CustomResourceDefinition there, "
        "or correct apiVersion and kind), e (it has no namespace team-a), f (Job train is not ours) "
        "and 2 more",
        "cpu",
        "g",
        (
            Rejection("a", "LargerThanCluster", larger, "cpu"),
            Rejection("b", "ClusterNotSelected", "its labels do not match !spot"),
            Rejection("c", "ClusterUnreachable", "its API server has not answered for 3 minutes"),
            Rejection(
                "d",
                "KindNotInstalled",
                "it does not serve Job of batch/v1: install the CustomResourceDefinition there, "
                "or correct apiVersion and kind",
            ),
            Rejection("e", "NamespaceMissing", "it has no namespace team-a"),
            Rejection("f", "NameTaken", "Job train is not ours"),
            Rejection("g", "InsufficientResources", short, "cpu"),
        ),
    )
    assert outcome == Waiting(outcome.record, expected, is_head=True)
    assert expected.mcad_message == "Cannot find a cluster with enough resources to dispatch AppWrapper."


@pytest.mark.parametrize(
    ("requirements", "snapshots", "reason", "cluster"),
    [
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", closed=UNREACHABLE), make_snapshot_of("b", taken=8000)],
            "InsufficientResources",
            "b",
            id="what-others-free-before-what-operators-mend",
        ),
        pytest.param(
            ANYWHERE,
            [make_snapshot_of("a", 1000), make_snapshot_of("b", closed=UNREACHABLE)],
            "ClusterUnreachable",
            "b",
            id="what-operators-mend-before-what-is-too-small",
        ),
        pytest.param(
            EU,
            [make_snapshot_of("a"), make_snapshot_of("b", 1000, labels={"region": "eu"})],
            "LargerThanCluster",
            "b",
            id="too-small-before-what-its-user-excludes",
        ),
        pytest.param(
            EU,
            [make_snapshot_of("b"), make_snapshot_of("a")],
            "ClusterNotSelected",
            "a",
            id="the-first-by-name",
        ),
    ],
)
def test_pending_reason_and_cluster_of_a_rejected_gang(
    requirements: ClusterRequirements, snapshots: list[ClusterSnapshot], reason: str, cluster: str
) -> None:
    outcome = outcome_of(4000, requirements, *snapshots)
    assert isinstance(outcome, Waiting | Impossible)
    assert (outcome.pending.reason, outcome.pending.cluster) == (reason, cluster)


def test_dispatched_gang_names_the_rejections_of_other_clusters() -> None:
    outcome = outcome_of(
        4000,
        ANYWHERE,
        make_snapshot_of("best", 4000),
        make_snapshot_of("larger", 16000),
        make_snapshot_of("full", 8000, taken=7000),
        make_snapshot_of("closed", closed=Closed("ClusterCordoned", "new switches")),
    )
    assert outcome == Placed(
        outcome.record,
        "best",
        "it fits larger, too; closed (new switches), full (cpu: needs 4, 1 free)",
    )


def test_hub_without_members_takes_any_gang_whatever_it_requires_of_clusters() -> None:
    outcome = outcome_of(4000, EU, make_snapshot_of("hub"))
    assert outcome == Placed(outcome.record, "hub")


def test_pending_reason_with_the_hub_alone_lists_no_rejections() -> None:
    outcome = outcome_of(4000, EU, make_snapshot_of("hub", 4000, taken=1))
    expected = Pending("InsufficientResources", "cluster hub: cpu: needs 4, 3999m free", "cpu", "hub")
    assert outcome == Waiting(outcome.record, expected, is_head=True)
    assert expected.mcad_message == "Insufficient resources to dispatch AppWrapper."


def test_pending_reason_with_a_single_member_lists_its_rejection() -> None:
    outcome = outcome_of(4000, ANYWHERE, make_snapshot_of("east", 4000, taken=1))
    short = "cpu: needs 4, 3999m free"
    clusters = (Rejection("east", "InsufficientResources", short, "cpu"),)
    expected = Pending("InsufficientResources", f"east ({short})", "cpu", "east", clusters)
    assert outcome == Waiting(outcome.record, expected, is_head=True)


def test_no_more_than_five_clusters_are_named_in_words() -> None:
    outcome = outcome_of(4000, EU, *(make_snapshot_of(f"c{number}") for number in range(7)))
    assert isinstance(outcome, Impossible)
    named = ", ".join(f"c{number} (its labels do not match region in (eu))" for number in range(5))
    assert outcome.pending.message == f"{named} and 2 more"
    assert len(outcome.pending.clusters) == 7


# --- protection of the starved -----------------------------------------------------------------------


def test_nothing_is_kept_where_the_starved_may_not_go() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=8000), requirements=EU)
    small = make_record(name="small", gang=make_gang(cpu=2000))
    snapshots = by_name(
        make_snapshot_of("a", taken=4000), make_snapshot_of("b", taken=4000, labels={"region": "eu"})
    )
    outcomes = plan(
        [starving, small, replace(small, uid="second"), replace(small, uid="third")],
        snapshots,
        starved={starving.uid},
    )
    assert places(outcomes) == ["Waiting", "a", "a", "Waiting"]
    last = outcomes[-1]
    assert isinstance(last, Waiting)
    assert [each.reason for each in last.pending.clusters] == ["InsufficientResources", "ReservedForAnother"]


def test_nothing_is_kept_on_a_cluster_that_is_closed() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=8000))
    small = make_record(name="small", gang=make_gang(cpu=1000))
    snapshots = by_name(make_snapshot_of("a", closed=UNREACHABLE), make_snapshot_of("b", 4000))
    assert places(plan([starving, small], snapshots, starved={starving.uid})) == ["Impossible", "b"]


# --- whatever the clusters ---------------------------------------------------------------------------


NAMES = ["east", "hub", "west"]
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu"]), st.integers(0, 6)).map(Resources)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, tuple[Resources, Resources, Known]]:
    """What each has, what is taken of it, and what is known of it."""
    return draw(st.dictionaries(st.sampled_from(NAMES), st.tuples(AMOUNTS, AMOUNTS, KNOWN), max_size=3))


@st.composite
def queues(draw: st.DrawFn) -> list[Record]:
    """A queue in which gangs and requirements come back, as they do."""
    gangs = draw(st.lists(st.builds(Gang, AMOUNTS), min_size=1, max_size=3))
    requirements = draw(st.lists(WHERES, min_size=1, max_size=3))
    shapes = draw(st.lists(st.tuples(st.sampled_from(gangs), st.sampled_from(requirements)), max_size=10))
    return [
        make_record(name=f"aw-{index}", gang=gang, requirements=requirements)
        for index, (gang, requirements) in enumerate(shapes)
    ]


def snapshots_of(drawn: dict[str, tuple[Resources, Resources, Known]]) -> dict[str, ClusterSnapshot]:
    snapshots = {}
    for name, (total, taken, known) in drawn.items():
        snapshot = make_snapshot(**total)
        snapshot.take(Gang(taken))
        snapshots[name] = ClusterSnapshot(name, snapshot, **known)
    return snapshots


@settings(max_examples=sweeps.examples(80), deadline=None)
@given(clusters(), queues())
def test_best_cluster_that_fits_gets_the_whole_gang(
    drawn: dict[str, tuple[Resources, Resources, Known]], queue: list[Record]
) -> None:
    """Step by step with somebody who knows no shapes, but for the hub alone, where there is nothing to choose."""
    snapshots, outcomes = snapshots_of(drawn), plan(queue, snapshots_of(drawn))
    has_choice = snapshots.keys() != {"hub"}
    assert [outcome.record for outcome in outcomes] == queue
    for outcome in outcomes:
        gang, requirements = outcome.record.gang, outcome.record.requirements if has_choice else ANYWHERE
        able = {
            name: snapshot.capacity.free_for(gang)
            for name, snapshot in snapshots.items()
            if rejection(requirements, snapshot) is None
            and gang.demand.fits_in(snapshot.capacity.free_for(gang))
        }
        best = min(
            (score(gang, requirements, snapshots[name], free) for name, free in able.items()), default=None
        )
        if best is None:
            assert not isinstance(outcome, Placed)
        else:
            assert isinstance(outcome, Placed)
            assert outcome.cluster == best.name
            snapshots[best.name].capacity.take(gang)


@settings(max_examples=sweeps.examples(80), deadline=None)
@given(clusters(), st.permutations(NAMES), queues(), st.sets(st.integers(0, 9), max_size=3))
def test_order_in_which_clusters_are_known_decides_nothing(
    drawn: dict[str, tuple[Resources, Resources, Known]],
    names: list[str],
    queue: list[Record],
    starving: set[int],
) -> None:
    uids = {f"uid-of-aw-{index}" for index in starving}
    reordered = {name: drawn[name] for name in names if name in drawn}
    assert plan(queue, snapshots_of(drawn), starved=uids) == plan(
        queue, snapshots_of(reordered), starved=uids
    )


def test_reservation_is_on_the_first_cluster_by_name() -> None:
    starving = make_record(name="starving", gang=make_gang(cpu=8000))
    small = make_record(name="small", gang=make_gang(cpu=1000))
    snapshots = by_name(make_snapshot_of("b", taken=4000), make_snapshot_of("a", taken=4000))
    assert places(plan([starving, small], snapshots, starved={starving.uid})) == ["Waiting", "b"]


@settings(max_examples=sweeps.examples(80), deadline=None)
@given(clusters(), queues(), st.sets(st.integers(0, 9), max_size=3), st.sampled_from(QueueingStrategy))
def test_no_cluster_takes_a_rejected_gang_or_more_than_it_has_whatever_is_reserved(
    drawn: dict[str, tuple[Resources, Resources, Known]],
    queue: list[Record],
    starving: set[int],
    policy: QueueingStrategy,
) -> None:
    snapshots = snapshots_of(drawn)
    placed = dict.fromkeys(snapshots, NOTHING)
    for outcome in plan(queue, snapshots, policy, {f"uid-of-aw-{index}" for index in starving}):
        if isinstance(outcome, Placed):
            required = outcome.record.requirements if snapshots.keys() != {"hub"} else ANYWHERE
            assert rejection(required, snapshots[outcome.cluster]) is None
            placed[outcome.cluster] += outcome.record.gang.demand
        elif not isinstance(outcome, NotEvaluated) and snapshots.keys() - {"hub"}:
            assert [each.cluster for each in outcome.pending.clusters] == sorted(snapshots)
    for name, (total, taken, _) in drawn.items():
        free = make_snapshot(**total).free_for(None) - taken
        assert snapshots[name].capacity.free_for(None) == free - placed[name]
        assert placed[name].fits_in(free)


def test_gang_of_a_kind_that_the_dispatcher_may_not_create_on_the_hub_alone_waits() -> None:
    alone = make_snapshot_of("hub", forbidden_kinds=frozenset({("team-a", RAY)}))
    outcome = outcome_of(4000, ClusterRequirements(namespace="team-a", kinds=frozenset({RAY})), alone)
    assert isinstance(outcome, Impossible)
    assert (outcome.pending.reason, outcome.pending.message) == (
        "KindNotInstalled",
        "cluster hub: it does not let the dispatcher create RayCluster of ray.io/v1 in namespace team-a: "
        "give the dispatcher's account the right to create it there",
    )
    elsewhere = ClusterRequirements(namespace="team-b", kinds=frozenset({RAY}))
    other_kind = ClusterRequirements(namespace="team-a", kinds=frozenset({JOB}))
    for goes in (elsewhere, other_kind):
        assert places([outcome_of(4000, goes, alone)]) == ["hub"]


def test_gang_of_a_kind_that_the_hub_alone_does_not_serve_waits() -> None:
    alone = make_snapshot_of("hub", missing_kinds=frozenset({RAY}))
    outcome = outcome_of(4000, ClusterRequirements(kinds=frozenset({RAY})), alone)
    assert isinstance(outcome, Impossible)
    assert (outcome.pending.reason, outcome.pending.message) == (
        "KindNotInstalled",
        "cluster hub: it does not serve RayCluster of ray.io/v1: install the CustomResourceDefinition there, "
        "or correct apiVersion and kind",
    )
    assert places([outcome_of(4000, ClusterRequirements(kinds=frozenset({JOB})), alone)]) == ["hub"]

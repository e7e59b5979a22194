"""Which clusters are out of the question, and which of the others is best: rule by rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.selector import EVERYTHING, parse_selector
from dispatcher.core.model.clusters.cluster_errors import ErrorCounts
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements, Rejection
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.fit.cluster_filters import (
    Closed,
    ClusterSnapshot,
    Score,
    effective,
    has_no_cluster_left,
    is_unreachable,
    may_open_soon,
    rejection,
    score,
)
from tests.builders import make_gang, make_snapshot
from tests.unit.core.scheduling.clusters import JOB, RAY

CORDONED = Closed("ClusterCordoned", "new racks on Friday")


def make_snapshot_of(name: str = "east", cpu: int = 8000, gpu: int = 0, **known: Any) -> ClusterSnapshot:  # noqa: ANN401
    """An idle cluster with so much."""
    return ClusterSnapshot(name, make_snapshot(cpu=cpu, gpu=gpu), **known)


@pytest.mark.parametrize(
    ("requirements", "known", "reason", "message"),
    [
        pytest.param(
            ClusterRequirements(selector=parse_selector("region=eu,!spot", "")),
            {"labels": {"region": "us", "spot": ""}},
            "ClusterNotSelected",
            "its labels do not match region in (eu), !spot",
            id="selector",
        ),
        pytest.param(ANYWHERE, {"closed": CORDONED}, "ClusterCordoned", "new racks on Friday", id="closed"),
        pytest.param(
            ClusterRequirements(kinds=frozenset({JOB, RAY})),
            {"missing_kinds": frozenset({RAY, ("v1", "Never")})},
            "KindNotInstalled",
            "it does not serve RayCluster of ray.io/v1: install the CustomResourceDefinition there, "
            "or correct apiVersion and kind",
            id="kind",
        ),
        pytest.param(
            ClusterRequirements(kinds=frozenset({RAY})),
            {"missing_kinds": frozenset({RAY}), "kind_hints": {RAY: "it is served as ray.io/v2"}},
            "KindNotInstalled",
            "it does not serve RayCluster of ray.io/v1 (it is served as ray.io/v2)",
            id="kind-with-a-hint",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a", kinds=frozenset({JOB, RAY})),
            {"forbidden_kinds": frozenset({("team-a", RAY), ("team-b", JOB)})},
            "KindNotInstalled",
            "it does not let the dispatcher create RayCluster of ray.io/v1 in namespace team-a: "
            "give the dispatcher's account the right to create it there",
            id="kind-that-the-dispatcher-may-not-create",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a", kinds=frozenset({JOB, RAY})),
            {"missing_kinds": frozenset({RAY}), "forbidden_kinds": frozenset({("team-a", JOB)})},
            "KindNotInstalled",
            "it does not serve RayCluster of ray.io/v1: install the CustomResourceDefinition there, "
            "or correct apiVersion and kind",
            id="kind-that-is-not-served-comes-first",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a"),
            {"missing_namespaces": frozenset({"team-a"})},
            "NamespaceMissing",
            "it has no namespace team-a",
            id="namespace",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a"),
            {"closed_namespaces": frozenset({"team-a"}), "creates_namespaces": True},
            "NamespaceNotEnabled",
            "its namespace team-a takes no gangs: label it dispatcher.codeflare.dev/dispatch=enabled there",
            id="namespace-that-has-not-opted-in",
        ),
        pytest.param(
            ClusterRequirements(ruled_out=frozenset({("west", "other"), ("east", "Job train is not ours")})),
            {},
            "NameTaken",
            "Job train is not ours",
            id="name",
        ),
        pytest.param(
            ClusterRequirements(selector=parse_selector("region=eu", "")),
            {"closed": CORDONED, "labels": {"region": "us"}},
            "ClusterNotSelected",
            "its labels do not match region in (eu)",
            id="what-its-user-excludes-comes-before-how-the-cluster-is",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a", kinds=frozenset({RAY})),
            {
                "closed": CORDONED,
                "missing_kinds": frozenset({RAY}),
                "missing_namespaces": frozenset({"team-a"}),
            },
            "ClusterCordoned",
            "new racks on Friday",
            id="one-that-is-closed-is-not-asked-for-more",
        ),
    ],
)
def test_cluster_is_rejected(
    requirements: ClusterRequirements, known: dict[str, Any], reason: str, message: str
) -> None:
    assert rejection(requirements, make_snapshot_of(**known)) == Rejection("east", reason, message)


def test_message_of_one_cluster_is_cut_short() -> None:
    found = rejection(ANYWHERE, make_snapshot_of(closed=Closed("ClusterCordoned", "x" * 1025)))
    assert found == Rejection("east", "ClusterCordoned", "x" * 1023 + "…")


@pytest.mark.parametrize(
    ("requirements", "known"),
    [
        pytest.param(ANYWHERE, {"missing_kinds": frozenset({RAY})}, id="nothing-required"),
        pytest.param(
            ClusterRequirements(selector=parse_selector("region in (eu)", "")),
            {"labels": {"region": "eu"}},
            id="selected",
        ),
        pytest.param(
            ClusterRequirements(prefers=parse_selector("region=eu", "")),
            {},
            id="what-is-preferred-is-not-required",
        ),
        pytest.param(
            ClusterRequirements(kinds=frozenset({JOB})), {"missing_kinds": frozenset({RAY})}, id="kind-served"
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a"),
            {"missing_namespaces": frozenset({"team-b"})},
            id="namespace-there",
        ),
        pytest.param(
            ClusterRequirements(namespace="team-a"),
            {"missing_namespaces": frozenset({"team-a"}), "creates_namespaces": True},
            id="namespace-can-be-created",
        ),
        pytest.param(
            ClusterRequirements(ruled_out=frozenset({("west", "taken")})), {}, id="name-taken-elsewhere"
        ),
    ],
)
def test_cluster_is_not_rejected(requirements: ClusterRequirements, known: dict[str, Any]) -> None:
    assert rejection(requirements, make_snapshot_of(**known)) is None


def test_equal_requirements_are_one_key_and_others_are_not() -> None:
    kinds, names = frozenset({JOB, RAY}), frozenset({("east", "taken")})
    one, other = (
        ClusterRequirements(
            parse_selector("a=b", ""),
            parse_selector("c", ""),
            "team",
            frozenset(kinds),
            frozenset(names),
        )
        for _ in range(2)
    )
    assert {one: 1}[other] == 1
    assert len({one, ANYWHERE, replace(one, prefers=EVERYTHING), replace(one, selector=EVERYTHING)}) == 4


def rated(requirements: ClusterRequirements, snapshot: ClusterSnapshot, **demand: int) -> Score:
    gang = make_gang(**demand)
    return score(gang, requirements, snapshot, snapshot.capacity.free_for(gang))


def test_score_is_exact_about_the_device_and_the_rest() -> None:
    snapshot = make_snapshot_of(cpu=9000, gpu=7, errors=ErrorCounts(2))
    assert rated(ANYWHERE, snapshot, cpu=1000, gpu=2) == Score(
        tenths=7, is_not_preferred=False, errors=2, left=(714285, 888888), name="east"
    )
    assert rated(ANYWHERE, snapshot, cpu=1000) == Score(8, False, 2, (0, 888888), "east")


@pytest.mark.parametrize(
    ("better", "worse", "requirements", "demand"),
    [
        pytest.param(
            make_snapshot_of("z", cpu=8000),
            make_snapshot_of("a", cpu=64000),
            ANYWHERE,
            {"cpu": 6000},
            id="it-fills-it-best",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=64000, gpu=2),
            make_snapshot_of("a", cpu=4000, gpu=8),
            ANYWHERE,
            {"cpu": 4000, "gpu": 2},
            id="of-devices-rather-than-of-the-rest",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=4000, gpu=2),
            make_snapshot_of("a", cpu=64000, gpu=2),
            ANYWHERE,
            {"cpu": 4000, "gpu": 2},
            id="of-the-rest-where-devices-are-equal",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8100, labels={"region": "eu"}),
            make_snapshot_of("a", cpu=8000),
            ClusterRequirements(prefers=parse_selector("region=eu", "")),
            {"cpu": 8000},
            id="preferred-where-it-fills-them-about-as-well",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8000),
            make_snapshot_of("a", cpu=64000, labels={"region": "eu"}),
            ClusterRequirements(prefers=parse_selector("region=eu", "")),
            {"cpu": 8000},
            id="filled-far-better-than-the-preferred",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8000, labels={"region": "eu"}, errors=ErrorCounts(9)),
            make_snapshot_of("a", cpu=8000),
            ClusterRequirements(prefers=parse_selector("region=eu", "")),
            {"cpu": 8000},
            id="preferred-before-fewer-errors",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8100),
            make_snapshot_of("a", cpu=8000, errors=ErrorCounts(1)),
            ANYWHERE,
            {"cpu": 8000},
            id="fewer-errors-where-it-fills-them-about-as-well",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8100),
            make_snapshot_of("a", cpu=8000, errors=ErrorCounts(0, {"tenant": 1})),
            ClusterRequirements(namespace="tenant"),
            {"cpu": 8000},
            id="fewer-errors-at-gangs-of-its-namespace",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8000, errors=ErrorCounts(0, {"tenant": 99})),
            make_snapshot_of("a", cpu=8100),
            ClusterRequirements(namespace="other"),
            {"cpu": 8000},
            id="errors-at-gangs-of-another-namespace-do-not-count",
        ),
        pytest.param(
            make_snapshot_of("z", cpu=8000),
            make_snapshot_of("a", cpu=8100),
            ANYWHERE,
            {"cpu": 8000},
            id="filled-a-bit-better",
        ),
        pytest.param(
            make_snapshot_of("a"), make_snapshot_of("z"), ANYWHERE, {"cpu": 8000}, id="the-first-by-name"
        ),
        pytest.param(
            make_snapshot_of("a", cpu=9),
            make_snapshot_of("z"),
            ANYWHERE,
            {"cpu": 0},
            id="who-asks-for-nothing",
        ),
    ],
)
def test_better_cluster(
    better: ClusterSnapshot, worse: ClusterSnapshot, requirements: ClusterRequirements, demand: dict[str, int]
) -> None:
    assert rated(requirements, better, **demand) < rated(requirements, worse, **demand)


def test_reserve_is_neither_free_nor_part_of_the_total() -> None:
    idle = make_snapshot(cpu=8000, gpu=2)
    snapshot = idle.without(Resources({"cpu": 1000}))
    gang = make_gang()
    assert snapshot.total_for(gang) == Resources({"cpu": 7000, "nvidia.com/gpu": 2})
    snapshot.take(gang)
    assert snapshot.free_for(gang) == Resources({"cpu": 6000, "nvidia.com/gpu": 2})
    assert snapshot.copy() == snapshot
    assert idle.free_for(gang) == Resources({"cpu": 8000, "nvidia.com/gpu": 2})
    assert idle.without(Resources({"cpu": 1000})) != idle


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        pytest.param(ANYWHERE, False, id="goes-anywhere"),
        pytest.param(ANYWHERE.without("east", "taken"), False, id="one-is-left"),
        pytest.param(ANYWHERE.without("east", "taken").without("west", "taken"), True, id="all-ruled-out"),
        pytest.param(
            ClusterRequirements(selector=parse_selector("zone=e", "")).without("east", "taken"),
            True,
            id="the-other-is-excluded",
        ),
        pytest.param(ANYWHERE.without("gone", "taken"), False, id="one-that-is-not-declared-any-more"),
    ],
)
def test_gang_excluded_from_every_cluster_has_no_cluster_left(
    requirements: ClusterRequirements, expected: bool
) -> None:
    assert has_no_cluster_left(requirements, {"east": {"zone": "e"}, "west": {"zone": "w"}}) is expected


def test_reason_of_a_cluster_that_is_ruled_out_again_is_the_last() -> None:
    assert ANYWHERE.without("east", "one").without("east", "two").ruled_out == {("east", "two")}


@pytest.mark.parametrize(
    ("reason", "unreachable", "soon_open"),
    [
        ("ClusterNotConnected", True, False),
        ("ClusterNotReported", True, True),
        ("ClusterUnreachable", True, True),
        ("ClusterCredentialsRefused", True, False),
        ("ClusterAnswersTooLarge", True, False),
        ("ClusterIsAnother", True, False),
        ("ClusterRemoved", True, True),
        ("ClusterCordoned", False, False),
        ("ClusterDraining", False, False),
        ("MembersUnknown", False, True),
    ],
)
def test_reason_says_whether_a_closed_cluster_answers_and_may_open_soon(
    reason: str, unreachable: bool, soon_open: bool
) -> None:
    closed = Closed(reason, "")
    assert (is_unreachable(closed), may_open_soon(closed)) == (unreachable, soon_open)


def test_open_cluster_is_not_unreachable() -> None:
    assert not is_unreachable(None)
    assert not may_open_soon(None)


def test_on_the_hub_alone_only_kinds_in_the_namespace_count() -> None:
    asked = ClusterRequirements(parse_selector("gpu=a100", ""), EVERYTHING, "team-a", frozenset({RAY}))
    assert effective(asked, ["hub"]) == ClusterRequirements(namespace="team-a", kinds=frozenset({RAY}))
    assert (effective(ANYWHERE, ["hub"]), effective(asked, ["hub", "east"])) == (ANYWHERE, asked)

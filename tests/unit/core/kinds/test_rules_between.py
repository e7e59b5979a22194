"""Which pod sets of one object are away from or near to others, by required affinity between their templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.core.kinds.fields import ConstraintError
from dispatcher.core.kinds.pods.affinity import MOST_LINKED
from dispatcher.core.kinds.pods.podsets import pods_of, readable_pods_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.clusters.nodes import HOSTNAME

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
WORKERS = {"labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}}}


def template(*repelling: Mapping[str, object], labels: object = None) -> dict[str, Any]:
    terms = [{"topologyKey": HOSTNAME, **each} for each in repelling]
    affinity = {"affinity": {"podAntiAffinity": {REQUIRED: terms}}} if terms else {}
    return {"metadata": {"labels": labels}, "spec": {"containers": [{}], **affinity}}


def attracted(*attracting: Mapping[str, object]) -> dict[str, Any]:
    terms = [{"topologyKey": ZONE, **each} for each in attracting]
    return {"spec": {"containers": [{}], "affinity": {"podAffinity": {REQUIRED: terms}}}}


def cluster(
    head: Mapping[str, Any], *workers: Mapping[str, Any], replicas: tuple[int, ...] = ()
) -> dict[str, Any]:
    numbers = replicas or (2,) * len(workers)
    groups = [
        {"groupName": f"g{at}", "replicas": number, "template": each}
        for at, (each, number) in enumerate(zip(workers, numbers, strict=True))
    ]
    return {
        "kind": "RayCluster",
        "metadata": {"name": "x", "namespace": "mine"},
        "spec": {"headGroupSpec": {"template": head}, "workerGroupSpecs": groups},
    }


def away(wrapped: Mapping[str, Any]) -> list[tuple[tuple[str, int], ...]]:
    found = pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], wrapped)
    assert readable_pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], wrapped) == found
    return [each.away for each in found.sets]


HEAD_AND_WORKERS = [((HOSTNAME, 1),), ((HOSTNAME, -1),)]
NONE = [(), ()]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        pytest.param(WORKERS, HEAD_AND_WORKERS, id="label-of-an-operator"),
        pytest.param({"labelSelector": {"matchLabels": {"app": "w"}}}, HEAD_AND_WORKERS, id="own-label"),
        pytest.param({"labelSelector": {}}, HEAD_AND_WORKERS, id="all-pods"),
        pytest.param({}, NONE, id="no-pods"),
        pytest.param({"labelSelector": {"matchLabels": {"app": "h"}}}, NONE, id="only-itself"),
        pytest.param({**WORKERS, "namespaces": ["mine"]}, HEAD_AND_WORKERS, id="own-namespace"),
        pytest.param({**WORKERS, "namespaces": ["other"]}, NONE, id="other-namespace"),
        pytest.param({**WORKERS, "matchLabelKeys": ["team"]}, HEAD_AND_WORKERS, id="value-of-both"),
        pytest.param({**WORKERS, "matchLabelKeys": ["app"]}, NONE, id="values-differ"),
        pytest.param({**WORKERS, "matchLabelKeys": ["pod-template-hash"]}, NONE, id="templates-differ"),
        pytest.param({**WORKERS, "mismatchLabelKeys": ["app"]}, NONE, id="pods-of-other-values-are-not-read"),
    ],
)
def test_head_is_away_from_workers_that_its_term_selects(
    term: Mapping[str, object], expected: list[tuple[tuple[str, int], ...]]
) -> None:
    head = template(term, labels={"app": "h", "team": "a"})
    assert away(cluster(head, template(labels={"app": "w", "team": "a"}))) == expected


def spread(**selector: object) -> dict[str, Any]:
    constraint = {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    return {
        "metadata": {"labels": {"app": "train"}},
        "spec": {"containers": [{}], "topologySpreadConstraints": [constraint]},
    }


CLUSTER = {"ray.io/cluster": "x"}


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        pytest.param([spread(matchLabels=CLUSTER)] * 3, [(1, 2), (-1, 1), (-2, -1)], id="all-of-a-cluster"),
        pytest.param([template(), spread(matchLabels=CLUSTER)], [None, (-1,)], id="workers-alone-are-spread"),
        pytest.param([template(), spread(matchLabels={"app": "train"})], [None, ()], id="own-pods-alone"),
        pytest.param(
            [template(), spread(), spread(matchLabels=WORKERS["labelSelector"]["matchLabels"])],
            [None, (-1, 1), (-1,)],
            id="selectors-differ",
        ),
    ],
)
def test_spread_counts_the_pods_of_the_templates_that_it_selects(
    templates: list[dict[str, Any]], expected: list[tuple[int, ...] | None]
) -> None:
    found = pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], cluster(*templates))
    assert [each.spread[0].counts if each.spread else None for each in found.sets] == expected


def test_each_template_names_the_others_by_their_distance() -> None:
    third = {"labelSelector": {"matchLabels": {"ray.io/group": "g1"}}, "topologyKey": ZONE}
    wrapped = cluster(template(WORKERS), template(third), template(WORKERS))
    assert away(wrapped) == [
        ((HOSTNAME, 1), (HOSTNAME, 2)),
        ((HOSTNAME, -1), (HOSTNAME, 1), (ZONE, 1)),
        ((HOSTNAME, -2), (HOSTNAME, -1), (ZONE, -1)),
    ]


def test_template_without_pods_has_no_place_among_the_others() -> None:
    wrapped = cluster(template(WORKERS), template(), template(), replicas=(0, 1))
    assert away(wrapped) == HEAD_AND_WORKERS


@pytest.mark.parametrize(("workers", "are_read"), [(MOST_LINKED - 1, True), (MOST_LINKED, False)])
def test_rules_between_many_templates_are_not_read(workers: int, are_read: bool) -> None:
    found = away(cluster(template(WORKERS), *[template()] * workers))
    assert [bool(each) for each in found] == [are_read] * (workers + 1)


@pytest.mark.parametrize(("terms", "are_read"), [(2 * MOST_LINKED, True), (2 * MOST_LINKED + 1, False)])
def test_rules_of_many_terms_are_not_read(terms: int, are_read: bool) -> None:
    found = away(cluster(template(*[WORKERS] * (terms - 1)), template(HEAD)))
    assert [bool(each) for each in found] == [are_read] * 2


def test_term_about_other_templates_is_not_about_its_own_pods() -> None:
    found = pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], cluster(template(WORKERS), template())).sets
    assert [each.apart for each in found] == [(), ()]


def test_malformed_labels_of_a_template_matter_to_terms_of_the_others() -> None:
    wrapped = cluster(template(WORKERS), template(labels="none"))
    path = r"spec.workerGroupSpecs\[0\].template.metadata.labels: must be an object"
    for read in (pods_of, readable_pods_of):
        with pytest.raises(ConstraintError, match=path):
            read(BUILT_IN.derivable["ray.io", "RayCluster"], wrapped)
    assert away(cluster(template(), template(labels="none"))) == NONE


HEAD = {"labelSelector": {"matchLabels": {"ray.io/node-type": "head"}}}
ALL = {"labelSelector": {"matchLabels": {"ray.io/cluster": "x"}}}
FIRST, SECOND = ({"labelSelector": {"matchLabels": {"ray.io/group": group}}} for group in ("g0", "g1"))
Near = tuple[tuple[str, tuple[int, ...]], ...]


@pytest.mark.parametrize(
    ("templates", "near", "together"),
    [
        pytest.param(
            [attracted(WORKERS), template(), template()],
            [((ZONE, (1, 2)),), (), ()],
            [False, False, False],
            id="one-of-the-others-is-enough",
        ),
        pytest.param(
            [template(), attracted(HEAD), attracted(HEAD)],
            [(), ((ZONE, (-1,)),), ((ZONE, (-2,)),)],
            [False, False, False],
            id="workers-follow-the-head",
        ),
        pytest.param(
            [attracted(ALL), attracted(ALL), attracted(ALL)],
            [((ZONE, (1,)), (ZONE, (2,))), ((ZONE, (-1,)), (ZONE, (1,))), ((ZONE, (-2,)), (ZONE, (-1,)))],
            [True, True, True],
            id="all-in-one-domain",
        ),
        pytest.param(
            [attracted(ALL), attracted(HEAD), template()],
            [((ZONE, (1,)),), ((ZONE, (-1,)),), ()],
            [True, False, False],
            id="those-that-attract-each-other-before-others",
        ),
        pytest.param(
            [attracted(FIRST, SECOND), template(), template()],
            [((ZONE, (1,)), (ZONE, (2,))), (), ()],
            [False, False, False],
            id="each-term-holds",
        ),
        pytest.param(
            [attracted({**FIRST, "topologyKey": HOSTNAME}), attracted(HEAD), template()],
            [((HOSTNAME, (1,)),), ((ZONE, (-1,)),), ()],
            [False, False, False],
            id="by-different-labels",
        ),
        pytest.param(
            [attracted({"labelSelector": None}), attracted({**HEAD, "namespaces": ["other"]}), template()],
            [(), (), ()],
            [False, False, False],
            id="no-pods-of-the-object",
        ),
    ],
)
def test_pod_sets_are_near_the_pod_sets_that_their_affinity_terms_select(
    templates: list[dict[str, Any]], near: list[Near], together: list[bool]
) -> None:
    found = pods_of(BUILT_IN.derivable["ray.io", "RayCluster"], cluster(*templates)).sets
    assert [each.near for each in found] == near
    assert [each.together == (ZONE,) for each in found] == together
    assert [each.away for each in found] == [(), (), ()]

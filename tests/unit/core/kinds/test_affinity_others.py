"""Which terms about pods are compared with the pods of others, and by which labels others select the pods of a gang."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.core.kinds.demand import DemandError
from dispatcher.core.kinds.pods.affinity import MOST_CONDITIONS, MOST_NAMESPACES, MOST_TERMS, repelling_terms
from dispatcher.core.model.clusters.nodes import LabelOperator, LabelRequirement
from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.term_bounds import MOST_OF_GANGS, Breadth
from tests.builders import gang_of
from tests.cluster.manifests import appwrapper, item, job

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
Json = dict[str, Any]


def labelled(name: str, labels: Json, affinity: Json | None = None) -> Json:
    found = job(name)
    template = found["spec"]["template"]
    template["metadata"] = {"labels": labels}
    template["spec"]["affinity"] = affinity
    return found


def spec_of(*wrapped: Json) -> AppWrapperSpec:
    return parse_spec(appwrapper("aw", *map(item, wrapped))["spec"], namespace="team")


def pod_set(affinity: Json | None = None, **labels: str) -> PodSet:
    (found,) = gang_of(spec_of(labelled("x", labels, affinity))).pod_sets
    return found


def anti(**term: object) -> Json:
    return {"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, **term}]}}


def near(**term: object) -> Json:
    return {"podAffinity": {REQUIRED: [{"topologyKey": ZONE, **term}]}}


def has(key: str, value: str, operator: LabelOperator = LabelOperator.IN) -> LabelRequirement:
    return LabelRequirement(key, operator, (value,))


WEB = {"matchLabels": {"app": "web"}}


@pytest.mark.parametrize(
    ("term", "namespaces", "conditions"),
    [
        pytest.param({"labelSelector": WEB}, {"team"}, (has("app", "web"),), id="own-namespace"),
        pytest.param(
            {"labelSelector": WEB, "namespaces": ["x", "y"]}, {"x", "y"}, (has("app", "web"),), id="listed"
        ),
        pytest.param({"labelSelector": {}}, {"team"}, (), id="every-pod"),
        pytest.param(
            {"labelSelector": WEB, "namespaceSelector": {}}, None, (has("app", "web"),), id="every-namespace"
        ),
        pytest.param(
            {"labelSelector": WEB, "matchLabelKeys": ["run", "absent"]},
            {"team"},
            (has("app", "web"), has("run", "7")),
            id="match-label-keys",
        ),
        pytest.param(
            {"labelSelector": WEB, "mismatchLabelKeys": ["run"]},
            {"team"},
            (has("app", "web"), has("run", "7", LabelOperator.NOT_IN)),
            id="mismatch-label-keys",
        ),
    ],
)
def test_term_is_read_as_kube_scheduler_reads_it(
    term: Json, namespaces: set[str] | None, conditions: tuple[LabelRequirement, ...]
) -> None:
    expected = PodTerm(ZONE, None if namespaces is None else frozenset(namespaces), conditions)
    repelling = pod_set(anti(**term), run="7")
    assert repelling.repels == (expected,)
    assert repelling.sort is not None
    assert repelling.sort.repels == (expected,)
    assert pod_set(near(**term), run="7").attracts == (expected,)


@pytest.mark.parametrize(
    "term",
    [
        pytest.param({}, id="no-selector"),
        pytest.param({"labelSelector": WEB, "namespaceSelector": WEB}, id="namespaces-by-labels"),
        pytest.param(
            {"labelSelector": {"matchLabels": {"statefulset.kubernetes.io/pod-name": "a"}}}, id="one-pod"
        ),
    ],
)
def test_term_that_cannot_be_compared_is_left_out(term: Json) -> None:
    assert pod_set(anti(**term)).repels == ()


@pytest.mark.parametrize("namespaces", [None, ["other"]])
def test_term_that_names_the_object_of_its_pods_concerns_no_pods_of_others(
    namespaces: list[str] | None,
) -> None:
    term: Json = {"labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "x"}}}
    if namespaces:
        term["namespaces"] = namespaces
    found = pod_set(anti(**term)), pod_set(near(**term))
    assert (bool(found[0].repels), bool(found[1].attracts)) == (bool(namespaces), bool(namespaces))
    assert (found[0].apart, found[1].together) == (() if namespaces else (ZONE,),) * 2


def test_affinity_of_which_one_term_names_the_own_object_concerns_no_pods_of_others() -> None:
    terms = [
        {"topologyKey": ZONE, "labelSelector": {"matchLabels": labels}}
        for labels in ({"job-name": "x"}, {"app": "web"})
    ]
    assert pod_set({"podAffinity": {REQUIRED: terms}}, app="web").attracts == ()


def test_template_without_terms_has_the_labels_by_which_others_select_its_pods() -> None:
    sort = pod_set(app="web").sort
    added = {"batch.kubernetes.io/job-name": "x", "job-name": "x"}
    assert sort == PodSort.of("team", {"app": "web", **added}.items())


def test_malformed_labels_without_terms_are_for_the_api_server_to_refuse() -> None:
    spec = spec_of(labelled("x", {"app": 7}))
    assert gang_of(spec).pod_sets[0].sort is None


def test_rules_hold_between_the_templates_of_different_wrapped_objects() -> None:
    front = labelled("front", {"app": "front"}, anti(labelSelector=WEB))
    web = labelled("web", {"app": "web"}, near(labelSelector={"matchLabels": {"app": "front"}}))
    first, second = gang_of(spec_of(front, web)).pod_sets
    assert (first.away, first.near) == (((ZONE, 1),), ())
    assert (second.away, second.near) == (((ZONE, -1),), ((ZONE, (-1,)),))


def terms(count: int, **term: object) -> list[Json]:
    return [
        {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"n": f"{n}"}}, **term} for n in range(count)
    ]


def existing(key: str, count: int) -> Json:
    return {"matchExpressions": [{"key": f"{key}-{n}", "operator": "Exists"} for n in range(count)]}


NAMESPACES = [f"ns-{each}" for each in range(MOST_NAMESPACES // 2 + 1)]
TOO_MANY = [
    pytest.param(terms(MOST_TERMS + 1), "has 65 entries, and at most 64 are taken", id="terms"),
    pytest.param(
        terms(2, namespaces=NAMESPACES),
        "names 66 namespaces in all, and at most 64 are taken",
        id="namespaces-of-all-terms",
    ),
    pytest.param(
        [{"topologyKey": ZONE, "labelSelector": existing(key, MOST_CONDITIONS // 2 + 1)} for key in "ab"],
        "has 258 conditions, and at most 256 are taken",
        id="conditions-of-all-terms",
    ),
]


@pytest.mark.parametrize("rule", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(("written", "words"), TOO_MANY)
def test_template_with_too_many_terms_or_too_large_ones_is_refused(
    rule: str, written: list[Json], words: str
) -> None:
    with pytest.raises(DemandError, match=words) as refused:
        pod_set({rule: {REQUIRED: written}})
    assert refused.value.path.endswith(f"{rule}.{REQUIRED}")


@pytest.mark.parametrize(("written", "words"), TOO_MANY)
def test_pod_with_too_many_terms_or_too_large_ones_repels_every_pod(written: list[Json], words: str) -> None:
    pod = {"metadata": {"namespace": "team"}, "spec": {"affinity": {"podAntiAffinity": {REQUIRED: written}}}}
    assert words
    assert repelling_terms(pod) == (PodTerm(ZONE, None),)


def test_pod_with_too_many_topologies_repels_every_pod_by_the_well_known_ones() -> None:
    written = [{**each, "topologyKey": f"t-{number}"} for number, each in enumerate(terms(MOST_TERMS + 1))]
    pod = {"metadata": {"namespace": "team"}, "spec": {"affinity": {"podAntiAffinity": {REQUIRED: written}}}}
    assert [each.topology for each in repelling_terms(pod)] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/region",
        ZONE,
    ]


def unlabelled(count: int, start: int = 0) -> Json:
    """Terms that no label of their pods narrows."""
    written = [
        {
            "topologyKey": ZONE,
            "labelSelector": {"matchExpressions": [{"key": f"k{n}", "operator": "DoesNotExist"}]},
        }
        for n in range(start, start + count)
    ]
    return {"podAntiAffinity": {REQUIRED: written}}


def test_gang_with_more_terms_than_its_namespace_may_have_in_the_queue_is_refused() -> None:
    most = MOST_OF_GANGS[Breadth.UNLABELLED]
    half = [labelled(f"j-{n}", {"app": "x"}, unlabelled(most // 2, n * most // 2)) for n in range(3)]
    assert len(gang_of(spec_of(*half[:2])).pod_sets) == 2
    same = [labelled(f"j-{n}", {"app": "x"}, unlabelled(most)) for n in range(3)]
    assert len(gang_of(spec_of(*same)).pod_sets) == 3
    with pytest.raises(DemandError, match="spec: has 24 different terms about pods that name no label which"):
        gang_of(spec_of(*half))

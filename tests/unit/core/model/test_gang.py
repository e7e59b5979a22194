"""Gangs, and the nodes and taints that their pods tolerate."""

from __future__ import annotations

import pytest

from dispatcher.core.model.clusters.nodes import (
    UNLIMITED_PODS,
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    NodeTerm,
    Taint,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.resources import Resources

GPU = Taint("nvidia.com/gpu", "present", "NoSchedule")
DRAIN = Taint("drain", "", "NoExecute")
SPOT = Taint("spot", "true", "PreferNoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        pytest.param(Toleration("nvidia.com/gpu", "Equal", "present", "NoSchedule"), True, id="all-equal"),
        pytest.param(Toleration("nvidia.com/gpu", value="present"), True, id="any-effect"),
        pytest.param(Toleration("nvidia.com/gpu", "Exists"), True, id="any-value"),
        pytest.param(Toleration(operator="Exists"), True, id="everything"),
        pytest.param(Toleration(operator="Exists", effect="NoSchedule"), True, id="everything-of-an-effect"),
        pytest.param(Toleration(operator="Exists", effect="NoExecute"), False, id="another-effect"),
        pytest.param(Toleration("amd.com/gpu", "Exists"), False, id="another-key"),
        pytest.param(Toleration("nvidia.com/gpu", value="absent"), False, id="another-value"),
        pytest.param(Toleration("nvidia.com/gpu"), False, id="empty-value-is-a-value"),
        pytest.param(Toleration(), False, id="no-key-without-exists"),
        pytest.param(Toleration("nvidia.com/gpu", "Gt", "present"), False, id="operator-we-do-not-know"),
    ],
)
def test_toleration_covers_taints_as_kubernetes_says(toleration: Toleration, covers: bool) -> None:
    assert toleration.covers(GPU) is covers


def pod_set(*tolerations: Toleration) -> PodSet:
    return PodSet(1, Resources({"cpu": 1}), tolerations)


def test_pods_need_a_toleration_for_every_taint_that_keeps_pods_away() -> None:
    assert pod_set().tolerates(())
    assert pod_set().tolerates((SPOT,))
    assert not pod_set().tolerates((SPOT, GPU))
    assert not pod_set(Toleration("nvidia.com/gpu", "Exists")).tolerates((GPU, DRAIN))
    assert pod_set(Toleration("nvidia.com/gpu", "Exists"), Toleration("drain")).tolerates((GPU, DRAIN))


def test_gang_tolerates_only_what_all_of_its_pods_tolerate() -> None:
    tolerant, plain = pod_set(Toleration(operator="Exists")), pod_set()
    assert Gang(pod_sets=(tolerant,)).tolerates((GPU,))
    assert not Gang(pod_sets=(tolerant, plain)).tolerates((GPU,))


def test_gang_without_pod_sets_tolerates_no_taint_that_keeps_pods_away() -> None:
    assert Gang().tolerates((SPOT,))
    assert not Gang().tolerates((GPU,))


LABELS = {
    "gpu": "a100",
    "zone": "west",
    "cores": "64",
    "empty": "",
    "grouped": "1_0",
    "arabic": "\N{ARABIC-INDIC DIGIT ONE}",
    "spaced": " 1",
    "largest": str(2**63 - 1),
    "too-large": str(2**63),
    "endless": "1" * 10_000,
}


@pytest.mark.parametrize(
    ("requirement", "matches"),
    [
        pytest.param(LabelRequirement("gpu", LabelOperator.IN, ("h100", "a100")), True, id="in"),
        pytest.param(LabelRequirement("gpu", LabelOperator.IN, ("h100",)), False, id="in-another-value"),
        pytest.param(LabelRequirement("rack", LabelOperator.IN, ("",)), False, id="absent-is-not-empty"),
        pytest.param(LabelRequirement("empty", LabelOperator.IN, ("",)), True, id="in-the-empty-value"),
        pytest.param(LabelRequirement("gpu", LabelOperator.NOT_IN, ("a100",)), False, id="not-in"),
        pytest.param(
            LabelRequirement("rack", LabelOperator.NOT_IN, ("a100",)), True, id="not-in-of-an-absent-label"
        ),
        pytest.param(LabelRequirement("empty", LabelOperator.EXISTS), True, id="exists"),
        pytest.param(LabelRequirement("rack", LabelOperator.EXISTS), False, id="does-not-exist"),
        pytest.param(LabelRequirement("rack", LabelOperator.DOES_NOT_EXIST), True, id="absent"),
        pytest.param(LabelRequirement("gpu", LabelOperator.DOES_NOT_EXIST), False, id="present"),
        pytest.param(LabelRequirement("cores", LabelOperator.GT, ("63",)), True, id="greater"),
        pytest.param(LabelRequirement("cores", LabelOperator.GT, ("64",)), False, id="equal-is-not-greater"),
        pytest.param(LabelRequirement("cores", LabelOperator.LT, ("65",)), True, id="less"),
        pytest.param(LabelRequirement("gpu", LabelOperator.LT, ("65",)), False, id="no-number"),
        pytest.param(LabelRequirement("rack", LabelOperator.GT, ("0",)), False, id="absent-number"),
        pytest.param(LabelRequirement("cores", LabelOperator.GT, ("+063",)), True, id="sign-and-zeros"),
        pytest.param(LabelRequirement("grouped", LabelOperator.GT, ("0",)), False, id="underscore-in-label"),
        pytest.param(
            LabelRequirement("cores", LabelOperator.GT, ("1_0",)), False, id="underscore-in-operand"
        ),
        pytest.param(LabelRequirement("arabic", LabelOperator.GT, ("0",)), False, id="digits-beyond-ascii"),
        pytest.param(LabelRequirement("spaced", LabelOperator.GT, ("0",)), False, id="space"),
        pytest.param(LabelRequirement("largest", LabelOperator.GT, ("0",)), True, id="largest"),
        pytest.param(LabelRequirement("too-large", LabelOperator.GT, ("0",)), False, id="beyond-64-bits"),
        pytest.param(LabelRequirement("endless", LabelOperator.GT, ("0",)), False, id="digits-without-end"),
    ],
)
def test_label_requirement_matches_as_kubernetes_says(requirement: LabelRequirement, matches: bool) -> None:
    assert requirement.matches(LABELS) is matches


IN_WEST = LabelRequirement("zone", LabelOperator.IN, ("west",))
NAMED = LabelRequirement("metadata.name", LabelOperator.IN, ("n1",))


@pytest.mark.parametrize(
    ("requirements", "matches"),
    [
        pytest.param(NodeRequirements(), True, id="nothing"),
        pytest.param(NodeRequirements((("gpu", "a100"), ("zone", "west"))), True, id="all-of-a-selector"),
        pytest.param(NodeRequirements((("gpu", "a100"), ("zone", "east"))), False, id="one-of-a-selector"),
        pytest.param(NodeRequirements(terms=(NodeTerm((IN_WEST,)),)), True, id="term"),
        pytest.param(NodeRequirements(terms=(NodeTerm(), NodeTerm((IN_WEST,)))), True, id="second-term"),
        pytest.param(NodeRequirements(terms=(NodeTerm(),)), False, id="empty-term-matches-nothing"),
        pytest.param(NodeRequirements(terms=(NodeTerm((IN_WEST,), (NAMED,)),)), True, id="label-and-name"),
        pytest.param(
            NodeRequirements((("zone", "east"),), (NodeTerm((IN_WEST,)),)), False, id="both-must-hold"
        ),
    ],
)
def test_node_requirements_are_a_selector_and_one_of_the_terms(
    requirements: NodeRequirements, matches: bool
) -> None:
    assert requirements.matches("n1", LABELS) is matches


def test_term_about_another_name_does_not_match() -> None:
    assert not NodeTerm(names=(NAMED,)).matches("n2", LABELS)


def test_requirements_in_words() -> None:
    requirements = NodeRequirements(
        (("gpu", "a100"),),
        (NodeTerm((IN_WEST,)), NodeTerm((LabelRequirement("spot", LabelOperator.EXISTS),))),
    )
    assert str(requirements) == "gpu=a100; zone=west or spot"


@pytest.mark.parametrize(
    ("allocatable", "most_pods", "limit"),
    [
        pytest.param({"cpu": 1}, None, UNLIMITED_PODS, id="no-limit"),
        pytest.param({"pods": 110}, None, 110, id="by-amount"),
        pytest.param({"pods": 110}, 2, 2, id="listed-before-amount"),
        pytest.param({}, 0, 0, id="no-pod-at-all"),
    ],
)
def test_pod_limit_of_a_node(allocatable: dict[str, int], most_pods: int | None, limit: int) -> None:
    assert Node("n1", Resources(allocatable), most_pods=most_pods).pod_limit == limit

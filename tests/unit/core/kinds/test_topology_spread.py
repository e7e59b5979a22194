"""Which topology spread constraints of a template count, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.core.kinds.fields import ConstraintError
from dispatcher.core.kinds.pods.affinity import MOST_CONDITIONS, MOST_SPREADS
from dispatcher.core.kinds.pods.podsets import pods_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.clusters.nodes import HOSTNAME, LabelOperator, LabelRequirement, NodeRequirements
from dispatcher.core.model.gangs.gang import PodSet, Spread
from dispatcher.core.model.gangs.pod_terms import PodTerm

ZONE = "topology.kubernetes.io/zone"
OWN = {"app": "train", "role": "worker"}


def others(namespace: str = "", **labels: str) -> PodTerm:
    """The pods of others that count for a spread."""
    conditions = tuple(LabelRequirement(key, LabelOperator.IN, (value,)) for key, value in labels.items())
    return PodTerm("", frozenset({namespace}), conditions, selects_ending=False)


TRAIN = others(app="train")


def constraint(topology: object = ZONE, skew: object = 1, **fields: object) -> dict[str, object]:
    return {
        "topologyKey": topology,
        "maxSkew": skew,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "train"}},
        **fields,
    }


def job(*constraints: object, labels: object = OWN, **spec: object) -> dict[str, Any]:
    pod_spec = {"containers": [{}], "topologySpreadConstraints": list(constraints), **spec}
    return {
        "metadata": {"name": "x"},
        "spec": {"template": {"metadata": {"labels": labels}, "spec": pod_spec}},
    }


def pod_set(wrapped: Mapping[str, Any]) -> PodSet:
    (found,) = pods_of(BUILT_IN.derivable["batch", "Job"], wrapped).sets
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, Spread(ZONE, others=TRAIN), id="defaults"),
        pytest.param({"maxSkew": 3, "minDomains": 2}, Spread(ZONE, 3, 2, others=TRAIN), id="numbers"),
        pytest.param(
            {"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"},
            Spread(ZONE, ignores_requirements=True, honors_taints=True, others=TRAIN),
            id="policies",
        ),
        pytest.param(
            {"nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore", "minDomains": 1},
            Spread(ZONE, others=TRAIN),
            id="defaults-that-are-written",
        ),
        pytest.param({"whenUnsatisfiable": "ScheduleAnyway"}, None, id="preferred"),
        pytest.param(
            {"whenUnsatisfiable": "ScheduleAnyway", "maxSkew": "many", "topologyKey": 7},
            None,
            id="preferred-is-not-read",
        ),
        pytest.param({"labelSelector": {}}, Spread(ZONE, others=others()), id="empty-selector-selects-all"),
        pytest.param({"labelSelector": None}, None, id="no-selector-selects-none"),
        pytest.param({"labelSelector": {"matchLabels": {"app": "serve"}}}, None, id="other-pods"),
        pytest.param(
            {"labelSelector": {"matchLabels": {"job-name": "x"}}}, Spread(ZONE), id="label-of-the-controller"
        ),
        pytest.param(
            {"matchLabelKeys": ["role"]},
            Spread(ZONE, others=others(app="train", role="worker")),
            id="same-value-of-a-label",
        ),
        pytest.param({"matchLabelKeys": ["pod-template-hash"]}, Spread(ZONE), id="same-template"),
        pytest.param({"matchLabelKeys": ["index"]}, None, id="label-that-may-differ-from-pod-to-pod"),
    ],
)
def test_constraint_counts_if_it_is_required_and_selects_the_pods(
    fields: Mapping[str, object], expected: Spread | None
) -> None:
    assert pod_set(job(constraint(**fields))).spread == (() if expected is None else (expected,))


def test_template_without_constraints_is_not_spread() -> None:
    assert pod_set(job()).spread == ()
    assert pod_set(job(topologySpreadConstraints=None)).spread == ()


def test_order_makes_no_other_gang() -> None:
    both = constraint(HOSTNAME, 2), constraint(ZONE)
    assert pod_set(job(*both)) == pod_set(job(*reversed(both)))
    assert pod_set(job(*both)).spread == (Spread(HOSTNAME, 2, others=TRAIN), Spread(ZONE, others=TRAIN))


def test_spread_goes_with_affinity_and_selector() -> None:
    repel = {"topologyKey": HOSTNAME, "labelSelector": {}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [repel]}}
    found = pod_set(job(constraint(), affinity=affinity, nodeSelector={"gpu": "a100"}))
    expected = (Spread(ZONE, others=TRAIN),), (HOSTNAME,), NodeRequirements((("gpu", "a100"),))
    assert (found.spread, found.apart, found.nodes) == expected


def test_labels_of_a_template_matter_only_to_required_constraints() -> None:
    preferred = constraint(whenUnsatisfiable="ScheduleAnyway")
    assert pod_set(job(preferred, labels="none")).spread == ()
    with pytest.raises(ConstraintError, match=r"spec.template.metadata.labels: must be an object"):
        pod_set(job(constraint(), labels="none"))


@pytest.mark.parametrize(
    ("written", "path", "problem"),
    [
        pytest.param(7, "[0]", "must be an object", id="number"),
        pytest.param({}, "[0].whenUnsatisfiable", "is none of DoNotSchedule, ScheduleAnyway", id="empty"),
        pytest.param(
            constraint(whenUnsatisfiable="Never"),
            "[0].whenUnsatisfiable",
            "is none of DoNotSchedule",
            id="when",
        ),
        pytest.param(constraint(None), "[0].topologyKey", "must be a label's key", id="no-topology"),
        pytest.param(
            constraint("z one"), "[0].topologyKey", "must be a label's key", id="impossible-topology"
        ),
        pytest.param(constraint(skew=None), "[0].maxSkew", "must be at least 1", id="no-skew"),
        pytest.param(constraint(skew=0), "[0].maxSkew", "must be at least 1", id="skew-of-none"),
        pytest.param(constraint(skew="1"), "[0].maxSkew", "must be a whole number", id="skew-in-quotes"),
        pytest.param(constraint(skew=2**31), "[0].maxSkew", "must be between 0 and", id="large-skew"),
        pytest.param(constraint(minDomains=0), "[0].minDomains", "must be at least 1", id="no-domains"),
        pytest.param(
            constraint(nodeAffinityPolicy="honor"),
            "[0].nodeAffinityPolicy",
            'is none of Honor, Ignore: "honor"',
            id="policy-about-affinity",
        ),
        pytest.param(
            constraint(nodeTaintsPolicy=True),
            "[0].nodeTaintsPolicy",
            "must be a string",
            id="policy-about-taints",
        ),
        pytest.param(
            constraint(labelSelector={"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
            "[0].labelSelector.matchExpressions[0].operator",
            "is none of",
            id="selector",
        ),
        pytest.param(
            constraint(
                labelSelector={"matchLabels": {f"k{index}": "" for index in range(MOST_CONDITIONS + 1)}}
            ),
            "[0].labelSelector",
            f"has {MOST_CONDITIONS + 1} conditions",
            id="large-selector",
        ),
        pytest.param(
            constraint(labelSelector=None, matchLabelKeys=["app"]),
            "[0].matchLabelKeys",
            "must be absent without a labelSelector",
            id="keys-without-a-selector",
        ),
        pytest.param(
            constraint(matchLabelKeys=["role", "app"]),
            "[0].matchLabelKeys",
            "must have no key of the labelSelector",
            id="key-of-the-selector",
        ),
        pytest.param(
            constraint(matchLabelKeys=["a b"]),
            "[0].matchLabelKeys",
            "must be a label's key",
            id="impossible-key",
        ),
    ],
)
def test_malformed_constraint_is_refused_by_field(written: object, path: str, problem: str) -> None:
    with pytest.raises(ConstraintError) as raised:
        pod_set(job(written))
    assert raised.value.path == f"spec.template.spec.topologySpreadConstraints{path}"
    assert raised.value.problem.startswith(problem)


def test_one_topology_has_one_required_constraint() -> None:
    other_pods = constraint(labelSelector={"matchLabels": {"app": "serve"}})
    assert pod_set(job(constraint(), constraint(whenUnsatisfiable="ScheduleAnyway"))).spread == (
        Spread(ZONE, others=TRAIN),
    )
    with pytest.raises(ConstraintError) as raised:
        pod_set(job(other_pods, constraint()))
    assert raised.value.path == "spec.template.spec.topologySpreadConstraints[1].topologyKey"
    assert raised.value.problem == "must differ from those before it"


@pytest.mark.parametrize(
    "written", [{}, "even", [{}] * (MOST_SPREADS + 1)], ids=["object", "text", "too-many"]
)
def test_constraints_are_a_short_list(written: object) -> None:
    with pytest.raises(ConstraintError) as raised:
        pod_set(job(topologySpreadConstraints=written))
    assert raised.value.path == "spec.template.spec.topologySpreadConstraints"

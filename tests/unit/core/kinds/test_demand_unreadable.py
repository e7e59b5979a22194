"""A declaration stands for an object with an unreadable template, but not for its readable ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, WrappedObject
from dispatcher.core.kinds.demand import Charge, DemandError, charge_of
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.model.gang import Gang, PodSet
from dispatcher.core.model.resources import NOTHING, Resources
from tests.unit.core.kinds.ray import WORKER, cluster, group, ray_cluster, ray_job, template

AT = "spec.resources.GenericItems[0].custompodresources"
NEGATIVE = template({"cpu": -1})
GIB = 2**30
TWO_WORKERS = group({"cpu": 4, "memory": "1Gi", "gpu": 2}, replicas=2)
WORKERS = PodSet(2, Resources({"cpu": 4000, "memory": GIB, "gpu": 2}))


def charge(
    wrapped: Mapping[str, Any], *declared: DeclaredPodSet, rule: ChargeRule = ChargeRule.LARGER
) -> Charge:
    return charge_of(AppWrapperSpec((WrappedObject(0, wrapped, declared),)), rule)


def pods(replicas: int, **requests: int | str) -> DeclaredPodSet:
    return DeclaredPodSet(replicas, requests, {})


@pytest.mark.parametrize(
    ("declared", "rule", "expected"),
    [
        pytest.param(
            pods(1, cpu=1, memory="2Gi"),
            ChargeRule.LARGER,
            Charge(
                Gang(Resources({"cpu": 8000, "memory": 2 * GIB, "gpu": 4}), 2, (WORKERS,)),
                (
                    f"{AT}: cpu: 1 declared, 8 by the template, gpu: 0 declared, 4 by the template; "
                    "the larger is charged",
                ),
            ),
            id="less-than-the-readable-templates",
        ),
        pytest.param(
            pods(3, cpu=3, memory="1Gi", gpu=2),
            ChargeRule.LARGER,
            Charge(Gang(Resources({"cpu": 9000, "memory": 3 * GIB, "gpu": 6}), 3, (WORKERS,))),
            id="more-than-the-readable-templates",
        ),
        pytest.param(
            pods(3, cpu=1, memory="1Gi"),
            ChargeRule.LARGER,
            Charge(
                Gang(Resources({"cpu": 8000, "memory": 3 * GIB, "gpu": 4}), 3, (WORKERS,)),
                (
                    f"{AT}: cpu: 3 declared, 8 by the template, gpu: 0 declared, 4 by the template; "
                    "the larger is charged",
                ),
            ),
            id="each-resource-by-itself",
        ),
        pytest.param(
            pods(1, cpu=1, memory="2Gi", gpu=4),
            ChargeRule.TRUSTED,
            Charge(
                Gang(Resources({"cpu": 1000, "memory": 2 * GIB, "gpu": 4}), 2, (WORKERS,)),
                (f"{AT}: cpu: 1 declared, 8 by the template; what is declared is charged",),
            ),
            id="trusted",
        ),
    ],
)
def test_readable_templates_count_beside_a_declaration(
    declared: DeclaredPodSet, rule: ChargeRule, expected: Charge
) -> None:
    assert charge(ray_cluster(NEGATIVE, TWO_WORKERS), declared, rule=rule) == expected


@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(ray_cluster(NEGATIVE), id="no-other-template"),
        pytest.param(ray_cluster(NEGATIVE, group(WORKER, replicas="2")), id="unreadable-count"),
        pytest.param(ray_cluster(NEGATIVE, group(WORKER, replicas=0)), id="no-pods"),
        pytest.param(ray_cluster(NEGATIVE, workerGroupSpecs=7), id="unreadable-list"),
        pytest.param(ray_cluster(NEGATIVE, TWO_WORKERS, suspend="no"), id="unreadable-flag"),
    ],
)
def test_declaration_alone_is_charged_if_no_template_makes_readable_pods(wrapped: Mapping[str, Any]) -> None:
    shape = Resources({"cpu": 1000})
    assert charge(wrapped, pods(2, cpu=1)) == Charge(Gang(shape * 2, 2, (PodSet(2, shape),)))


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param((pods(0, cpu=1),), id="one"),
        pytest.param((pods(0), pods(0, cpu=1, memory="1Gi")), id="several"),
    ],
)
@pytest.mark.parametrize(
    "wrapped",
    [
        pytest.param(ray_cluster(NEGATIVE), id="no-other-template"),
        pytest.param(ray_cluster(NEGATIVE, TWO_WORKERS), id="beside-a-readable-template"),
    ],
)
def test_declaration_without_pods_does_not_take_the_place_of_an_unreadable_template(
    wrapped: Mapping[str, Any], declared: tuple[DeclaredPodSet, ...]
) -> None:
    messages = []
    for each in (declared, ()):
        with pytest.raises(DemandError) as raised:
            charge(wrapped, *each)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert messages[0].startswith(
        "spec.resources.GenericItems[0].generictemplate.spec.headGroupSpec.template"
    )


def test_trusted_declaration_without_pods_charges_nothing() -> None:
    assert charge(ray_cluster(NEGATIVE), pods(0, cpu=1), rule=ChargeRule.TRUSTED) == Charge(Gang())


def test_gang_does_not_wait_for_readable_pods_that_are_no_members() -> None:
    wrapped = ray_job(cluster(NEGATIVE), submitterPodTemplate=template({"cpu": 2}))
    submitter = PodSet(1, Resources({"cpu": 2000}))
    assert charge(wrapped, pods(0, cpu=1), rule=ChargeRule.TRUSTED).gang == Gang(NOTHING, 0, (submitter,))


def test_malformed_constraint_of_another_template_is_refused() -> None:
    worker = group(WORKER, replicas=1)
    worker["template"]["spec"]["nodeSelector"] = {"zone": 7}
    with pytest.raises(DemandError) as raised:
        charge(ray_cluster(NEGATIVE, worker), pods(1, cpu=1))
    assert str(raised.value) == (
        "spec.resources.GenericItems[0].generictemplate.spec.workerGroupSpecs[0].template.spec.nodeSelector"
        ".zone: must be a string. Correct the template."
    )

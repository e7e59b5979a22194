"""Pods that claim devices are held: their devices are no resource that anything counts."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, TemplatePodSet, WrappedObject
from dispatcher.core.kinds.demand import Charge, DemandError, charge_of
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule

CLAIMS = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
DECLARED = (DeclaredPodSet(2, {"cpu": 1, "nvidia.com/gpu": 1}, {}),)


def template(**spec: object) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": 1}}}], **spec}}


def job(pod_template: object, **spec: object) -> dict[str, Any]:
    metadata = {"name": "x"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": pod_template, **spec},
    }


def unknown(**spec: object) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Simulation", "metadata": {"name": "x"}, "spec": spec}


def charge(
    wrapped: dict[str, Any],
    declared: tuple[DeclaredPodSet, ...] | None = None,
    rule: ChargeRule = ChargeRule.LARGER,
) -> Charge:
    return charge_of(AppWrapperSpec((WrappedObject(0, wrapped, declared),)), rule)


def claims_of(charge: Charge) -> tuple[str, ...]:
    return tuple(path for pod_set in charge.gang.pod_sets for path in pod_set.claims)


ITEM = "spec.resources.GenericItems[0].generictemplate"
CLAIMING = job(template(resourceClaims=CLAIMS))
OF_JOB = (f"{ITEM}.spec.template.spec.resourceClaims",)


@pytest.mark.parametrize(
    ("wrapped", "declared", "rule", "claims"),
    [
        pytest.param(job(template()), None, ChargeRule.LARGER, (), id="no-claims"),
        pytest.param(job(template(resourceClaims=[])), None, ChargeRule.LARGER, (), id="empty-claims"),
        pytest.param(CLAIMING, None, ChargeRule.LARGER, OF_JOB, id="claims"),
        pytest.param(
            job(template(resourceClaims="all")), None, ChargeRule.LARGER, OF_JOB, id="unreadable-claims"
        ),
        pytest.param(CLAIMING, DECLARED, ChargeRule.LARGER, OF_JOB, id="declared-and-not-trusted"),
        pytest.param(CLAIMING, DECLARED, ChargeRule.TRUSTED, (), id="declared-and-trusted"),
        pytest.param(CLAIMING, None, ChargeRule.TRUSTED, OF_JOB, id="trusted-and-not-declared"),
        pytest.param(
            job(template(resourceClaims=CLAIMS), parallelism=0), None, ChargeRule.LARGER, (), id="no-pods"
        ),
        pytest.param(
            job(template(resourceClaims=CLAIMS), suspend=True), None, ChargeRule.LARGER, (), id="suspended"
        ),
        pytest.param(
            unknown(groups=[{"worker": template(resourceClaims=CLAIMS)}]),
            DECLARED,
            ChargeRule.LARGER,
            (f"{ITEM}.spec.groups[0].worker.spec.resourceClaims",),
            id="unknown-kind-that-is-declared",
        ),
        pytest.param(
            unknown(worker=template(resourceClaims=CLAIMS)),
            DECLARED,
            ChargeRule.TRUSTED,
            (),
            id="unknown-and-trusted",
        ),
        pytest.param(
            unknown(resourceClaims=CLAIMS), DECLARED, ChargeRule.LARGER, (), id="field-of-another-meaning"
        ),
    ],
)
def test_claims_are_counted_only_where_a_trusted_declaration_stands_for_them(
    wrapped: dict[str, Any],
    declared: tuple[DeclaredPodSet, ...] | None,
    rule: ChargeRule,
    claims: tuple[str, ...],
) -> None:
    assert claims_of(charge(wrapped, declared, rule)) == claims


def test_empty_declaration_that_is_trusted_does_not_stand_for_devices() -> None:
    assert claims_of(charge(unknown(worker=template(resourceClaims=CLAIMS)), (), ChargeRule.TRUSTED))
    assert claims_of(charge(CLAIMING, (), ChargeRule.TRUSTED))


def test_template_that_pod_sets_point_out_is_looked_at() -> None:
    component = WrappedObject(
        0,
        unknown(worker=template(resourceClaims=CLAIMS)),
        pod_sets=(TemplatePodSet("template.spec.worker", 2),),
    )
    found = charge_of(AppWrapperSpec((component,), spelling="v1beta2"))
    assert claims_of(found) == ("spec.components[0].template.spec.worker.spec.resourceClaims",)


def test_declaration_does_not_take_the_place_of_a_constraint_we_cannot_read() -> None:
    too_many: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}] * 65}}
    }
    with pytest.raises(DemandError) as raised:
        charge(job(template(affinity=too_many)), DECLARED)
    assert str(raised.value).endswith("has 65 entries, and at most 64 are taken. Correct the template.")

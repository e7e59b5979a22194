from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.appwrapper import AppWrapperSpec, DeclaredPodSet, TemplatePodSet, WrappedObject
from dispatcher.core.kinds.demand import Charge, DemandError, charge_of
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule
from dispatcher.core.kinds.pods.pod_requests import PodSpecError, live_pod_requests, pod_requests
from dispatcher.core.model.resources import NOTHING, Resources


def container(cpu: object = None, limit: object = None, **more: object) -> dict[str, Any]:
    resources = {
        "requests": {} if cpu is None else {"cpu": cpu},
        "limits": {} if limit is None else {"cpu": limit},
    }
    return {"name": "c", "resources": resources, **more}


def sidecar(cpu: object) -> dict[str, Any]:
    return container(cpu, restartPolicy="Always")


@pytest.mark.parametrize(
    ("pod_spec", "milli_cpu"),
    [
        pytest.param({"containers": [container(1)]}, 1000, id="one-container"),
        pytest.param({"containers": [container(1), container("500m")]}, 1500, id="containers-add-up"),
        pytest.param({"containers": [container(None, 2)]}, 2000, id="limit-stands-for-a-missing-request"),
        pytest.param({"containers": [container(1, 2)]}, 1000, id="request-goes-before-its-limit"),
        pytest.param({"containers": [container(0, 2)]}, 0, id="request-of-zero-is-not-missing"),
        pytest.param(
            {"containers": [{"resources": {"requests": {"cpu": None}, "limits": {"cpu": 2}}}]},
            2000,
            id="null-request-is-missing",
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [container(3), container(2)]},
            3000,
            id="largest-init-container-sets-the-minimum",
        ),
        pytest.param(
            {"containers": [container(3)], "initContainers": [container(1)]}, 3000, id="smaller-init-is-free"
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [container(None, 3)]},
            3000,
            id="limit-of-an-init-container",
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [sidecar(2)]}, 3000, id="restartable-init-stays"
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [sidecar(2), container(5)]},
            7000,
            id="init-runs-beside-the-restartable-ones-before-it",
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [container(5), sidecar(2)]},
            5000,
            id="init-does-not-run-beside-the-restartable-ones-after-it",
        ),
        pytest.param(
            {"containers": [container(1)], "initContainers": [sidecar(2), sidecar(3), container(4)]},
            9000,
            id="restartable-ones-add-up",
        ),
        pytest.param({"containers": [container(1)], "overhead": {"cpu": "250m"}}, 1250, id="overhead"),
        pytest.param(
            {"containers": [container(1)], "resources": {"requests": {"cpu": 4}}},
            4000,
            id="pod-level-request-replaces-the-sum",
        ),
        pytest.param(
            {"containers": [container(1)], "resources": {"requests": {"cpu": 4}}, "overhead": {"cpu": 1}},
            5000,
            id="overhead-comes-on-top-of-pod-level",
        ),
        pytest.param(
            {"containers": [container(1)], "resources": {"limits": {"cpu": 4}}},
            1000,
            id="pod-level-limit-does-not-replace-what-containers-request",
        ),
        pytest.param(
            {"containers": [container()], "resources": {"limits": {"cpu": 4}}},
            4000,
            id="pod-level-limit-stands-for-a-missing-sum",
        ),
        pytest.param(
            {"containers": [{"name": "a", "resources": None}, {"name": "b"}], "initContainers": None},
            0,
            id="null-is-absent",
        ),
        pytest.param({}, 0, id="nothing-at-all"),
    ],
)
def test_pod_requests_follow_the_scheduler(pod_spec: Mapping[str, Any], milli_cpu: int) -> None:
    assert pod_requests(pod_spec) == Resources({"cpu": milli_cpu})


def test_every_resource_peaks_on_its_own() -> None:
    init = {"resources": {"requests": {"memory": "4Gi", "nvidia.com/gpu": 1}}}
    main = {"resources": {"requests": {"cpu": 2, "memory": "1Gi"}}}
    assert pod_requests({"containers": [main], "initContainers": [init]}) == Resources(
        {"cpu": 2000, "memory": 4 * 2**30, "nvidia.com/gpu": 1}
    )


def test_pod_level_resources_are_only_cpu_memory_and_hugepages() -> None:
    main = {"resources": {"requests": {"cpu": 1, "nvidia.com/gpu": 1, "hugepages-2Mi": "2Mi"}}}
    pod_level = {
        "requests": {"memory": "1Ki", "nvidia.com/gpu": 8, "ephemeral-storage": "1Ki"},
        "limits": {"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"},
    }
    assert pod_requests({"containers": [main], "resources": pod_level}) == Resources(
        {
            "cpu": 1000,
            "memory": 1024,
            "nvidia.com/gpu": 1,
            "hugepages-2Mi": 8 * 2**20,
            "hugepages-1Gi": 2**30,
        }
    )


def test_live_pod_is_read_without_its_limits() -> None:
    assert pod_requests({"containers": [container(None, 2)]}, limits_are_defaults=False) == NOTHING


@pytest.mark.parametrize(
    ("pod_spec", "problem"),
    [
        ({"containers": {"name": "a"}}, "containers: must be a list"),
        ({"containers": ["a"]}, "containers[0]: must be an object"),
        ({"containers": [{}, {"resources": "1"}]}, "containers[1].resources: must be an object"),
        ({"containers": [{"resources": {"limits": 1}}]}, "containers[0].resources.limits: must be an object"),
        ({"containers": [container("x")]}, "containers[0].resources.requests.cpu: 'x' is not a quantity"),
        ({"containers": [container(1, -1)]}, "containers[0].resources.limits.cpu: -1 is negative"),
        ({"initContainers": 7}, "initContainers: must be a list"),
        ({"initContainers": [None]}, "initContainers[0]: must be an object"),
        ({"overhead": [1]}, "overhead: must be an object"),
        ({"overhead": {"a\0": 1}}, "overhead[\"a\\u0000\"]: 'a\\x00' is not a resource name"),
        ({"resources": True}, "resources: must be an object"),
        ({"resources": {"requests": {"cpu": True}}}, "resources.requests.cpu: a bool is not a quantity"),
    ],
)
def test_pod_spec_that_no_api_server_takes_is_refused_by_field(
    pod_spec: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(PodSpecError) as raised:
        pod_requests(pod_spec)
    assert str(raised.value).startswith(problem)


CPUS = st.none() | st.integers(0, 9)
CONTAINERS = st.lists(st.builds(container, CPUS, CPUS), max_size=3)
INIT_CONTAINERS = st.lists(st.builds(container, CPUS, CPUS) | st.builds(sidecar, CPUS), max_size=4)


@given(CONTAINERS, INIT_CONTAINERS, CPUS, CPUS)
def test_template_that_the_api_server_has_defaulted_needs_no_defaults(
    containers: list[Any], init_containers: list[Any], request: int | None, limit: int | None
) -> None:
    written = {
        "containers": containers,
        "initContainers": init_containers,
        "resources": container(request, limit)["resources"],
    }
    assert pod_requests(as_admitted(written), limits_are_defaults=False) == pod_requests(written)


def as_admitted(pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    """SetDefaults_Pod, for cpu: limits become requests in containers, then in the pod."""
    admitted = {
        field: [{**one, "resources": {"requests": defaulted(one["resources"])}} for one in pod_spec[field]]
        for field in ("containers", "initContainers")
    }
    asked = any("cpu" in one["resources"]["requests"] for field in admitted.values() for one in field)
    return {
        **admitted,
        "resources": {"requests": pod_spec["resources"]["requests"]}
        if asked
        else {"requests": defaulted(pod_spec["resources"])},
    }


def defaulted(resources: Mapping[str, Any]) -> dict[str, Any]:
    return {**resources["limits"], **resources["requests"]}


def granted(name: str, effective: object = None, allocated: object = None) -> dict[str, Any]:
    resources = None if effective is None else {"requests": {"cpu": effective}}
    return {"name": name, "resources": resources, "allocatedResources": allocated and {"cpu": allocated}}


def named(name: str, cpu: object, **more: object) -> dict[str, Any]:
    return {**container(cpu, **more), "name": name}


PENDING = {"type": "PodResizePending", "status": "True"}
INFEASIBLE = [{"type": "Ready"}, {**PENDING, "reason": "Infeasible"}]
TWO = {"containers": [named("a", 1), named("b", 2)]}
WHOLE_POD = {"containers": [named("a", 1)], "resources": {"requests": {"cpu": 4}}, "overhead": {"cpu": 1}}


@pytest.mark.parametrize(
    ("pod_spec", "status", "milli_cpu"),
    [
        pytest.param(TWO, {}, 3000, id="pod-without-a-status"),
        pytest.param(TWO, {"containerStatuses": None}, 3000, id="null-status"),
        pytest.param(TWO, {"containerStatuses": [{"name": "a"}]}, 3000, id="container-that-has-not-started"),
        pytest.param(
            TWO, {"containerStatuses": [granted("b", 2, 2), granted("a", 1, 1)]}, 3000, id="as-asked"
        ),
        pytest.param(
            TWO, {"containerStatuses": [granted("a", 1, 5)]}, 7000, id="allocated-and-not-yet-in-effect"
        ),
        pytest.param(TWO, {"containerStatuses": [granted("a", 5, 1)]}, 7000, id="in-effect-and-shrinking"),
        pytest.param(TWO, {"containerStatuses": [granted("a", 5)]}, 7000, id="without-allocated-resources"),
        pytest.param(
            TWO,
            {"containerStatuses": [granted("b", "500m", "500m")]},
            3000,
            id="growing-counts-what-is-asked",
        ),
        pytest.param(
            TWO,
            {"containerStatuses": [granted("a", "500m", "250m")], "conditions": INFEASIBLE},
            2500,
            id="infeasible-resize-counts-what-is-granted",
        ),
        pytest.param(
            TWO,
            {"containerStatuses": [granted("a", "500m")], "conditions": [{**PENDING, "reason": "Deferred"}]},
            3000,
            id="deferred-resize-counts-what-is-asked",
        ),
        pytest.param(
            TWO, {"containerStatuses": [granted("c", 9, 9)]}, 3000, id="container-of-no-name-we-know"
        ),
        pytest.param(
            {"containers": [named("a", 1)], "initContainers": [named("s", 1, restartPolicy="Always")]},
            {"initContainerStatuses": [granted("s", 3, 3)], "containerStatuses": [granted("a", 1, 1)]},
            4000,
            id="sidecar",
        ),
        pytest.param(
            {"containers": [named("a", None)]},
            {"containerStatuses": [granted("a", 2)]},
            2000,
            id="asked-nothing",
        ),
        pytest.param(WHOLE_POD, {}, 5000, id="pod-level"),
        pytest.param(
            WHOLE_POD, {"resources": {"requests": {"cpu": 9}}}, 9000, id="pod-level-in-effect-with-overhead"
        ),
        pytest.param(WHOLE_POD, {"allocatedResources": {"cpu": 8}}, 8000, id="pod-level-allocated"),
        pytest.param(
            WHOLE_POD,
            {"allocatedResources": {"cpu": 3}, "conditions": INFEASIBLE},
            3000,
            id="pod-level-infeasible",
        ),
        pytest.param(
            {"containers": [named("a", 1)], "resources": {"limits": {"cpu": 4}}},
            {"resources": {"requests": {"cpu": 9}}},
            1000,
            id="pod-level-limit-alone-requests-nothing",
        ),
    ],
)
def test_live_pod_requests_the_larger_of_asked_and_granted(
    pod_spec: Mapping[str, Any], status: Mapping[str, Any], milli_cpu: int
) -> None:
    assert live_pod_requests(pod_spec, status) == Resources({"cpu": milli_cpu})


def test_each_resource_of_a_resized_pod_counts_on_its_own() -> None:
    asked = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    given = {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}
    spec = {"containers": [{"name": "a", "resources": {"requests": asked}}]}
    status = {"containerStatuses": [{"name": "a", "resources": {"requests": given}}]}
    assert live_pod_requests(spec, status) == Resources(
        {"cpu": 2000, "memory": 2 * 2**30, "nvidia.com/gpu": 1}
    )


def test_live_pod_is_read_without_its_limits_also_when_it_was_resized() -> None:
    status = {"containerStatuses": [granted("b", 5)]}
    assert live_pod_requests({"containers": [named("a", None, limit=2), named("b", 1)]}, status) == Resources(
        {"cpu": 5000}
    )


def test_pod_with_thousands_of_init_containers_requests_the_largest_beside_its_sidecars() -> None:
    """Sidecars run on and are added up; an init container runs alone beside the sidecars before it."""
    sidecars = [
        {"name": f"s{each}", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1m"}}}
        for each in range(5_000)
    ]
    once = [{"name": f"i{each}", "resources": {"requests": {"cpu": "2"}}} for each in range(5_000)]
    spec = {
        "initContainers": [*once, *sidecars],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
    }
    assert live_pod_requests(spec, {})["cpu"] == 6_000
    assert live_pod_requests({**spec, "initContainers": [*sidecars, *once]}, {})["cpu"] == 7_000


# --- Pods that claim devices are held: their devices are no resource that anything counts ------------------


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

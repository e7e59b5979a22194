"""Nodes and pods, read from the API server's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.names import GROWTH_ANNOTATION, GROWTH_GATE, RAY_REPLICA_LABEL, UID_LABEL
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    Node,
    NodeRequirements,
    Taint,
)
from dispatcher.core.model.gangs.gang import Constraint
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.pods import Gate, Pod, PodPhase, PodReason, Unscheduled
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.core.model.resources import Resources
from dispatcher.kube.objects.nodes import (
    LABELS_READ_FIRST,
    LONGEST_MESSAGE,
    MOST_LABELS_OF_NODE,
    MOST_NAMES_OF_NODE,
    MOST_TAINTS,
    PodView,
    decode_node,
    decode_pod,
)
from tests.builders import make_node, make_pod


def test_node_has_its_allocatable_amounts_and_its_taints() -> None:
    raw = make_node(
        spec={
            "taints": [
                {"key": "gpu", "effect": "NoSchedule"},
                {"key": "a", "value": "b", "effect": "NoExecute"},
            ]
        },
        **{"cpu": "7910m", "memory": "61Gi", "nvidia.com/gpu": "1"},
    )
    assert decode_node(raw) == Node(
        "n1",
        Resources({"cpu": 7910, "memory": 61 * 2**30, "nvidia.com/gpu": 1}),
        usable=True,
        taints=(Taint("gpu", "", "NoSchedule"), Taint("a", "b", "NoExecute")),
    )


@pytest.mark.parametrize(
    ("raw", "ready", "usable"),
    [
        pytest.param(make_node(), True, True, id="ready"),
        pytest.param(make_node(ready="False"), False, False, id="not-ready"),
        pytest.param(make_node(ready="Unknown"), False, False, id="silent"),
        pytest.param(make_node(spec={"unschedulable": True}), True, False, id="cordoned"),
        pytest.param({"metadata": {"name": "n1"}}, False, False, id="just-registered"),
    ],
)
def test_node_is_usable_if_ready_and_not_cordoned(raw: dict[str, Any], ready: bool, usable: bool) -> None:
    node = decode_node(raw)
    assert (node.ready, node.usable) == (ready, usable)


def test_amount_that_cannot_be_counted_counts_as_none() -> None:
    assert decode_node(make_node(cpu="8", memory="8Ei")).allocatable == Resources({"cpu": 8000})


RAYCLUSTER = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "uid-of-ray"}


def test_pod_has_its_requests_its_node_and_its_claimed_owner() -> None:
    assert decode_pod(make_pod("worker", cpu="1500m", of="the-appwrapper", controller=RAYCLUSTER)) == PodView(
        Pod(
            "uid-of-worker",
            Resources({"cpu": 1500}),
            node="n1",
            phase=PodPhase.RUNNING,
            owner=None,
            sort=PodSort.of("default", [(UID_LABEL, "the-appwrapper")]),
        ),
        claimed_by="the-appwrapper",
        controller=ObjectRef(-1, "ray.io/v1", "RayCluster", "default", "ray", "uid-of-ray"),
    )


def test_bound_pod_has_the_labels_and_the_terms_that_gangs_are_compared_with() -> None:
    raw = make_pod("web-0")
    raw["metadata"]["labels"] = {"app": "web", "statefulset.kubernetes.io/pod-name": "web-0"}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    raw["spec"]["affinity"] = {"podAntiAffinity": {required: [term, {**term, "labelSelector": None}]}}
    in_words = PodTerm("zone", frozenset({"default"}), (LabelRequirement("app", LabelOperator.IN, ("web",)),))
    sort = decode_pod(raw).pod.sort
    assert sort == PodSort("default", (("app", "web"),), (in_words,))
    raw["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = "web-1"
    assert decode_pod(raw).pod.sort is sort
    del raw["spec"]["nodeName"]
    assert decode_pod(raw).pod.sort is None


@pytest.mark.parametrize(
    ("node", "phase", "conditions", "is_by_author"),
    [
        pytest.param("n1", "Pending", [], True, id="nobody-else-has-said-so"),
        pytest.param("n1", "Pending", [{"type": "PodScheduled", "status": "True"}], False, id="bound"),
        pytest.param("n1", "Pending", [{"type": "PodScheduled", "status": "False"}], True, id="not-bound"),
        pytest.param("n1", "Pending", [{"type": "Ready", "status": "True"}], True, id="another-condition"),
        pytest.param("n1", "Running", [], False, id="its-kubelet-runs-it"),
        pytest.param("", "Pending", [], False, id="without-a-node"),
    ],
)
def test_node_of_a_pod_is_by_its_author_until_somebody_else_says_so(
    node: str, phase: str, conditions: list[Any], is_by_author: bool
) -> None:
    raw = make_pod(node=node) | {"status": {"phase": phase, "conditions": conditions}}
    assert decode_pod(raw).pod.node_by_author is is_by_author


def test_foreign_pod_that_is_just_created_claims_nothing() -> None:
    raw = {"metadata": {"uid": "p", "name": "p", "namespace": "default"}, "spec": {"containers": []}}
    assert decode_pod(raw) == PodView(Pod("p", Resources()), claimed_by=None, controller=None)


def test_resized_pod_requests_the_resources_its_node_still_grants() -> None:
    raw = make_pod("p", cpu="1", node="n1")
    name = raw["spec"]["containers"][0].setdefault("name", "main")
    raw["status"]["containerStatuses"] = [{"name": name, "resources": {"requests": {"cpu": "4"}}}]
    assert decode_pod(raw).pod.requests == Resources({"cpu": 4000})


@pytest.mark.parametrize(
    ("raw", "never_ends"),
    [
        pytest.param(make_pod(), False, id="of-nobody"),
        pytest.param(make_pod(controller=RAYCLUSTER), False, id="of-a-gang"),
        pytest.param(
            make_pod(controller={"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "u"}),
            True,
            id="of-a-daemonset",
        ),
        pytest.param(
            make_pod(controller={"apiVersion": "ads.io/v1", "kind": "DaemonSet", "name": "log", "uid": "u"}),
            False,
            id="of-another-kind-of-that-name",
        ),
        pytest.param(make_pod(annotations={"kubernetes.io/config.mirror": "hash"}), True, id="static"),
    ],
)
def test_pod_of_a_daemonset_and_static_pod_never_end(raw: dict[str, Any], never_ends: bool) -> None:
    assert decode_pod(raw).pod.never_ends is never_ends


@pytest.mark.parametrize("phase", PodPhase)
def test_every_phase_of_a_pod_is_understood(phase: PodPhase) -> None:
    assert decode_pod(make_pod(phase=phase.value)).pod.phase is phase


def pod_with(phase: str, node: str = "n1", **status: Any) -> Pod:  # noqa: ANN401
    return decode_pod({**make_pod("p", node=node), "status": {"phase": phase, **status}}).pod


def container(**state: Any) -> list[Any]:  # noqa: ANN401
    return [{"name": "main", "state": state}]


def waiting(reason: str) -> list[Any]:
    return container(waiting={"reason": reason})


TRUE_DISRUPTION = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(pod_with("Pending"), PodReason.STARTING, id="nothing-is-known-of-it-yet"),
        pytest.param(pod_with("Pending", containerStatuses=None), PodReason.STARTING, id="null-statuses"),
        pytest.param(
            pod_with("Pending", containerStatuses=[{"name": "main"}]), PodReason.STARTING, id="no-state"
        ),
        pytest.param(
            pod_with("Pending", containerStatuses=container(waiting={})), PodReason.STARTING, id="no-reason"
        ),
        pytest.param(
            pod_with("Pending", containerStatuses=waiting("ContainerCreating")),
            PodReason.STARTING,
            id="pulls",
        ),
        pytest.param(
            pod_with(
                "Pending",
                initContainerStatuses=container(running={"startedAt": "2026-11-20T08:58:06Z"}),
                containerStatuses=waiting("PodInitializing"),
            ),
            PodReason.STARTING,
            id="init-container-runs",
        ),
        pytest.param(
            pod_with("Pending", containerStatuses=waiting("RestartingAllContainers")),
            PodReason.STARTING,
            id="starts-over",
        ),
        *(
            pytest.param(pod_with("Pending", containerStatuses=waiting(reason)), PodReason.STUCK, id=reason)
            for reason in (
                "ErrImagePull",
                "ImagePullBackOff",
                "ErrImageNeverPull",
                "InvalidImageName",
                "ImageInspectError",
                "CreateContainerConfigError",
                "CreateContainerError",
                "RunContainerError",
                "CrashLoopBackOff",
                "PostStartHookError",
            )
        ),
        pytest.param(
            pod_with(
                "Pending",
                initContainerStatuses=waiting("CrashLoopBackOff"),
                containerStatuses=waiting("PodInitializing"),
            ),
            PodReason.STUCK,
            id="init-container-crashes",
        ),
        pytest.param(
            pod_with("Pending", containerStatuses=container(running={}) + waiting("ImagePullBackOff")),
            PodReason.STUCK,
            id="one-of-two-containers",
        ),
        pytest.param(pod_with("Pending", node=""), PodReason.NONE, id="not-looked-at-by-the-scheduler"),
        pytest.param(
            pod_with("Running", containerStatuses=waiting("CrashLoopBackOff")),
            PodReason.NONE,
            id="ran-and-crashes",
        ),
        pytest.param(pod_with("Failed"), PodReason.NONE, id="failed"),
        pytest.param(pod_with("Failed", reason="DeadlineExceeded"), PodReason.NONE, id="took-too-long"),
        pytest.param(pod_with("Failed", reason="Evicted"), PodReason.EVICTED, id="evicted"),
        pytest.param(pod_with("Failed", reason="Preempting"), PodReason.EVICTED, id="preempted-by-its-node"),
        pytest.param(pod_with("Failed", reason="Terminated"), PodReason.EVICTED, id="node-was-shut-down"),
        pytest.param(pod_with("Failed", reason="NodeLost"), PodReason.EVICTED, id="node-was-lost"),
        pytest.param(pod_with("Failed", reason="OutOfcpu"), PodReason.EVICTED, id="node-had-no-room"),
        pytest.param(pod_with("Failed", conditions=TRUE_DISRUPTION), PodReason.EVICTED, id="disrupted"),
        pytest.param(
            pod_with("Running", conditions=TRUE_DISRUPTION), PodReason.NONE, id="about-to-be-disrupted"
        ),
    ],
)
def test_reason_of_a_pod_says_why_it_does_not_run_or_was_ended(pod: Pod, expected: PodReason) -> None:
    assert pod.reason is expected


def scheduled(status: str = "False", **fields: str) -> list[Any]:
    return [
        {"type": "Initialized", "status": "True"},
        {"type": "PodScheduled", "status": status, **fields},
    ]


def test_pod_without_a_node_keeps_the_message_of_kube_scheduler() -> None:
    since = "2026-11-20T08:58:06Z"
    message = "0/2 nodes are available: 2 Insufficient cpu."
    conditions = scheduled(reason="Unschedulable", message=message, lastTransitionTime=since)
    assert pod_with("Pending", node="", conditions=conditions) == Pod(
        "uid-of-p",
        Resources({"cpu": 1000}),
        phase=PodPhase.PENDING,
        reason=PodReason.UNSCHEDULABLE,
        unscheduled=Unscheduled("p", message, since),
    )


def test_scheduler_that_says_nothing_or_too_much_is_heard_no_less() -> None:
    silent = pod_with("Pending", node="", conditions=scheduled(reason="Unschedulable"))
    assert silent.unscheduled == Unscheduled("p")
    long = scheduled(reason="Unschedulable", message="x" * 100_000)
    assert pod_with("Pending", node="", conditions=long).unscheduled == Unscheduled(
        "p", "x" * LONGEST_MESSAGE
    )


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param(scheduled(reason="SchedulingGated"), id="gated"),
        pytest.param(scheduled(reason="SchedulerError", message="cannot bind"), id="scheduler-failed"),
        pytest.param(scheduled("True"), id="scheduled"),
        pytest.param(None, id="nothing-said"),
        *(
            pytest.param(scheduled(reason="Unschedulable", message=message), id=name)
            for name, message in {
                "co-scheduler-0.22": "pod with pgName: default/g last failed in 3s, deny",
                "co-scheduler-0.23": "0/2 nodes are available: 2 optimistic rejection in PostFilter.",
                "co-scheduler-waits-for-siblings": "pre-filter pod p cannot find enough sibling pods, 1 of 3",
                "kubernetes-gang": "waiting for minCount pods from a gang to be scheduled",
                "volcano": "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 3 minAvailable",
            }.items()
        ),
    ],
)
def test_pod_that_is_gated_or_waits_for_its_gang_is_not_unschedulable(
    conditions: list[Any] | None,
) -> None:
    pod = pod_with("Pending", node="", conditions=conditions)
    assert (pod.reason, pod.unscheduled) == (PodReason.NONE, None)


def test_exit_codes_are_those_of_a_failed_pods_containers_init_containers_among_them() -> None:
    def exited(*codes: int) -> list[Any]:
        return [{"state": {"terminated": {"exitCode": code}}} for code in codes]

    failed = pod_with("Failed", initContainerStatuses=exited(0, 7), containerStatuses=exited(137, 1, 1))
    running = pod_with("Running", containerStatuses=[*exited(3), *container(running={})])
    assert failed.exit_codes == (1, 7, 137)
    assert running.exit_codes == ()
    assert pod_with("Failed", reason="Evicted").exit_codes == ()


@pytest.mark.parametrize(
    ("labels", "names_appwrapper"),
    [
        pytest.param({"appwrapper.mcad.ibm.com": "aw"}, True, id="mcads"),
        pytest.param({"appwrapper.mcad.ibm.com": "aw", UID_LABEL: "uid"}, False, id="ours"),
        pytest.param({"app": "web"}, False, id="anyones"),
        pytest.param(None, False, id="no-labels"),
    ],
)
def test_pod_that_mcad_dispatched_names_an_appwrapper(
    labels: dict[str, str] | None, names_appwrapper: bool
) -> None:
    raw = make_pod()
    raw["metadata"]["labels"] = labels
    assert decode_pod(raw).names_appwrapper is names_appwrapper


@pytest.mark.parametrize(
    ("gates", "annotations", "is_gated", "is_admitted"),
    [
        pytest.param([], {}, False, False, id="without"),
        pytest.param([{"name": "theirs"}], {}, False, False, id="gate-of-another"),
        pytest.param(
            [{"name": "theirs"}, {"name": GROWTH_GATE}], {GROWTH_ANNOTATION: "gated"}, True, False, id="ours"
        ),
        pytest.param([], {GROWTH_ANNOTATION: "gated"}, False, True, id="admitted"),
    ],
)
def test_pod_with_our_gate_is_where_it_is_and_as_old_as_it_is(
    gates: list[dict[str, str]], annotations: dict[str, str], is_gated: bool, is_admitted: bool
) -> None:
    raw = make_pod("w", node="", phase="Pending", annotations=annotations)
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    raw["spec"]["schedulingGates"] = gates

    pod = decode_pod(raw).pod

    at = Gate(raw["metadata"]["namespace"], "w", "2026-01-01T00:00:00Z")
    assert pod.gate == (at if is_gated else None)
    assert pod.admitted_as == (at if is_admitted else None)
    assert pod.can_be_gated is (is_gated or is_admitted)


@pytest.mark.parametrize(
    ("annotation", "labels", "expected"),
    [
        pytest.param("4 0.w 2", {RAY_REPLICA_LABEL: "w-x1"}, ("0.w", 4, 2, "w-x1"), id="named-replica"),
        pytest.param("4 0.w 2", {}, ("0.w", 4, 2, ""), id="replica-without-a-name"),
        pytest.param("4 0.w", {RAY_REPLICA_LABEL: "w-x1"}, ("0.w", 4, 1, ""), id="one-host"),
        pytest.param("4 0.w 0", {}, ("0.w", 4, 1, ""), id="no-hosts"),
        pytest.param("4 0.w x", {}, ("0.w", 4, 1, ""), id="no-number"),
    ],
)
def test_pod_names_its_template_and_its_replica(
    annotation: str, labels: dict[str, str], expected: tuple[str, int, int, str]
) -> None:
    raw = make_pod("worker", node="")
    raw["metadata"] |= {"annotations": {GROWTH_ANNOTATION: annotation}, "labels": labels}
    pod = decode_pod(raw).pod
    assert (pod.template, pod.base_pods, pod.hosts, pod.replica) == expected


ZONE_EAST: Constraint = ((), NodeRequirements((("zone", "east"),)))


@pytest.mark.parametrize(
    ("annotations", "node", "labels", "apart"),
    [
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "", {"app": "w"}, ("zone",), id="selects-itself"),
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "", {"app": "other"}, (), id="selects-others"),
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "n1", {"app": "w"}, (), id="has-a-node"),
        pytest.param({}, "", {"app": "w"}, (), id="cannot-be-gated"),
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "", {"app": 1}, (), id="no-server-sends-this"),
    ],
)
def test_pod_that_can_be_gated_says_what_keeps_it_apart_from_pods_like_it(
    annotations: dict[str, str], node: str, labels: dict[str, object], apart: tuple[str, ...]
) -> None:
    raw = make_pod("worker", node=node)
    raw["metadata"] |= {"annotations": annotations, "labels": labels}
    term = {"labelSelector": {"matchLabels": {"app": "w"}}, "topologyKey": "zone"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    raw["spec"]["affinity"] = {"podAntiAffinity": required}
    assert decode_pod(raw).pod.apart == apart


@pytest.mark.parametrize(
    ("annotations", "node", "selector", "constraint"),
    [
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "", {"zone": "east"}, ZONE_EAST, id="waits-for-a-node"),
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "n1", {"zone": "east"}, None, id="has-a-node"),
        pytest.param({}, "", {"zone": "east"}, None, id="cannot-be-gated"),
        pytest.param({GROWTH_ANNOTATION: "1 w"}, "", "east", None, id="no-server-sends-this"),
    ],
)
def test_pod_that_can_be_gated_has_its_conditions_until_it_has_a_node(
    annotations: dict[str, str], node: str, selector: object, constraint: Constraint | None
) -> None:
    raw = make_pod("worker", node=node)
    raw["metadata"]["annotations"] = annotations
    raw["spec"]["nodeSelector"] = selector
    assert decode_pod(raw).pod.constraint == constraint


@pytest.mark.parametrize("annotations", [{GROWTH_ANNOTATION: "1 w"}, {}], ids=["can-be-gated", "another"])
def test_only_a_pod_that_can_be_gated_is_ending_once_its_deletion_was_requested(
    annotations: dict[str, str],
) -> None:
    raw = make_pod("w", annotations=annotations)
    assert not decode_pod(raw).pod.is_ending
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert decode_pod(raw).pod.is_ending is bool(annotations)


@pytest.mark.parametrize(
    ("written", "template", "base_pods"),
    [
        ("2 0.spec.template", "0.spec.template", 2),
        ("-1 0.spec.template", "0.spec.template", 0),
        ("12345678901 x", "x", 0),
        ("", "", 0),
        (5, "", 0),
    ],
)
def test_pod_of_a_template_with_our_gate_names_it_and_its_pods_in_the_base_gang(
    written: object, template: str, base_pods: int
) -> None:
    pod = decode_pod(make_pod(annotations={GROWTH_ANNOTATION: written})).pod

    assert (pod.can_be_gated, pod.template, pod.base_pods) == (True, template, base_pods)


def odd(**fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A node as no API server sends it; `fields` replace those of a sound one."""
    return {**make_node(cpu="8"), **fields}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"metadata": 7, "spec": "s", "status": [1]}, id="no-objects"),
        pytest.param(odd(metadata={"name": ["n"], "labels": 7}), id="labels-are-a-number"),
        pytest.param(odd(metadata={"name": "n", "labels": {"a": {"b": "c"}, "d": None}}), id="odd-labels"),
        pytest.param(odd(spec={"taints": 7}), id="taints-are-a-number"),
        pytest.param(
            odd(spec={"taints": [7, None, {}, {"key": "k"}, {"effect": "NoSchedule"}]}), id="odd-taints"
        ),
        pytest.param(
            odd(status={"conditions": {"type": "Ready"}, "allocatable": [1]}), id="lists-for-objects"
        ),
        pytest.param(
            odd(status={"conditions": ["Ready", 7], "allocatable": {"cpu": {"a": 1}}}), id="odd-amounts"
        ),
    ],
)
def test_odd_node_is_decoded_without_its_unsound_parts(raw: dict[str, Any]) -> None:
    node = decode_node(raw)
    assert (node.taints, dict(node.labels), node.left_out) == ((), {}, 0)


def test_sound_taints_and_labels_of_an_odd_node_count() -> None:
    taints = [7, {"key": "gpu", "effect": "NoSchedule"}, {"key": "gpu"}]
    raw = odd(metadata={"name": "n", "labels": {"zone": "a", "odd": 7}}, spec={"taints": taints})
    node = decode_node(raw)
    assert (node.taints, node.labels) == ((Taint("gpu", "", "NoSchedule"),), {"zone": "a"})


def test_node_has_at_most_a_bound_of_names_the_well_known_ones_first() -> None:
    names = [f"a.b/{number:04}" for number in range(5000)]
    listed: dict[str, Any] = {**dict.fromkeys(names, "1"), "pods": "110", "memory": "1", "cpu": "8"}
    raw = make_node(**listed)
    node = decode_node(raw)
    assert list(node.allocatable) == ["cpu", "memory", "pods", *names[: MOST_NAMES_OF_NODE - 3]]
    assert (node.usable, node.most_pods, node.left_out) == (True, 110, 5003 - MOST_NAMES_OF_NODE)


def test_names_that_are_none_do_not_take_the_places_of_others() -> None:
    listed: dict[str, Any] = {**{f"-{number}": "1" for number in range(100)}, "a.b/c": "1", "a.b/none": "0"}
    raw = make_node(**listed)
    assert decode_node(raw).allocatable == Resources({"a.b/c": 1})


def test_node_has_at_most_a_bound_of_labels_those_of_topologies_first() -> None:
    raw = make_node()
    raw["metadata"]["labels"] = {**{f"a{number}": "v" for number in range(5000)}, LABELS_READ_FIRST[1]: "z"}
    node = decode_node(raw)
    assert (len(node.labels), node.labels[LABELS_READ_FIRST[1]]) == (MOST_LABELS_OF_NODE, "z")
    assert node.left_out == 5001 - MOST_LABELS_OF_NODE


def test_node_with_more_taints_than_are_read_is_not_used() -> None:
    taints = [{"key": f"k{number}", "effect": "NoSchedule"} for number in range(MOST_TAINTS + 1)]
    fits, more = (decode_node(make_node(spec={"taints": taints[:most]})) for most in (MOST_TAINTS, None))
    assert (fits.usable, fits.left_out, more.usable, more.left_out) == (True, 0, False, 1)

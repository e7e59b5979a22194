"""What each kind says of its own end, from its status as its controller writes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.core.kinds.built_in import ROWS
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import BUILT_IN

OPEN, SUCCEEDED = End.OPEN, End.SUCCEEDED


def condition(condition_type: str, status: object = "True", **fields: object) -> dict[str, object]:
    return {"type": condition_type, "status": status, **fields}


def told(group: str, kind: str, *conditions: dict[str, object], **status: object) -> ObjectState:
    return BUILT_IN.state_of(group, kind, {"status": {"conditions": list(conditions), **status}})


def pod(phase: str, *conditions: dict[str, object], **status: object) -> ObjectState:
    return told("", "Pod", *conditions, phase=phase, **status)


def ray_job(deployment: str, job: str = "", **status: object) -> ObjectState:
    return told("ray.io", "RayJob", jobDeploymentStatus=deployment, jobStatus=job, **status)


def volcano_job(phase: str, **state: object) -> ObjectState:
    return told("batch.volcano.sh", "Job", state={"phase": phase, **state})


CONDITION_KINDS = [
    ("batch", "Job", "Complete"),
    ("jobset.x-k8s.io", "JobSet", "Completed"),
    ("kubeflow.org", "PyTorchJob", "Succeeded"),
    ("kubeflow.org", "TFJob", "Succeeded"),
    ("kubeflow.org", "XGBoostJob", "Succeeded"),
    ("kubeflow.org", "PaddleJob", "Succeeded"),
    ("kubeflow.org", "JAXJob", "Succeeded"),
    ("kubeflow.org", "MPIJob", "Succeeded"),
    ("trainer.kubeflow.org", "TrainJob", "Complete"),
]


@pytest.mark.parametrize(("group", "kind", "success"), CONDITION_KINDS)
def test_kind_that_tells_its_success_by_a_condition_has_succeeded_when_that_is_true(
    group: str, kind: str, success: str
) -> None:
    assert told(group, kind, condition(success)) == ObjectState(SUCCEEDED, frozenset({success}))
    assert told(group, kind, condition(success, "False")) == ObjectState()
    assert told(group, kind, condition("Running")) == ObjectState(OPEN, frozenset({"Running"}))


@pytest.mark.parametrize(
    ("group", "kind"),
    [*((group, kind) for group, kind, _ in CONDITION_KINDS), ("ray.io", "RayCluster"), ("example.com", "X")],
)
def test_failed_condition_is_the_end_of_any_kind(group: str, kind: str) -> None:
    failed = condition("Failed", reason="BackoffLimitExceeded", message="too many\nfailures")
    expected = ObjectState(End.FAILED, frozenset({"Failed"}), "BackoffLimitExceeded: too many\\nfailures")
    assert told(group, kind, failed) == expected


def test_words_of_an_operator_have_no_spaces_around_them() -> None:
    # The MPI operator adds the message of a pod, and pods rarely have one.
    failed = condition("Failed", reason="BackoffLimitExceeded/", message="Job has reached the limit: ")
    said = told("kubeflow.org", "MPIJob", failed).message
    assert said == "BackoffLimitExceeded/: Job has reached the limit:"


def test_failure_weighs_more_than_success() -> None:
    assert told("batch", "Job", condition("Complete"), condition("Failed")) == ObjectState(
        End.FAILED, frozenset({"Complete", "Failed"}), "Failed"
    )


@pytest.mark.parametrize("not_final", ["SuccessCriteriaMet", "FailureTarget", "Suspended", "failed"])
def test_end_that_a_job_only_announces_is_not_its_end(not_final: str) -> None:
    state = told("batch", "Job", condition(not_final, reason="r", message="m"))
    assert state == ObjectState(OPEN, frozenset({not_final}))


@pytest.mark.parametrize("status", ["False", "Unknown", "true", True, None, ["True"]])
def test_only_the_string_true_is_true(status: object) -> None:
    assert told("batch", "Job", condition("Failed", status), condition("Complete", status)) == ObjectState()


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Unknown"])
def test_pod_is_open_until_its_phase_is_final(phase: str) -> None:
    ready = condition("Ready")
    assert pod(phase, ready, reason="NodeLost") == ObjectState(OPEN, frozenset({"Ready"}))


def test_pod_that_succeeded_has_succeeded_even_if_it_was_about_to_be_disrupted() -> None:
    state = pod("Succeeded", condition("DisruptionTarget"))
    assert state == ObjectState(SUCCEEDED, frozenset({"DisruptionTarget"}))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param({}, "Failed", id="it-says-nothing"),
        pytest.param({"reason": "DeadlineExceeded"}, "DeadlineExceeded", id="its-reason"),
        pytest.param({"reason": "R", "message": "m"}, "R: m", id="its-reason-and-message"),
        pytest.param(
            {
                "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}],
                "containerStatuses": [
                    {"name": "a", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                    {"name": "b", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
                ],
            },
            "OOMKilled: container b exited with code 137",
            id="its-container",
        ),
        pytest.param(
            {"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2}}}]},
            "container i exited with code 2",
            id="its-init-container",
        ),
    ],
)
def test_pod_that_failed_says_why(status: dict[str, Any], message: str) -> None:
    assert pod("Failed", **status) == ObjectState(End.FAILED, message=message)


@pytest.mark.parametrize(
    "reason",
    [
        "Evicted",
        "NodeLost",
        "Shutdown",
        "NodeShutdown",
        "Terminated",
        "Preempting",
        "NodeAffinity",
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfnvidia.com/gpu",
    ],
)
def test_pod_that_its_node_put_out_is_evicted(reason: str) -> None:
    assert pod("Failed", reason=reason, message="m") == ObjectState(End.EVICTED, message=f"{reason}: m")


def test_pod_that_was_disrupted_is_evicted() -> None:
    disrupted = condition("DisruptionTarget", reason="PreemptionByScheduler", message="made room")
    assert pod("Failed", disrupted) == ObjectState(
        End.EVICTED, frozenset({"DisruptionTarget"}), "PreemptionByScheduler: made room"
    )
    assert pod("Failed", condition("DisruptionTarget", "False")).end is End.FAILED


@pytest.mark.parametrize(
    ("deployment", "job"),
    [
        ("", ""),
        ("Initializing", ""),
        ("Waiting", ""),
        ("Running", "PENDING"),
        ("Running", "RUNNING"),
        ("Running", "SUCCEEDED"),
        ("Running", "STOPPED"),
        ("Retrying", "FAILED"),
        ("Suspending", "RUNNING"),
        ("Suspended", ""),
        ("Complete", ""),
    ],
)
def test_ray_job_is_open_until_both_its_deployment_and_its_job_are_over(deployment: str, job: str) -> None:
    assert ray_job(deployment, job, reason="r", message="m") == ObjectState()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (ray_job("Complete", "SUCCEEDED", message="Job finished"), ObjectState(SUCCEEDED)),
        (
            ray_job("Complete", "STOPPED", message="Job was intentionally stopped."),
            ObjectState(End.FAILED, message="Stopped: Job was intentionally stopped."),
        ),
        (ray_job("Complete", "STOPPED"), ObjectState(End.FAILED, message="Stopped: the job was cancelled")),
        (ray_job("Complete", "FAILED"), ObjectState(End.FAILED, message="Failed")),
        (
            ray_job("Failed", "FAILED", reason="AppFailed", message="exit 1"),
            ObjectState(End.FAILED, message="AppFailed: exit 1"),
        ),
        (
            ray_job("Failed", "RUNNING", reason="DeadlineExceeded"),
            ObjectState(End.FAILED, message="DeadlineExceeded"),
        ),
        (ray_job("ValidationFailed"), ObjectState(End.FAILED, message="ValidationFailed")),
    ],
)
def test_ray_job_ends(state: ObjectState, expected: ObjectState) -> None:
    assert state == expected


@pytest.mark.parametrize("phase", ["Failed", "Aborted", "Terminated"])
def test_volcano_job_that_was_given_up_has_failed(phase: str) -> None:
    assert volcano_job(phase, reason="PodFailed", message="m") == ObjectState(
        End.FAILED, message="PodFailed: m"
    )
    assert volcano_job(phase) == ObjectState(End.FAILED, message=phase)


@pytest.mark.parametrize(
    "phase", ["Pending", "Running", "Restarting", "Completing", "Aborting", "Terminating"]
)
def test_volcano_job_is_open_until_its_phase_is_final(phase: str) -> None:
    assert volcano_job(phase) == ObjectState()
    assert volcano_job("Completed") == ObjectState(SUCCEEDED)


@pytest.mark.parametrize(
    ("group", "kind", "trouble"),
    [
        ("apps", "Deployment", condition("ReplicaFailure", reason="R", message="m")),
        ("apps", "Deployment", condition("Progressing", "False", reason="ProgressDeadlineExceeded")),
        ("apps", "ReplicaSet", condition("ReplicaFailure", reason="R", message="m")),
        ("ray.io", "RayCluster", condition("ReplicaFailure", reason="R", message="m")),
    ],
)
def test_condition_that_can_recover_does_not_end_the_object_but_gives_its_message(
    group: str, kind: str, trouble: dict[str, object]
) -> None:
    state = told(group, kind, condition("Available", "False"), trouble)
    assert (state.end, state.message) in {(OPEN, "R: m"), (OPEN, "ProgressDeadlineExceeded")}


@pytest.mark.parametrize(
    ("group", "kind", "harmless"),
    [
        ("apps", "Deployment", condition("Progressing", reason="ProgressDeadlineExceeded")),
        ("apps", "Deployment", condition("Progressing", "False", reason="DeploymentPaused")),
        ("ray.io", "RayCluster", condition("ReplicaFailure", "False", reason="R")),
        ("ray.io", "RayService", condition("Ready", "False", reason="Initializing")),
        ("apps", "StatefulSet", condition("ReplicaFailure")),
    ],
)
def test_harmless_condition_has_no_message(group: str, kind: str, harmless: dict[str, object]) -> None:
    state = told(group, kind, harmless)
    assert (state.end, state.message) == (OPEN, "")


@pytest.mark.parametrize("reason", ["InitializingTimeout", "ValidationFailed"])
def test_ray_service_that_kuberay_gave_up_has_failed(reason: str) -> None:
    given_up = condition("Ready", "False", reason=reason, message="m")
    assert told("ray.io", "RayService", given_up) == ObjectState(End.FAILED, message=f"{reason}: m")


def test_kinds_that_end_are_known_with_their_group_and_make_pods() -> None:
    assert BUILT_IN.row("batch", "Job").ends
    assert BUILT_IN.row("batch.volcano.sh", "Job").ends
    assert not BUILT_IN.row("", "Job").ends
    assert not BUILT_IN.row("apps", "Deployment").ends
    assert not BUILT_IN.row("ray.io", "RayCluster").ends
    assert all(row.may_make_pods for row in ROWS if row.ends)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "status",
                    "conditions",
                    "type",
                    "reason",
                    "phase",
                    "state",
                    "terminated",
                    "containerStatuses",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from([*BUILT_IN.derivable, ("example.com", "X")]), JSON, JSON)
def test_any_json_says_something_that_can_be_stored(
    kind: tuple[str, str], status: object, junk: object
) -> None:
    failed = condition("Failed", reason=junk, message=junk)
    anything: Any = junk
    for raw in (anything, {"status": status}, {"status": {"phase": "Failed", "state": junk}}):
        assert BUILT_IN.state_of(*kind, raw).message.isprintable()
    assert told(*kind, failed, condition("Odd", junk)).end is End.FAILED


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        *(
            (state, ObjectState())
            for state in (
                "",
                "SUBMITTED",
                "RUNNING",
                "SUBMISSION_FAILED",
                "PENDING_RERUN",
                "INVALIDATING",
                "SUCCEEDING",
                "FAILING",
                "UNKNOWN",
                "Completed",
                ["COMPLETED"],
            )
        ),
        ("COMPLETED", ObjectState(SUCCEEDED)),
        ("FAILED", ObjectState(End.FAILED, message="FAILED: driver container failed")),
    ],
)
def test_spark_application_ends_once_its_operator_tries_no_more(state: object, expected: ObjectState) -> None:
    said = {"state": state, "errorMessage": "driver container failed"}
    assert told("sparkoperator.k8s.io", "SparkApplication", applicationState=said) == expected


@pytest.mark.parametrize("status", [None, "COMPLETED", []])
def test_spark_application_without_a_state_is_open(status: object) -> None:
    assert told("sparkoperator.k8s.io", "SparkApplication", applicationState=status) == ObjectState()

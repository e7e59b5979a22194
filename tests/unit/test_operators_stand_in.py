"""The stand-ins for operators, as functions of values: the objects that each kind gets, and its status."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.operated import RUN_FOR, Operated, Wish
from testbed.operators import BELOW, OPERATED

Json = dict[str, Any]

NOW = "2026-01-01T00:00:00Z"
TEMPLATE: Json = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main"}]}}
SPECS: dict[str, Json] = {
    "Job": {
        "tasks": [{"name": "a", "replicas": 1, "template": TEMPLATE}, {"name": "b", "template": TEMPLATE}]
    },
    "SparkApplication": {"driver": {"memory": "512m"}, "executor": {"instances": 2}},
    "Training": {"replicas": 2, "template": TEMPLATE},
    "TrainJob": {"trainer": {"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": 1}}}},
}


def operated(kind: str) -> Operated:
    """The stand-in of a kind."""
    (found,) = [each for each in OPERATED if each.kind == kind]
    return found


def made(kind: str, spec: Json | None = None, **fields: Json) -> Json:
    """An object of a kind as the API server has it."""
    metadata = {"name": "x", "namespace": "n", "uid": "12345678"}
    return {
        "apiVersion": operated(kind).version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec or SPECS[kind],
        **fields,
    }


def after(kind: str, *below: Json, **fields: Any) -> Wish:  # noqa: ANN401 - any JSON
    """What the stand-in does about an object with these objects below it."""
    return operated(kind).decide(made(kind, **fields), below, NOW)


def pod(name: str, phase: str) -> Json:
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "n", "uid": f"uid-of-{name}"},
        "status": {"phase": phase, "conditions": [ready]},
    }


def ended(condition: str) -> Json:
    return {"conditions": [{"type": condition, "status": "True"}]}


def names(objects: Wish) -> list[str]:
    return [f"{each['kind']}/{each['metadata']['name']}" for each in objects.wanted]


def true(wish: Wish) -> list[str]:
    """The types of the conditions that are True."""
    return [each["type"] for each in wish.status["conditions"] if each["status"] == "True"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Job", ["Pod/x-a-0", "Pod/x-b-0"]),
        ("SparkApplication", ["Pod/x-driver", "Pod/x-exec-1", "Pod/x-exec-2"]),
        ("Training", ["Pod/x-0", "Pod/x-1"]),
        ("TrainJob", ["JobSet/x"]),
    ],
)
def test_new_object_gets_objects_that_it_controls(kind: str, expected: list[str]) -> None:
    wish = after(kind)

    assert names(wish) == expected
    assert wish.unwanted == ()
    for each in wish.wanted:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"], owner["controller"]) == ("12345678", kind, True)
        assert each["metadata"]["namespace"] == "n"
        assert (each["apiVersion"], each["kind"]) in BELOW


@pytest.mark.parametrize(
    ("kind", "below", "expected"),
    [
        ("Training", [pod("x-0", "Succeeded"), pod("x-1", "Running")], []),
        ("Training", [pod("x-0", "Succeeded"), pod("x-1", "Succeeded")], ["Trained"]),
        ("Training", [pod("x-0", "Failed"), pod("x-1", "Running")], ["Aborted"]),
        (
            "TrainJob",
            [{"kind": "JobSet", "metadata": {"name": "x"}, "status": ended("Completed")}],
            ["Complete"],
        ),
    ],
)
def test_conditions_follow_what_is_below(kind: str, below: list[Json], expected: list[str]) -> None:
    assert true(after(kind, *below)) == expected


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["Running"], "Pending"),
        (["Running", "Running"], "Running"),
        (["Running", "Succeeded"], "Running"),
        (["Succeeded", "Succeeded"], "Completed"),
        (["Succeeded", "Failed"], "Failed"),
    ],
)
def test_volcano_job_has_a_phase(phases: list[str], expected: str) -> None:
    pods = [pod(name, phase) for name, phase in zip(("x-a-0", "x-b-0"), phases, strict=False)]
    assert after("Job", *pods).status["state"] == {"phase": expected, "lastTransitionTime": NOW}


@pytest.mark.parametrize(
    ("driver", "executor", "expected"),
    [
        ("Pending", "Pending", "SUBMITTED"),
        ("Running", "Running", "RUNNING"),
        ("Succeeded", "Running", "COMPLETED"),
        ("Failed", "Running", "FAILED"),
    ],
)
def test_spark_application_ends_with_its_driver(driver: str, executor: str, expected: str) -> None:
    executors = [pod(f"x-exec-{number}", executor) for number in (1, 2)]
    wish = after("SparkApplication", pod("x-driver", driver), *executors)
    assert wish.status["applicationState"] == {"state": expected}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Training", ended("Aborted")),
        ("Job", {"state": {"phase": "Completed"}}),
        ("SparkApplication", {"applicationState": {"state": "COMPLETED"}}),
    ],
)
def test_ended_crew_gets_no_pods_and_loses_those_that_run(kind: str, status: Json) -> None:
    wish = after(kind, pod("x-0", "Succeeded"), pod("x-1", "Running"), status=status)
    assert (wish.wanted, [each["metadata"]["name"] for each in wish.unwanted]) == ((), ["x-1"])


def test_template_of_a_crew_keeps_its_labels_and_gets_those_of_the_operator() -> None:
    first = after("Job").wanted[0]
    assert first["metadata"]["labels"] == {
        "app": "a",
        "volcano.sh/job-name": "x",
        "volcano.sh/task-spec": "a",
    }


def test_annotation_of_an_object_without_pod_template_says_how_long_it_runs() -> None:
    one = made("TrainJob")
    one["metadata"]["annotations"] = {RUN_FOR: "5s"}
    last = operated("TrainJob").decide(one, [], NOW).wanted[-1]
    spec = last["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert spec["template"]["metadata"]["annotations"] == {RUN_FOR: "5s"}

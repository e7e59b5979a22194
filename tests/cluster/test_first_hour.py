"""The first hour of somebody who has plain YAML, in the cluster of `make dev`: from a file to a job that is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from testbed import build
from tests.afternoon import STATE, first_steps
from tests.cluster.demos import Run, fresh_folder
from tests.cluster.transcripts import assert_goes_as_shown, typed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]

Json = dict[str, Any]

AS_ADA: Final = (f". {STATE}/env", f"export KUBECONFIG={STATE}/ada.kubeconfig")
BRIEF: Final = {"testbed.dispatcher.codeflare.dev/run-for": "1s"}
SETTINGS: Final = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"epochs": "3"}}


@pytest.fixture(scope="module")
def dev() -> Iterator[Run]:
    """`make dev`, when it says that it is ready."""
    build.ensure()
    with fresh_folder() as folder:
        run = Run("dev", folder / "dev")
        run.wait_for("Ctrl-C ends all of it.")
        yield run
        assert run.end(signal.SIGTERM) == 0
        assert run.left_behind() == []


def pod(settings: str, **requests: str) -> Json:
    """A pod template that mounts a ConfigMap and lasts a second."""
    devices = {key: amount for key, amount in requests.items() if "/" in key}
    container = {
        "name": "main",
        "image": "none",
        "envFrom": [{"configMapRef": {"name": settings}}],
        "resources": {"requests": requests, "limits": devices},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"annotations": BRIEF}, "spec": spec}


def named(kind: str, api_version: str, name: str, spec: Json, **metadata: object) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def files() -> dict[str, Json]:
    """A plain workload of each kind by its name, as its operator takes it."""
    workers = {"groupName": "gpu", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
    gpu = {"nvidia.com/gpu": "1"}
    ray = {
        "entrypoint": "python train.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": pod("ray-settings", cpu="1")},
            "workerGroupSpecs": [{**workers, "template": pod("ray-settings", cpu="1", **gpu)}],
        },
    }
    roles = {
        role: {"replicas": 1, "template": pod("torch-settings", cpu="1", **gpu)}
        for role in ("Master", "Worker")
    }
    jobs = {"parallelism": 2, "completions": 2, "template": pod("sweep-settings", cpu="1", **gpu)}
    return {
        "ray": named("RayJob", "ray.io/v1", "ray", ray, annotations=BRIEF),
        "torch": named("PyTorchJob", "kubeflow.org/v1", "torch", {"pytorchReplicaSpecs": roles}),
        "sweep": named("Job", "batch/v1", "sweep", jobs),
    }


def written(folder: Path, name: str, *objects: Json) -> Path:
    """A file with these objects."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return path


def test_first_appwrapper_goes_as_shown(dev: Run) -> None:
    assert_goes_as_shown(dev, first_steps())


def test_plain_file_of_each_kind_is_queued_and_completes(dev: Run, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name, workload in files().items():
        written(folder, name, {**SETTINGS, "metadata": {"name": f"{name}-settings"}}, workload)

    code, out, errors = typed(dev, [*AS_ADA, f"kubectl aw submit {folder} --wait --timeout 90s"])

    assert code == 0, out + errors
    lines = out.splitlines()
    assert lines[:3] == [
        "team-a/ray submitted: ConfigMap/ray-settings, RayJob/ray",
        "team-a/sweep submitted: ConfigMap/sweep-settings, Job/sweep",
        "team-a/torch submitted: ConfigMap/torch-settings, PyTorchJob/torch",
    ]
    assert {line for line in lines if line.endswith("Completed on hub")} == {
        f"team-a/{name} Completed on hub" for name in files()
    }


def test_first_decision_says_what_is_wrong(dev: Run, tmp_path: Path) -> None:
    typo = files()["sweep"] | {"metadata": {"name": "typo"}}
    typo["spec"]["template"] = pod("sweep-settings", cpu="1", **{"nvidia.com/gpus": "1"})
    asked = f"kubectl aw submit {written(tmp_path, 'typo', typo)} --fail-if-never"

    code, out, errors = typed(dev, [*AS_ADA, asked])

    assert (code, out.splitlines()) == (
        4,
        [
            "team-a/typo submitted: Job/typo",
            "team-a/typo cannot run as it is: LargerThanCluster: cluster hub: nvidia.com/gpus: needs 2, 0 in all of "
            "it; no node has nvidia.com/gpus; did you mean nvidia.com/gpu?",
        ],
    ), errors


def test_misspelt_field_is_refused_with_the_one_that_was_meant(dev: Run, tmp_path: Path) -> None:
    wrong = files()["sweep"] | {"metadata": {"name": "field"}}
    wrong["spec"]["paralellism"] = 2

    code, out, errors = typed(dev, [*AS_ADA, f"kubectl aw submit {written(tmp_path, 'field', wrong)}"])

    assert (code, out, errors) == (
        2,
        "",
        'kubectl aw: team-a/field: Job/field: unknown field "spec.paralellism"; did you mean parallelism? Nothing was '
        "created\n",
    )

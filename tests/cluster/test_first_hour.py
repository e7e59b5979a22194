"""The first hour of somebody who has plain YAML, in the cluster of `make dev`: from a file to a job that is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from testbed.dev import LOG
from tests.afternoon import CHECKOUT, STATE, first_steps, several_files
from tests.cluster.demos import Run, developing
from tests.cluster.transcripts import assert_goes_as_shown, typed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]

Json = dict[str, Any]

LIFE: Final = "testbed.dispatcher.codeflare.dev"
BRIEF: Final = {f"{LIFE}/run-for": "1s"}
TENANT: Final = re.findall(
    r"```sql\n(CREATE ROLE team_a .*?)```",
    (CHECKOUT / "docs" / "history.md").read_text(encoding="utf-8"),
    re.DOTALL,
)
SETTINGS: Final = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"epochs": "3"}}
LARGER: Final = (
    "cluster hub: nvidia.com/gpus: needs 2, 0 in all of it; no node has nvidia.com/gpus; "
    "did you mean nvidia.com/gpu?"
)
QUEUE: Final = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "DispatchQueue"}


@pytest.fixture(scope="module")
def dev() -> Iterator[Run]:
    """`make dev`, when it says that it is ready."""
    with developing() as run:
        yield run


def by(user: str, *lines: str) -> list[str]:
    """These lines in the shell of a user of `make dev`."""
    return [f". {STATE}/env", f"export KUBECONFIG={STATE}/{user}.kubeconfig", *lines]


def pod(settings: str, container_name: str = "main", /, **requests: str) -> Json:
    """A pod template that mounts a ConfigMap and lasts a second."""
    devices = {key: amount for key, amount in requests.items() if "/" in key}
    container = {
        "name": container_name,
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
        role: {"replicas": 1, "template": pod("torch-settings", "pytorch", cpu="1", **gpu)}
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


def facts_in(status: str) -> dict[str, str]:
    """The first field of a status as `kubectl describe` prints it, with the fields in it."""
    first = re.match(r"  \S.*\n(?:   .*\n)*", status)
    lines = first[0].splitlines() if first else []
    return {name: said.strip() for name, _, said in (line.strip().partition(" ") for line in lines)}


def test_first_appwrapper_goes_as_shown(dev: Run) -> None:
    assert_goes_as_shown(dev, first_steps())


def test_plain_file_of_each_kind_is_queued_and_completes(dev: Run, tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    for name, workload in files().items():
        written(folder, name, {**SETTINGS, "metadata": {"name": f"{name}-settings"}}, workload)

    code, out, errors = typed(dev, by("ada", f"kubectl aw submit {folder} --wait --timeout 90s"))

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

    submitter = "kubectl get pods -l job-name=ray -o jsonpath={.items[*].metadata.name}"
    first = "kubectl aw logs ray --commands | head -n 1"
    code, out, errors = typed(dev, by("ada", "kubectl aw logs ray", first, submitter))

    assert code == 0, out + errors
    log, command, name = out.splitlines()
    assert (log, command) == (LOG, f"kubectl logs -n team-a {name} -c ray-job-submitter")


def test_commands_for_several_files_queue_them_and_correct_a_queue(dev: Run, tmp_path: Path) -> None:
    job = files()["sweep"]
    a, b, c, d, e, train = (job | {"metadata": {"name": name}} for name in ("a", "b", "c", "d", "e", "train"))
    for folder in ("jobs", "overlays/night"):
        (tmp_path / folder).mkdir(parents=True)
    written(tmp_path, "sweep", a, b)
    written(tmp_path / "jobs", "c", c)
    written(tmp_path / "jobs", "d", d)
    written(tmp_path / "overlays/night", "job", e)
    written(tmp_path / "overlays/night", "kustomization", {"namePrefix": "night-", "resources": ["job.yaml"]})
    written(tmp_path, "train", train)
    queues = [
        {**QUEUE, "metadata": {"name": name}, "spec": {"namespaceSelector": ""}}
        for name in ("default", "vision")
    ]
    declared = written(tmp_path, "queues", *queues)
    each, folder, kustomized, corrected = several_files()
    # They stay declared: the gangs of a deleted queue wait for it.
    assert typed(dev, by("admin", f"kubectl apply -f {declared}"))[0] == 0

    asked = (each, folder, kustomized, "kubectl aw submit train.yaml --queue vison", corrected)
    done = "kubectl aw wait a b c d night-e train --for done --timeout 90s"
    code, out, errors = typed(dev, by("cleo", f"cd {tmp_path}", *asked, done))

    assert code == 0, out + errors
    lines = out.splitlines()
    assert [line for line in lines if " submitted: " in line] == [
        f"team-b/{name} submitted: Job/{name}" for name in ("a", "b", "c", "d", "night-e", "train")
    ]
    assert {line for line in lines if line.endswith("Completed on hub")} == {
        f"team-b/{name} Completed on hub" for name in ("a", "b", "c", "d", "night-e", "train")
    }
    absent = "team-b/train cannot run as it is: QueueNotFound: there is no queue vison; did you mean vision?"
    assert absent in lines


def misspelt(name: str) -> Json:
    """A Job that can never run, because no node has the resource that it asks for."""
    job = files()["sweep"] | {"metadata": {"name": name}}
    job["spec"]["template"] = pod("sweep-settings", cpu="1", **{"nvidia.com/gpus": "1"})
    return job


def test_first_decision_says_what_is_wrong(dev: Run, tmp_path: Path) -> None:
    asked = f"kubectl aw submit {written(tmp_path, 'typo', misspelt('typo'))} --fail-if-never"

    code, out, errors = typed(dev, by("ada", asked))

    assert (code, out.splitlines()) == (
        4,
        [
            "team-a/typo submitted: Job/typo",
            f"team-a/typo cannot run as it is: LargerThanCluster: {LARGER}",
        ],
    ), errors

    code, out, errors = typed(dev, by("ada", "kubectl describe appwrapper typo"))

    assert (code, facts_in(out.partition("\nStatus:\n")[2])) == (
        0,
        {"About:": "", "Message:": LARGER, "Phase:": "Queued", "Reason:": "LargerThanCluster"},
    ), errors


def test_misspelt_field_is_refused_with_the_one_that_was_meant(dev: Run, tmp_path: Path) -> None:
    wrong = files()["sweep"] | {"metadata": {"name": "field"}}
    wrong["spec"]["paralellism"] = 2

    code, out, errors = typed(dev, by("ada", f"kubectl aw submit {written(tmp_path, 'field', wrong)}"))

    assert (code, out, errors) == (
        2,
        "",
        'kubectl aw: team-a/field: Job/field: unknown field "spec.paralellism"; did you mean parallelism? Nothing was '
        "created\n",
    )


def test_show_prints_the_command_for_the_log_of_the_container_that_failed_first(
    dev: Run, tmp_path: Path
) -> None:
    breaks = files()["sweep"] | {"metadata": {"name": "breaks"}}
    breaks["spec"]["template"]["metadata"]["annotations"] = {f"{LIFE}/fail-after": "1s"}
    breaks["spec"]["backoffLimit"] = 0
    asked = f"kubectl aw submit {written(tmp_path, 'breaks', breaks)} --wait --timeout 90s"

    code, out, errors = typed(dev, by("ada", asked))

    assert (code, out.splitlines()[-1].partition(": ")[0]) == (
        1,
        "team-a/breaks Failed on hub; FailedComponent",
    ), errors
    first = re.search(r"failed first: container main of pod (\S+), exit code 1, Error$", out)
    assert first is not None, out
    code, out, errors = typed(dev, by("ada", "DISPATCHER_DATABASE_URL= kubectl aw show breaks"))
    [command] = re.findall(r"kubectl aw logs .*", out)
    assert (code, command) == (0, f"kubectl aw logs breaks -n team-a --pod {first[1]} -c main"), errors
    assert typed(dev, by("ada", command)) == (0, LOG, "")


def test_tenant_reads_its_own_namespace_with_a_role_made_as_the_page_says(dev: Run, tmp_path: Path) -> None:
    for user, name in (("ada", "mine"), ("cleo", "theirs")):
        code, out, errors = typed(
            dev, by(user, f"kubectl aw submit {written(tmp_path, name, misspelt(name))}")
        )
        assert code == 0, out + errors
    [block] = TENANT
    made = f'psql -qv ON_ERROR_STOP=1 "$DISPATCHER_DATABASE_URL" <<END\n{block}END'
    code, out, errors = typed(dev, by("admin", made))
    assert code == 0, out + errors
    login = (
        'export DISPATCHER_DATABASE_URL="$(echo "$DISPATCHER_DATABASE_URL" | sed s,//postgres@,//team_a@,)"'
    )

    for asked in ("queue", "history", "show mine", "explain mine", "sql 'SELECT namespace FROM job_history'"):
        code, out, errors = typed(dev, by("ada", login, f"kubectl aw {asked}"))
        assert (code, "team-a" in out, "team-b" in out) == (0, True, False), f"{asked}: {out}{errors}"
    code, out, errors = typed(dev, by("ada", login, "kubectl aw show theirs"))
    assert (code, out, "there is no AppWrapper theirs" in errors) == (1, "", True), out + errors

"""In the cluster of `make dev` each kind that docs/kinds.md names can be wrapped, and lives as its operator has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from dispatcher.core.kinds.built_in import ROWS
from testbed import build
from testbed.client import Client
from testbed.dev import APPWRAPPERS, SETTING, settle
from testbed.processes import Supervisor
from testbed.stack import Stack
from tests.cluster.demos import fresh_folder
from tests.cluster.manifests import SERVED, appwrapper, changed, item, job, pod_template

Json = dict[str, Any]

SHORT: Final = pod_template("100m", run_for="1s")
LONG: Final = pod_template("100m")
NEVER: Final = {**SHORT, "spec": {**SHORT["spec"], "restartPolicy": "Never"}}
ENDS_SOON: Final = {"annotations": SHORT["metadata"]["annotations"]}
RAY: Final = {"headGroupSpec": {"rayStartParams": {}, "template": LONG}}
JOB: Final = {"template": NEVER}
GROUP: Final = {"minMember": 1}
SELECTED: Final = {"selector": {"matchLabels": {"app": "a"}}}
REPLICATED: Final = {**SELECTED, "template": {**LONG, "metadata": {"labels": {"app": "a"}}}}
RAY_JOB: Final = {
    "entrypoint": "python train.py",
    "shutdownAfterJobFinishes": True,
    "rayClusterSpec": RAY,
    "submitterPodTemplate": NEVER,
}


def _kubeflow(container: str, field: str, *roles: str) -> Json:
    """Replicas of each role, with a container of the name that the operator requires."""
    template = changed(SHORT, "spec.containers.0.name", container)
    return {"spec": {field: {role: {"replicas": 1, "template": template} for role in roles}}}


ENDING: Final[dict[str, Json]] = {
    "v1 Pod": {"metadata": ENDS_SOON, "spec": NEVER["spec"]},
    "batch/v1 Job": {"spec": JOB},
    "batch.volcano.sh/v1alpha1 Job": {"spec": {"tasks": [{"name": "t", "replicas": 1, "template": SHORT}]}},
    "jobset.x-k8s.io/v1alpha2 JobSet": {
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": JOB}}]}
    },
    "kubeflow.org/v1 JAXJob": _kubeflow("jax", "jaxReplicaSpecs", "Worker"),
    "kubeflow.org/v2beta1 MPIJob": _kubeflow("mpi", "mpiReplicaSpecs", "Launcher", "Worker"),
    "kubeflow.org/v1 PaddleJob": _kubeflow("paddle", "paddleReplicaSpecs", "Worker"),
    "kubeflow.org/v1 PyTorchJob": _kubeflow("pytorch", "pytorchReplicaSpecs", "Master", "Worker"),
    "kubeflow.org/v1 TFJob": _kubeflow("tensorflow", "tfReplicaSpecs", "Chief", "Worker"),
    "kubeflow.org/v1 XGBoostJob": _kubeflow("xgboost", "xgbReplicaSpecs", "Master", "Worker"),
    "ray.io/v1 RayJob": {"spec": RAY_JOB},
    "platform.example.com/v1 Training": {"spec": {"replicas": 2, "template": SHORT}},
}
"""They end by themselves."""
STAYING: Final[dict[str, Json]] = {
    "apps/v1 Deployment": {"spec": REPLICATED},
    "apps/v1 ReplicaSet": {"spec": REPLICATED},
    "apps/v1 StatefulSet": {"spec": {**REPLICATED, "serviceName": "a"}},
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": {
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": LONG}}
    },
    "ray.io/v1 RayCluster": {"spec": RAY},
    "ray.io/v1 RayService": {"spec": {"serveConfigV2": SERVED, "rayClusterConfig": RAY}},
}
"""Their pods run until they are deleted."""
DECLARED: Final[dict[str, tuple[Json, Json]]] = {
    "apps/v1 DaemonSet": ({"spec": REPLICATED}, {"replicas": 3}),
    "batch/v1 CronJob": ({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": JOB}}}, {"replicas": 0}),
    "ray.io/v1 RayCronJob": ({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": RAY_JOB}}, {"replicas": 0}),
    "sparkoperator.k8s.io/v1beta2 SparkApplication": (
        {
            "spec": {
                "type": "Python",
                "driver": {"memory": "512m", **ENDS_SOON},
                "executor": {"instances": 2},
            }
        },
        {"replicas": 3},
    ),
    "trainer.kubeflow.org/v1alpha1 TrainJob": (
        {"metadata": ENDS_SOON, "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}}},
        {"replicas": 2},
    ),
}
"""The author has to declare the pods."""
WITHOUT_PODS: Final[dict[str, Json]] = {
    "v1 ConfigMap": {},
    "v1 Endpoints": {},
    "v1 LimitRange": {"spec": {"limits": []}},
    "v1 PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
    "v1 ResourceQuota": {},
    "v1 Secret": {},
    "v1 Service": {"spec": {"ports": [{"port": 80}]}},
    "v1 ServiceAccount": {},
    "apps/v1 ControllerRevision": {"revision": 1, "data": {"a": 1}},
    "autoscaling/v2 HorizontalPodAutoscaler": {
        "spec": {
            "maxReplicas": 2,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"},
        }
    },
    "batch.volcano.sh/v1alpha1 PodGroup": {"spec": GROUP},
    "coordination.k8s.io/v1 Lease": {},
    "discovery.k8s.io/v1 EndpointSlice": {"addressType": "IPv4", "endpoints": []},
    "networking.k8s.io/v1 Ingress": {
        "spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}
    },
    "networking.k8s.io/v1 NetworkPolicy": {"spec": {"podSelector": {"matchLabels": {"app": "none"}}}},
    "policy/v1 PodDisruptionBudget": {"spec": {"minAvailable": 1, **SELECTED}},
    "rbac.authorization.k8s.io/v1 Role": {"rules": []},
    "rbac.authorization.k8s.io/v1 RoleBinding": {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}
    },
    "route.openshift.io/v1 Route": {"spec": {"to": {"kind": "Service", "name": "a"}}},
    "scheduling.k8s.io/v1alpha2 PodGroup": {"spec": {"schedulingPolicy": {"basic": {}}}},
    "scheduling.sigs.k8s.io/v1alpha1 PodGroup": {"spec": GROUP},
    "scheduling.volcano.sh/v1beta1 PodGroup": {"spec": GROUP},
    "scheduling.x-k8s.io/v1alpha1 PodGroup": {"spec": GROUP},
}
"""Nothing is charged for them."""


def wrapped(kind: str, body: Json) -> Json:
    """The object of this `version kind`, named after it."""
    version, _, word = kind.partition(" ")
    metadata = {**body.get("metadata", {}), "name": name_of(kind)}
    return {**body, "apiVersion": version, "kind": word, "metadata": metadata}


def name_of(kind: str) -> str:
    """The name of the AppWrapper of a kind: unique, and a valid name of an object."""
    version, _, word = kind.partition(" ")
    return f"{word}-{version.partition('/')[0].replace('.', '-')}".lower()


def appwrappers() -> dict[str, Json]:
    """The AppWrapper of each kind with pods, by its name; those without pods are wrapped together, twelve at a time."""
    made = {
        name_of(kind): appwrapper(name_of(kind), item(wrapped(kind, body)))
        for kind, body in (ENDING | STAYING).items()
    }
    for kind, (body, declared) in DECLARED.items():
        pods = {"replicas": declared["replicas"], "requests": {"cpu": "100m"}}
        rest = {key: value for key, value in declared.items() if key != "replicas"}
        made[name_of(kind)] = appwrapper(
            name_of(kind), item(wrapped(kind, body), custompodresources=[pods], **rest)
        )
    kinds = list(WITHOUT_PODS)
    for number, part in enumerate((kinds[:12], kinds[12:])):
        name = f"without-pods-{number}"
        made[name] = appwrapper(name, *(item(wrapped(each, WITHOUT_PODS[each])) for each in part))
    return made


# --- the tests -------------------------------------------------------------------------------------------


PATIENCE_SECONDS = 120.0
AN_HOUR = 3600
UNANNOTATED = appwrapper("unannotated", item(changed(job("unannotated"), "spec.template.metadata", {})))
"""A Job that does not say how long its pod runs."""
EXPECTED = {
    **dict.fromkeys(map(name_of, ENDING), "Completed"),
    **dict.fromkeys(map(name_of, STAYING), "Running"),
    **dict.fromkeys(map(name_of, DECLARED), "Running"),
    name_of("sparkoperator.k8s.io/v1beta2 SparkApplication"): "Completed",
    name_of("trainer.kubeflow.org/v1alpha1 TrainJob"): "Completed",
    "without-pods-0": "Running",
    "without-pods-1": "Running",
    "unannotated": "Running",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with fresh_folder() as folder:
        yield folder


@pytest.fixture
def hub(folder: Path) -> Iterator[Client]:
    """The administrator's way to the cluster of `make dev`, in which jobs last an hour unless they say less."""
    setting = replace(SETTING, hub=replace(SETTING.hub, work_seconds=AN_HOUR))
    with Supervisor(folder) as supervisor:
        stack = Stack(supervisor, build.ensure(), setting)
        try:
            stack.up(lambda _: None)
            settle(stack)
            yield stack.plane.client
        finally:
            stack.down()


def kinds() -> set[tuple[str, str]]:
    """Group and kind of every example but that of examples/own-kind."""
    examples = (each.split(" ") for each in (*ENDING, *STAYING, *DECLARED, *WITHOUT_PODS))
    named = {(version.rpartition("/")[0], kind) for version, kind in examples}
    return named - {("platform.example.com", "Training")}


def test_every_built_in_kind_has_an_example() -> None:
    assert kinds() == {(row.group, row.kind) for row in ROWS}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
async def test_every_kind_can_be_wrapped_and_runs_and_ends_as_its_operator_has_it(hub: Client) -> None:
    for each in (*appwrappers().values(), UNANNOTATED):
        await asyncio.to_thread(hub.request, "POST", APPWRAPPERS, each)

    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := await asyncio.to_thread(states, hub)) != EXPECTED:
        differ = {name: (state, EXPECTED[name]) for name, state in found.items() if state != EXPECTED[name]}
        assert "Failed" not in found.values(), differ
        assert time.monotonic() < deadline, differ
        await asyncio.sleep(0.2)


def states(hub: Client) -> dict[str, str]:
    """The state of every AppWrapper."""
    return {
        each["metadata"]["name"]: (each.get("status") or {}).get("queuejobstate", "")
        for each in hub.get(APPWRAPPERS)["items"]
    }

"""A gang of each kind that the real operators of these tests look after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from testbed.batch_operators import JOBSET, LEADER_WORKER_SET, MPI, TRAINING
from testbed.built_operators import BuiltOperator
from tests.cluster.manifests import appwrapper, item, lives, pod_template

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gang:
    """An object of a kind with so many pods, whose spec is made of a pod template.

    `container` is the name that the operator requires. `first` matches the end of the name of the pod that leads the
    others. `suspend` is the dotted path of the flag that stops the operator; empty if the kind has none. `ends` is true
    if the object ends by itself.
    """

    operator: BuiltOperator
    api_version: str
    kind: str
    pods: int
    spec: Callable[[Json], Json]
    container: str = "main"
    first: str = ""
    suspend: str = ""
    ends: bool = True

    @property
    def plural(self) -> str:
        """The name of the kind in paths."""
        return f"{self.kind.lower()}s"

    def path(self, namespace: str, name: str = "train") -> str:
        """The path of an object of this kind."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{self.plural}/{name}"

    def wrapped(self, name: str = "train", **lives: str) -> Json:
        """The object, whose pods live as the annotations say."""
        template = pod_template("100m", **lives)
        template["spec"]["containers"][0]["name"] = self.container
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": name},
            "spec": self.spec(template),
        }

    def appwrapper(self, name: str = "train", **lives: str) -> Json:
        """An AppWrapper of the object, which has the same name."""
        return appwrapper(name, item(self.wrapped(name, **lives)))


def _of_follower(template: Json) -> Json:
    """The template of pods that do not fail, so that the first failure is that of the pod that leads them."""
    pods = copy.deepcopy(template)
    pods["metadata"]["annotations"].pop(*lives({"fail_after": ""}), None)
    return pods


def _job(template: Json, **fields: Any) -> Json:  # noqa: ANN401
    pods = copy.deepcopy(template)
    pods["spec"]["restartPolicy"] = "Never"
    return {"spec": {"backoffLimit": 0, **fields, "template": pods}}


def _job_set(template: Json) -> Json:
    return {
        "replicatedJobs": [
            {"name": "leader", "template": _job(template)},
            {
                "name": "workers",
                "replicas": 3,
                "template": _job(_of_follower(template), parallelism=2, completions=2),
            },
        ]
    }


def _leader_worker_set(template: Json) -> Json:
    return {"replicas": 3, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template}}


def _training(kind: str, field: str, container: str, leader: str = "") -> Gang:
    """A gang of a kind of the training operator: three workers, and a leader unless the kind has none.

    It has no backoff limit, at which the operator deletes the pods before anybody has read why they failed.
    """

    def spec(template: Json) -> Json:
        return {field: _replicas(template, leader)}

    return Gang(
        TRAINING,
        "kubeflow.org/v1",
        kind,
        4 if leader else 3,
        spec,
        container,
        f"{leader.lower()}-0" if leader else r"worker-\d",
        "spec.runPolicy.suspend",
    )


def _replicas(template: Json, leader: str) -> Json:
    sizes = {**({leader: 1} if leader else {}), "Worker": 3}
    follower = _of_follower(template) if leader else template
    return {
        role: {
            "replicas": size,
            "restartPolicy": "Never",
            "template": copy.deepcopy(template if role == leader else follower),
        }
        for role, size in sizes.items()
    }


def _mpi_job(template: Json) -> Json:
    return {"runPolicy": {"backoffLimit": 0}, "mpiReplicaSpecs": _replicas(template, "Launcher")}


JOB_SET: Final = Gang(
    JOBSET,
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    7,
    _job_set,
    first=r"leader-0-0-\w+",
    suspend="spec.suspend",
)
LEADERS: Final = Gang(
    LEADER_WORKER_SET, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", 9, _leader_worker_set, ends=False
)

MPI_JOB: Final = Gang(
    MPI,
    "kubeflow.org/v2beta1",
    "MPIJob",
    4,
    _mpi_job,
    first=r"launcher-\w+",
    suspend="spec.runPolicy.suspend",
)
TRAINED: Final = (
    _training("JAXJob", "jaxReplicaSpecs", "jax"),
    _training("PaddleJob", "paddleReplicaSpecs", "paddle"),
    _training("PyTorchJob", "pytorchReplicaSpecs", "pytorch", "Master"),
    _training("TFJob", "tfReplicaSpecs", "tensorflow", "Chief"),
    _training("XGBoostJob", "xgbReplicaSpecs", "xgboost", "Master"),
)

GANGS: Final = (JOB_SET, LEADERS, MPI_JOB, *TRAINED)
ENDING: Final = tuple(each for each in GANGS if each.ends)

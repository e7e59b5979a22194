"""Operators of other projects, beside KubeRay: which releases, and how they are started.

`make operators` builds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from testbed.built_operators import MANAGER, BuiltOperator, ensure
from testbed.kueue_operator import KUEUE
from testbed.operator_webhooks import POD, Called, Defaulted

Json = dict[str, Any]


def _probe(version: str, plural: str, kind: str, spec: Json, field: str) -> Defaulted:
    manifest = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "probe"},
        "spec": spec,
    }
    return Defaulted(f"/apis/{version}/namespaces/default/{plural}", manifest, field)


JOBSET: Final = BuiltOperator(
    name="jobset",
    module="sigs.k8s.io/jobset",
    version="v0.10.1",
    package="sigs.k8s.io/jobset",
    crds="config/components/crd/bases",
    arguments=("--config={folder}/configuration.yaml",),
    webhooks="config/components/webhook",
    configuration="""\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
"""
    + MANAGER,
    called=Called(
        labels={"pods": "jobset.sigs.k8s.io/jobset-name"},
        probe=_probe(
            "jobset.x-k8s.io/v1alpha2",
            "jobsets",
            "JobSet",
            {"replicatedJobs": [{"name": "j", "template": {"spec": {"template": POD}}}]},
            "spec.successPolicy",
        ),
    ),
)

LEADER_WORKER_SET: Final = BuiltOperator(
    name="lws",
    module="sigs.k8s.io/lws",
    version="v0.7.0",
    package="sigs.k8s.io/lws/cmd",
    crds="config/crd/bases",
    arguments=("--config={folder}/configuration.yaml",),
    webhooks="config/webhook",
    configuration="""\
apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
"""
    + MANAGER,
    called=Called(
        labels={"pods": "leaderworkerset.sigs.k8s.io/name"},
        probe=_probe(
            "leaderworkerset.x-k8s.io/v1",
            "leaderworkersets",
            "LeaderWorkerSet",
            {
                "leaderWorkerTemplate": {
                    "size": 1,
                    "workerTemplate": {"spec": {"containers": POD["spec"]["containers"]}},
                }
            },
            "spec.networkConfig",
        ),
    ),
)

TRAINING: Final = BuiltOperator(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    version="v1.9.3",
    package="testbed/training-operator",
    crds="manifests/base/crds",
    arguments=(
        "--health-probe-bind-address=127.0.0.1:{probes}",
        "--webhook-server-port={webhook}",
        "--certificates={folder}/certificates",
    ),
    webhooks="manifests/base/webhook",
    left_out=frozenset({"kubeflow.org_mpijobs.yaml"}),
    pod_schemas=False,
)
"""Its MPIJobs are of an older version than those of the MPI operator, and a cluster serves one of them."""

MPI: Final = BuiltOperator(
    name="mpi-operator",
    module="github.com/kubeflow/mpi-operator",
    version="v0.6.0",
    package="testbed/mpi-operator",
    crds="manifests/base",
    arguments=("--health-probe-bind-address=127.0.0.1:{probes}",),
    pod_schemas=False,
)

OPERATORS: Final = (JOBSET, LEADER_WORKER_SET, TRAINING, MPI, KUEUE)


def definitions(operators: Sequence[BuiltOperator]) -> list[Path]:
    """The definitions of the kinds of operators, which are built."""
    return [path for operator in operators for path in ensure(operator).crds]

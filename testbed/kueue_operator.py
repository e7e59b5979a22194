"""Kueue, and how it is started beside the dispatcher: with its integrations of Jobs and RayClusters alone.

Without its own management of certificates Kueue reads one from a folder of the whole machine. With it, Kueue writes
certificates into a Secret and their CA into the definitions of its kinds. Both are for the address of a Service, which
leads nowhere here: its webhooks have the testbed's certificate, and only the stored version of its kinds can be read.
"""

from __future__ import annotations

from typing import Any, Final

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from testbed.built_operators import MANAGER, BuiltOperator
from testbed.operator_webhooks import POD, Called, Defaulted

Json = dict[str, Any]

VERSION: Final = "kueue.x-k8s.io/v1beta2"
"""The stored version of Kueue's kinds."""
NAMESPACE: Final = "kueue-system"
SECRET: Final = "certificates"  # noqa: S105  # its name
CONVERTED: Final = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
"""The kinds of which Kueue has several versions."""


def _definition(plural: str) -> Json:
    """The part of a definition into which Kueue writes its CA."""
    service = {"namespace": NAMESPACE, "name": "webhook-service", "path": "/convert"}
    webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}},
    }


def _installed() -> dict[str, Json]:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": NAMESPACE}}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return {
        f"/api/v1/namespaces/{NAMESPACE}": namespace,
        f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}": secret,
        **{f"{definitions}/{each}.kueue.x-k8s.io": _definition(each) for each in CONVERTED},
    }


def _labelled_job() -> Json:
    """A Job that Kueue suspends at its creation."""
    metadata = {"name": "probe", "labels": {KUEUE_QUEUE_LABEL: "probe"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": POD}}


KUEUE: Final = BuiltOperator(
    name="kueue",
    module="sigs.k8s.io/kueue",
    version="v0.17.0",
    package="sigs.k8s.io/kueue/cmd/kueue",
    crds="config/components/crd/bases",
    arguments=("--config={folder}/configuration.yaml",),
    webhooks="config/components/webhook",
    configuration="""\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
internalCertManagement: {{enable: true, webhookServiceName: nowhere, webhookSecretName: certificates}}
featureGates: {{VisibilityOnDemand: false}}
integrations: {{frameworks: ["batch/job", "ray.io/raycluster"]}}
"""
    + MANAGER,
    installed=_installed(),
    called=Called(
        resources=frozenset({"jobs", "rayclusters", "clusterqueues", "resourceflavors", "workloads"}),
        probe=Defaulted("/apis/batch/v1/namespaces/default/jobs", _labelled_job(), "spec.suspend"),
    ),
)

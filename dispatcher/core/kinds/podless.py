"""Kinds of objects that make no pods and that stand in one file with a gang, though no AppWrapper wraps them.

Most are cluster-scoped, or belong to another scheduler. A command that reads a file counts nothing for them. They are
no rows of the registry: the dispatcher neither creates nor watches them, and an AppWrapper that wraps such an object
has to declare its demand, as for any kind that the registry does not know.

A kind is only in this table if no controller makes pods for its objects. A Gateway is not, because Istio makes a
Deployment for it; an Issuer of cert-manager is not, because it makes pods that solve challenges.
Source: the API reference of Kubernetes, and the documentation of the projects that define the kinds of CRDs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatcher.api.names import PREFIX

_BY_GROUP: Final[Mapping[str, str]] = {
    "": "Namespace PersistentVolume PodTemplate",
    "admissionregistration.k8s.io": (
        "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding ValidatingAdmissionPolicy "
        "ValidatingAdmissionPolicyBinding"
    ),
    "apiextensions.k8s.io": "CustomResourceDefinition",
    PREFIX: "DispatchQueue MemberCluster",
    "gateway.networking.k8s.io": "GRPCRoute HTTPRoute ReferenceGrant TCPRoute TLSRoute",
    "kueue.x-k8s.io": (
        "AdmissionCheck ClusterQueue Cohort LocalQueue ProvisioningRequestConfig ResourceFlavor Topology "
        "WorkloadPriorityClass"
    ),
    "monitoring.coreos.com": "PodMonitor PrometheusRule ServiceMonitor",
    "networking.k8s.io": "IngressClass",
    "node.k8s.io": "RuntimeClass",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding",
    "resource.k8s.io": "DeviceClass ResourceClaim ResourceClaimTemplate",
    "scheduling.k8s.io": "PriorityClass",
    "scheduling.run.ai": "Queue",
    "scheduling.volcano.sh": "Queue",
    "storage.k8s.io": "StorageClass",
}

PODLESS: Final = frozenset((group, kind) for group, kinds in _BY_GROUP.items() for kind in kinds.split())
"""The kinds, each by API group and kind."""

"""The registry of kinds that can be wrapped: the built-in rows, and the rows of declared kinds.

A row is found by API group and kind, in any version. An object of a kind without a row is created unchanged; its author
declares its demand, and names the conditions that complete it. The registry is a value, made once at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.names import PREFIX
from dispatcher.core.kinds import object_status
from dispatcher.core.kinds.built_in import OWN_ROWS, ROWS, KnownKind
from dispatcher.core.kinds.declaration import KindDeclaration
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.kinds.pods.pod_rules import Kind


class Kinds(Struct, frozen=True, dict=True):
    """The known kinds: the built-in ones and the `declared` ones, which are others."""

    declared: tuple[KindDeclaration, ...] = ()

    def row(self, group: str, kind: str) -> KnownKind:
        """The row of a kind; for an unknown kind, a row that says nothing."""
        return self._rows.get((group, kind)) or KnownKind(group, kind, pods=None)

    def makes_no_pods(self, group: str, kind: str) -> bool:
        """True if objects of the kind are known to make no pods; false for an unknown kind, which may make some."""
        row = self._rows.get((group, kind))
        return (group, kind) in PODLESS if row is None else not row.may_make_pods

    def state_of(self, group: str, kind: str, raw: Mapping[str, Any]) -> ObjectState:
        """The state that an object of this kind reports, for any JSON.

        Takes at most 100 bytes of memory for each byte of the JSON.
        """
        return object_status.read(self.row(group, kind).status, raw)

    @cached_property
    def derivable(self) -> Mapping[tuple[str, str], Kind]:
        """How a kind makes pods, by (API group, kind), for every kind whose templates say so."""
        return {name: row.pods for name, row in self._rows.items() if row.pods is not None}

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str], KnownKind]:
        rows = (*ROWS, *OWN_ROWS, *(each.row() for each in self.declared))
        return {(row.group, row.kind): row for row in rows}


BUILT_IN: Final = Kinds()
"""The registry without declared kinds."""


_BY_GROUP: Final[Mapping[str, str]] = {
    "": "Namespace Node PersistentVolume PodTemplate",
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
"""Kinds of objects that make no pods and that stand in one file with a gang, though no AppWrapper wraps them.

Most are cluster-scoped, or belong to another scheduler. A command that reads a file counts nothing for them. They are
no rows of the registry: the dispatcher neither creates nor watches them, and an AppWrapper that wraps such an object
has to declare its demand, as for any kind that the registry does not know.

A kind is only in this table if no controller makes pods for its objects. A Gateway is not, because Istio makes a
Deployment for it; an Issuer of cert-manager is not, because it makes pods that solve challenges.
Source: the API reference of Kubernetes, and the documentation of the projects that define the kinds of CRDs.
"""

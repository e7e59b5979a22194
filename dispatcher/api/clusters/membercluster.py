"""The spec of a MemberCluster as operators of the hub write it, parsed into one frozen value.

`parse_member_cluster` raises a `SpecError` with a remedy for the operator, and nothing else for any JSON. The schema of
the CRD checks most of it before, but not the keys of `reserve`, and an older schema may be installed. A test keeps the
reader here equal to that schema.

Quantities stay as written (``int | str``), as in AppWrappers.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct, field

from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.clusters.potential import NO_POTENTIAL, PotentialNodes, read_potential
from dispatcher.api.clusters.provisioning import ProvisioningClass, read_provisioning
from dispatcher.api.document import MOST_RESOURCES, Entry
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.spec_errors import SpecError, one_line, quoted
from dispatcher.api.syntax import is_subdomain

DEFAULT_SECRET_KEY: Final = "kubeconfig"  # noqa: S105  # where a secret is, not one
DEFAULT_GRACE_SECONDS: Final = 600
LONGEST_REASON: Final = 1024
_SECRET_KEY: Final = re.compile("[-._a-zA-Z0-9]+")


class SecretKey(Struct, frozen=True):
    """The Secret in the dispatcher's own namespace, and the key in it, that hold a kubeconfig."""

    name: str
    key: str = DEFAULT_SECRET_KEY


class MemberCluster(Struct, frozen=True):
    """A cluster to which AppWrappers may be dispatched, and its policies.

    ``kubeconfig`` is None for the hub only. ``drain`` closes a cluster whether or not it is ``cordoned``.
    ``cordon_reason`` is one printable line. ``on_lost`` applies once the cluster has been unreachable for ``grace``.
    """

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    kubeconfig: SecretKey | None = None
    cordoned: bool = False
    cordon_reason: str = ""
    drain: bool = False
    namespace_policy: NamespacePolicy = NamespacePolicy.REQUIRE
    accepted_namespaces: AcceptedNamespaces = AcceptedNamespaces.LABELLED
    reserve: Mapping[str, int | str] = field(default_factory=dict)
    on_lost: OnClusterLost = OnClusterLost.WAIT
    grace: timedelta = timedelta(seconds=DEFAULT_GRACE_SECONDS)
    provisioning: ProvisioningClass | None = None
    """The class that provides capacity on request there; None if the cluster declares none."""
    potential: PotentialNodes = NO_POTENTIAL
    """The pools there that grow for pending pods."""


def parse_member_cluster(raw: Mapping[str, Any]) -> MemberCluster:
    """Parse a MemberCluster from the API server; raises `SpecError` if it cannot be used as written."""
    metadata, spec = raw["metadata"], Entry(raw.get("spec") or {}, "spec").object()
    on_lost, provisioning = spec.child("onClusterLost"), spec.child("provisioning")
    member = MemberCluster(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        kubeconfig=_secret_key(spec.child("kubeconfigSecretRef")),
        cordoned=spec.child("cordoned").flag(),
        cordon_reason=one_line(spec.child("cordonReason").any_text(LONGEST_REASON)),
        drain=spec.child("drain").flag(),
        namespace_policy=NamespacePolicy(
            spec.child("namespacePolicy").one_of(list(NamespacePolicy), NamespacePolicy.REQUIRE)
        ),
        accepted_namespaces=AcceptedNamespaces(
            spec.child("acceptedNamespaces").one_of(list(AcceptedNamespaces), AcceptedNamespaces.LABELLED)
        ),
        reserve=spec.child("reserve").quantities(MOST_RESOURCES),
        on_lost=OnClusterLost(on_lost.child("policy").one_of(list(OnClusterLost), OnClusterLost.WAIT)),
        grace=timedelta(seconds=on_lost.child("graceSeconds").integer(DEFAULT_GRACE_SECONDS)),
        provisioning=None if provisioning.value is None else read_provisioning(provisioning),
        potential=read_potential(spec, "potential"),
    )
    _check_reachable(member)
    return member


def _secret_key(entry: Entry) -> SecretKey | None:
    if entry.value is None:
        return None
    name, key = entry.child("name"), entry.child("key")
    if not is_subdomain(name.name()):
        name.fail(f"must be the name of a Secret, not {quoted(name.value)}")
    if key.value is None:
        return SecretKey(name.name())
    if not _SECRET_KEY.fullmatch(key.name()):
        key.fail(f"must have only letters, digits, '-', '_' and '.', not {quoted(key.value)}")
    return SecretKey(name.name(), key.name())


def _check_reachable(member: MemberCluster) -> None:
    """Refuse what the validation rules of the CRD refuse, with the same messages."""
    path = "spec.kubeconfigSecretRef"
    if member.name == HUB_CLUSTER and member.kubeconfig:
        problem = "the name hub is reserved for the cluster that AppWrappers are read from, which needs no kubeconfig"
        raise SpecError(path, problem, "Leave this out, or choose another name")
    if member.name != HUB_CLUSTER and not member.kubeconfig:
        remedy = "Put one into a Secret in the dispatcher's namespace and name that Secret here"
        raise SpecError(path, "every cluster but hub needs a kubeconfig", remedy)

"""The spec of a MemberCluster as operators of the hub write it, parsed into one frozen value.

`parse_member_cluster` raises a `SpecError` with a remedy for the operator, and nothing else for any JSON. The schema of
the CRD checks most of it before, but not the keys of `reserve`, and an older schema may be installed. A test keeps the
models here equal to that schema.

Quantities stay as written (``int | str``), as in AppWrappers.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import Struct, field
from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from dispatcher.api.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.api.potential import NO_POTENTIAL, OnPotential, PotentialNodes
from dispatcher.api.potential_schema import BIND_WITHIN_SECONDS, BindWithin, Pools, potential_nodes
from dispatcher.api.provisioning import ProvisioningClass
from dispatcher.api.provisioning_schema import WrittenProvisioning, provisioning_class
from dispatcher.api.schema import Count, ResourceList, Written
from dispatcher.api.spec_errors import SpecError, joined, one_line, quoted
from dispatcher.api.syntax import LONGEST_SUBDOMAIN, is_subdomain

DEFAULT_SECRET_KEY: Final = "kubeconfig"  # noqa: S105  # where a secret is, not one
DEFAULT_GRACE_SECONDS: Final = 600
LONGEST_REASON: Final = 1024


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


def _check_subdomain(value: str) -> str:
    """Accept only names that are one segment of a path."""
    if not is_subdomain(value):
        raise PydanticCustomError("object_name", "must be the name of a Secret")
    return value


class WrittenSecretKey(Written):
    """``kubeconfigSecretRef``."""

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_SUBDOMAIN), AfterValidator(_check_subdomain)]
    key: str = Field(
        DEFAULT_SECRET_KEY, min_length=1, max_length=LONGEST_SUBDOMAIN, pattern="^[-._a-zA-Z0-9]+$"
    )


class WrittenLoss(Written):
    """``onClusterLost``."""

    policy: OnClusterLost = Field(OnClusterLost.WAIT, strict=False)
    grace: Count = Field(DEFAULT_GRACE_SECONDS, alias="graceSeconds")


class WrittenMemberCluster(Written):
    """``spec``; the dispatcher writes the status and does not read it."""

    kubeconfig: WrittenSecretKey | None = Field(None, alias="kubeconfigSecretRef")
    cordoned: bool = False
    cordon_reason: str = Field("", alias="cordonReason", max_length=LONGEST_REASON)
    drain: bool = False
    namespace_policy: NamespacePolicy = Field(NamespacePolicy.REQUIRE, alias="namespacePolicy", strict=False)
    accepted_namespaces: AcceptedNamespaces = Field(
        AcceptedNamespaces.LABELLED, alias="acceptedNamespaces", strict=False
    )
    reserve: ResourceList = Field(default_factory=dict)
    on_lost: WrittenLoss = Field(WrittenLoss.model_construct(), alias="onClusterLost")
    provisioning: WrittenProvisioning | None = None
    potential: Pools = Field(default_factory=list)
    on_potential: OnPotential = Field(OnPotential.DISPATCH, alias="onPotential", strict=False)
    bind_within: BindWithin = Field(BIND_WITHIN_SECONDS, alias="bindWithinSeconds")


def parse_member_cluster(raw: Mapping[str, Any]) -> MemberCluster:
    """Parse a MemberCluster from the API server; raises `SpecError` if it cannot be used as written."""
    metadata, written = raw["metadata"], _read(raw.get("spec") or {})
    _check_reachable(metadata["name"], written.kubeconfig)
    return MemberCluster(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        kubeconfig=_secret_key(written.kubeconfig),
        cordoned=written.cordoned,
        cordon_reason=one_line(written.cordon_reason),
        drain=written.drain,
        namespace_policy=written.namespace_policy,
        accepted_namespaces=written.accepted_namespaces,
        reserve=written.reserve,
        on_lost=written.on_lost.policy,
        grace=timedelta(seconds=written.on_lost.grace),
        provisioning=provisioning_class(written.provisioning) if written.provisioning else None,
        potential=potential_nodes(written.potential, written.on_potential, written.bind_within),
    )


def _secret_key(written: WrittenSecretKey | None) -> SecretKey | None:
    return SecretKey(written.name, written.key) if written else None


def _check_reachable(name: str, kubeconfig: WrittenSecretKey | None) -> None:
    """Refuse what the validation rules of the CRD refuse, with the same messages."""
    path = "spec.kubeconfigSecretRef"
    if name == HUB_CLUSTER and kubeconfig:
        problem = "the name hub is reserved for the cluster that AppWrappers are read from, which needs no kubeconfig"
        raise SpecError(path, problem, "Leave this out, or choose another name")
    if name != HUB_CLUSTER and not kubeconfig:
        remedy = "Put one into a Secret in the dispatcher's namespace and name that Secret here"
        raise SpecError(path, "every cluster but hub needs a kubeconfig", remedy)


def _read(raw_spec: object) -> WrittenMemberCluster:
    try:
        return WrittenMemberCluster.model_validate(raw_spec)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _explained(first) from error


def _explained(error: ErrorDetails) -> SpecError:
    path = "spec"
    for step in error["loc"]:
        path = joined(path, step)
    match error["type"]:
        case "missing":
            return SpecError(path, "is missing", "Add it")
        case "too_short":
            return SpecError(path, "must not be empty", "Add an entry")
        case "resource_name" | "label_name":
            return SpecError(path.removesuffix(".[key]"), error["msg"], "Correct the name")
        case "model_type" | "dict_type":
            return SpecError(path, f"must be an object, not {quoted(error['input'])}", "Change the value")
    problem = error["msg"].replace("Input should", "must").replace("String should", "must")
    return SpecError(path, f"{problem}, not {quoted(error['input'])}", "Change the value")

"""The dispatcher's own namespace on the hub, the only one from which it reads kubeconfigs of members.

A Secret in another namespace is never read: its member stays unreachable, and with the first member the hub itself
stops taking gangs. So `clusters add` writes no Secret before it knows the namespace.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dispatcher import errors
from dispatcher.kube import paths
from dispatcher.text import mapping_of, mappings_of, name_of

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

BINDING: Final = (
    f"{paths.collection('rbac.authorization.k8s.io/v1', 'clusterrolebindings')}/appwrapper-dispatcher"
)
"""The path of the binding of the dispatcher's rights in manifests/base and in the chart."""
USUAL: Final = "appwrapper-dispatcher"
"""The namespace of the Deployment `dispatcher`, unless its operator has chosen another."""
POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_SAY: Final = "Say with --namespace where the dispatcher runs"


def own_namespace(hub: Hub, given: str, *, anyway: bool = False, pod_namespace: Path = POD_NAMESPACE) -> str:
    """The namespace that is given, else that of the dispatcher's account, else that of the pod this runs in.

    Raises `CommandFailed` if it is not known, and for a given one that has no dispatcher, as far as the hub says;
    `anyway` overrides the latter.
    """
    known = _namespaces(hub)
    if known is None and given and not anyway:
        _check_deployment(hub, given)
    found = known or []
    if given:
        if found and given not in found and not anyway:
            raise errors.CommandFailed(
                f"the dispatcher of this hub runs in namespace {_listed(found)}, and reads no Secret of {given}: "
                "nothing was written. Leave out --namespace (and DISPATCHER_NAMESPACE), or --yes does it all the same"
            )
        return given
    pod = pod_namespace.read_text().strip() if pod_namespace.exists() else ""
    if pod in found or (pod and not found):
        return pod
    if len(found) == 1:
        return found[0]
    if found:
        raise errors.CommandFailed(
            f"dispatchers run in several namespaces of this hub: {_listed(found)}. {_SAY}"
        )
    raise errors.CommandFailed(
        f"no rights of a dispatcher can be seen on this hub, so its namespace is not known. {_SAY}: it reads "
        "kubeconfigs of members only there"
    )


def _check_deployment(hub: Hub, given: str) -> None:
    """Raises `CommandFailed` if the hub says that no dispatcher is in a namespace; one that may not be read counts."""
    try:
        hub.client.get(_deployment(given))
    except errors.NotFound as error:
        raise errors.CommandFailed(
            f"no Deployment dispatcher is in namespace {given}, and the dispatcher reads Secrets only of its own "
            "namespace: nothing was written. Give the right one with --namespace, or --yes does it all the same"
        ) from error
    except errors.Refused:
        return


def _namespaces(hub: Hub) -> list[str] | None:
    """The namespaces of the account that may do the dispatcher's work on the hub; None if the hub does not say it.

    The binding of its rights says so, which only administrators of the hub write. A label of a Deployment would let
    anybody with a namespace say where kubeconfigs of members go.
    """
    try:
        binding = hub.client.get(BINDING)
    except errors.NotFound:
        return []
    except errors.Refused:
        return _usual_one(hub)
    subjects = mappings_of(mapping_of(binding).get("subjects"))
    return sorted({name_of(each.get("namespace")) for each in subjects} - {""})


def _usual_one(hub: Hub) -> list[str] | None:
    """The usual namespace, if the Deployment is there: operators may read that one, and not all of the hub."""
    try:
        hub.client.get(_deployment(USUAL))
    except errors.Refused:
        return None
    return [USUAL]


def _deployment(namespace: str) -> str:
    return paths.item("apps/v1", "deployments", namespace, "dispatcher")


def _listed(found: list[str]) -> str:
    return ", ".join(found)

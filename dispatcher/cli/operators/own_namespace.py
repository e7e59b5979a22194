"""The dispatcher's own namespace on the hub, the only one from which it reads kubeconfigs of members.

A Secret in another namespace is never read: its member stays unreachable, and with the first member the hub itself
stops taking gangs. So `clusters add` writes no Secret before it knows the namespace.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from dispatcher import errors
from dispatcher.kube import paths

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

DEPLOYMENTS: Final = paths.collection("apps/v1", "deployments")
SELECTOR: Final = "app.kubernetes.io/name=appwrapper-dispatcher"
"""The label of the Deployment in manifests/base and in the chart."""
USUAL: Final = "appwrapper-dispatcher"
"""The namespace of the Deployment `dispatcher`, unless its operator has chosen another."""
POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_SAY: Final = "Say with --namespace where the dispatcher runs"


def own_namespace(hub: Hub, given: str, *, anyway: bool = False, pod_namespace: Path = POD_NAMESPACE) -> str:
    """The namespace that is given, else that of the dispatcher's Deployment, else that of the pod this runs in.

    Raises `CommandFailed` if it is not known, and for a given one without a dispatcher while another namespace has one;
    `anyway` overrides the latter.
    """
    found = _namespaces(hub)
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
        f"no Deployment of the dispatcher can be seen on this hub, so its namespace is not known. {_SAY}: it reads "
        "kubeconfigs of members only there"
    )


def _namespaces(hub: Hub) -> list[str]:
    """The namespaces with a Deployment of the dispatcher, as far as the caller may see them."""
    try:
        listed = list(hub.client.items(DEPLOYMENTS, {"labelSelector": SELECTOR}))
    except errors.Refused:
        return _usual_one(hub)
    return sorted({str(each["metadata"]["namespace"]) for each in listed})


def _usual_one(hub: Hub) -> list[str]:
    """The usual namespace, if the Deployment is there: operators may read that one, and not all of the hub."""
    try:
        hub.client.get(paths.item("apps/v1", "deployments", USUAL, "dispatcher"))
    except errors.Refused:
        return []
    return [USUAL]


def _listed(found: list[str]) -> str:
    return ", ".join(found)

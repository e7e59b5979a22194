"""Questions to an API server that commands ask as the dispatcher does: what a user may do, and what is added to pods.

Commands ask with a client of their own, so this module imports none.
Source: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatcher import errors
from dispatcher.core.intake.authorization import Access
from dispatcher.core.kinds.pods.pod_defaults import default_requests, overhead
from dispatcher.kube import paths
from dispatcher.kube.api_calls import ApiCalls

PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
SELF_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
BINDING: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/author.dispatcher.codeflare.dev"
)
"""The path of the binding of the policy in `manifests/policies/author-policy.yaml`."""


async def is_allowed(client: ApiCalls, access: Access) -> bool:
    """True if the API server allows the user the access.

    A `ClusterError` leaves it open; `Forbidden` means that the dispatcher may not ask.
    """
    spec = {"user": access.submitter.user, "groups": list(access.groups), **_attributes(access)}
    return await _answer(client, PATH, "SubjectAccessReview", spec)


async def am_i_allowed(client: ApiCalls, access: Access) -> bool:
    """True if the API server allows the user of `client` the access, whoever the submitter in it is.

    A `ClusterError` leaves it open. Nothing is stored.
    """
    return await _answer(client, SELF_PATH, "SelfSubjectAccessReview", _attributes(access))


def _attributes(access: Access) -> dict[str, Any]:
    attributes = {
        "namespace": access.namespace,
        "group": access.group,
        "resource": access.resource,
        "verb": access.verb,
    }
    return {"resourceAttributes": attributes}


async def _answer(client: ApiCalls, path: str, kind: str, spec: Mapping[str, Any]) -> bool:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    match await client.create(path, review):
        case {"status": {"allowed": bool(allowed)}}:
            return allowed
    raise errors.Unavailable(f"POST {path}: the answer makes no sense")


async def is_author_policy_bound(client: ApiCalls) -> bool:
    """True if the API server refuses AppWrappers whose authors may not create the wrapped objects."""
    try:
        binding = await client.get(BINDING)
    except errors.NotFound:
        return False
    return "Deny" in ((binding.get("spec") or {}).get("validationActions") or ())


async def read_default_requests(client: ApiCalls, namespace: str) -> dict[str, object]:
    """The default requests of containers in a namespace. Raises `ClusterError`, of which `Refused` is final."""
    match await client.get(paths.collection("v1", "limitranges", namespace)):
        case {"items": list(items)}:
            return default_requests(items)
    return {}


async def read_overhead(client: ApiCalls, name: str) -> dict[str, object]:
    """The overhead of a RuntimeClass, empty if there is none. Raises `ClusterError`, of which `Refused` is final."""
    try:
        return overhead(await client.get(paths.item("node.k8s.io/v1", "runtimeclasses", "", name)))
    except errors.NotFound:
        return {}  # the API server refuses the pods until the RuntimeClass is there

"""Asks an API server what a user may do.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from __future__ import annotations

from typing import Final

from dispatcher import errors
from dispatcher.core.intake.authorization import Access
from dispatcher.kube.client import ClusterClient

PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
BINDING: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/author.dispatcher.codeflare.dev"
)
"""The path of the binding of the policy in `manifests/policies/author-policy.yaml`."""


async def is_allowed(client: ClusterClient, access: Access) -> bool:
    """True if the API server allows the user the access.

    A `ClusterError` leaves it open; `Forbidden` means that the dispatcher may not ask.
    """
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": access.submitter.user,
            "groups": list(access.groups),
            "resourceAttributes": {
                "namespace": access.namespace,
                "group": access.group,
                "resource": access.resource,
                "verb": access.verb,
            },
        },
    }
    match await client.create(PATH, review):
        case {"status": {"allowed": bool(allowed)}}:
            return allowed
    raise errors.Unavailable(f"POST {PATH}: the answer makes no sense")


async def is_author_policy_bound(client: ClusterClient) -> bool:
    """True if the API server refuses AppWrappers whose authors may not create the wrapped objects."""
    try:
        binding = await client.get(BINDING)
    except errors.NotFound:
        return False
    return "Deny" in ((binding.get("spec") or {}).get("validationActions") or ())

"""The rights that the author of an AppWrapper needs for its dispatch.

The dispatcher creates wrapped objects with its own rights, so it checks the author's rights first. The policies in
`manifests/policies/author-policy.yaml` hold the same rules at the API server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.api.annotations import Submitter
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.names import USER_ANNOTATION
from dispatcher.api.spec_errors import SpecError, quoted

MOST_KINDS: Final = 12
"""Kinds that one AppWrapper may wrap where rights are checked: a policy of the API server can ask about few more."""

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
"""One of these two is a group of every user; the submitters' policy does not write the former."""

_RBAC: Final = "rbac.authorization.k8s.io"


class WrappedKind(NamedTuple):
    """A kind that an AppWrapper wraps, and where it does so first."""

    api_version: str
    kind: str
    path: str

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def verb(self) -> str:
        """The verb that the author must be allowed.

        `create`, but for what grants rights: Kubernetes lets users grant only what they have, and would hold it
        against the dispatcher's rights. So that takes every verb.
        """
        return "*" if self.group == _RBAC else "create"


class Access(NamedTuple):
    """A request to check for an author; `namespace` is empty for cluster-scoped objects."""

    submitter: Submitter
    namespace: str
    group: str
    resource: str
    verb: str

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of the author, with `system:authenticated` unless the author is anonymous."""
        groups = self.submitter.groups
        return groups if {AUTHENTICATED, UNAUTHENTICATED} & set(groups) else (*groups, AUTHENTICATED)

    def denial(self) -> str:
        """The message of a denial, for the author."""
        action = "do everything with" if self.verb == "*" else self.verb
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.submitter.user} may not {action} {resource}{where}"


def wrapped_kinds(spec: AppWrapperSpec) -> tuple[WrappedKind, ...]:
    """The kinds that an AppWrapper wraps, each once; `SpecError` if they are too many to ask about.

    Two versions of a kind are one: RBAC gives rights to a group and a plural, and a definition has one plural for all
    its versions. An invented version gives no right, and no cluster creates an object of it.
    Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources
    """
    found: dict[tuple[str, str], WrappedKind] = {}
    for wrapped in spec.wrapped:
        kind = WrappedKind(wrapped.api_version, wrapped.kind, spec.path_of(wrapped))
        found.setdefault((kind.group, kind.kind), kind)
    if len(found) > MOST_KINDS:
        problem = f"wraps {len(found)} kinds, and at most {MOST_KINDS} can be checked"
        raise SpecError("spec", problem, "Spread them over several AppWrappers")
    return tuple(found.values())


def check_namespace(namespace: str, denied: frozenset[str]) -> None:
    """Raise `SpecError` for a namespace in which nothing is dispatched."""
    if namespace in denied:
        problem = f"nothing is dispatched in {quoted(namespace)}"
        raise SpecError("metadata.namespace", problem, "Submit the AppWrapper in another namespace")


def check_known(submitter: Submitter) -> None:
    """Raise `SpecError` if the submitter of an AppWrapper is unknown."""
    if not submitter.user:
        raise SpecError(
            f"metadata.annotations[{USER_ANNOTATION}]",
            "does not say who submitted the AppWrapper, so nobody can say what the submitter may create",
            "Delete it and submit it anew; if that is of no help, manifests/submitter-policy.yaml is not enforced",
        )

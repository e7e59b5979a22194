"""The hub and its members as the commands see them, with the rights of the caller's own kubeconfig.

Every request could also be made with kubectl. An object is changed or removed only if it still has the uid that was
read before. A member cluster is read through the context of the kubeconfig that has the member's name; without such a
context its pods and nodes cannot be seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Self

from msgspec import Struct

from dispatcher import errors
from dispatcher.api.annotations import stamp_of
from dispatcher.api.names import (
    HUB_CLUSTER,
    LEGACY_GROUP,
    MEMBERS_PATH,
    PLURALS,
    QUEUES_PATH,
    USER_ANNOTATION,
    WORKLOAD_GROUP,
)
from dispatcher.api.spec_errors import one_line
from dispatcher.api.syntax import MOST_COMPARED
from dispatcher.cli.options import HubOptions
from dispatcher.kube import paths
from dispatcher.kube.api_calls import MERGE_PATCH
from dispatcher.kube.kept_accesses import KeptAccesses
from dispatcher.kube.user_client import SECONDS, UserClient

Json = dict[str, Any]

LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that hold a node or wait for one."""
VERSIONS: Final = (f"{WORKLOAD_GROUP}/v1beta1", f"{LEGACY_GROUP}/v1beta1")
WHO_AM_I: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
"""The path of reviews that say who the caller is; nothing is stored."""

_REMEDY: Final = "Is --kubeconfig, or KUBECONFIG, the hub's?"
_MEANINGS: Final = (
    (errors.Unauthorized, "does not take the credentials"),
    (errors.Forbidden, "does not allow it"),
    (errors.Conflict, "has seen another change at the same time; try again"),
    (errors.NotFound, "does not have it"),
    (errors.Refused, "refuses it"),
    (errors.Unavailable, "does not answer"),
)
_WITHOUT_MEMBERS: Final = "all AppWrappers run on the hub itself"
_WITHOUT_QUEUES: Final = "all AppWrappers are in the queue default, which has no limits"
_CRDS: Final = "crds/dispatcher.codeflare.dev_{}.yaml"


class Found(Struct, frozen=True):
    """An AppWrapper that was read, and its path."""

    path: str
    raw: Json

    @property
    def key(self) -> str:
        """Namespace and name in one word."""
        return f"{self.raw['metadata']['namespace']}/{self.raw['metadata']['name']}"


class Hub:
    """The hub that a kubeconfig leads to, and the members that it also leads to; a context manager.

    `is_dry` sends every write as a dry run; `seconds` bounds the wait for each answer of the hub. Accesses that are
    `kept` are those of the kubeconfig, and are renewed once an API server refuses them.
    """

    def __init__(
        self,
        at: HubOptions,
        *,
        is_dry: bool = False,
        seconds: float | None = None,
        kept: KeptAccesses | None = None,
    ) -> None:
        self._accesses = kept or KeptAccesses(at.kubeconfig)
        self._is_renewed = kept is not None
        self._stack = ExitStack()
        self.client = self._client(at.context, seconds or SECONDS)
        self.namespace = self.client.namespace
        self._is_dry = is_dry
        self._members: dict[str, UserClient | None] = {}
        self._stamp: Json | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- objects of any kind ---------------------------------------------------------------------------------

    def find(self, path: str) -> Json | None:
        """The object at a path; None if there is none. Raises `NotFound` if the hub does not know its kind."""
        try:
            return self.client.get(path)
        except errors.NotFound as error:
            if not error.reason:
                raise
            return None

    def create(self, collection: str, body: Json, query: Mapping[str, str] | None = None) -> Json:
        """Create an object; raises `AlreadyExists`."""
        return self.client.create(collection, body, {**(query or {}), **self._written()})

    def merge(self, path: str, found: Json, change: Json) -> Json:
        """Merge a change into an object that was found; raises `Conflict` if another one has its name now."""
        metadata = {**change.get("metadata", {}), "uid": found["metadata"]["uid"]}
        try:
            return self.client.patch(path, {**change, "metadata": metadata}, MERGE_PATCH, self._written())
        except errors.Invalid as error:
            # The API server takes the uid of another object in a merge patch for an attempt to change the uid.
            if "metadata.uid" in str(error):
                raise errors.Conflict(str(error), error.reason) from error
            raise

    def delete(self, path: str, found: Json) -> None:
        """Delete the object that was found."""
        self.client.delete(path, found["metadata"]["uid"], is_dry=self._is_dry)

    def _written(self) -> dict[str, str]:
        return {"dryRun": "All"} if self._is_dry else {}

    # --- AppWrappers -----------------------------------------------------------------------------------------

    def appwrappers(self, namespace: str, selector: str = "", name: str = "") -> list[Json]:
        """The AppWrappers of a namespace, or of all if it is empty, in both groups, each with its apiVersion.

        `selector` and `name` limit them, if they are not empty.
        """
        query = {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": f"metadata.name={name}"} if name else {}
        found: list[Json] = []
        with asking():
            for version in VERSIONS:
                try:
                    listed = list(self.client.items(_collection(version, namespace), query))
                except errors.NotFound:
                    continue  # the hub does not serve this group
                except errors.Forbidden as error:
                    if version != VERSIONS[0]:
                        continue  # the account has rights to the newer group alone
                    if namespace:
                        raise
                    raise errors.CommandFailed(
                        f"the hub does not allow it: {error}. Leave out -A, or name a namespace with -n"
                    ) from error
                found += ({**each, "apiVersion": version, "kind": "AppWrapper"} for each in listed)
        return found

    def appwrapper(self, namespace: str, name: str) -> Found | None:
        """The AppWrapper of that name in either group; None if there is none."""
        for version in VERSIONS:
            path = f"{_collection(version, namespace)}/{paths.segment(name)}"
            with contextlib.suppress(errors.NotFound):
                return Found(path, self.client.get(path))
        return None

    def names(self, namespace: str) -> list[str]:
        """The names of the AppWrappers in a namespace, as far as they may be listed."""
        found: list[str] = []
        for version in VERSIONS:
            with contextlib.suppress(errors.ClusterError):
                listed = self.client.items(_collection(version, namespace))
                found += (each["metadata"]["name"] for each in listed)
        return found

    def submit(self, namespace: str, raw: Json) -> Found:
        """Create an AppWrapper in a namespace, with the name of its submitter; raises `AlreadyExists`."""
        collection = _collection(str(raw["apiVersion"]), namespace)
        body = {**raw, "metadata": self._signed({**(raw.get("metadata") or {}), "namespace": namespace})}
        created = self.create(collection, body, {"fieldValidation": "Strict"})
        return Found(f"{collection}/{paths.segment(created['metadata']['name'])}", created)

    def _signed(self, metadata: Json) -> Json:
        """The metadata with annotations that name the caller, unless they name a user or the hub does not tell.

        A policy of the hub checks or replaces them; without a policy the dispatcher does not read them.
        """
        written = metadata.get("annotations") or {}
        if not isinstance(written, dict) or USER_ANNOTATION in written:
            return metadata
        if self._stamp is None:
            self._stamp = self._who_am_i()
        return {**metadata, "annotations": {**written, **self._stamp}} if self._stamp else metadata

    def _who_am_i(self) -> Json:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = self.client.create(WHO_AM_I, review)
        except errors.Refused:  # before Kubernetes 1.28
            return {}
        match answer:
            case {"status": {"userInfo": {"username": str(user), "groups": list(groups)}}}:
                return stamp_of(user, map(str, groups))
            case {"status": {"userInfo": {"username": str(user)}}}:
                return stamp_of(user)
        return {}

    def change(self, found: Found, spec: Json) -> Json:
        """Merge into the spec; raises `Conflict` if the AppWrapper was deleted and submitted anew."""
        return self.merge(found.path, found.raw, {"spec": spec})

    # --- clusters and queues ---------------------------------------------------------------------------------

    def members(self) -> Json:
        """The list of all MemberClusters, as the API server gives it."""
        with known_kind("MemberClusters", _WITHOUT_MEMBERS):
            return self.client.get(MEMBERS_PATH)

    def member(self, name: str) -> Json | None:
        """The MemberCluster of that name; None if there is none."""
        with known_kind("MemberClusters", _WITHOUT_MEMBERS):
            return self.find(f"{MEMBERS_PATH}/{paths.segment(name)}")

    def queues(self) -> Json:
        """The list of all DispatchQueues, as the API server gives it, with the statuses that the leader writes."""
        with known_kind("DispatchQueues", _WITHOUT_QUEUES):
            return self.client.get(QUEUES_PATH)

    def queue_names(self) -> list[str]:
        """The names of DispatchQueues with which a misspelt one is compared, as far as they may be listed."""
        try:
            page = self.client.get(QUEUES_PATH, {"limit": str(MOST_COMPARED)})
        except errors.ClusterError:
            return []
        return [each["metadata"]["name"] for each in page.get("items") or ()]

    def reach(self, cluster: str) -> UserClient | None:
        """A client of a cluster; None if the kubeconfig has no context of its name."""
        if cluster == HUB_CLUSTER:
            return self.client
        if cluster not in self._members:
            self._members[cluster] = self._client(cluster) if self._accesses.has_context(cluster) else None
        return self._members[cluster]

    def _client(self, context: str, seconds: float = SECONDS) -> UserClient:
        access = self._accesses.of(context)
        renew = partial(self._accesses.renewed, context) if self._is_renewed else None
        return self._stack.enter_context(UserClient(access, seconds, renew))


def out_of_sight(cluster: str) -> str:
    """The sentence about a member that the kubeconfig does not lead to."""
    return f"The pods and nodes of {cluster} cannot be seen: the kubeconfig has no context named {cluster}."


@contextmanager
def asking() -> Iterator[None]:
    """Raises `TryAgain` if the hub does not answer, and `CommandFailed` where it does not do what it should."""
    with explained("the hub", _REMEDY):
        yield


@contextmanager
def known_kind(kinds: str, without: str) -> Iterator[None]:
    """Raises `CommandFailed` in place of the 404 of an API server that does not know `kinds`, which has no reason.

    The message names the file to apply, and what holds `without` these kinds.
    """
    try:
        yield
    except errors.NotFound as error:
        file = _CRDS.format(kinds.lower())
        raise errors.CommandFailed(
            f"the hub does not know {kinds} yet: kubectl apply -f {file}. Without them, {without}"
        ) from error


@contextmanager
def explained(who: str, remedy: str) -> Iterator[None]:
    """Say in a sentence what an API server did not do; `remedy` is for one that does not answer or know us.

    Raises `TryAgain` for one that does not answer, else `CommandFailed`.
    """
    try:
        yield
    except errors.ClusterError as error:
        meaning = next((words for kind, words in _MEANINGS if isinstance(error, kind)), "was not asked")
        helps = isinstance(error, errors.Unauthorized | errors.Unavailable)
        said = f"{who} {meaning}: {one_line(str(error))}"
        failure = errors.TryAgain if isinstance(error, errors.Unavailable) else errors.CommandFailed
        raise failure(f"{said}. {remedy}" if helps else said) from error


def _collection(version: str, namespace: str) -> str:
    """The path of the AppWrappers of a group and version; of all namespaces if `namespace` is empty."""
    return paths.collection(version, PLURALS[version.partition("/")[0]], namespace)

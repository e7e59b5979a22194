"""The hub and its members as a person's kubeconfig shows them: AppWrappers, pods, nodes.

The commands that use this need no database and no rights beyond reading. A member cluster is read through the context
of the kubeconfig that has the member's name; without such a context its pods and nodes cannot be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

from dispatcher import errors
from dispatcher.api.names import HUB_CLUSTER, LEGACY_GROUP, MEMBERS_PATH, PLURALS, WORKLOAD_GROUP
from dispatcher.cli.operators.hub_client import explained
from dispatcher.core.kinds.cluster_defaults import MOST_CLASSES
from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, PodDefaults, default_requests, overhead
from dispatcher.kube import paths
from dispatcher.kube.user_client import UserClient
from dispatcher.kube.user_kubeconfig import UserKubeconfig, access_of, read_kubeconfig

Json = dict[str, Any]

LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that hold a node or wait for one."""
VERSIONS: Final = (f"{WORKLOAD_GROUP}/v1beta1", f"{LEGACY_GROUP}/v1beta1")
_REMEDY: Final = "Is --kubeconfig, or KUBECONFIG, the hub's?"


class UserHub:
    """The hub that a kubeconfig leads to, and the members that it also leads to; a context manager."""

    def __init__(self, kubeconfig: str = "", context: str = "") -> None:
        self._file: UserKubeconfig | None = read_kubeconfig(kubeconfig)
        self._stack = ExitStack()
        access = self._file.access(context) if self._file else access_of(kubeconfig, context)
        self.client = self._stack.enter_context(UserClient(access))
        self.namespace = access.namespace
        self._members: dict[str, UserClient | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def appwrappers(self, namespace: str, selector: str = "", name: str = "") -> list[Json]:
        """The AppWrappers of a namespace, or of all if it is empty, in both groups, each with its apiVersion.

        `selector` and `name` limit them, if they are not empty.
        """
        query = {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": f"metadata.name={name}"} if name else {}
        found: list[Json] = []
        with asking():
            for version in VERSIONS:
                path = paths.collection(version, PLURALS[version.partition("/")[0]], namespace)
                try:
                    listed = list(self.client.items(path, query))
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

    def members(self) -> tuple[list[Json], str]:
        """The MemberClusters, and why they cannot be seen; the reason is empty if they can."""
        try:
            return list(self.client.items(MEMBERS_PATH)), ""
        except errors.NotFound:
            return [], ""
        except errors.Forbidden as error:
            return [], str(error)

    def reach(self, cluster: str) -> UserClient | None:
        """A client of a cluster; None if the kubeconfig has no context of its name."""
        if cluster == HUB_CLUSTER:
            return self.client
        if cluster not in self._members:
            has = self._file is not None and cluster in self._file.contexts
            access = self._file.access(cluster) if self._file is not None and has else None
            self._members[cluster] = self._stack.enter_context(UserClient(access)) if access else None
        return self._members[cluster]

    def pods(self, cluster: str, namespaces: Sequence[str]) -> tuple[list[Json], list[str]]:
        """The live pods of these namespaces in a cluster ("" is all), and sentences about pods that cannot be seen."""
        client = self.reach(cluster)
        if client is None:
            return [], [out_of_sight(cluster)]
        found: list[Json] = []
        for namespace in namespaces:
            try:
                found += client.items(paths.collection("v1", "pods", namespace), {"fieldSelector": LIVE})
            except errors.ClusterError as error:
                return [], [f"The pods in {cluster} cannot be seen: {error}"]
        return found, []

    def pod_defaults(
        self, cluster: str, namespace: str, classes: Iterable[str]
    ) -> tuple[PodDefaults, list[str]]:
        """What a cluster adds to pods of a namespace and these RuntimeClasses, and sentences about what is not read.

        A cluster out of sight adds nothing here: its pods are missing, too, and `pods` says so.
        """
        client = self.reach(cluster)
        if client is None:
            return NO_DEFAULTS, []
        unread = list[str]()
        requests: dict[str, object] = {}
        try:
            requests = default_requests(client.items(paths.collection("v1", "limitranges", namespace)))
        except errors.ClusterError as error:
            unread.append(
                f"The LimitRanges of {namespace} in {cluster} are not counted, they cannot be read: {error}"
            )
        overheads: dict[str, dict[str, object]] = {}
        for name in sorted(classes)[:MOST_CLASSES]:
            try:
                overheads[name] = overhead(
                    client.get(paths.item("node.k8s.io/v1", "runtimeclasses", "", name))
                )
            except errors.ClusterError as error:
                unread.append(f"RuntimeClass {name} in {cluster} is not counted, it cannot be read: {error}")
        return PodDefaults(requests, {name: each for name, each in overheads.items() if each}), unread


def out_of_sight(cluster: str) -> str:
    """The sentence about a member that the kubeconfig does not lead to."""
    return f"The pods and nodes of {cluster} cannot be seen: the kubeconfig has no context named {cluster}."


@contextmanager
def asking() -> Iterator[None]:
    """Raises `CommandFailed` where the hub does not do what it should."""
    with explained("the hub", _REMEDY):
        yield

"""How `kubectl aw nodes` shows nodes: the GPUs by gang, what is free, and what keeps pods off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.names import HUB_CLUSTER, MEMBERS_PATH
from dispatcher.cli.hub import LIVE, out_of_sight
from dispatcher.cli.screens.held_gangs import BoundPod, Owners, held_gangs, pods_of
from dispatcher.cli.screens.output import UNKNOWN
from dispatcher.cli.screens.tables import Heading, table
from dispatcher.core.model.quantity import QuantityError, amount, in_words
from dispatcher.core.model.resources import PODS, Resources, gpus
from dispatcher.kube import paths
from dispatcher.text import name_of

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub
    from dispatcher.kube.user_client import UserClient

Json = dict[str, Any]

HEADINGS: Final = (
    Heading("NODE"),
    Heading("CLUSTER", 1),
    Heading("STATE"),
    Heading("GPU"),
    Heading("FREE"),
    Heading("BY GANG", wraps=True),
    Heading("TAINTS", 2, wraps=True),
)
WIDE_HEADINGS: Final = (
    *HEADINGS,
    *map(Heading, ("CPU FREE", "MEMORY FREE", "PODS FREE", "PODS WITHOUT APPWRAPPER")),
)
NO_APPWRAPPER: Final = "no AppWrapper"
_CORDON: Final = "node.kubernetes.io/unschedulable"
"""The taint that Kubernetes adds to a cordoned node."""


class SeenNode(Struct, frozen=True):
    """A node of a cluster and its pods; `free` is None if some cannot be seen, `sees_pods` false if none can."""

    cluster: str
    name: str
    state: str
    taints: tuple[str, ...]
    allocatable: Resources
    free: Resources | None
    by_gang: dict[str, Resources]
    without_appwrapper: tuple[str, ...]
    sees_pods: bool = True

    @property
    def free_gpus(self) -> int | None:
        """GPUs that no pod requests, below 0 if pods request more than there are; None if unknown."""
        return None if self.free is None else gpus(self.free)

    def gpus_by_holder(self) -> list[tuple[str, int]]:
        """The GPUs of each gang, the largest first; pods without an AppWrapper last, and only if they have GPUs.

        Then `unknown` with the GPUs of the node that may be held by pods that cannot be seen.
        """
        held = {key: gpus(each) for key, each in self.by_gang.items()}
        without = held.pop(NO_APPWRAPPER, 0)
        unseen = gpus(self.allocatable) - sum(held.values()) - without if self.free is None else 0
        found = [
            *sorted(held.items(), key=lambda each: (-each[1], each[0])),
            (NO_APPWRAPPER, without),
            (UNKNOWN, unseen),
        ]
        return [(key, count) for key, count in found if count > 0]

    def holders(self) -> list[str]:
        """The same in words."""
        return [key if key == UNKNOWN else f"{key} {count}" for key, count in self.gpus_by_holder()]


class NodeReport(Struct, frozen=True):
    """The nodes of all clusters that the kubeconfig leads to."""

    nodes: Sequence[SeenNode]

    @classmethod
    def read(cls, hub: Hub, namespace: str, selector: str) -> tuple[NodeReport, list[str]]:
        """The report, and sentences about everything that cannot be seen."""
        members, unseen = _members(hub)
        sentences = [f"Member clusters cannot be seen: {unseen}"] if unseen else []
        clusters = [each["metadata"]["name"] for each in members] or [HUB_CLUSTER]
        owners, said = _owners(hub, namespace)
        found: list[SeenNode] = []
        for cluster in clusters:
            try:
                client = hub.reach(cluster)
                if client is None:
                    sentences.append(out_of_sight(cluster))
                    continue
                seen, more = _nodes(client, cluster, namespace, selector, owners)
            except errors.SettingsError as error:
                if cluster == HUB_CLUSTER:
                    raise
                sentences.append(f"The nodes of {cluster} cannot be seen: {error}")
                continue
            except (errors.DispatcherError, click.ClickException):
                raise
            except Exception as error:  # noqa: BLE001  # one API server's answer must not take the others' nodes away
                sentences.append(f"The nodes of {cluster} cannot be read ({type(error).__name__}).")
                continue
            found, sentences = [*found, *seen], [*sentences, *more]
        return cls(found), [*sentences, *said]

    def as_table(self, width: int | None) -> str:
        """A line a node, for a terminal of `width` characters."""
        return table(HEADINGS, [_cells(each) for each in self.nodes], width)

    def as_wide_table(self) -> str:
        """The same with more columns."""
        return table(WIDE_HEADINGS, [(*_cells(each), *_more(each)) for each in self.nodes])

    def as_value(self) -> list[dict[str, Any]]:
        """The nodes for programs; amounts in base units, and null where something is unknown."""
        return [_value(each) for each in self.nodes]


def seen_nodes(
    cluster: str, raw: Iterable[Json], pods: Sequence[BoundPod] | None, owners: Owners, *, all_pods: bool
) -> list[SeenNode]:
    """The nodes of an API server's answer with the pods on each; `all_pods` is false if some cannot be seen.

    `pods` are None if none can be seen.
    """
    on_node: dict[str, list[BoundPod]] = {}
    for pod in pods or ():
        on_node.setdefault(pod.node, []).append(pod)
    return [
        replace(
            _node(cluster, each, on_node.get(each["metadata"]["name"], []), owners, all_pods=all_pods),
            sees_pods=pods is not None,
        )
        for each in sorted(raw, key=lambda node: str(node["metadata"]["name"]))
    ]


def _node(cluster: str, raw: Json, pods: Sequence[BoundPod], owners: Owners, *, all_pods: bool) -> SeenNode:
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    allocatable = _amounts(status.get("allocatable") or {})
    by_gang: dict[str, Resources] = {}
    without, used = [], Resources()
    for pod in pods:
        owner = owners.of(pod)
        if owner is not None and owner.cluster not in {"", cluster}:
            owner = None  # the pod has the labels of a gang that runs in another cluster: anybody can write labels
        if owner is None:
            without.append(f"{pod.namespace}/{pod.name}")
        key = NO_APPWRAPPER if owner is None else owner.key
        by_gang[key] = by_gang.get(key, Resources()) + pod.requests
        used += {**pod.requests, PODS: 1}
    free = {name: allocatable[name] - used[name] for name in {*allocatable, *used}}
    return SeenNode(
        cluster,
        name_of(raw["metadata"]["name"]),
        _state(spec, status),
        tuple(_taint(each) for each in spec.get("taints") or () if each.get("key") != _CORDON),
        allocatable,
        Resources(free) if all_pods else None,
        by_gang,
        tuple(without),
    )


def _members(hub: Hub) -> tuple[list[Json], str]:
    """The MemberClusters, and why they cannot be seen; the reason is empty if they can."""
    try:
        return list(hub.client.items(MEMBERS_PATH)), ""
    except errors.NotFound:
        return [], ""
    except errors.Forbidden as error:
        return [], str(error)


def _owners(hub: Hub, namespace: str) -> tuple[Owners, list[str]]:
    """The gangs of all namespaces, else those of one, with a sentence that says so."""
    try:
        return Owners(held_gangs(hub.appwrappers(""), {})), []
    except errors.CommandFailed as error:
        if not isinstance(error.__cause__, errors.Forbidden):
            raise
    sentence = f"Only AppWrappers of {namespace} can be listed: the pods of others count as {NO_APPWRAPPER}."
    return Owners(held_gangs(hub.appwrappers(namespace), {})), [sentence]


def _nodes(
    client: UserClient, cluster: str, namespace: str, selector: str, owners: Owners
) -> tuple[list[SeenNode], list[str]]:
    query = {"labelSelector": selector} if selector else {}
    try:
        raw = list(client.items("/api/v1/nodes", query))
    except errors.ClusterError as error:
        return [], [f"The nodes of {cluster} cannot be seen: {error}"]
    pods: list[BoundPod] | None
    try:
        pods, sentences = _pods(client, cluster, namespace)
    except errors.ClusterError as error:
        pods, sentences = None, [f"The pods in {cluster} cannot be seen: {error}"]
    return seen_nodes(cluster, raw, pods, owners, all_pods=not sentences), sentences


def _pods(client: UserClient, cluster: str, namespace: str) -> tuple[list[BoundPod], list[str]]:
    """The live pods of all namespaces, else those of one, with a sentence that says so."""
    live = {"fieldSelector": LIVE}
    try:
        return pods_of(client.items("/api/v1/pods", live)), []
    except errors.Forbidden:
        pods = pods_of(client.items(paths.collection("v1", "pods", namespace), live))
    return pods, [f"Pods of other namespaces than {namespace} cannot be seen in {cluster}: FREE is unknown."]


def _state(spec: Json, status: Json) -> str:
    ready = {each.get("status") for each in status.get("conditions") or () if each.get("type") == "Ready"}
    word = "Ready" if ready == {"True"} else "NotReady"
    return f"{word},cordoned" if spec.get("unschedulable") else word


def _taint(raw: Json) -> str:
    value = name_of(raw.get("value"))
    return f"{name_of(raw.get('key'))}{value and f'={value}'}:{name_of(raw.get('effect'))}"


def _amounts(written: Json) -> Resources:
    found = {}
    for resource, quantity in written.items():
        try:
            found[resource] = amount(resource, quantity)
        except QuantityError:
            continue
    return Resources(found)


def _cells(node: SeenNode) -> tuple[str, ...]:
    return (
        node.name,
        node.cluster,
        node.state,
        str(gpus(node.allocatable)),
        UNKNOWN if node.free_gpus is None else str(node.free_gpus),
        ", ".join(node.holders()),
        ", ".join(node.taints),
    )


def _more(node: SeenNode) -> tuple[str, ...]:
    free = (
        (UNKNOWN,) * 3
        if node.free is None
        else tuple(in_words(name, node.free[name]) for name in ("cpu", "memory", PODS))
    )
    return (*free, ",".join(node.without_appwrapper))


def _value(node: SeenNode) -> dict[str, Any]:
    gangs = {key: dict(each) for key, each in node.by_gang.items() if key != NO_APPWRAPPER}
    return {
        "name": node.name,
        "cluster": node.cluster,
        "state": node.state,
        "taints": list(node.taints),
        "gpus": {
            "allocatable": gpus(node.allocatable),
            "free": node.free_gpus,
            "withoutAppWrapper": (
                gpus(node.by_gang.get(NO_APPWRAPPER, Resources())) if node.sees_pods else None
            ),
        },
        "allocatable": dict(node.allocatable),
        "free": None if node.free is None else dict(node.free),
        "gangs": gangs if node.sees_pods else None,
        "podsWithoutAppWrapper": list(node.without_appwrapper) if node.sees_pods else None,
    }

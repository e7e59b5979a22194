"""`running` and `nodes`: the gangs that hold capacity, and who has the GPUs of each node; from a kubeconfig alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.command_line import epilog
from dispatcher.cli.options import (
    ALL_NAMESPACES,
    DOCUMENTS,
    HubOptions,
    Output,
    all_namespaces_option,
    hub_namespace_option,
    hub_options,
    output_option,
    selector_option,
)
from dispatcher.cli.query import note, on_hub
from dispatcher.cli.screens.output import put, say, shown_as, terminal_width

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub
    from dispatcher.cli.screens.held_gangs import BoundPod, HeldGang, Place
    from dispatcher.core.kinds.pods.pod_defaults import PodDefaults
    from dispatcher.kube.user_client import UserClient

Json = dict[str, Any]

commands = click.Group()

EXIT_CODES: Final = {0: "answered, even if the result is empty", 1: "failed", 2: "wrong usage"}
NOTHING_RUNS: Final = "No gang holds capacity{}."


@commands.command(
    epilog=epilog(
        "kubectl aw running",
        "kubectl aw running -A -o wide",
        "kubectl aw running -n team-a -l app=train -o json | jq '.[] | {name, gpus}'",
        codes=EXIT_CODES,
    )
)
@output_option
@hub_namespace_option
@all_namespaces_option
@selector_option
@hub_options
def running(output: Output | None, namespace: str, everywhere: bool, selector: str, at: HubOptions) -> None:
    """Show the gangs that hold capacity: where, since when, GPUs.

    GPU is what the dispatcher charges: the demand, or what the pods of a gang that grew hold. BOUND are the GPUs of the
    pods that have nodes now. ENDS BY is the end by dispatchDuration.limit. A gang is here from its dispatch until its
    capacity is free again. -o wide has DEMAND and HELD.

    Only the kubeconfig is needed. The pods in a member cluster are read through the context of the kubeconfig that has
    the member's name; without one, NODES and BOUND are unknown. Demand counts as for kubectl aw demand, and with what
    the LimitRanges and RuntimeClasses of the cluster add now, where the kubeconfig may read them.
    """
    from dispatcher.cli.screens.held_gangs import RunningReport, held_gangs, runtime_classes_by_place

    with on_hub(at) as hub:
        where = ALL_NAMESPACES if everywhere else namespace or hub.namespace
        raw = hub.appwrappers(where, selector)
        labels, classes = _namespace_labels(hub, where), runtime_classes_by_place(raw)
        clients = _clients(hub, {cluster for cluster, _ in classes})
        gangs = held_gangs(raw, labels, _defaults(clients, classes))
        pods = _pods(clients, gangs)
    report = RunningReport.of(gangs, pods, datetime.now(UTC))
    if output in DOCUMENTS:
        say(shown_as(report.as_value(), output))
    elif gangs:
        put(report.as_wide_table() if output is Output.WIDE else report.as_table(terminal_width()), output)
    else:
        note(NOTHING_RUNS.format("" if everywhere else f" in namespace {where}; -A shows all namespaces"))


@commands.command(
    epilog=epilog(
        "kubectl aw nodes",
        "kubectl aw nodes -l gpu=a100 -o wide",
        "kubectl aw nodes -o json | jq '.[] | select(.gpus.free > 0) | .name'",
        codes=EXIT_CODES,
    )
)
@output_option
@hub_namespace_option
@click.option(
    "--selector", "-l", default="", metavar="SELECTOR", help="Only nodes with these labels, such as gpu=a100."
)
@hub_options
def nodes(output: Output | None, namespace: str, selector: str, at: HubOptions) -> None:
    """Show the GPUs of each node: by gang, free, cordoned, tainted.

    Pods that belong to no AppWrapper are counted as "no AppWrapper"; -o wide names them. FREE counts the GPUs that no
    pod requests, also on nodes that take no pods. -l selects nodes.

    Only the kubeconfig is needed, with the right to list nodes. Where it may not list the pods of all namespaces, those
    of one namespace are counted, and FREE is unknown. Member clusters are read through the contexts of their names.
    """
    from dispatcher.cli.people.node_report import NodeReport

    with on_hub(at) as hub:
        report, sentences = NodeReport.read(hub, namespace or hub.namespace, selector)
    if output in DOCUMENTS:
        say(shown_as(report.as_value(), output))
    elif report.nodes:
        put(report.as_wide_table() if output is Output.WIDE else report.as_table(terminal_width()), output)
    else:
        note("No node is seen.")
    for sentence in sentences:
        note(sentence)


def _namespace_labels(hub: Hub, namespace: str) -> Mapping[str, Mapping[str, str]]:
    """The labels that name queues, by namespace, as far as the kubeconfig may read namespaces."""
    from dispatcher import errors
    from dispatcher.kube import paths

    path = "/api/v1/namespaces"
    try:
        if namespace:
            listed: Iterable[Json] = [hub.client.get(f"{path}/{paths.segment(namespace)}")]
        else:
            listed = list(hub.client.items(path))
    except (errors.Forbidden, errors.NotFound):
        note("Namespaces cannot be read, so a queue that a label of the namespace names is shown as default.")
        return {}
    return {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in listed}


def _clients(hub: Hub, clusters: Iterable[str]) -> dict[str, UserClient]:
    """A client of each cluster; a cluster that the kubeconfig does not lead to is absent, and named on stderr."""
    from dispatcher import errors
    from dispatcher.cli.hub import out_of_sight

    found = {}
    for cluster in sorted(clusters):
        try:
            client = hub.reach(cluster)
        except errors.SettingsError as error:  # one member's settings must not take the others' gangs away
            note(f"The pods in {cluster} cannot be seen: {error}")
            continue
        if client is None:
            note(out_of_sight(cluster))
        else:
            found[cluster] = client
    return found


def _defaults(
    clients: Mapping[str, UserClient], classes: Mapping[Place, Iterable[str]]
) -> dict[Place, PodDefaults]:
    """The defaults that clusters add to the pods of gangs; stderr names each default that cannot be read.

    `classes` are the RuntimeClasses that the gangs of a place name. One read for each cluster and namespace, and one
    for each RuntimeClass there. A cluster without a client adds nothing: its pods are missing, too.
    """
    return {
        (cluster, namespace): _defaults_in(clients[cluster], cluster, namespace, named)
        for (cluster, namespace), named in classes.items()
        if cluster in clients
    }


def _defaults_in(client: UserClient, cluster: str, namespace: str, classes: Iterable[str]) -> PodDefaults:
    from dispatcher import errors
    from dispatcher.core.kinds.pods.pod_defaults import MOST_CLASSES, PodDefaults, default_requests, overhead
    from dispatcher.kube import paths

    requests: dict[str, object] = {}
    try:
        requests = default_requests(client.items(paths.collection("v1", "limitranges", namespace)))
    except errors.ClusterError as error:
        note(f"The LimitRanges of {namespace} in {cluster} are not counted, they cannot be read: {error}")
    overheads: dict[str, dict[str, object]] = {}
    for name in sorted(classes)[:MOST_CLASSES]:
        try:
            found = client.get(paths.item("node.k8s.io/v1", "runtimeclasses", "", name))
            overheads[name] = overhead(found)
        except errors.ClusterError as error:
            note(f"RuntimeClass {name} in {cluster} is not counted, it cannot be read: {error}")
    return PodDefaults(requests, {name: each for name, each in overheads.items() if each})


def _pods(clients: Mapping[str, UserClient], gangs: Iterable[HeldGang]) -> dict[str, list[BoundPod]]:
    """The pods by cluster; a cluster that does not show them is absent, and named on stderr."""
    from dispatcher import errors
    from dispatcher.cli.hub import LIVE
    from dispatcher.cli.screens.held_gangs import pods_of
    from dispatcher.kube import paths

    namespaces: dict[str, set[str]] = {}
    for gang in gangs:
        namespaces.setdefault(gang.cluster, set()).add(gang.namespace)
    found = {}
    for cluster, client in clients.items():
        try:
            found[cluster] = [
                pod
                for namespace in sorted(namespaces[cluster])
                for pod in pods_of(
                    client.items(paths.collection("v1", "pods", namespace), {"fieldSelector": LIVE})
                )
            ]
        except errors.ClusterError as error:
            note(f"The pods in {cluster} cannot be seen: {error}")
    return found

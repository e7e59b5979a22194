"""`dispatcher clusters`: add, cordon, drain, remove and list clusters.

The commands parse and print; `members` writes. Every command is safe to repeat. Without a subcommand the database
describes the clusters, and nothing is imported that only the hub needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from dispatcher import errors
from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.names import HUB_CLUSTER
from dispatcher.cli.command_line import CommandGroup, epilog, examples
from dispatcher.cli.operators.cluster_listing import (
    CLUSTERS,
    CLUSTERS_WIDE,
    NO_CLUSTERS,
    as_table,
    as_wide_table,
    with_age,
)
from dispatcher.cli.options import (
    HubOptions,
    Output,
    accepted_namespaces_option,
    as_typed,
    check_no_options,
    cluster_name_argument,
    force_option,
    grace_option,
    hub_options,
    is_watched,
    label_option,
    member_context_option,
    member_kubeconfig_option,
    namespace_policy_option,
    on_lost_option,
    output_option,
    own_namespace_option,
    reason_option,
    reserve_option,
    secret_option,
    watch_options,
    yes_option,
)
from dispatcher.cli.query import (
    NO_DATABASE,
    ask,
    hub_answers,
    laid_out,
    note,
    on_hub,
    optional_database_option,
    reads_database,
    shape_option,
    show_report,
)
from dispatcher.cli.screens.output import Shape, list_as_json, put, say, terminal_width, watch, written_as
from dispatcher.store.readers.reports import Report, Reports

if TYPE_CHECKING:
    from dispatcher.cli.hub import Hub

HUB_SECONDS: Final = 5.0
"""Seconds for the hub's answer where the database has one, too."""

Json = dict[str, Any]

commands = click.Group()


@commands.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=epilog(
        "kubectl aw clusters",
        "kubectl aw clusters --watch",
        "kubectl aw clusters -o json | jq '.[] | {cluster, gpu_free}'",
        "kubectl aw clusters drain --help",
    ),
)
@click.pass_context
@shape_option
@watch_options
@optional_database_option
@hub_options
def clusters(
    command: click.Context,
    output: Shape | None,
    again: bool,
    every: float | None,
    database_url: str,
    at: HubOptions,
) -> None:
    """Show the clusters; or add, cordon, drain and remove them.

    The database is read: the declared clusters, or the hub without any, and removed ones that still run gangs, with
    their last events. AS OF is the age of the free capacity: that of the last sample, which the leader takes every five
    minutes; or live, if the kubeconfig leads to the hub and the cluster is a member that answers. SINCE, CLOSED,
    RUNNING and what is held are of this moment. JSON and CSV have the samples, also those of clusters that were removed
    in the last hour.

    list reads the hub alone: the declared member clusters, their free capacity now, and why a cluster gets no gangs.
    Without a database, clusters is list.
    """
    if command.invoked_subcommand:
        check_no_options(command, "clusters list -o json")
        return
    if not reads_database(command, database_url):
        _list_instead(output, is_watched(again, every), at)
        return

    is_raw = output in {Shape.JSON, Shape.YAML, Shape.CSV}

    def look() -> Report:
        if is_raw:
            return ask(database_url, lambda reports: reports.clusters())
        found, held, leads = ask(database_url, _clusters_and_leader)
        return with_age(found, held, _members(at) if leads else {})

    is_repeated = is_watched(again, every)
    try:
        if is_repeated:
            watch(lambda: laid_out(look(), output, CLUSTERS, CLUSTERS_WIDE, nothing=NO_CLUSTERS), every)
        show_report(look(), output, CLUSTERS, CLUSTERS_WIDE, nothing=NO_CLUSTERS)
    except errors.StoreForbidden as error:
        if output is Shape.CSV or is_repeated:
            raise
        hub_answers(error)
        _list(Output(output) if output else None, at)


@clusters.command(
    "list",
    epilog=examples(
        "kubectl aw clusters list",
        "kubectl aw clusters list -o wide",
        "kubectl aw clusters list -o json | jq '.items[].status.free'",
    ),
)
@output_option
@hub_options
def list_clusters(output: Output | None, at: HubOptions) -> None:
    """Show the declared clusters as the hub has them now. It says why a cluster gets no gangs.

    Needs no database; clusters without list reads the database, and also shows removed clusters that still run gangs.
    Free capacity is what a gang could request now: the reserve is already subtracted.
    """
    _list(output, at)


def _list(output: Output | None, at: HubOptions) -> None:
    with on_hub(at) as hub:
        put(_shown(hub.members(), output), output)


@clusters.command(
    epilog=examples(
        "kubectl aw clusters add east --member-kubeconfig east.kubeconfig --label gpu=a100 --reserve cpu=2",
        "kubectl config view --minify --flatten --raw --context east |",
        "  dispatcher clusters add east --member-kubeconfig -",
        "kubectl aw clusters add east --on-lost requeue --grace 900",
        "kubectl aw clusters add hub",
    )
)
@cluster_name_argument
@member_kubeconfig_option
@member_context_option
@namespace_policy_option
@accepted_namespaces_option
@label_option
@reserve_option
@on_lost_option
@grace_option
@secret_option
@own_namespace_option
@yes_option
@hub_options
def add(
    name: str,
    member_kubeconfig: BinaryIO | None,
    member_context: str,
    namespace_policy: NamespacePolicy | None,
    accepted_namespaces: AcceptedNamespaces | None,
    label: Sequence[str],
    reserve: Sequence[str],
    on_lost: OnClusterLost | None,
    grace: int | None,
    secret: str,
    namespace: str,
    yes: bool,
    at: HubOptions,
) -> None:
    """Add a member cluster, or change one. Options that are left out keep their value.

    The kubeconfig is checked and tried before anything is written. It must be self-contained: exec plugins, names of
    files and unverified TLS are refused. Adding a member again with a new kubeconfig rotates it, without a restart. The
    name hub stands for the cluster of the AppWrappers themselves, which needs no kubeconfig.
    """
    from dispatcher.cli.operators.members import Wanted, join
    from dispatcher.cli.operators.own_namespace import own_namespace

    if name == HUB_CLUSTER and (member_kubeconfig or secret):
        raise click.BadParameter(
            "hub is the cluster of the AppWrappers themselves: give no kubeconfig, or another NAME"
        )
    if member_context and not member_kubeconfig:
        raise click.BadParameter("--member-context is one of a --member-kubeconfig: give that, too")
    wanted = Wanted(
        name=name,
        spec=_spec(namespace_policy, accepted_namespaces, reserve or [], on_lost, grace),
        labels=dict(each.split("=", 1) for each in label or []),
        kubeconfig=_minified(member_kubeconfig, member_context) if member_kubeconfig else None,
        secret=secret,
        anyway=yes,
    )
    with on_hub(at) as hub:
        if wanted.kubeconfig is not None:
            namespace = own_namespace(hub, namespace, anyway=yes)
        join(hub, namespace, wanted, say)


def _minified(kubeconfig: BinaryIO, context: str) -> bytes:
    """The kubeconfig with only the cluster and the user of one context; "" is its current context."""
    from dispatcher.kube.kubeconfig import LARGEST_FILE, minified  # only `add` reads one

    return minified(kubeconfig.read(LARGEST_FILE + 1), context)


@clusters.command(
    epilog=examples(
        'kubectl aw clusters cordon east --reason "new switches until noon"',
        "kubectl aw clusters uncordon east",
    )
)
@cluster_name_argument
@reason_option
@hub_options
def cordon(name: str, reason: str, at: HubOptions) -> None:
    """Stop dispatching to a cluster. Gangs that run there keep running."""
    _change(name, at, {"cordoned": True, **_because(reason)})


@clusters.command(epilog=examples("kubectl aw clusters uncordon east"))
@cluster_name_argument
@hub_options
def uncordon(name: str, at: HubOptions) -> None:
    """Dispatch to a cluster again, after cordon or drain."""
    _change(name, at, {"cordoned": False, "drain": False, "cordonReason": None})


@clusters.command(
    epilog=examples(
        'kubectl aw clusters drain east --reason "rack 3 moves"',
        "kubectl aw clusters list                # RUNNING comes down to 0",
        "kubectl aw clusters uncordon east       # or: remove",
    )
)
@cluster_name_argument
@reason_option
@hub_options
def drain(name: str, reason: str, at: HubOptions) -> None:
    """Empty a cluster. Nothing is dispatched to it, and the gangs that run there are requeued."""
    _change(name, at, {"cordoned": True, "drain": True, **_because(reason)})


@clusters.command(
    epilog=examples(
        "kubectl aw clusters drain east          # first, and wait until nothing runs there",
        "kubectl aw clusters remove east",
    )
)
@cluster_name_argument
@force_option
@own_namespace_option
@hub_options
def remove(name: str, force: bool, namespace: str, at: HubOptions) -> None:
    """Remove a member cluster and the Secret that add created for it. Nothing inside the cluster is changed."""
    with on_hub(at) as hub:
        _remove(hub, namespace, name, force=force)


def _remove(hub: Hub, namespace: str, name: str, *, force: bool) -> None:
    from dispatcher.cli.operators import members
    from dispatcher.cli.operators.own_namespace import own_namespace

    found = hub.member(name)
    if found is not None:
        _check_empty(found, force=force)
        members.remove(hub, found)
        say(f"member cluster {name} removed")
    secret = members.declared_secret(found) if found else None
    removed = list[str]()
    try:
        namespace = own_namespace(hub, namespace, anyway=True)
        removed = members.clear(hub, namespace, name)
    except errors.CommandFailed as error:
        if secret:
            note(f"Secret {secret.name} is left: {error}")
        secret = None
    for each in removed:
        say(f"Secret {namespace}/{each} removed")
    if found is None and not removed:
        raise errors.CommandFailed(members.missing(name))
    if secret and secret.name not in removed:
        say(f"The namespace {namespace} has no Secret that add made for it; {secret.name} is left")
    if not hub.members()["items"]:
        now = as_typed(f"clusters add {HUB_CLUSTER}")
        say(
            f"None is left: ten minutes from now every gang goes to the hub itself. To have it take gangs now: {now}"
        )


async def _clusters_and_leader(reports: Reports) -> tuple[Report, Report, bool]:
    return await reports.clusters(), await reports.held(), await reports.has_leader()


def _members(at: HubOptions) -> Json:
    """The MemberClusters of the hub; none without a kubeconfig, and none, with a note, without an answer in time."""
    from dispatcher.kube.user_kubeconfig import has_kubeconfig

    if not (at.context or has_kubeconfig(at.kubeconfig)):
        return {}
    try:
        with on_hub(at, seconds=HUB_SECONDS) as hub:
            return hub.members()
    except errors.DispatcherError as error:
        if not isinstance(error.__cause__, errors.NotFound):  # then the hub has no members
            note(f"The free capacity is that of the last sample: {error}")
        return {}


def _list_instead(output: Shape | None, again: bool, at: HubOptions) -> None:
    if output is Shape.CSV or again:
        raise click.BadParameter(
            f"without a database there is neither --watch nor csv, and there is {NO_DATABASE}"
        )
    note(f"There is {NO_DATABASE}. This is what the hub says.")
    _list(Output(output) if output else None, at)


def _shown(listed: Json, output: Output | None) -> str:
    match output:
        case Output.JSON | Output.YAML:
            return written_as(list_as_json(listed), output)
        case Output.WIDE:
            return as_wide_table(listed["items"], datetime.now(UTC))
    return as_table(listed["items"], datetime.now(UTC), terminal_width())


def _change(name: str, at: HubOptions, spec: Json) -> None:
    from dispatcher.cli.operators import members

    with on_hub(at) as hub:
        found = members.find(hub, name)
        after = members.change(hub, found, spec)
        was = "" if members.changed(found, after) else "already "
        say(f"{name} is {was}{_scheduling_state(after['spec'])}")


def _scheduling_state(spec: Json) -> str:
    if spec.get("drain"):
        return "being emptied: nothing new is dispatched there, and what runs there is queued again and goes elsewhere"
    if spec.get("cordoned"):
        return "cordoned: nothing new is dispatched there, and what runs there goes on"
    return "open: gangs may be dispatched there"


def _because(reason: str) -> Json:
    return {"cordonReason": reason} if reason else {}


def _spec(
    namespace_policy: NamespacePolicy | None,
    accepted_namespaces: AcceptedNamespaces | None,
    reserve: Sequence[str],
    on_lost: OnClusterLost | None,
    grace: int | None,
) -> Json:
    """Write down what was given, and nothing else."""
    spec: Json = {}
    if namespace_policy:
        spec["namespacePolicy"] = namespace_policy.value
    if accepted_namespaces:
        spec["acceptedNamespaces"] = accepted_namespaces.value
    if reserve:
        spec["reserve"] = dict(each.split("=", 1) for each in reserve)
    lost = {"policy": on_lost and on_lost.value, "graceSeconds": grace}
    if given := {key: value for key, value in lost.items() if value is not None}:
        spec["onClusterLost"] = given
    return spec


def _check_empty(found: Json, *, force: bool) -> None:
    name, running = found["metadata"]["name"], (found.get("status") or {}).get("running", 0)
    if running and not force:
        drain = as_typed(f"clusters drain {name}")
        raise errors.CommandFailed(
            f"AppWrappers dispatched to {name}: {running}. Empty it first with: {drain}; or --force: then nobody looks "
            "after what runs there"
        )

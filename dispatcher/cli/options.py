"""Options of several commands, as kubectl spells them, with checks that refuse a value before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from inspect import signature
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from dispatcher.api.clusters.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name, is_subdomain
from dispatcher.cli.command_line import (
    LEAST_PRIORITY,
    MOST_PRIORITY,
    NotWritten,
    Number,
    WholeNumber,
    Word,
    duration,
    is_given,
)
from dispatcher.cli.screens.output import EVERY
from dispatcher.core.model.quantity import QuantityError, amount

if TYPE_CHECKING:
    from dispatcher.core.intake.wrapping import WrapOptions


class Output(StrEnum):
    """How a result is shown, if not as a table that fits the terminal."""

    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


class Goal(StrEnum):
    """The state that a person waits for."""

    RUNNING = "running"
    DONE = "done"


Option = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that adds an option to a command."""

DOCUMENTS: Final = frozenset({Output.JSON, Output.YAML})
"""The forms for programs."""


def gathered(name: str, of: Callable[..., object], *options: Option) -> Option:
    """A decorator that adds options to a command, which gets their values as one: `name`, made by `of`."""
    fields = tuple(signature(of).parameters)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_value(*arguments: object, **given: object) -> object:
            value = of(**{field: given.pop(field) for field in fields})
            return command(*arguments, **{name: value}, **given)

        decorated: Callable[..., Any] = with_value
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


def as_typed(command: str) -> str:
    """A command as its user writes it: `kubectl aw …` if kubectl runs this program, else `dispatcher …`."""
    is_plugin = Path(sys.argv[0]).stem == "kubectl-aw"
    return f"{'kubectl aw' if is_plugin else 'dispatcher'} {command}"


def check_no_options(context: click.Context, example: str) -> None:
    """Raises `BadParameter` if options were written before a command, which would drop them.

    They could name the hub of a cluster to be drained, for example. `example` is a command with its options at the end.
    """
    for name in context.params:
        if is_given(context, name):
            raise click.BadParameter(f"give options at the end, such as: {as_typed(example)}")


def namespace_option(meaning: str, envvar: str | None = None, *, is_eager: bool = False) -> Option:
    """The option -n, which commands spell alike although it means different things; `meaning` is its help.

    With `is_eager` the checks of all other options know it, wherever it is written.
    """
    return click.option(
        "--namespace",
        "-n",
        default="",
        metavar="NAME",
        help=meaning,
        envvar=envvar,
        show_envvar=bool(envvar),
        is_eager=is_eager,
    )


def files_option(contents: str) -> Option:
    """`FILE...` and the option -f of commands that read files; `contents` is what the files are to have.

    A command gets the paths of both as `files`, at least one.
    """
    path = click.Path(allow_dash=True)
    help_ = f"YAML or JSON with {contents}; a folder stands for its files, - for stdin. Repeatable."
    argument = click.argument(
        "positional", nargs=-1, type=path, metavar="[FILE...]", help="The same as after -f."
    )
    option = click.option(
        "--filename", "--file", "-f", "filename", type=path, multiple=True, metavar="FILE", help=help_
    )
    return gathered("files", _given_files, argument, option)


def _given_files(positional: Sequence[str], filename: Sequence[str]) -> tuple[str, ...]:
    files = (*positional, *filename)
    if not files:
        raise click.BadParameter("give a FILE, alone or after -f; - reads stdin")
    return files


kinds_option = click.option(
    "--kinds",
    type=click.Path(),
    default="",
    envvar="DISPATCHER_KINDS_FILE",
    metavar="FILE",
    help="YAML with declarations of further kinds, as the dispatcher reads it; docs/kinds.md has the fields.",
    show_envvar=True,
)


def _checked_duration(_context: click.Context, _parameter: click.Parameter, written: str) -> int:
    """The duration in whole seconds, rounded up; 0 if it was left out."""
    try:
        return ceil(duration(written).total_seconds()) if written else 0
    except NotWritten as error:
        raise click.BadParameter(str(error)) from error


def _seconds_option(name: str, meaning: str) -> Option:
    return click.option(
        name,
        name.removeprefix("--") + "_seconds",
        default="",
        callback=_checked_duration,
        metavar="DURATION",
        help=f"{meaning}, such as 90m or 4h.",
    )


def _checked_choices(_context: click.Context, _parameter: click.Parameter, written: Sequence[str]) -> str:
    """The annotation that makes these choices of notifications; empty if there are none.

    The dispatcher leaves out what it cannot read, and the AppWrapper runs: here it is wrong usage.
    """
    if not written:
        return ""
    from dispatcher.api.notifications import EXAMPLE, choices_in  # which no other option needs

    annotation = " ".join(written)
    found = choices_in(annotation)
    if found.problems:
        raise click.BadParameter("; ".join(found.problems))
    if not found.entries:
        raise click.BadParameter(f"names no target: write TARGET=EVENT,EVENT, for example {EXAMPLE}")
    return annotation


def _wrap_options(
    each_workload: bool,
    queue: str,
    priority: int | None,
    expected_seconds: int,
    limit_seconds: int,
    min_available: int | None,
    notify: str,
) -> WrapOptions:
    from dispatcher.core.intake.wrapping import WrapOptions  # which takes long to import

    return WrapOptions(
        each_workload, queue, priority, expected_seconds, limit_seconds, min_available or 0, notify
    )


wrap_options = gathered(
    "options",
    _wrap_options,
    click.option(
        "each_workload",
        "--each",
        is_flag=True,
        help="Wrap each object that makes pods alone, not all objects of a file as one gang.",
    ),
    click.option("--queue", default="", metavar="NAME", help="Queue of each new AppWrapper."),
    click.option(
        "--priority",
        type=WholeNumber(min=LEAST_PRIORITY, max=MOST_PRIORITY),
        metavar="NUMBER",
        help="Priority of each new AppWrapper; higher goes first.",
    ),
    _seconds_option(
        "--expected", "How long each gang probably runs, by which starts of others are estimated"
    ),
    _seconds_option("--limit", "How long each gang may run; then it fails"),
    click.option(
        "--min-available",
        type=WholeNumber(min=1),
        metavar="NUMBER",
        help="Pods with which each gang counts as running.  [default: all]",
    ),
    click.option(
        "--notify",
        multiple=True,
        callback=_checked_choices,
        metavar="TARGET=EVENTS",
        help="Whom to tell of what about each new AppWrapper, such as team-slack=Ended or mail=Failed,Waiting:2h. The "
        "operator knows the targets. Repeatable.",
    ),
)
"""The options of commands that wrap objects in AppWrappers; a command gets them as `options`."""


def _checked_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    if not is_subdomain(name) or len(name) > LONGEST_LABEL:
        raise click.BadParameter(
            f"{name!r} is no name of a cluster: at most {LONGEST_LABEL} of lower-case letters, digits, '-' and '.'"
        )
    return name


def _checked_labels(
    _context: click.Context, _parameter: click.Parameter, written: Sequence[str]
) -> Sequence[str]:
    for each in written:
        key, equals, _ = each.partition("=")
        if not equals or not is_qualified_name(key):
            raise click.BadParameter(f"{each!r} is not KEY=VALUE, such as gpu=a100")
    return written


def _checked_reserve(
    _context: click.Context, _parameter: click.Parameter, written: Sequence[str]
) -> Sequence[str]:
    for each in written:
        resource, _, quantity = each.partition("=")
        try:
            amount(resource, quantity)
        except QuantityError as error:
            raise click.BadParameter(f"{each!r} is not RESOURCE=QUANTITY, such as cpu=2: {error}") from error
    return written


cluster_name_argument = click.argument(
    "name", callback=_checked_name, metavar="NAME", help="The cluster's name."
)


own_namespace_option = namespace_option(
    "The dispatcher's own namespace on the hub, the only one it reads kubeconfigs from.  "
    "[default: that of its Deployment, else of the pod this runs in]",
    envvar="DISPATCHER_NAMESPACE",
)
output_option = click.option(
    "--output", "-o", type=Word(Output), metavar="FORMAT", help="json, yaml, or wide."
)
member_kubeconfig_option = click.option(
    "--member-kubeconfig",
    type=click.File("rb"),
    metavar="FILE",
    help="Kubeconfig of the member cluster; - reads it from stdin.",
)
member_context_option = click.option(
    "--member-context",
    default="",
    metavar="NAME",
    help="Context of the member's kubeconfig.  [default: its current context]",
)
namespace_policy_option = click.option(
    "--namespace-policy",
    type=Word(NamespacePolicy),
    help="If the member lacks an AppWrapper's namespace: Require does not dispatch there, Create creates it.",
)
accepted_namespaces_option = click.option(
    "--accepted-namespaces",
    type=Word(AcceptedNamespaces),
    help="Namespaces of the member that accept gangs: Labelled (dispatcher.codeflare.dev/dispatch=enabled) or All.",
)
label_option = click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_checked_labels,
    help="Label by which AppWrappers select clusters, such as gpu=a100. Repeatable.",
)
reserve_option = click.option(
    "--reserve",
    multiple=True,
    metavar="RESOURCE=QUANTITY",
    callback=_checked_reserve,
    help="Capacity to leave free for other users of the cluster, such as cpu=2. Repeatable.",
)
on_lost_option = click.option(
    "--on-lost",
    type=Word(OnClusterLost),
    help="Policy for gangs of a cluster that stays unreachable: wait, requeue (a gang may run twice) or fail.",
)
grace_option = click.option(
    "--grace",
    type=WholeNumber(min=0),
    metavar="SECONDS",
    help="Seconds without contact before --on-lost applies.",
)
secret_option = click.option(
    "--secret",
    default="",
    metavar="NAME",
    help="Secret to write the kubeconfig to; without --member-kubeconfig, an existing one to read.  "
    "[default: cluster-NAME]",
)
yes_option = click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Continue even if the member does not answer from here or fails a check.",
)
reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="Reason, shown by AppWrappers that wait for the cluster."
)
force_option = click.option(
    "--force", is_flag=True, help="Remove it even if gangs run there; they keep running, unmanaged."
)


ALL_NAMESPACES = ""


class HubOptions(NamedTuple):
    """The hub that a person names: a kubeconfig ("" is the default one) and a context of it ("" is its current one)."""

    kubeconfig: str = ""
    context: str = ""


kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(),  # which completes names of files
    default="",
    envvar=["DISPATCHER_KUBECONFIG", "KUBECONFIG"],
    metavar="FILE",
    help="Kubeconfig of the hub.  [default: ~/.kube/config, else the account of the pod this runs in]",
    show_envvar=True,
)
context_option = click.option(
    "--context",
    default="",
    metavar="NAME",
    help="Context of the kubeconfig that leads to the hub.  [default: its current context]",
)


hub_options = gathered("at", HubOptions, kubeconfig_option, context_option)
"""The options --kubeconfig and --context, which name the hub; a command gets both as `at`."""

hub_namespace_option = namespace_option("Namespace of the AppWrappers.  [default: that of the context]")
all_namespaces_option = click.option(
    "everywhere", "--all-namespaces", "-A", is_flag=True, help="AppWrappers of all namespaces."
)
selector_option = click.option(
    "--selector", "-l", default="", metavar="SELECTOR", help="Only with these labels, such as team=a."
)


watch_option = click.option(
    "again", "--watch", "-w", is_flag=True, help="Refresh until Ctrl-C, which exits with 130."
)
every_option = click.option(
    "--every",
    type=Number(min=0.1, max=86400.0),
    metavar="SECONDS",
    help=f"Seconds between two refreshes of --watch.  [default: {EVERY:g}]",
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --watch and --every."""
    return watch_option(every_option(command))


def is_watched(again: bool, every: float | None) -> bool:
    """True with --watch; raises `BadParameter` for --every without it, which would be ignored."""
    if every is not None and not again:
        raise click.BadParameter("--every is the pause of --watch: give --watch, too")
    return again

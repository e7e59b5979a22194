"""Options of `dispatcher clusters` and `dispatcher queues`, with checks that refuse a value before anything is done."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dispatcher.api.clusterpolicies import AcceptedNamespaces, NamespacePolicy, OnClusterLost
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name, is_subdomain
from dispatcher.core.model.quantity import QuantityError, amount


class Output(StrEnum):
    """How a result is shown, if not as a table that fits the terminal."""

    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


DOCUMENTS: Final = frozenset({Output.JSON, Output.YAML})
"""The forms for programs."""


def as_typed(command: str) -> str:
    """A command as its user writes it: `kubectl aw …` if kubectl runs this program, else `dispatcher …`."""
    is_plugin = Path(sys.argv[0]).stem == "kubectl-aw"
    return f"{'kubectl aw' if is_plugin else 'dispatcher'} {command}"


def check_no_options(context: typer.Context, example: str) -> None:
    """Raises `BadParameter` if options were written before a command, which would drop them.

    They could name the hub of a cluster to be drained, for example. `example` is a command with its options at the end.
    """
    for name in context.params:
        if is_given(context, name):
            raise typer.BadParameter(f"give options at the end, such as: {as_typed(example)}")


def is_given(command: typer.Context, name: str) -> bool:
    """True if a parameter was written on the command line: not by default, nor by the environment."""
    source = command.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def namespace_option(meaning: str, **more: Any) -> Any:  # noqa: ANN401  # as `typer.Option` has it
    """The option -n, which commands spell alike although it means different things; `meaning` is its help."""
    return typer.Option("--namespace", "-n", metavar="NAME", help=meaning, show_default=False, **more)


def _checked_name(name: str) -> str:
    if not is_subdomain(name) or len(name) > LONGEST_LABEL:
        raise typer.BadParameter(
            f"{name!r} is no name of a cluster: at most {LONGEST_LABEL} of lower-case letters, digits, '-' and '.'"
        )
    return name


def _checked_labels(written: list[str] | None) -> list[str]:
    for each in written or []:
        key, equals, _ = each.partition("=")
        if not equals or not is_qualified_name(key):
            raise typer.BadParameter(f"{each!r} is not KEY=VALUE, such as gpu=a100")
    return written or []


def _checked_reserve(written: list[str] | None) -> list[str]:
    for each in written or []:
        resource, _, quantity = each.partition("=")
        try:
            amount(resource, quantity)
        except QuantityError as error:
            raise typer.BadParameter(f"{each!r} is not RESOURCE=QUANTITY, such as cpu=2: {error}") from error
    return written or []


Name = Annotated[str, typer.Argument(callback=_checked_name, metavar="NAME", help="The cluster's name.")]


Namespace = Annotated[
    str,
    namespace_option(
        "The dispatcher's own namespace on the hub, the only one it reads kubeconfigs from.  "
        "[default: that of the pod this runs in, else default]",
        envvar="DISPATCHER_NAMESPACE",
    ),
]
Format = Annotated[
    Output | None,
    typer.Option("--output", "-o", metavar="FORMAT", help="json, yaml, or wide.", show_default=False),
]
MemberKubeconfig = Annotated[
    typer.FileBinaryRead | None,
    typer.Option(
        "--member-kubeconfig",
        metavar="FILE",
        help="Kubeconfig of the member cluster; - reads it from stdin.",
        show_default=False,
    ),
]
MemberContext = Annotated[
    str,
    typer.Option(
        "--member-context",
        metavar="NAME",
        help="Context of the member's kubeconfig.  [default: its current context]",
        show_default=False,
    ),
]
Policy = Annotated[
    NamespacePolicy | None,
    typer.Option(
        help="If the member lacks an AppWrapper's namespace: Require does not dispatch there, Create creates it.",
        show_default=False,
    ),
]
Accepted = Annotated[
    AcceptedNamespaces | None,
    typer.Option(
        "--accepted-namespaces",
        help="Namespaces of the member that accept gangs: Labelled (dispatcher.codeflare.dev/dispatch=enabled) or All.",
        show_default=False,
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="KEY=VALUE",
        callback=_checked_labels,
        help="Label by which AppWrappers select clusters, such as gpu=a100. Repeatable.",
        show_default=False,
    ),
]
Reserve = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RESOURCE=QUANTITY",
        callback=_checked_reserve,
        help="Capacity to leave free for other users of the cluster, such as cpu=2. Repeatable.",
        show_default=False,
    ),
]
OnLost = Annotated[
    OnClusterLost | None,
    typer.Option(
        help="Policy for gangs of a cluster that stays unreachable: wait, requeue (a gang may run twice) or fail.",
        show_default=False,
    ),
]
Grace = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Seconds without contact before --on-lost applies.",
        show_default=False,
    ),
]
SecretName = Annotated[
    str,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="Secret to write the kubeconfig to; without --member-kubeconfig, an existing one to read.  "
        "[default: cluster-NAME]",
        show_default=False,
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Continue even if the member does not answer from here or fails a check."
    ),
]
Reason = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="Reason, shown by AppWrappers that wait for the cluster.", show_default=False
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Remove it even if gangs run there; they keep running, unmanaged.",
    ),
]

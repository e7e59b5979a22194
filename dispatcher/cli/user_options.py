"""Options of the commands that read the hub or write to it, as kubectl spells them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from dispatcher.cli.options import namespace_option

ALL_NAMESPACES = ""


class Hub(NamedTuple):
    """The hub that a person names: a kubeconfig ("" is the default one) and a context of it ("" is its current one)."""

    kubeconfig: str = ""
    context: str = ""


Kubeconfig = Annotated[
    str,
    typer.Option(
        "--kubeconfig",
        envvar=["DISPATCHER_KUBECONFIG", "KUBECONFIG"],
        metavar="FILE",
        help="Kubeconfig of the hub.  [default: ~/.kube/config, else the account of the pod this runs in]",
        show_default=False,
    ),
]
Context = Annotated[
    str,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig that leads to the hub.  [default: its current context]",
        show_default=False,
    ),
]
Namespace = Annotated[str, namespace_option("Namespace of the AppWrappers.  [default: that of the context]")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="AppWrappers of all namespaces.")]
Selector = Annotated[
    str,
    typer.Option(
        "--selector",
        "-l",
        metavar="SELECTOR",
        help="Only with these labels, such as team=a.",
        show_default=False,
    ),
]

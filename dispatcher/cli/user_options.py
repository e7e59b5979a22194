"""Options of the commands that need a kubeconfig alone, as kubectl spells them."""

from __future__ import annotations

from typing import Annotated

import typer

from dispatcher.cli.options import kubeconfig_of_hub

ALL_NAMESPACES = ""

Kubeconfig = Annotated[str, kubeconfig_of_hub("--kubeconfig")]
Context = Annotated[
    str,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig that leads to the hub.  [default: its current context]",
        show_default=False,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace of the AppWrappers.  [default: that of the context]",
        show_default=False,
    ),
]
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

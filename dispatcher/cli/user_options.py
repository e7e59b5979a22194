"""Options of the commands that read the hub or write to it, as kubectl spells them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click

from dispatcher.cli.options import namespace_option

ALL_NAMESPACES = ""


class Hub(NamedTuple):
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


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options --kubeconfig and --context, which name the hub."""
    return kubeconfig_option(context_option(command))


hub_namespace_option = namespace_option("Namespace of the AppWrappers.  [default: that of the context]")
all_namespaces_option = click.option(
    "everywhere", "--all-namespaces", "-A", is_flag=True, help="AppWrappers of all namespaces."
)
selector_option = click.option(
    "--selector", "-l", default="", metavar="SELECTOR", help="Only with these labels, such as team=a."
)

"""AppWrappers on the hub by what a person writes: NAME, NAMESPACE/NAME, or a label selector.

Commands import this to parse their arguments, so nothing that talks to the hub is imported before it is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from dispatcher import errors
from dispatcher.cli.options import HubOptions
from dispatcher.cli.query import on_hub

if TYPE_CHECKING:
    from dispatcher.cli.hub import Found, Hub

Json = dict[str, Any]


def names_on_hub(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of AppWrappers, for completion, without those that were typed; nothing if the hub does not answer.

    After NAMESPACE/ they are those of that namespace.
    """
    from dispatcher.cli.hub import Hub

    given = context.params
    written, slash, _ = incomplete.rpartition("/")
    with contextlib.suppress(errors.DispatcherError):
        with Hub(HubOptions(given.get("kubeconfig") or "", given.get("context") or "")) as hub:
            found = hub.appwrappers(written or given.get("namespace") or hub.namespace)
        names = [f"{written}{slash}{each['metadata']['name']}" for each in found]
        typed = given.get("names") or ()
        return [name for name in names if name.startswith(incomplete) and name not in typed]
    return []


optional_name_argument = click.argument(
    "name",
    default="",
    metavar="[NAME]",
    help="AppWrapper, as NAME or NAMESPACE/NAME; -l selects some instead.",
    shell_complete=names_on_hub,
)


def parts(name: str, namespace: str) -> tuple[str, str]:
    """The namespace and the name that NAME or NAMESPACE/NAME says; a name alone is one of `namespace`.

    Raises `BadParameter` for a name that no AppWrapper can have, and for one of another namespace than `namespace`,
    unless that is empty.
    """
    from dispatcher.api.syntax import is_subdomain

    written, slash, last = name.rpartition("/")
    if not is_subdomain(last) or (slash and not is_subdomain(written)):
        raise click.BadParameter(f"{name!r} is no name of an AppWrapper: write NAME or NAMESPACE/NAME")
    if written and namespace not in ("", written):
        raise click.BadParameter(f"{name} contradicts -n {namespace}: leave one of them out")
    return written or namespace, last


def unknown_name(name: str, namespace: str, known: Sequence[str] = (), otherwise: str = "") -> str:
    """The sentence about a name that no AppWrapper of a namespace ("" is any) has.

    It proposes the most similar of the `known` names; if there is none, it ends with what `otherwise` says.
    """
    from dispatcher.api.syntax import most_similar

    within = f"namespace {namespace}" if namespace else "any namespace"
    similar = most_similar(name, known)
    hint = f"; did you mean {similar}?" if similar else otherwise
    return f"there is no AppWrapper {name} in {within}{hint}"


def check_one_of(name: str, selector: str) -> None:
    """Raises `BadParameter` unless either a name or a selector was given."""
    if name and selector:
        raise click.BadParameter("give NAME or -l, not both")
    if not name and not selector:
        raise click.BadParameter(
            "give the NAME of an AppWrapper, or select some by labels with -l, which only a kubeconfig can answer"
        )


def name_in_database(name: str, namespace: str, *, everywhere: bool, is_uid: bool) -> tuple[str, str]:
    """The name and the namespace to ask the database for, or a uid and no namespace; "" is any namespace.

    Raises `BadParameter` for a name that no AppWrapper can have.
    """
    check_one_of(name, "")
    if is_uid:
        return name, namespace
    where, last = parts(name, "" if everywhere else namespace)
    return last, where


def find_appwrapper(hub: Hub, namespace: str, name: str) -> Found:
    """The AppWrapper of that name; raises `CommandFailed` if there is none."""
    found = hub.appwrapper(namespace, name)
    if found is None:
        remedy = f"see those there are with kubectl get aw -n {namespace}, or name another namespace"
        raise errors.CommandFailed(unknown_name(name, namespace, hub.names(namespace), f": {remedy}"))
    return found


def find_appwrappers(
    at: HubOptions, name: str, selector: str, namespace: str, *, everywhere: bool
) -> list[Json]:
    """The AppWrappers of a name or a selector, the newest first; raises `CommandFailed` if there are none."""
    check_one_of(name, selector)
    with on_hub(at) as hub:
        if name and ("/" in name or not everywhere):
            within, last = parts(name, namespace)
            return [find_appwrapper(hub, within or hub.namespace, last).raw]
        where, last = "" if everywhere else namespace or hub.namespace, parts(name, "")[1] if name else ""
        found = hub.appwrappers(where, selector, last)
        if not found and name:
            known = [each["metadata"]["name"] for each in hub.appwrappers(where)]
            raise errors.CommandFailed(unknown_name(last, where, known))
    if not found:
        within = f"namespace {where}" if where else "any namespace"
        raise errors.CommandFailed(f"there is no AppWrapper with labels {selector} in {within}")
    return sorted(found, key=lambda each: str(each["metadata"]["creationTimestamp"]), reverse=True)

"""`show`: one AppWrapper with its attempts and its timeline, or without a database what its status says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dispatcher.cli.command_line import epilog
from dispatcher.cli.options import (
    HubOptions,
    all_namespaces_option,
    hub_options,
    is_watched,
    selector_option,
    watch_options,
)
from dispatcher.cli.pending import described, described_with_start
from dispatcher.cli.people.appwrapper_names import (
    find_appwrappers,
    name_in_database,
    optional_name_argument,
    unknown_name,
)
from dispatcher.cli.query import (
    TO_NAME_A_DATABASE,
    ask,
    database_or_hub_option,
    hub_answers,
    needs_database,
    note,
    reads_database,
    shape_option,
    source_namespace_option,
)
from dispatcher.cli.screens.describe import as_text, as_value
from dispatcher.cli.screens.output import Shape, as_csv, put, shown_as, terminal_width, watch
from dispatcher.errors import CommandFailed, StoreForbidden, TryAgain
from dispatcher.store.readers.reports import Description, Report

if TYPE_CHECKING:
    from dispatcher.cli.people.absent import Gone
    from dispatcher.cli.screens.status_description import StatusDescription

commands = click.Group()


@commands.command(
    epilog=epilog(
        "kubectl aw show train-7",
        "kubectl aw show team-a/train-7 --context hub",
        "kubectl aw show train-7 -n team-a --all",
        "kubectl aw show --uid 0b1f6f0e-6d3c-4b7e-9d6f-0a5c7f1c2d3e -o json | jq '.[0].timeline'",
    )
)
@click.pass_context
@optional_name_argument
@shape_option
@source_namespace_option
@all_namespaces_option
@selector_option
@click.option("--uid", is_flag=True, help="NAME is the uid. Needs the database.")
@click.option(
    "all_of_it",
    "--all",
    is_flag=True,
    help="Show every AppWrapper that ever had the name, not only the newest. Needs the database.",
)
@watch_options
@hub_options
@database_or_hub_option
def show(
    command: click.Context,
    name: str,
    output: Shape | None,
    namespace: str,
    everywhere: bool,
    selector: str,
    uid: bool,
    all_of_it: bool,
    again: bool,
    every: float | None,
    at: HubOptions,
    database_url: str,
) -> None:
    """Show an AppWrapper: its state, its attempts and its timeline.

    In the database deleted AppWrappers are found, too. If several had the name, in any namespace, the newest is shown.
    CSV output is the timeline.

    Without a database the AppWrapper itself is read with the kubeconfig: its state, conditions, demand, place and
    components, and why it waits. Its attempts and its timeline are only in the database. Of an AppWrapper that is
    deleted the Events are shown that the hub still has, those of the last hour by default.
    """

    def from_status() -> None:
        _show_from_status(
            lambda: _statuses(at, selector, name, namespace, everywhere=everywhere),
            output,
            every,
            again=again,
        )

    if not reads_database(command, database_url, "uid", "all_of_it"):
        from_status()
        return
    where = name_in_database(name, namespace, everywhere=everywhere, is_uid=uid)
    try:
        _show_from_database(database_url, *where, output, every, uid=uid, again=again, all_of_it=all_of_it)
    except StoreForbidden as error:
        if uid or all_of_it:
            raise
        hub_answers(error)
        from_status()


def _show_from_database(
    database_url: str,
    name: str,
    namespace: str,
    output: Shape | None,
    every: float | None,
    *,
    uid: bool,
    again: bool,
    all_of_it: bool,
) -> None:
    most = None if all_of_it else 1

    def look() -> tuple[list[Description], int]:
        found = ask(
            database_url, lambda reports: reports.descriptions(name, namespace, is_uid=uid, most=most)
        )
        if not found[0]:
            raise CommandFailed(_unknown(database_url, name, namespace, is_uid=uid))
        return [described_with_start(described(each), database_url) for each in found[0]], found[1]

    if is_watched(again, every):
        watch(lambda: _told(look()[0], output), every)
    found, count = look()
    put(_told(found, output), output)
    if count > len(found):
        limit = "" if namespace or uid else ", -n limits them to one namespace"
        note(f"{count - len(found)} more had that name: --all shows them{limit}.")


def _statuses(
    at: HubOptions, selector: str, name: str, namespace: str, *, everywhere: bool
) -> list[StatusDescription] | list[Gone]:
    from dispatcher.cli.screens.status_description import StatusDescription

    try:
        found = find_appwrappers(at, name, selector, namespace, everywhere=everywhere)
    except TryAgain:
        raise
    except CommandFailed:
        from dispatcher.cli.people.absent import gone

        if (deleted := gone(at, name, namespace) if name else None) is None:
            raise
        return [deleted]
    return [StatusDescription(each, datetime.now(UTC)) for each in found]


def _show_from_status(
    look: Callable[[], list[StatusDescription] | list[Gone]],
    output: Shape | None,
    every: float | None,
    *,
    again: bool,
) -> None:
    if output is Shape.CSV:
        raise click.BadParameter(needs_database("csv, which is the timeline,"))

    def told() -> str:
        if output in {Shape.JSON, Shape.YAML}:
            return shown_as([each.as_value() for each in look()], output)
        is_wide = output is Shape.WIDE
        width = None if is_wide else terminal_width()
        return "\n\n".join(each.as_text(width, is_wide=is_wide) for each in look())

    if is_watched(again, every):
        watch(told, every)
    put(told(), output)
    note(f"Attempts and timeline are only in the database: {TO_NAME_A_DATABASE}.")


def _told(found: Sequence[Description], output: Shape | None) -> str:
    match output:
        case Shape.JSON | Shape.YAML:
            return shown_as([as_value(story) for story in found], output)
        case Shape.CSV:
            rows = tuple(row for story in found for row in story.timeline.rows)
            return as_csv(Report(found[0].timeline.columns, rows))
        case Shape.WIDE:
            return "\n\n".join(as_text(story, None, is_wide=True) for story in found)
    width = terminal_width()
    return "\n\n".join(as_text(story, width) for story in found)


def _unknown(database_url: str, name: str, namespace: str, *, is_uid: bool) -> str:
    if is_uid:
        return f"there is no AppWrapper of the uid {name}, and there was none"
    known = ask(database_url, lambda reports: reports.names(namespace))
    return unknown_name(name, namespace, known, ", and there was none")

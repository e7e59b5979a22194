"""`kubectl aw wrap`: the AppWrappers that `submit` would create of files, as text to look at, or to commit.

The command contacts neither a cluster nor the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.cli.command_line import Word, epilog
from dispatcher.cli.options import files_option, kinds_option, namespace_option, wrap_options
from dispatcher.cli.query import note
from dispatcher.cli.screens.output import dumped, say, written_as

if TYPE_CHECKING:
    from dispatcher.core.intake.wrapping import WrapOptions

commands = click.Group()

Json = dict[str, Any]


class Output(StrEnum):
    """How AppWrappers are written."""

    YAML = "yaml"
    JSON = "json"


_CODES: Final = {
    0: "written",
    2: "wrong usage, or a wrong file: nothing was written",
}


@commands.command(
    epilog=epilog(
        "kubectl aw wrap ray-job.yaml",
        "kubectl aw wrap ray-job.yaml --queue vision --expected 4h > aw.yaml && kubectl aw submit aw.yaml",
        "kubectl kustomize overlays/night | kubectl aw wrap - | kubectl aw would -",
        "kubectl aw wrap sweep.yaml --each -o json",
        codes=_CODES,
    )
)
@files_option("any objects")
@wrap_options
@kinds_option
@namespace_option("Namespace to write into AppWrappers that name none.  [default: none is written]")
@click.option(
    "--output",
    "-o",
    type=Word(Output),
    default=Output.YAML,
    show_default=True,
    metavar="FORMAT",
    help="yaml, or json.",
)
def wrap(files: Sequence[str], options: WrapOptions, kinds: str, namespace: str, output: Output) -> None:
    """Print the AppWrappers of files as submit would create them. Nothing is submitted.

    All objects of a file become one gang, such as a RayJob with its ConfigMap and its Service. AppWrappers are printed
    as they are. Objects that no gang has, such as a ClusterRole, are named on stderr.
    """
    from dispatcher.cli.files.documents import read_kinds, read_objects
    from dispatcher.cli.files.submission import submissions

    found = submissions(read_objects(files), namespace, namespace, options, read_kinds(kinds))
    say(_written([_with_namespace(each.raw, namespace) for each in found.appwrappers], output))
    for other in found.beside:
        note(f"{other} is not wrapped: it {other.why}. kubectl apply creates it.")
    for each in found.appwrappers:
        for warning in each.warnings:
            note(f"{each.name}: {warning}")


def _with_namespace(raw: Json, namespace: str) -> Json:
    """The AppWrapper with that namespace, unless it is empty."""
    if not namespace:
        return raw
    return {**raw, "metadata": {**raw["metadata"], "namespace": namespace}}


def _written(appwrappers: Sequence[Json], output: Output) -> str:
    """The documents: of several a YAML stream, or a List in JSON."""
    if output is Output.YAML:
        return "\n---\n".join(written_as(dumped(each), output) for each in appwrappers)
    listed = {"apiVersion": "v1", "kind": "List", "items": list(appwrappers)}
    return dumped(appwrappers[0] if len(appwrappers) == 1 else listed)

"""`dispatcher crds` and `--version`: the parts of a release that are in the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from dispatcher.cli.command_line import examples

DISTRIBUTION: Final = "appwrapper-dispatcher"
"""The name of the wheel."""

commands = click.Group()


version_option = click.version_option(
    package_name=DISTRIBUTION, message="%(version)s", help="Print the version and exit."
)


@commands.command(epilog=examples("dispatcher crds | kubectl apply --server-side -f -"))
def crds() -> None:
    """Print the CustomResourceDefinitions of this version as YAML.

    The command contacts neither a cluster nor the database.
    """
    click.echo("---\n".join(path.read_text(encoding="utf-8") for path in definitions()), nl=False)


def definitions() -> list[Path]:
    """The files of the CustomResourceDefinitions: of the installed package, or of the checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "crds"
    return sorted((installed if installed.is_dir() else package.parent / "crds").glob("*.yaml"))

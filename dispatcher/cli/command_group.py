"""Groups of commands as `--help` shows them: in the order in which they are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

MEANT: Final[Mapping[str, str]] = {
    "delete": "cancel",
    "describe": "show",
    "get": "queue",
    "list": "queue",
    "ls": "queue",
    "ps": "running",
    "resume": "release",
    "stop": "cancel",
    "suspend": "hold",
    "unsuspend": "release",
    "apply": "submit",
    "create": "submit",
    "top": "nodes",
}
"""Commands of other programs, and ours that does the same."""


class CommandGroup(click.Group):
    """A group that keeps the order of its commands, and proposes one for a misspelt name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # for subclasses
        """The names, in the order of the help."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is typed, with its arguments; raises `NoSuchCommand`."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            typed = error.command_name
            if (meant := MEANT.get(typed)) in self.list_commands(ctx):
                raise click.exceptions.NoSuchCommand(
                    typed, f"No such command {typed!r}. Did you mean {meant!r}?", ctx=ctx
                ) from None
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

"""Groups of commands as `--help` shows them: in the order in which they are written down."""

from __future__ import annotations

import click


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
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None

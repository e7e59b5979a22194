"""The two programs as people see them: groups in the order of their commands, help, and completions.

The end of a command's help has its examples, and the exit codes of commands that read. The help of `dispatcher run`
lists all settings. It is made from their model and the sentence below each field, so no setting can be missing. The
model and its source are read only for that help.

For completions kubectl runs `kubectl_complete-aw` with the words so far and the word being typed, and reads one
candidate per line and then a directive.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

import click
from click.shell_completion import ShellComplete

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

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
EXIT_CODES: Final = "\n".join(
    (
        "\b",
        "Exit codes:",
        "  0  answered, even if the result is empty",
        "  1  failed: a refused query, an unknown name",
        "  2  wrong usage",
        "  3  the database or the hub did not answer in time: try again",
        "",
    )
)
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_SENTENCE: Final = re.compile(r"(.+?\.)(?:\s|$)")
NO_FILES: Final = ":4"
"""kubectl's directive that no names of files are offered (cobra's ShellCompDirectiveNoFileComp)."""
FILES: Final = ":0"
"""kubectl's directive that the shell offers names of files, because there are no candidates."""
_PROGRAM: Final = "kubectl-aw"


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


def examples(*lines: str) -> str:
    """Return an epilog of examples; its first character keeps click from joining the lines."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines), ""))


class CommandWithSettings(click.Command):
    """A command whose `--help` lists all settings after the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings below the options."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Settings, by their environment variables"):
            formatter.write_dl(list(settings_in_words()))


def settings_in_words() -> Iterator[tuple[str, str]]:
    """The variable of each setting, and what it decides; in the order of the model."""
    from dispatcher.settings import Settings, variable_of

    sentences = _first_sentences(Settings)
    for name, field in Settings.model_fields.items():
        yield variable_of(name), f"{sentences[name]}  [{'; '.join(_values(name, field))}]"


def _values(name: str, field: FieldInfo) -> Iterator[str]:
    default = "" if name == "database_url" else field.default
    yield f"default: {'none' if default in ('', None) else default}"
    if get_origin(field.annotation) is Literal:
        yield f"one of {', '.join(map(str, get_args(field.annotation)))}"
    for rule in field.metadata:
        for bound, words in _BOUNDS.items():
            if (value := getattr(rule, bound, None)) is not None:
                yield f"{words} {value}"


def _first_sentences(model: type) -> dict[str, str]:
    """The first sentence of the text below each field of a class."""
    found: dict[str, str] = {}
    body = next(
        each for each in ast.parse(inspect.getsource(model)).body if isinstance(each, ast.ClassDef)
    ).body
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                whole = " ".join(text.split())
                sentence = _SENTENCE.match(whole)
                found[name] = sentence[1] if sentence else whole
    return found


def complete(program: click.Command, words: Sequence[str]) -> None:
    """Print the completions of the last word."""
    *before, typed = words or [""]
    directive = NO_FILES
    try:
        for each in ShellComplete(program, {}, _PROGRAM, "").get_completions(before, typed):
            if each.type == "file":
                directive = FILES
            else:
                click.echo(each.value)
    finally:
        click.echo(directive)

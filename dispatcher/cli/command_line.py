"""The two programs as people see them: groups in the order of their commands, types of parameters, help, completions.

A wrong value is refused in a plain sentence. Durations and moments are read as people write them: 90m, 24h, 7d, 4w; or
a day, or a time, of ISO 8601. The end of a command's help has its examples and exit codes. The help of `dispatcher run`
lists all settings. It is made from their model and the sentence below each field, so no setting can be missing. The
model and its source are read only for that help.

For completions kubectl runs `kubectl_complete-aw` with the words so far and the word being typed, and reads one
candidate per line and then a directive.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin
from urllib.parse import parse_qs, urlsplit

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
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "answered, even if the result is empty",
    1: "failed: a refused query, an unknown name",
    2: "wrong usage",
    3: "the database or the hub did not answer in time: try again",
}
"""The exit codes of commands that read, with what each says."""
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
_SENTENCE: Final = re.compile(r"(.+?\.)(?:\s|$)")
NO_FILES: Final = ":4"
"""kubectl's directive that no names of files are offered (cobra's ShellCompDirectiveNoFileComp)."""
FILES: Final = ":0"
"""kubectl's directive that the shell offers names of files, because there are no candidates."""
_PROGRAM: Final = "kubectl-aw"
LEAST_PRIORITY: Final = -(2**31)
MOST_PRIORITY: Final = 2**31 - 1
"""The bounds of `spec.priority`."""
LONGEST_SHOWN: Final = 40
"""Characters of a wrong value that its message repeats."""
SEEN_BY_ALL: Final = (
    "All users of this machine see the password in --database-url while the command runs: set DISPATCHER_DATABASE_URL, "
    "or write it into ~/.pgpass (docs/cli.md)."
)
LONGEST: Final = timedelta(days=365 * 100)
"""Longer than any history, and short enough that adding it to a date does not overflow."""
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART: Final = re.compile(r"(\d{1,8}(?:\.\d{1,6})?)([smhdw])", re.ASCII)
_WRITTEN: Final = re.compile(rf"(?:{_PART.pattern}){{1,5}}", re.ASCII)


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


def epilog(*lines: str, codes: Mapping[int, str] = EXIT_CODES) -> str:
    """The end of a command's help: examples of the command, and its exit codes."""
    return f"{examples(*lines)}\n{exit_codes(codes)}"


def examples(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return paragraph("Examples", *lines)


def exit_codes(codes: Mapping[int, str] = EXIT_CODES) -> str:
    """The exit codes at the end of a command's help."""
    width = len(str(max(codes)))
    return paragraph("Exit codes", *(f"{code:<{width}}  {meaning}" for code, meaning in codes.items()))


def paragraph(title: str, *lines: str) -> str:
    """A part of the end of a command's help; its first character keeps click from joining the lines."""
    return "\n".join(("\b", f"{title}:", *(f"  {line}" for line in lines), ""))


def is_given(command: click.Context, name: str) -> bool:
    """True if a parameter was written on the command line: not by default, nor by the environment."""
    source = command.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


Check = Callable[[click.Context, click.Parameter, Any], Any]
"""A callback of a parameter: click calls it with the value; the callback returns the value or raises `BadParameter`."""


def noting_password(check: Check | None = None) -> Check:
    """The callback of every `--database-url`: it says on stderr if others see a password there, then calls `check`."""

    def noted(context: click.Context, parameter: click.Parameter, url: Any) -> Any:  # noqa: ANN401  # as click has it
        is_written = not context.resilient_parsing and is_given(context, parameter.name or "")
        if is_written and _has_password(url):
            # Imported here, because most commands have no password there.
            from dispatcher.cli.screens.output import say
            from dispatcher.cli.screens.tables import folded, width_of

            say(folded(SEEN_BY_ALL, width_of(sys.stderr)), err=True)
        return check(context, parameter, url) if check else url

    return noted


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        return False  # libpq cannot read it either


class CommandWithSettings(click.Command):
    """A command that reads settings from the environment: its `--help` lists them after the options."""

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


Member = TypeVar("Member", bound=StrEnum)


class Word(click.Choice[Member]):
    """One of the words of an enumeration; the value is its member."""

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:  # noqa: ARG002
        """The word itself: click would take the name of the member."""
        return str(choice)


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401
        """The number; raises `BadParameter`."""
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{_short(value)!r} is no whole number", param, ctx)
        if problem := _outside(self, number):
            self.fail(f"{value} {problem}", param, ctx)
        return number

    def _describe_range(self) -> str:
        return _in_words(self)


class Number(click.FloatRange):
    """A number within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """The number; raises `BadParameter`."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{_short(value)!r} is no number", param, ctx)
        if problem := _outside(self, number):
            self.fail(f"{value} {problem}", param, ctx)
        return number

    def _describe_range(self) -> str:
        return _in_words(self)


def _in_words(bounds: click.IntRange | click.FloatRange) -> str:
    """The bounds as help shows them; nothing for those of a number that is stored in four bytes."""
    if bounds.min == LEAST_PRIORITY:
        return ""
    if bounds.max is None:
        return f"at least {bounds.min:.10g}"
    return f"from {bounds.min:.10g} to {bounds.max:.10g}"


def _outside(bounds: click.IntRange | click.FloatRange, number: float) -> str:
    """The sentence that says which bound a number exceeds; empty if it is within the bounds."""
    if bounds.min is not None and not number >= bounds.min:  # so, because nan is neither smaller nor larger
        return f"is too small: the least is {bounds.min:.10g}"
    if bounds.max is not None and number > bounds.max:
        return f"is too large: the most is {bounds.max:.10g}"
    return ""


def _short(written: str) -> str:
    return written if len(written) <= LONGEST_SHOWN else f"{written[:LONGEST_SHOWN]}…"


class NotWritten(ValueError):
    """The text is no duration or moment; the message shows one."""


def duration(written: str) -> timedelta:
    """Read a duration: numbers with their units, each one of s, m, h, d and w, such as 1h30m."""
    if not _WRITTEN.fullmatch(written.strip()):
        raise NotWritten(
            f"{written!r} is no duration: a number and s, m, h, d or w, such as 90m, 1h30m, 7d or 4w"
        )
    parts = [min(float(number) * _UNITS[unit], 2 * LONGEST) for number, unit in _PART.findall(written)]
    length = sum(parts, timedelta())
    if not timedelta() < length <= LONGEST:
        raise NotWritten(f"{written!r} is out of range: a duration is more than 0 and at most 100 years")
    return length


def moment(written: str, now: datetime) -> datetime:
    """Read a moment: a duration ago, or an ISO 8601 date or time, in UTC unless it names another zone."""
    if _WRITTEN.fullmatch(written.strip()):
        return now - duration(written)
    try:
        read = datetime.fromisoformat(written.strip())
        return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise NotWritten(
            f"{written!r} is neither how long ago, such as 24h or 7d, nor a day or time, such as 2026-11-20 or "
            "2026-11-20T08:30Z"
        ) from error

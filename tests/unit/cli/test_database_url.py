"""`--database-url`: every command that has it says on stderr that others see a password there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import click
import pytest

from dispatcher.__main__ import dispatcher_program
from dispatcher.cli.command_line import SEEN_BY_ALL

VARIABLE: Final = "DISPATCHER_DATABASE_URL"
SECRET: Final = "postgresql://ada:hunter2@localhost:1/dispatcher"


def with_a_database(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """The command and those below it that have the option, by the words that people type."""
    if any("--database-url" in each.opts for each in command.params):
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from with_a_database(found, f"{name} {each}".strip())


COMMANDS: Final = dict(with_a_database(dispatcher_program))
Said = Callable[..., str]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Reads the arguments of a command, which is not run; returns what it says on stderr meanwhile."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def read(name: str, *arguments: str, is_completed: bool = False) -> str:
        with suppress(click.UsageError):  # of a command that needs more arguments
            # A command keeps the names of its help option, which are those of the program, from its first context on.
            program = click.Context(dispatcher_program, **dispatcher_program.context_settings)
            COMMANDS[name].make_context(name, [*arguments], program, resilient_parsing=is_completed)
        return " ".join(capsys.readouterr().err.split())

    return read


def test_commands_of_the_server_and_of_people_have_the_option() -> None:
    assert {"run", "migrate", "notify", "queue", "history", "clusters", "queues", "web"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_password_on_the_command_line_is_said(said: Said, name: str) -> None:
    assert said(name, "--database-url", SECRET) == SEEN_BY_ALL


def test_password_in_the_query_of_the_url_is_said(said: Said) -> None:
    url = "postgresql://ada@localhost:1/dispatcher?password=hunter2"
    assert said("queue", "--database-url", url) == SEEN_BY_ALL


@pytest.mark.parametrize("url", ["", "postgresql://ada@localhost:1/dispatcher", "postgresql://["])
def test_url_without_a_password_is_no_matter(said: Said, url: str) -> None:
    assert said("queue", "--database-url", url) == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_password_in_the_environment_is_no_matter(
    said: Said, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    assert said(name) == ""


def test_completion_of_a_command_says_nothing(said: Said) -> None:
    assert said("queue", "--database-url", SECRET, is_completed=True) == ""

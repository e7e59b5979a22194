"""The benchmark of starts measures every command of `kubectl aw`, and names those that take too long."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from benchmarks.start import COMMANDS, Result, Start, as_table, too_slow
from dispatcher.__main__ import plugin_program


def words_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all commands below it."""
    if path:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from words_of(found, (*path, name))


def test_every_command_is_measured() -> None:
    measured = {tuple(each[:length]) for each in COMMANDS for length in (1, 2)}
    assert set(words_of(plugin_program)) - measured == set()


STARTS = (
    Start("python", 0.9, 0.9, is_command=False),
    Start("kubectl aw queue", 0.4, 0.6),
    Start("kubectl aw explain", 0.51, 0.5),
)


@pytest.mark.parametrize(
    ("noise", "slow"), [(0.1, ["kubectl aw queue"]), (1.2, ["kubectl aw explain"])], ids=["calm", "busy"]
)
def test_bound_is_for_the_wall_time_unless_others_use_the_machine(noise: float, slow: list[str]) -> None:
    assert [each.name for each in too_slow(Result(STARTS, noise))] == slow


def test_table_has_a_line_for_each_start() -> None:
    *_, last, noise = as_table(Result(STARTS, 1.2)).splitlines()
    assert last.split() == ["kubectl", "aw", "explain", "0.51", "0.50"]
    assert noise == "others used 1.20 cores while the commands ran"

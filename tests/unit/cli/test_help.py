"""What the commands say of themselves."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from dispatcher.__main__ import dispatcher_program, plugin_program
from dispatcher.settings import Settings, variable_of

COMMANDS = ["list", "add", "cordon", "uncordon", "drain", "remove"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples_of_itself(command: str) -> None:
    shown = CliRunner().invoke(dispatcher_program, ["clusters", command, "--help"])

    assert shown.exit_code == 0
    assert f"Examples:\n    kubectl aw clusters {command}" in shown.output.replace(
        "drain east   ", f"{command}   "
    )


@pytest.mark.parametrize("command", ["show", "hold", "drain", "resume"])
def test_every_command_over_a_queue_shows_examples_of_itself(command: str) -> None:
    shown = CliRunner().invoke(dispatcher_program, ["queues", command, "--help"])

    assert shown.exit_code == 0
    assert f"Examples:\n    kubectl aw queues {command}" in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "[env: DISPATCHER_KUBECONFIG, else KUBECONFIG, else the pod's own account]"),
        (["clusters", "add"], "[default: that of its Deployment, else of the pod this runs in]"),
    ],
)
def test_help_says_what_counts_where_an_option_is_left_out(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(dispatcher_program, [*arguments, "--help"])

    assert words in " ".join(shown.output.split())


def test_help_of_run_lists_every_setting_with_its_variable_its_default_and_its_choices() -> None:
    shown = CliRunner().invoke(dispatcher_program, ["run", "--help"])
    words = " ".join(shown.output.partition("Settings, by their environment variables:")[2].split())

    assert [each for each in words.split() if each.startswith("DISPATCHER_")] == list(
        map(variable_of, Settings.model_fields)
    )
    assert (
        "DISPATCHER_QUEUE_ACCESS Which namespaces a DispatchQueue serves that has no `namespaceSelector` on the way "
        "to its root. [default: selected; one of selected, open]"
    ) in words
    assert "[default: 15.0; at least 1; at most 300]" in words


@pytest.mark.parametrize("path", [[], ["clusters"], ["queues"]], ids=str)
@pytest.mark.parametrize("program", [dispatcher_program, plugin_program], ids=["dispatcher", "kubectl aw"])
def test_summary_of_each_command_fits_its_line(program: click.Group, path: list[str]) -> None:
    shown = CliRunner().invoke(program, [*path, "-h"])

    summaries = shown.output.partition("Commands:\n")[2].partition("\n\n")[0]
    assert (shown.exit_code, bool(summaries), "..." in summaries) == (0, True, False)


@pytest.mark.parametrize("command", plugin_program.list_commands(click.Context(plugin_program)))
def test_exit_codes_fit_a_terminal_of_80_columns(command: str) -> None:
    """Examples are longer, because each is a line to copy."""
    shown = CliRunner().invoke(plugin_program, [command, "--help"])

    codes = shown.output.partition("Exit codes:\n")[2].splitlines()
    assert codes
    assert [each for each in codes if len(each) > 80] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["queue", "--help"], "[default: 2] [from 0.1 to 86400]"),
        (["history", "--help"], "[default: 50; from 1 to 1000000]"),
        (["sql", "--help"], "[default: 500 on a terminal, else all] [at least 1]"),
        (["would", "--help"], "Decide as if it had this priority. --without-cluster"),
        (["nodes", "--help"], "Only nodes with these labels, such as gpu=a100."),
        (["submit", "--help"], "124 --timeout is over, and none failed"),
        (
            ["plan", "--help"],
            "1 a missing package; --live: no snapshot, or a database that refuses it 2 wrong usage",
        ),
        (
            ["--help"],
            "Submits jobs to the queue as AppWrappers, waits for them, holds and cancels them, and shows",
        ),
        (["--help"], "Examples: kubectl aw submit ray-job.yaml"),
        (["delete", "x"], "No such command 'delete'. Did you mean 'cancel'?"),
        (["suspend", "x"], "No such command 'suspend'. Did you mean 'hold'?"),
        (["list"], "No such command 'list'. Did you mean 'queue'?"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_help_is_in_plain_words(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(plugin_program, arguments)

    assert words in " ".join(shown.output.split())

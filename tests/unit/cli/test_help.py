"""What the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dispatcher.__main__ import dispatcher_program
from dispatcher.cli.clusters import own_namespace

COMMANDS = ["list", "add", "cordon", "uncordon", "drain", "remove"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples_of_itself(command: str) -> None:
    shown = CliRunner().invoke(dispatcher_program, ["clusters", command, "--help"])

    assert shown.exit_code == 0
    assert f"Examples:\n    dispatcher clusters {command}" in shown.output.replace(
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
        (["clusters", "add"], "[default: that of the pod this runs in, else default]"),
    ],
)
def test_help_says_what_counts_where_an_option_is_left_out(arguments: list[str], words: str) -> None:
    shown = CliRunner().invoke(dispatcher_program, [*arguments, "--help"])

    assert words in " ".join(shown.output.split())


def test_own_namespace_is_that_of_the_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("queue\n")

    assert [own_namespace(tmp_path / name) for name in ("namespace", "nothing")] == ["queue", "default"]

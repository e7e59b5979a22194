"""How a command ends that is interrupted, or whose output nobody takes: without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Ran, Run, runner

MANIFEST = (
    "{apiVersion: v1, kind: Pod, metadata: {name: a}, "
    "spec: {containers: [{name: c, resources: {requests: {cpu: 1, memory: 1Gi}}}]}}"
)
PROGRAM = f"{sys.executable} -m dispatcher demand -f -"
FULL = "dispatcher: the output cannot be written: No space left on device\n"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `dispatcher …`."""
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize(("to", "code", "err"), [("> /dev/full", 1, FULL), (">&-", 0, "")])
def test_unwritable_output_gives_at_most_one_line_of_error(to: str, code: int, err: str) -> None:
    done = subprocess.run(  # noqa: S603  # our own
        ["/bin/sh", "-c", f"{PROGRAM} {to}"],
        input=MANIFEST,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (code, err)


async def test_interrupt_ends_a_command_quietly(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dispatcher.cli.files.demand._breakdown", interrupted)

    assert await ask("demand", "-f", "-", stdin=MANIFEST) == Ran(
        130, "", "\n"
    )  # a terminal shows ^C before it

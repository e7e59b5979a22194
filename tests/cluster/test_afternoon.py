"""The afternoon of docs/try-it.md, By hand, in the cluster of `make dev`: its commands, with their output."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from testbed import build
from tests.afternoon import CHECKOUT, STATE, Step, steps
from tests.cluster.demos import PATIENCE_SECONDS, Run, fresh_folder

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]


@pytest.fixture
def dev() -> Iterator[Run]:
    """`make dev`, when it says that it is ready."""
    build.ensure()
    with fresh_folder() as folder:
        run = Run("dev", folder / "dev")
        run.wait_for("Ctrl-C ends all of it.")
        yield run
        assert run.end(signal.SIGTERM) == 0
        assert run.left_behind() == []


def test_afternoon_goes_as_shown(dev: Run) -> None:
    settings: list[str] = []
    transcript: list[str] = []
    for step in steps():
        if step.is_setting:
            settings.append(step.command)
        else:
            output = shown(dev, settings, step)
            transcript.append(f"$ {step.command}\n{output}")
            assert step.is_shown_by(output), "\n".join(transcript)


def shown(dev: Run, settings: list[str], step: Step) -> str:
    """The output of a command; one that changes nothing is repeated until the cluster is as the page shows it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        output = typed(dev, [*settings, step.command])
        if step.is_shown_by(output) or not step.is_repeatable or time.monotonic() > deadline:
            return output


def typed(dev: Run, lines: list[str]) -> str:
    """The output of these lines, typed into a shell."""
    script = "\n".join(lines).replace(STATE, str(dev.state))
    done = subprocess.run(  # noqa: S603 - our own commands
        ["/bin/sh", "-ec", script],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, f"{lines[-1]}: {done.stdout}{done.stderr}"
    return done.stdout.rstrip("\n")

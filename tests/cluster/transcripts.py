"""Pages played in the cluster of `make dev`: their commands, typed into a shell, give the output that they show."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable

from tests.afternoon import CHECKOUT, STATE, Step
from tests.cluster.demos import PATIENCE_SECONDS, Run


def assert_goes_as_shown(dev: Run, steps: Iterable[Step]) -> None:
    """Each command gives its output, with the settings that stand before it."""
    settings: list[str] = []
    transcript: list[str] = []
    for step in steps:
        if step.is_setting:
            settings.append(step.command)
        else:
            output = _shown(dev, settings, step)
            transcript.append(f"$ {step.command}\n{output}")
            assert step.is_shown_by(output), "\n".join(transcript)


def _shown(dev: Run, settings: list[str], step: Step) -> str:
    """The output of a command; one that changes nothing is repeated until the cluster is as the page shows it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        code, output, errors = typed(dev, [*settings, step.command])
        assert code == 0, f"{step.command}: {output}{errors}"
        if step.is_shown_by(output) or not step.is_repeatable or time.monotonic() > deadline:
            return output


def typed(dev: Run, lines: list[str]) -> tuple[int, str, str]:
    """The exit code and the output of these lines, typed into a shell."""
    script = "\n".join(lines).replace(STATE, str(dev.state))
    done = subprocess.run(  # noqa: S603 - our own commands
        ["/bin/sh", "-ec", script],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stdout.rstrip("\n"), done.stderr

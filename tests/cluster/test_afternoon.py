"""The afternoon of docs/try-it.md, By hand, in the cluster of `make dev`: its commands, with their output."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from testbed import build
from tests.afternoon import steps
from tests.cluster.demos import Run, fresh_folder
from tests.cluster.transcripts import assert_goes_as_shown

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
    assert_goes_as_shown(dev, steps())

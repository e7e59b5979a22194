"""The afternoon of docs/try-it.md, By hand, in the cluster of `make dev`: its commands, with their output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.afternoon import steps
from tests.cluster.demos import Run, developing
from tests.cluster.transcripts import assert_goes_as_shown

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(400)]


@pytest.fixture
def dev() -> Iterator[Run]:
    """`make dev`, when it says that it is ready."""
    with developing() as run:
        yield run


def test_afternoon_goes_as_shown(dev: Run) -> None:
    assert_goes_as_shown(dev, steps())

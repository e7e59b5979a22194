"""How tests are spread over the workers of pytest-xdist.

A file stays on one worker, for its fixtures. So does a folder whose tests share costly ones: one worker starts its
control planes, and ends them before it goes on with other files.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = (
    "tests/cluster/members/",
    "tests/cluster/mcad/",
    "tests/cluster/install/",
    "tests/postgres/history/",
)
"""Folders that stay on one worker, the longest first."""


def rank(nodeid: str) -> int:
    """Return the place of a test's folder: long parts come first, for the other workers to have work until the end."""
    return next((place for place, folder in enumerate(TOGETHER) if nodeid.startswith(folder)), len(TOGETHER))


class ByFixtures(LoadScopeScheduling):
    """Assigns a folder of `TOGETHER`, or else a file, to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return (*TOGETHER, nodeid.partition("::")[0])[rank(nodeid)]


def make_scheduler(config: pytest.Config, log: Producer) -> ByFixtures:
    """Return the scheduler of a run; it keeps the order of collection."""
    config.option.loadscopereorder = False
    return ByFixtures(config, log)

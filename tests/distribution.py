"""How tests are spread over the workers of pytest-xdist.

A file stays on one worker, for its fixtures. So does a folder whose tests share costly ones: one worker starts its
control planes, and ends them before it goes on with other files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER: Final = (
    "tests/cluster/members/",
    "tests/cluster/operators/",
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


def import_in_turn(config: pytest.Config) -> None:
    """Import the test modules of a worker's folders, from another module on than the other workers.

    Every worker imports all of them. If all began with the same module, each would rewrite the assertions of every
    module that the cache lacks; so each rewrites a part, and reads the others from the cache. A module that cannot be
    imported is left to the collection, which reports it.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    files = sorted(file.resolve() for folder in config.args for file in Path(folder).rglob("test_*.py"))
    for file in turned(files, int(worker["workerid"].removeprefix("gw")), worker["workercount"]):
        with contextlib.suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))


def turned(files: Sequence[Path], worker: int, workers: int) -> list[Path]:
    """Return all files, from the first of a worker's equal part on."""
    first = len(files) * worker // workers
    return [*files[first:], *files[:first]]

"""What every test may ask for. Fixtures are nouns for what you get; backends are marked by folder."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import sweeps
from tests.distribution import import_in_turn, make_scheduler, rank

pytest_plugins = ["tests.fixtures_postgres"]

SLOW_TEST_SECONDS = 120

# The suite gives the same verdict on the same code, on a slow machine too: no deadline for an example, the same
# examples every time. HYPOTHESIS_PROFILE=explore looks for new ones. Hypothesis also draws constants that stand in the
# modules imported so far, so the examples of a test depended on the tests before it in its process.
assert callable(providers._get_local_constants)  # noqa: SLF001  # no setting turns these constants off
providers._get_local_constants = Constants  # noqa: SLF001
_PATIENT = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=_PATIENT)
settings.register_profile("today", settings.get_profile("suite"), max_examples=40)
settings.register_profile("explore", deadline=None, suppress_health_check=_PATIENT, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sweeps",
        default=sweeps.ALL,
        help=f"which part of the tests marked sweep: {sweeps.ALL}, {sweeps.TODAY}, or 1 to {sweeps.PARTS}",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return sweeps.header(config.option.sweeps)


def pytest_configure(config: pytest.Config) -> None:
    # Here, so that every worker has the part of the same day.
    config.option.sweeps = sweeps.part(config.option.sweeps, datetime.now(UTC).date())
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or sweeps.profile(config.option.sweeps))
    # As the dispatcher logs exceptions; structlog's own way to show one takes up to a second.
    plain: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(processors=[*plain, structlog.dev.ConsoleRenderer(colors=False)])
    # Control planes take a tenth less processor time for 0.3 GB more memory each; above 1 GiB they collect as ever.
    os.environ.setdefault("GOGC", "400")
    os.environ.setdefault("GOMEMLIMIT", "1GiB")
    # Nothing here may ever reach a cluster of whoever runs the tests.
    os.environ["KUBECONFIG"] = os.devnull
    for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
        if not name.startswith("DISPATCHER_TEST_"):
            del os.environ[name]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return make_scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect without looking for garbage: the ten thousand tests live on, and are looked at in vain."""
    gc.disable()
    try:
        import_in_turn(session.config)
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))
    left_out = sweeps.left_out(items, config.option.sweeps)
    config.hook.pytest_deselected(items=left_out)
    without = {*left_out}
    items[:] = [item for item in items if item not in without]
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in {"browser", "postgres", "cluster"}:
            item.add_marker(getattr(pytest.mark, folder))
        if folder in {"browser", "cluster"} and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))


@pytest.fixture(autouse=True)
def no_task_is_left_behind(request: pytest.FixtureRequest) -> None:
    """A test that leaves a task running has leaked a loop of ours. No loop is made for a test without one."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("own_tasks_have_ended")


@pytest.fixture
async def own_tasks_have_ended(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = [task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()]
    assert not left, f"{request.node.nodeid} left tasks running: {left}"

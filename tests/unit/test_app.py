"""The clock and the write fence of a leader, and how the command tells what cannot work."""

from __future__ import annotations

import asyncio
import resource
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from dispatcher.__main__ import main
from dispatcher.api.names import QUEUE_LABEL
from dispatcher.app import MOST_DESCRIPTORS, raise_descriptor_limit
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.queues.declared_queues import DeclaredQueues, DispatchQueue
from dispatcher.core.queues.queue import Access, Queue
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.fit.backfill_reservation import Bounds
from dispatcher.election import WriteFence, retry_pause, until_over
from dispatcher.errors import Fenced, Forbidden, StoreUnavailable
from dispatcher.session_rules import (
    bounds_of_reservations,
    denied_namespaces,
    scheduling_rules,
    with_queues,
    without_queues,
)
from dispatcher.settings import Settings

NO_POD = Path("/nowhere")


class Monotonic:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("terms", "seconds"), [(0, 1), (1, 2), (2, 4), (5, 30), (5000, 30)])
def test_replica_that_gave_up_leadership_leaves_it_to_another_for_a_while(terms: int, seconds: float) -> None:
    assert retry_pause(terms) == seconds


NAMESPACES = {"team-a": {QUEUE_LABEL: "vision", "tier": "gold"}, "team-b": {"tier": "gold"}}


def test_rules_of_a_leader_without_queues_have_the_access_and_the_labels_that_name_queues() -> None:
    rules = scheduling_rules(Settings(queue_access="open"), BUILT_IN)
    found = without_queues(rules, NAMESPACES)
    assert (found.access, found.has_queues) == (Access.OPEN, False)
    assert found.namespaces == {"team-a": {QUEUE_LABEL: "vision"}}
    assert scheduling_rules(Settings(), BUILT_IN).access is Access.SELECTED


def test_rules_of_a_leader_with_queues_have_the_names_also_of_queues_that_are_not_valid() -> None:
    malformed = DispatchQueue(Queue("broken", ""), error="spec: is none")
    declared = DeclaredQueues.of([DispatchQueue(Queue("vision")), malformed], (), lingering={"gone", "tree/"})
    rules = scheduling_rules(Settings(), BUILT_IN)
    found = with_queues(rules, QueueRules(declared.forest, NAMESPACES), declared)
    assert (found.names, found.trees) == (frozenset({"vision", "broken", "gone"}), ("tree",))
    assert (found.invalid, dict(found.problems)) == ((malformed.queue,), {"broken": "Malformed"})
    assert found.has_queues


def test_reservations_are_bounded_as_the_settings_say() -> None:
    settings = Settings(reservation_bound_seconds=7200.0, starvation_bound_seconds=300.0)
    assert bounds_of_reservations(settings) == Bounds(kept=timedelta(hours=2), rest=timedelta(minutes=5))


@pytest.fixture
def monotonic() -> Monotonic:
    """A clock that a test moves."""
    return Monotonic()


LEASE = timedelta(seconds=15)


def test_fence_is_closed_until_a_lease_was_granted(monotonic: Monotonic) -> None:
    assert not WriteFence(5, monotonic).is_open()


def test_fence_closes_a_write_timeout_before_the_lease_ends_counted_from_the_question(
    monotonic: Monotonic,
) -> None:
    fence = WriteFence(5, monotonic)
    asked_at = monotonic.seconds
    monotonic.seconds += 2  # the answer took that long
    fence.extend(asked_at, LEASE)
    open_at = {}
    for seconds in (2, 9.999, 10, 15):
        monotonic.seconds = asked_at + seconds
        open_at[seconds] = fence.is_open()
    assert open_at == {2: True, 9.999: True, 10: False, 15: False}


def test_renewal_opens_the_fence_anew_and_stepping_down_closes_it(monotonic: Monotonic) -> None:
    fence = WriteFence(5, monotonic)
    fence.extend(monotonic.seconds, LEASE)
    monotonic.seconds += 12
    assert not fence.is_open()
    fence.extend(monotonic.seconds, LEASE)
    assert fence.is_open()
    fence.close()
    assert not fence.is_open()


@pytest.mark.parametrize("command", ["run", "migrate"])
@pytest.mark.parametrize(
    ("environment", "line"),
    [
        pytest.param(
            {},
            "no database: set DISPATCHER_DATABASE_URL or --database-url to a libpq URL, such as "
            "postgresql://user:password@host:5432/dispatcher",
            id="no-database",
        ),
        pytest.param(
            {"DISPATCHER_LISTEN_PORT": "70000"},
            "DISPATCHER_LISTEN_PORT: Input should be less than or equal to 65535",
            id="out-of-bounds",
        ),
        pytest.param(
            {"DISPATCHER_QUEUE_ACCESS": "closed"},
            "DISPATCHER_QUEUE_ACCESS: Input should be 'selected' or 'open'",
            id="no-such-choice",
        ),
        pytest.param(
            {"DISPATCHER_LEASE_SECONDS": "5"},
            "DISPATCHER_LEASE_SECONDS 5 is too short: writes stop DISPATCHER_WRITE_TIMEOUT_SECONDS before it ends, and "
            "two renewals (DISPATCHER_RENEW_SECONDS) must fit before that; make it at least 11",
            id="settings-that-do-not-go-together",
        ),
        pytest.param(
            {"DISPATCHER_DATABASE_URL": "postgresql:///x", "DISPATCHER_LOG_LEVEL": "loud"},
            "DISPATCHER_LOG_LEVEL: 'loud': choose one of debug, info, warning, error",
            id="unknown-log-level",
        ),
    ],
)
def test_impossible_environment_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    environment: dict[str, str],
    line: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["dispatcher", command])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == f"dispatcher: {line}\n"


@pytest.mark.parametrize(
    ("settings", "denied"),
    [
        pytest.param({}, {"kube-system", "kube-public", "kube-node-lease"}, id="its-own-is-not-known"),
        pytest.param(
            {"namespace": "hub"}, {"hub", "kube-system", "kube-public", "kube-node-lease"}, id="its-own"
        ),
        pytest.param({"namespace": "default", "denied_namespaces": ""}, {"default"}, id="its-own-alone"),
        pytest.param({"denied_namespaces": " a, b ,,"}, {"a", "b"}, id="as-they-are-typed"),
    ],
)
def test_nothing_is_dispatched_in_the_systems_namespaces_and_its_own(
    settings: dict[str, str], denied: set[str]
) -> None:
    assert denied_namespaces(Settings(**settings), NO_POD) == denied


def test_nothing_is_dispatched_where_its_pod_is(tmp_path: Path) -> None:
    """Also if it has the members' kubeconfigs elsewhere: its ServiceAccount and the database's URL are there."""
    pod = tmp_path / "namespace"
    pod.write_text("hub\n")
    assert denied_namespaces(Settings(namespace="secrets", denied_namespaces=""), pod) == {"hub", "secrets"}
    assert denied_namespaces(Settings(denied_namespaces=""), pod) == {"hub"}


# --- SIGTERM while a term fails ----------------------------------------------------------------------------------


class Term:
    """A term whose group fails, and whose other loop takes its time to end."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.failing = asyncio.Event()
        self.go_on = asyncio.Event()
        self.steps: list[str] = []
        self.is_stopping = False

    async def lead(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ends_slowly())
            tasks.create_task(self._fails())
            await asyncio.Event().wait()

    async def _fails(self) -> None:
        await asyncio.sleep(0)
        raise self.failure

    async def _ends_slowly(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.failing.set()
            await self.go_on.wait()

    async def run(self) -> None:
        """As a process does that leads again and again."""
        try:
            while True:
                ended = await until_over(self.lead, lambda: self.is_stopping)
                self.steps.append(type(ended).__name__)
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)  # stepping down takes a moment, and is not to be interrupted
            self.steps.append("stepped down")


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), Fenced("another leads"), Forbidden("no")])
async def test_cancellation_that_arrives_while_a_term_fails_is_no_less_one(failure: Exception) -> None:
    """A task group that fails already takes it for its own."""
    term = Term(failure)
    task = asyncio.create_task(term.run())
    await term.failing.wait()
    term.is_stopping = True
    task.cancel()
    await asyncio.sleep(0)
    term.go_on.set()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert term.steps == ["stepped down"]


async def test_term_that_fails_is_over_and_the_next_may_begin() -> None:
    term = Term(StoreUnavailable("gone"))
    term.go_on.set()
    assert await until_over(term.lead, lambda: False) is term.failure


async def test_term_that_fails_while_its_tasks_are_waited_for_is_no_cancellation() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise StoreUnavailable("gone")

    async def lead() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())

    assert isinstance(await until_over(lead, lambda: False), StoreUnavailable)


async def test_term_that_ends_in_another_way_is_not_passed_over() -> None:
    term = Term(KeyError("nobody thought of this"))
    term.go_on.set()
    with pytest.raises(ExceptionGroup):
        await until_over(term.lead, lambda: False)


# --- what the process may open ---------------------------------------------------------------------------


def test_soft_limit_of_open_files_is_raised_and_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = before[1] == resource.RLIM_INFINITY
    wanted = MOST_DESCRIPTORS if endless else min(before[1], MOST_DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, before[1])

        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

"""Gangs that wait are checked for unknown fields: which gangs, by how many dry runs, and what their status says."""

from __future__ import annotations

import asyncio
import json
import pkgutil
from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.conditions import ConditionType
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.upkeep.field_check import ANSWER_SECONDS, FieldCheck
from dispatcher.core.lifecycle import first_changes, queue_changes, removal
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger
from tests.builders import (
    WAITS,
    at,
    make_appwrapper,
    make_blocked,
    make_evicted,
    make_gang,
    make_submission,
)
from tests.fakes import FakeApiServer, answer, client_of, hang_up, refusal, text
from tests.unit.controller.wire import JOBS, job, made
from tests.unit.controller.world import World
from tests.unit.virtual_time import until
from tests.unit.workers import running

UNKNOWN = "unknown field spec.paralelism"
MISSPELT = {**job("train"), "spec": {**job("train")["spec"], "paralelism": 2}}


class Bench:
    """A check over the world's cluster, whose API server knows no field `paralelism`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clusters: list[WatchedCluster] = [world.cluster]
        self.check = FieldCheck(world.context, world.cache, world.committer, self.clusters_for)
        world.server.on("POST", JOBS, answer(made(job("train")), 201, UNKNOWN))

    def clusters_for(self, _record: Record) -> Iterable[WatchedCluster]:
        return self.clusters

    async def waiting(self, name: str, *templates: dict[str, object]) -> Record:
        """An AppWrapper that its first cycle refused; the check is told."""
        record = await self.world.admit(make_appwrapper(name, *templates))
        change = queue_changes.block(record, WAITS, self.world.now())
        assert change is not None
        committed = await self.world.commit(change)
        self.check.note(change)
        return committed

    def said(self, uid: str) -> str | None:
        found = self.world.record(uid).condition(ConditionType.UNKNOWN_FIELDS)
        return found.message if found else None

    @property
    def dry_runs(self) -> int:
        return len(self.world.server.requests("POST", JOBS))


@pytest.fixture
def bench(world: World) -> Bench:
    return Bench(world)


async def test_unknown_field_is_committed_with_its_object(bench: Bench) -> None:
    record = await bench.waiting("aw", MISSPELT)
    await bench.check.check(record.uid)
    assert bench.said(record.uid) == f"Job train: {UNKNOWN}"
    (sent,) = bench.world.server.requests("POST", JOBS)
    assert sent.query == {"dryRun": "All", "fieldValidation": "Warn"}
    assert "train" not in json.dumps(sent.body)
    assert sent.body["metadata"] == {"name": "field-check", "namespace": "default"}


async def test_templates_with_the_same_fields_are_checked_by_one_dry_run(bench: Bench) -> None:
    names = [f"aw-{number}" for number in range(5)]
    for name in names:
        template = {**MISSPELT, "metadata": {"name": f"job-of-{name}"}}
        record = await bench.waiting(name, template)
        await bench.check.check(record.uid)
        assert bench.said(record.uid) == f"Job job-of-{name}: {UNKNOWN}"
    assert bench.dry_runs == 1
    other = await bench.waiting("other", job("other"))
    await bench.check.check(other.uid)
    assert bench.dry_runs == 2


async def test_refused_dry_run_is_no_answer_for_the_next_gang(bench: Bench) -> None:
    bench.world.server.on("POST", JOBS, refusal(403, "Forbidden"), answer(made(job("train")), 201, UNKNOWN))
    first, second = [await bench.waiting(name, MISSPELT) for name in ("first", "second")]
    for each in (first, second):
        await bench.check.check(each.uid)
    assert (bench.said(first.uid), bench.said(second.uid)) == (None, f"Job train: {UNKNOWN}")


async def test_answer_about_fields_is_asked_for_again_after_a_while(bench: Bench) -> None:
    """The definition of the kind may be another one by then."""
    bench.world.server.on(
        "POST", JOBS, answer(made(job("train")), 201, UNKNOWN), answer(made(job("train")), 201)
    )
    first, second = [await bench.waiting(name, MISSPELT) for name in ("first", "second")]
    await bench.check.check(first.uid)
    await asyncio.sleep(ANSWER_SECONDS)  # virtual
    await bench.check.check(second.uid)
    assert (bench.said(first.uid), bench.said(second.uid)) == (f"Job train: {UNKNOWN}", None)


async def test_unknown_fields_of_a_gang_dispatched_meanwhile_are_not_reported(bench: Bench) -> None:
    record = await bench.waiting("aw", MISSPELT)
    await bench.world.commit(queue_changes.dispatch(record, "hub", bench.world.now()))
    await bench.check.check(record.uid)
    assert (bench.said(record.uid), bench.dry_runs) == (None, 0)


async def test_gang_without_unknown_fields_is_left_alone(bench: Bench) -> None:
    bench.world.server.on("POST", JOBS, answer(made(job("train")), 201))
    record = await bench.waiting("aw", MISSPELT)
    await bench.check.check(record.uid)
    assert bench.world.record(record.uid) == record


async def test_next_cluster_answers_for_a_kind_that_the_first_does_not_serve(
    bench: Bench, world: World
) -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        server.on("GET", "/apis/batch/v1", answer({"resources": []}))
        server.on("GET", "/readyz", text("ok", 200))
        ledger, wake = CapacityLedger(), world.wake_dispatch
        bench.clusters.insert(
            0,
            WatchedCluster(
                "east", client, ledger, on_capacity=wake, on_pods=world.wake, namespace_of=world.namespace_of
            ),
        )
        record = await bench.waiting("aw", MISSPELT)
        await bench.check.check(record.uid)
        assert server.requests("POST") == []
    assert (bench.said(record.uid), bench.dry_runs) == (f"Job train: {UNKNOWN}", 1)


async def test_error_leaves_one_gang_unchecked_and_delays_no_other(bench: Bench) -> None:
    bench.world.server.on("POST", JOBS, hang_up, answer(made(job("train")), 201, UNKNOWN))
    first, second = [await bench.waiting(name, MISSPELT) for name in ("first", "second")]
    checking = asyncio.create_task(bench.check.run())
    await until(lambda: bench.said(first.uid) is not None)
    checking.cancel()
    assert (bench.said(first.uid), bench.said(second.uid)) == (f"Job train: {UNKNOWN}", None)
    assert (bench.check.waiting, bench.dry_runs) == (0, 2)


SUBMITTED = first_changes.submit(make_submission(), make_gang(), at(0))
BLOCKED = queue_changes.block(SUBMITTED.after, WAITS, at(1))


@pytest.mark.parametrize(
    ("change", "is_noted"),
    [
        pytest.param(SUBMITTED, False, id="submitted"),
        pytest.param(BLOCKED, True, id="blocked"),
        pytest.param(
            queue_changes.note_not_evaluated(SUBMITTED.after, WAITS, at(1)), True, id="not-evaluated"
        ),
        pytest.param(
            queue_changes.block(make_blocked(), replace(WAITS, reason="Other"), at(2)),
            False,
            id="blocked-again",
        ),
        pytest.param(queue_changes.dispatch(make_blocked(), "hub", at(2)), False, id="dispatched"),
        pytest.param(
            queue_changes.block(removal.removed(make_evicted(), at(5)).after, WAITS, at(99)),
            False,
            id="blocked-after-an-attempt",
        ),
    ],
)
async def test_gang_is_checked_once_it_begins_to_wait_for_its_first_dispatch(
    bench: Bench, change: Change, is_noted: bool
) -> None:
    bench.check.note(change)
    assert bench.check.waiting == is_noted


@pytest.mark.parametrize("raising", ["digest_of_paths", "reference", "queue_changes.warn"])
async def test_exception_about_the_fields_of_one_gang_keeps_no_other_from_its_check(
    bench: Bench, raising: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each function of the core that a check calls; the newest gang is checked first."""
    honest, tenant = [await bench.waiting(name, {**MISSPELT, "metadata": {"name": name}}) for name in NAMES]
    place = f"dispatcher.controller.upkeep.field_check.{raising}"
    function = pkgutil.resolve_name(place)

    def raises(about: object, *arguments: object) -> object:
        if tenant.name in str(about):
            raise ValueError(raising)
        return function(about, *arguments)

    monkeypatch.setattr(place, raises)
    with capture_logs() as logs:
        async with running(bench.check.run()):
            await until(lambda: not bench.check.waiting and bench.said(honest.uid) is not None)
    assert bench.said(honest.uid) == f"Job honest: {UNKNOWN}"
    assert bench.said(tenant.uid) is None
    errors = [each["appwrapper"] for each in logs if each["event"] == "internal_error"]
    assert errors == [tenant.uid]


NAMES = ("honest", "tenant")

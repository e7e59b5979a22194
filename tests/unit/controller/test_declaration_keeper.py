"""Declared quotas are written when they change, and again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.controller.upkeep.declaration_keeper import DeclarationKeeper
from dispatcher.core.intake.labels import ClassValue
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.leaf_quota import LeafQuota
from dispatcher.core.queues.queue import Order, Queue, Quota
from tests.builders import at
from tests.unit import workers
from tests.unit.virtual_time import monotonic


class FakeClasses:
    """The classes that were seen; None while that is not known."""

    seen: Mapping[str, ClassValue] | None = None


class Bench:
    """A keeper, its queues, and what it has written."""

    def __init__(self) -> None:
        self.declared = DeclaredQueues()
        self.seen: frozenset[str] = frozenset()
        self.noted: list[frozenset[str]] = []
        self.written: list[tuple[datetime, dict[str, int]]] = []
        self.specs: list[tuple[datetime, list[Queue]]] = []
        self.failure: Exception | None = None
        self.classes = FakeClasses()
        self.noted_classes: list[Mapping[str, ClassValue]] = []
        self.keeper = DeclarationKeeper(self, self.classes, self, lambda: at(monotonic()))

    async def declare(self, quotas: Sequence[LeafQuota], now: datetime) -> None:
        if self.failure is not None:
            raise self.failure
        self.written.append((now, {each.queue: each.nominal.get("cpu", 0) for each in quotas}))

    async def declare_specs(self, queues: Sequence[Queue], now: datetime) -> None:
        if self.failure is not None:
            raise self.failure
        self.specs.append((now, list(queues)))

    async def note_seen(self, keys: Collection[str]) -> None:
        if self.failure is not None:
            raise self.failure
        self.noted.append(frozenset(keys))

    async def note_classes(self, classes: Mapping[str, ClassValue]) -> None:
        if self.failure is not None:
            raise self.failure
        self.noted_classes.append(classes)

    def change(self, *queues: Queue) -> None:
        self.declared = DeclaredQueues(Forest.of(queues) if queues else Forest.undeclared())
        self.keeper.wake()


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[asyncio.Task[None]]:
    async with workers.running(bench.keeper.run()) as task:
        await asyncio.sleep(1)  # virtual
        yield task


def team(cpu: int, order: Order = Order.PRIORITY) -> Queue:
    return Queue("team", resources={"cpu": Quota(cpu)}, order=order)


async def test_each_change_of_a_quota_is_written_once_and_nothing_in_between() -> None:
    bench = Bench()
    async with running(bench):
        for change in ((team(8),), (team(8, Order.USAGE),), (team(4),), ()):
            bench.change(*change)
            await asyncio.sleep(600)  # virtual
    assert bench.written == [
        (at(0), {}),
        (at(1), {"team": 8, "default": 0}),
        (at(1201), {"team": 4, "default": 0}),
        (at(1801), {}),
    ]


async def test_queues_that_were_seen_are_noted_when_they_change() -> None:
    bench = Bench()
    async with running(bench):
        for seen in ({"team"}, {"team"}, set[str]()):
            bench.seen = frozenset(seen)
            bench.change(team(8))
            await asyncio.sleep(600)  # virtual
    assert bench.noted == [frozenset(), {"team"}, frozenset()]


async def test_each_change_of_a_spec_is_written_once_in_the_order_of_declaration() -> None:
    bench = Bench()
    default = Queue("default")
    async with running(bench):
        for change in ((team(8),), (team(8, Order.USAGE),), (Queue("lost", "nobody"), default), ()):
            bench.change(*change)
            await asyncio.sleep(600)  # virtual
    assert bench.specs == [
        (at(0), []),
        (at(1), [team(8), default]),
        (at(601), [team(8, Order.USAGE), default]),
        (at(1201), [default]),
        (at(1801), []),
    ]


async def test_declaration_that_could_not_be_written_is_tried_again() -> None:
    bench = Bench()
    bench.failure = errors.StoreUnavailable("no answer")
    with capture_logs() as logs:
        async with running(bench):
            await asyncio.sleep(30)  # virtual
            bench.failure = None
            await asyncio.sleep(3600)  # virtual
    assert [(entry["event"], entry["error"]) for entry in logs] == 2 * [
        ("queue_declarations_not_written", "no answer")
    ]
    assert bench.written == [(at(60), {})]


async def test_a_keeper_of_a_former_leader_ends() -> None:
    bench = Bench()
    bench.failure = errors.Fenced("epoch 1 is over")
    async with running(bench) as task:
        with pytest.raises(errors.Fenced):
            await task


async def test_classes_are_written_once_they_are_known_and_when_they_change() -> None:
    bench = Bench()
    known: list[Mapping[str, ClassValue] | None] = [
        {},
        {"pods/a": ClassValue(5)},
        {"pods/a": ClassValue(5)},
        None,
    ]
    async with running(bench):
        assert bench.noted_classes == []
        for each in known:
            bench.classes.seen = each
            bench.keeper.wake()
            await asyncio.sleep(60)  # virtual
    assert bench.noted_classes == known[:2]


async def test_classes_that_could_not_be_written_are_written_later() -> None:
    bench = Bench()
    bench.classes.seen = {"pods/a": ClassValue(5)}
    bench.failure = errors.StoreUnavailable("gone")
    async with running(bench):
        await asyncio.sleep(60)  # virtual
        bench.failure = None
        await asyncio.sleep(60)  # virtual
    assert bench.noted_classes == [{"pods/a": ClassValue(5)}]

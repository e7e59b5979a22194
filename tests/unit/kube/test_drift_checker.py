"""Objects are compared in the background, one after another, each once for an edition of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.kube.objects import drift_checker as module
from dispatcher.kube.objects.drift_checker import (
    AGAIN_SECONDS,
    REFUSED_SECONDS,
    DriftChecker,
    Edits,
    Question,
)
from dispatcher.kube.objects.object_informers import Edition
from tests.builders import make_ref
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

IMAGE: Edits = ("spec.image",)
Outcome = Edits | Exception


@dataclass
class Cluster:
    """What its API server has to say of each object, the last thing again and again, and what was asked of it when."""

    outcomes: dict[str, list[Outcome]]
    told: list[str] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.comparisons = DriftChecker(self.told.append)
        self.hangs.set()

    def ask(self, name: str, generation: int = 2) -> Edits | None:
        ref = make_ref(name=name, uid=f"uid-of-{name}")

        async def compare() -> Edits:
            self.asked.append((name, monotonic()))
            await self.hangs.wait()
            outcomes = self.outcomes[name]
            outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return self.comparisons.ask(Question(f"aw-of-{name}", ref, Edition(generation), compare))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


@asynccontextmanager
async def running(**outcomes: Sequence[Outcome]) -> AsyncIterator[Cluster]:
    cluster = Cluster({name: list(each) for name, each in outcomes.items()})
    async with workers.running(cluster.comparisons.run()) as task:
        yield cluster
    assert task.cancelled()


async def test_edits_are_unknown_until_the_check_has_an_answer_and_then_reported() -> None:
    async with running(a=[IMAGE]) as cluster:
        assert cluster.ask("a") is None
        await until(lambda: cluster.told)
        assert cluster.ask("a") == IMAGE
        assert (cluster.told, cluster.names) == (["aw-of-a"], ["a"])


async def test_edition_is_compared_once_however_often_it_is_looked_at() -> None:
    async with running(a=[IMAGE]) as cluster:
        for _ in range(3):
            cluster.ask("a")
            await asyncio.sleep(1)  # virtual
        assert cluster.names == ["a"]


async def test_answer_stands_until_that_about_a_newer_edition_is_there() -> None:
    async with running(a=[IMAGE, ()]) as cluster:
        cluster.ask("a")
        await until(lambda: cluster.told)
        assert cluster.ask("a", 3) == IMAGE
        await until(lambda: len(cluster.told) == 2)
        assert cluster.ask("a", 3) == ()


async def test_same_answer_about_another_edition_is_no_news() -> None:
    async with running(a=[()]) as cluster:
        cluster.ask("a")
        await until(lambda: cluster.told)
        for generation in (3, 4, 5):
            cluster.ask("a", generation)
            await asyncio.sleep(1)  # virtual
        assert (cluster.told, len(cluster.asked)) == (["aw-of-a"], 4)


async def test_object_that_is_edited_again_and_again_while_it_waits_is_compared_once() -> None:
    async with running(a=[()], b=[IMAGE]) as cluster:
        cluster.hangs.clear()
        cluster.ask("a")
        await until(lambda: cluster.names)
        for generation in range(2, 100):
            cluster.ask("b", generation)
        cluster.hangs.set()
        await until(lambda: len(cluster.told) == 2)
        await asyncio.sleep(60)  # virtual
        assert cluster.names == ["a", "b"]
        assert cluster.ask("b", 99) == IMAGE


async def test_no_more_than_twenty_objects_a_second_are_asked_for_whatever_is_edited() -> None:
    names = [f"o{number}" for number in range(100)]
    async with running(**{name: [()] for name in names}) as cluster:
        for name in names:
            cluster.ask(name)
        await until(lambda: len(cluster.told) == len(names))
        assert cluster.names == names
        begun = cluster.asked[0][1]
        assert [name for name, at in cluster.asked if at - begun < 0.999] == names[:20]


async def test_unanswered_comparison_is_asked_again_and_delays_no_other() -> None:
    async with running(a=[errors.Unavailable("timeout"), IMAGE], b=[IMAGE]) as cluster:
        cluster.ask("a")
        cluster.ask("b")
        await until(lambda: cluster.told)
        assert cluster.told == ["aw-of-b"]
        await until(lambda: len(cluster.told) == 2)
        assert cluster.ask("a") == IMAGE
        (_, first), *_, (_, last) = (each for each in cluster.asked if each[0] == "a")
        assert last - first <= AGAIN_SECONDS + 1


@pytest.mark.parametrize(
    "error",
    [errors.Unavailable("timeout"), errors.Unauthorized("no"), errors.StoreUnavailable("no database")],
    ids=lambda error: type(error).__name__,
)
async def test_comparison_that_may_be_answered_later_is_asked_again_by_itself(error: Exception) -> None:
    async with running(a=[error, error, IMAGE]) as cluster:
        with capture_logs() as logged:
            cluster.ask("a")
            await until(lambda: cluster.told)
        assert [entry["event"] for entry in logged] == ["not_compared"] * 2
        assert logged[0]["object"] == "RayCluster default/a"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        pytest.param(errors.Forbidden("no"), "not_compared", id="forbidden"),
        pytest.param(errors.Invalid("no"), "not_compared", id="invalid"),
        pytest.param(ValueError("a defect"), "comparison_failed", id="a-defect-of-ours"),
    ],
)
async def test_refused_comparison_is_asked_again_after_a_pause_or_once_the_object_changes(
    error: Exception, event: str
) -> None:
    """A role that is applied later may allow what was refused; until then every look would be refused."""
    async with running(a=[IMAGE, error, error, ()]) as cluster:
        cluster.ask("a")
        await until(lambda: cluster.told)
        with capture_logs() as logged:
            cluster.ask("a", 3)
            await asyncio.sleep(REFUSED_SECONDS - 1)  # virtual
            assert cluster.ask("a", 3) == IMAGE
            await asyncio.sleep(2)  # virtual
            assert len(cluster.asked) == 2
            assert cluster.ask("a", 3) == IMAGE
            await until(lambda: len(cluster.asked) == 3)
        assert [entry["event"] for entry in logged] == [event] * 2
        assert cluster.ask("a", 4) == IMAGE
        await until(lambda: cluster.ask("a", 4) == ())
        await asyncio.sleep(REFUSED_SECONDS)  # virtual
        assert cluster.ask("a", 4) == ()
        await asyncio.sleep(1)  # virtual
        assert len(cluster.asked) == 4


async def test_question_that_was_asked_anew_meanwhile_is_not_put_back() -> None:
    async with running(a=[errors.Unavailable("timeout"), ()], b=[()]) as cluster:
        cluster.ask("a", 2)
        await asyncio.sleep(AGAIN_SECONDS - 1)  # virtual
        cluster.hangs.clear()
        cluster.ask("b")
        await until(lambda: "b" in cluster.names)
        cluster.ask("a", 3)
        await asyncio.sleep(5)  # virtual: the one before comes back
        cluster.hangs.set()
        await until(lambda: len(cluster.told) == 2)
        assert cluster.ask("a", 3) == ()
        await asyncio.sleep(60)  # virtual
        assert cluster.names == ["a", "b", "a"]


async def test_first_of_very_many_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COMPARED", 2)
    async with running(a=[IMAGE], b=[IMAGE], c=[IMAGE]) as cluster:
        for name in ("a", "b", "a", "c"):
            cluster.ask(name, 2 if cluster.names.count(name) == 0 else 3)
            await asyncio.sleep(1)  # virtual
        cluster.hangs.clear()
        assert [cluster.ask("a", 3), cluster.ask("b"), cluster.ask("c")] == [IMAGE, None, IMAGE]

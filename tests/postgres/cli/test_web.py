"""The pages about the past over a real database: what they say is what the commands say."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.core.lifecycle import removal, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.errors import CommandFailed
from dispatcher.store.state.queue import QueueStore
from dispatcher.web.life import story_of
from dispatcher.web.past import Past
from dispatcher.web.reports import PAGES, Asked, ReportPage
from tests.postgres.changes import committed
from tests.postgres.cli.conftest import Lived
from tests.postgres.cli.lives import FAILED, GONE, WAITING, Lives, started, submitted

LOST = EvictionReason("NodeLost", "a node was lost")


@pytest.fixture
def past(lived: Lived, monkeypatch: pytest.MonkeyPatch) -> Past:
    monkeypatch.delenv("DISPATCHER_DATABASE_TLS", raising=False)
    return Past(lived.url)


@pytest.fixture
def lives(lived: Lived) -> Lives:
    return lived.lives


def column(page: ReportPage, heading: str) -> list[str]:
    index = [each.text for each in page.table.headings].index(heading)
    return [row[index].text for row in page.table.rows]


def test_history_has_the_appwrappers_of_the_window_and_leads_to_each(past: Past) -> None:
    page = PAGES["history"](past, Asked(since="30d"))
    assert column(page, "Name") == ["team-a/train", "team-b/probe", "team-a/train"]
    assert column(page, "Outcome") == ["", "failed", "completed"]
    assert [cell.key for row in page.table.rows for cell in row if cell.key] == [
        ("team-a", "train", WAITING),
        ("team-b", "probe", FAILED),
        ("team-a", "train", GONE),
    ]
    assert column(PAGES["history"](past, Asked(since="30d", outcome="failed")), "Name") == ["team-b/probe"]
    assert not PAGES["history"](past, Asked(since="30d", user="nobody")).table.rows


def test_usage_adds_up_by_the_key_that_is_asked_for(past: Past) -> None:
    page = PAGES["usage"](past, Asked(since="30d", by="user"))
    assert dict(zip(column(page, "User"), column(page, "GPU-H"), strict=True))["alice"] == "4"
    assert [each.is_number for each in page.table.headings][:2] == [False, True]


def test_waits_has_those_that_still_wait(past: Past) -> None:
    page = PAGES["waits"](past, Asked(since="30d", queue="night"))
    assert column(page, "Still waiting") == ["1"]


async def test_evicted_attempt_is_an_interruption_with_its_reason(
    queue: QueueStore, database_url: str
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    begun, ended = now - timedelta(hours=2), now - timedelta(hours=1)
    record = await committed(queue, submitted("uid-1", "team-a", "train", begun))
    record = await started(queue, record, "east", begun)
    record = await committed(
        queue, run_changes.evict(record, EvictionReason("NodeLost", "a node was lost"), ended, 0, ended)
    )
    await committed(queue, removal.removed(record, ended))
    page = await asyncio.to_thread(PAGES["interruptions"], Past(database_url), Asked())
    assert [column(page, each) for each in ("Name", "What", "Reason", "Cluster", "For")] == [
        ["team-a/train"],
        ["evicted"],
        ["NodeLost"],
        ["east"],
        [""],
    ]
    assert (
        await asyncio.to_thread(PAGES["interruptions"], Past(database_url), Asked(since="30m"))
    ).table.rows == ()


def test_utilisation_of_a_database_without_samples_has_no_chart(past: Past) -> None:
    page = PAGES["utilisation"](past, Asked())
    assert (page.charts, page.table.rows) == ((), ())


@pytest.mark.parametrize("name", PAGES)
def test_each_page_says_when_the_database_answered(past: Past, name: str) -> None:
    assert PAGES[name](past, Asked()).at is not None


def test_story_of_a_uid_is_told_under_its_own_name_alone(past: Past) -> None:
    assert past.story("team-b", "probe", GONE) is None


def test_life_of_an_appwrapper_is_drawn_from_its_events(past: Past, lives: Lives) -> None:
    found = past.story("team-b", "probe")
    assert found is not None
    story = story_of(found)
    assert story.life is not None
    assert [lane.label for lane in story.life.lanes] == ["queue", "attempt 1 hub"]
    assert [bar.state for bar in story.life.lanes[1].bars] == [
        "Dispatching",
        "Dispatched",
        "Running",
        "Failing",
    ]
    assert story.life.lanes[1].lost is not None
    assert (story.life.first, story.life.last) == (lives.told(10), lives.told(45))
    assert dict(story.facts)["Outcome"] == "failed"


def test_each_appwrapper_of_a_name_has_its_own_story(past: Past) -> None:
    stories = [past.story("team-a", "train", uid) for uid in ("", WAITING, GONE)]
    assert [found.job["uid"] for found in stories if found] == [WAITING, WAITING, GONE]
    assert past.story("team-a", "train", "no-such-uid") is None


def test_name_that_there_never_was_has_no_story(past: Past) -> None:
    assert past.story("team-a", "none") is None


def test_account_that_the_database_refuses_is_told_whom_to_ask(stranger_url: str) -> None:
    with pytest.raises(CommandFailed, match="only it has history: ask its operator for a role"):
        PAGES["usage"](Past(stranger_url), Asked())

"""The queues with bars: one scale for a resource, the use within the quota and beyond it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from dispatcher.cli.operators.queue_tree import QueueLine
from dispatcher.web.queues_page import DEEPEST, MOST_QUEUES, WIDTH, Bars, QueuesSeen, queues_page

GPU: Final = "nvidia.com/gpu"
NOW: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)


def line(name: str, nominal: str = "", used: str = "", resource: str = GPU, depth: int = 0) -> QueueLine:
    return QueueLine(name, depth, resource, nominal, used, "", "", "", "", "", "Active")


def bars(*lines: QueueLine) -> list[Bars | None]:
    return [each.bars for each in queues_page(QueuesSeen(NOW, lines)).queues]


@pytest.mark.parametrize(
    ("nominal", "used", "found"),
    [
        ("10", "4", Bars(WIDTH // 2, WIDTH // 5, 0)),
        ("4", "10", Bars(WIDTH // 5, WIDTH // 5, WIDTH * 3 // 10)),
        ("0", "5", Bars(0, 0, WIDTH // 4)),
        ("", "", Bars(0, 0, 0)),
        ("many", "-3", Bars(0, 0, 0)),
    ],
)
def test_use_within_and_beyond_the_quota_is_to_one_scale(nominal: str, used: str, found: Bars) -> None:
    assert bars(line("all", "20", "7"), line("one", nominal, used))[1] == found


def test_each_resource_has_a_scale_of_its_own() -> None:
    gpus, cores = bars(line("a", "8", "8"), line("b", "500m", "250m", "cpu"))
    assert (gpus, cores) == (Bars(WIDTH, WIDTH, 0), Bars(WIDTH, WIDTH // 2, 0))


def test_queue_without_a_limit_has_no_bar() -> None:
    assert bars(line("free", resource="")) == [None]


def test_deep_trees_and_many_queues_are_bounded() -> None:
    lines = tuple(line(f"q{number}", depth=number) for number in range(MOST_QUEUES + 1))
    page = queues_page(QueuesSeen(NOW, lines))
    assert (len(page.queues), page.of_all) == (MOST_QUEUES, MOST_QUEUES + 1)
    assert max(each.indent for each in page.queues) == DEEPEST

"""docs/metrics.md has a row for every metric of the registry, with its type, its labels and a bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dispatcher import errors
from dispatcher.controller.upkeep.metrics import MOST_AMOUNTS, MOST_QUEUES
from dispatcher.core.model.record import Phase
from tests.metrics import Described, described

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "metrics.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The cells of each row by the metric's name: type, labels, series, meaning, advice."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("| `dispatcher_")
    ]
    names = [each[0].strip("`") for each in cells]
    assert len(names) == len(set(names))
    return dict(zip(names, (each[1:] for each in cells), strict=True))


def test_page_and_registry_have_the_same_metrics_with_the_same_types_and_labels() -> None:
    page = {
        name: Described(kind, tuple(sorted(re.findall(r"`(\w+)`", labels))))
        for name, (kind, labels, *_) in rows().items()
    }
    assert page == described()


def test_every_metric_has_a_meaning_and_a_bound_of_its_series() -> None:
    assert [name for name, (_, _, series, meaning, _) in rows().items() if not (series and meaning)] == []


def test_bounds_are_those_of_the_code() -> None:
    series = {name: cells[2] for name, cells in rows().items()}
    assert series["dispatcher_appwrappers"] == str(len(Phase))
    assert series["dispatcher_queue_pending"] == f"{MOST_QUEUES:,}"
    assert series["dispatcher_queue_used"] == f"{MOST_AMOUNTS:,}"


def test_every_error_of_a_write_is_a_word_of_the_page() -> None:
    row = rows()["dispatcher_api_write_errors_total"]
    uncounted = {errors.WriteForbiddenByFence, errors.Refused}
    words = {
        each.__name__
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ClusterError) and each not in uncounted
    } - {errors.ClusterError.__name__}
    assert set(re.findall(r"`([A-Z]\w+)`", row[3])) == words
    assert row[2] == f"{4 * len(words)} \N{MULTIPLICATION SIGN} (K + 10)"


def test_metrics_that_other_pages_name_exist() -> None:
    roles = {"dispatcher_reader", "dispatcher_tenant"}
    named = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(r"`(dispatcher_[a-z_]+)", page.read_text(encoding="utf-8"))
    }
    assert named - roles <= described().keys()

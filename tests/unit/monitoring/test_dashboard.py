"""The dashboard: each metric of the registry has a place, and Grafana gets what it needs."""

from __future__ import annotations

import re

from tests import dashboard
from tests.metrics import OF_HISTOGRAMS, described, series_names


def used() -> set[str]:
    return {name for query in dashboard.queries().values() for name in re.findall(r"dispatcher_\w+", query)}


def test_every_metric_of_a_query_is_in_the_registry() -> None:
    assert used() <= series_names()


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {re.sub(f"_({'|'.join(OF_HISTOGRAMS)})$", "", name) for name in used()}
    assert shown == described().keys()


def test_rows_are_the_parts_of_the_dispatcher() -> None:
    rows = [each["title"] for each in dashboard.read()["panels"] if each["type"] == "row"]
    assert rows == ["Queue", "Dispatch", "Clusters", "Queues and quota", "Database and health"]


def test_every_variable_of_a_query_is_declared_and_filled_in_by_tests() -> None:
    declared = {f"${each['name']}" for each in dashboard.read()["templating"]["list"]}
    queries = [target["expr"] for panel in dashboard.read()["panels"] for target in panel.get("targets", ())]
    named = {name for query in queries for name in re.findall(r"\$\w+", query)}
    assert named <= declared | {dashboard.INTERVAL}
    assert not any("$" in query for query in dashboard.queries().values())


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = dashboard.read()["panels"]
    cells = [
        (column, line)
        for place in (each["gridPos"] for each in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({each["id"] for each in panels}) == len(panels)

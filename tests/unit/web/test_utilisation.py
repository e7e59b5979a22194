"""What became of each cluster's capacity, hour by hour, as bars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dispatcher.web.utilisation import HEIGHT, WIDTH, charts

START: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)
GPU: Final = "nvidia.com/gpu"


def hour(number: int, cluster: str = "east", capacity: float = 8.0, **amounts: float) -> dict[str, Any]:
    idle = capacity - sum(amounts.get(each, 0.0) for each in ("allocated", "reserved", "other"))
    found = {"capacity": capacity, "idle": idle, "allocated": 0.0, "reserved": 0.0, "other": 0.0, "down": 0.0}
    parts = {f"{name}_h": amount for name, amount in (found | amounts).items()}
    return {"hour": START + timedelta(hours=number), "cluster": cluster, "resource": GPU, **parts}


def test_hour_is_a_bar_of_what_became_of_its_capacity() -> None:
    (chart,) = charts([hour(0, allocated=4.0, reserved=2.0), hour(1)])
    assert [(each.css, each.x, each.y, each.width, each.height) for each in chart.parts] == [
        ("allocated", 0, HEIGHT / 2, WIDTH / 2, HEIGHT / 2),
        ("reserved", 0, HEIGHT / 4, WIDTH / 2, HEIGHT / 4),
        ("idle", 0, 0, WIDTH / 2, HEIGHT / 4),
        ("idle", WIDTH / 2, 0, WIDTH / 2, HEIGHT),
    ]
    assert chart.sentence == "25 % allocated, 12 % reserved, 62 % idle"
    assert (chart.first, chart.last) == ("2026-11-01T12:00:00Z", "2026-11-01T13:00:00Z")


def test_clusters_have_one_scale_and_an_hour_without_a_sample_is_a_gap() -> None:
    east, west = charts([hour(0), hour(2), hour(1, "west", capacity=4.0)])
    assert [each.x for each in east.parts] == [0, round(2 * WIDTH / 3, 2)]
    assert [(each.x, each.height) for each in west.parts] == [(round(WIDTH / 3, 2), HEIGHT / 2)]


def test_what_nobody_held_while_a_cluster_could_not_be_reached_is_down() -> None:
    (chart,) = charts([hour(0, allocated=2.0, down=8.0)])
    assert [each.css for each in chart.parts] == ["allocated", "down"]


def test_nothing_known_is_no_chart() -> None:
    assert charts([]) == ()

"""What was placed is asked for again: nothing that no longer fits is committed, and all of it together fits."""

from __future__ import annotations

import pytest

from dispatcher.api.selector import parse_selector
from dispatcher.core.model.requirements import ClusterRequirements
from dispatcher.core.scheduling.cluster_filters import Closed, ClusterSnapshot
from dispatcher.core.scheduling.cycle import Placed
from dispatcher.core.scheduling.recheck import still_fitting
from tests.builders import make_gang, make_record, make_snapshot, make_snapshots

SMALL = Placed(make_record(name="small", gang=make_gang(cpu=2000)), "east")
LARGE = Placed(make_record(name="large", gang=make_gang(cpu=6000)), "east")
BERLIN = Placed(
    make_record(name="berlin", requirements=ClusterRequirements(parse_selector("city=berlin", ""))), "east"
)


@pytest.mark.parametrize(
    ("placed", "snapshots", "found"),
    [
        pytest.param(
            [SMALL, LARGE], make_snapshots(east=make_snapshot(cpu=8000)), [SMALL, LARGE], id="all-fit"
        ),
        pytest.param(
            [SMALL, LARGE], make_snapshots(east=make_snapshot(cpu=7000)), [SMALL], id="not-together"
        ),
        pytest.param(
            [LARGE, SMALL], make_snapshots(east=make_snapshot(cpu=5000)), [SMALL], id="one-too-large"
        ),
        pytest.param([SMALL], make_snapshots(west=make_snapshot(cpu=8000)), [], id="cluster-is-gone"),
        pytest.param(
            [SMALL],
            {
                "east": ClusterSnapshot(
                    "east", make_snapshot(cpu=8000), closed=Closed("ClusterCordoned", "new racks")
                )
            },
            [],
            id="cluster-was-closed",
        ),
        pytest.param(
            [BERLIN],
            {"east": ClusterSnapshot("east", make_snapshot(cpu=8000), {"city": "rome"})},
            [],
            id="relabelled",
        ),
        pytest.param(
            [Placed(BERLIN.record, "hub")],
            make_snapshots(hub=make_snapshot(cpu=8000)),
            [Placed(BERLIN.record, "hub")],
            id="hub-alone-is-not-chosen",
        ),
    ],
)
def test_still_fitting(
    placed: list[Placed], snapshots: dict[str, ClusterSnapshot], found: list[Placed]
) -> None:
    assert still_fitting(placed, snapshots) == found

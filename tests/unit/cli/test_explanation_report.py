"""The first sentence of an explanation says whether a gang waits or fits no cluster."""

from __future__ import annotations

import pytest

from dispatcher.cli.explanation_report import Report
from dispatcher.core.queues.queue import Queue, Quota, StopPolicy
from dispatcher.core.scheduling.explanation import explain
from dispatcher.core.scheduling.world import Cluster, World
from tests.builders import make_core_node, make_gang, make_record

QUEUES = (
    Queue("small", None, {"cpu": Quota(1000)}),
    Queue("stopped", stop_policy=StopPolicy.HOLD),
    Queue("inner"),
    Queue("leaf", "inner"),
    Queue("open"),
)


def report(queue: str, cpu: int) -> Report:
    """About the only gang of a world with one node of 4 cpus."""
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=1000 * cpu), queue=queue)
    world = World((Cluster("east", (make_core_node("n", cpu=4000),)),), pending=(gang,), queues=QUEUES)
    return Report(explain(world, "q"), world, {"q": gang})


@pytest.mark.parametrize(
    ("queue", "cpu", "verdict", "sentence"),
    [
        ("open", 9, "DoesNotFit", "default/q does not fit any cluster: LargerThanCluster"),
        ("lost", 1, "Waits", "default/q waits: QueueNotFound"),
        ("inner", 1, "Waits", "default/q waits: QueueNotLeaf"),
        ("stopped", 1, "Waits", "default/q waits: QueueStopped"),
        ("small", 2, "Waits", "default/q waits: LargerThanQuota"),
        ("open", 4, "Dispatch", "default/q fits: the next cycle dispatches it to east, on n."),
    ],
)
def test_gang_that_its_queue_does_not_take_waits_for_the_queue(
    queue: str, cpu: int, verdict: str, sentence: str
) -> None:
    found = report(queue, cpu)
    assert (found.as_value()["verdict"], found.as_text(None).splitlines()[0]) == (verdict, sentence)

"""The advice is true for the AppWrapper that gets it."""

from __future__ import annotations

from datetime import datetime

import pytest

from dispatcher.api.names import QUEUE_LABEL
from dispatcher.cli.pending import (
    DELETED,
    EXCLUDED,
    FIRST,
    GRANT,
    NOT_DECIDED,
    UNNAMED,
    advice_of,
    with_true_advice,
)
from dispatcher.core.model.records.record import Pending
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.explain.explanation import explain
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.store.readers.reports import Report
from tests.builders import NOW, make_core_node, make_gang, make_record

GENERAL = "the advice of the view"
TAINTED = "cluster hub: cpu: needs 8, 4 in all of it; 2 of 3 nodes excluded: 1 cordoned, 1 with taint a=b not tolerated"
MEMBERS = "east (cpu: needs 8, 4 in all of it; 1 of 2 nodes excluded: 1 cordoned), west (cpu: needs 8, 2 in all of it)"


@pytest.mark.parametrize(
    ("reason", "position", "message", "advice"),
    [
        ("InsufficientResources", 1, "", FIRST),
        ("InsufficientResources", 2, "", GENERAL),
        ("LargerThanCluster", 1, "cluster hub: cpu: needs 8, 4 in all of it", GENERAL),
        ("LargerThanCluster", 3, TAINTED, EXCLUDED.format("1 cordoned, 1 with taint a=b not tolerated")),
        ("LargerThanCluster", 1, MEMBERS, EXCLUDED.format("1 cordoned")),
        ("NotDecided", 2, "", NOT_DECIDED),
        ("KindNotInstalled", 1, "cluster hub: it does not serve RayCluster of ray.io/v1", GENERAL),
        ("KindNotInstalled", 1, "cluster hub: it does not let the dispatcher create Job of batch/v1", GRANT),
        ("QueueNotFound", None, "there is no queue vision", GENERAL),
        ("QueueNotFound", None, "queue vision was deleted at 2026-11-20 09:00:05 UTC: declare it", DELETED),
        ("QueueNotFound", None, "queue default was deleted: declare it again", DELETED),
        ("QueueNotFound", None, "queue vision is not valid: Circle", GENERAL),
        ("QueueNotFound", None, f"there is no queue default: its label {QUEUE_LABEL}, or", UNNAMED),
        (None, None, None, GENERAL),
    ],
)
def test_advice_fits_the_row(reason: object, position: object, message: object, advice: str) -> None:
    row = {"reason": reason, "position": position, "message": message, "advice": GENERAL}
    assert advice_of(row) == advice
    report = Report(tuple(row), (tuple(row.values()),))
    assert with_true_advice(report).rows == ((reason, position, message, advice),)


@pytest.mark.parametrize(("deleted", "advice"), [({"default": NOW}, DELETED), ({}, UNNAMED)])
def test_message_about_a_missing_queue_has_the_words_that_are_looked_for(
    deleted: dict[str, datetime | None], advice: str
) -> None:
    world = World(pending=(make_record(),), queues=(Queue("org"),), has_default=False, deleted=deleted)
    (outcome,) = world.plan()
    pending = getattr(outcome, "pending", None)
    assert isinstance(pending, Pending)
    row = {"reason": pending.reason, "position": None, "message": pending.message, "advice": GENERAL}
    assert advice_of(row) == advice


def test_message_about_a_missing_right_has_the_words_that_are_looked_for() -> None:
    job = ("batch/v1", "Job")
    where = ClusterRequirements(namespace="default", kinds=frozenset({job}))
    hub = Cluster(
        "hub", (make_core_node("n", cpu=8000),), forbidden_kinds=frozenset({("default", job), ("other", job)})
    )
    world = World((hub,), pending=(make_record(requirements=where),))
    (outcome,) = world.plan()
    pending = getattr(outcome, "pending", None)
    assert isinstance(pending, Pending)
    row = {"reason": pending.reason, "position": 1, "message": pending.message, "advice": GENERAL}
    assert advice_of(row) == GRANT


def test_message_of_a_cycle_has_the_words_that_are_looked_for() -> None:
    gang = make_record(name="q", uid="q", gang=make_gang(cpu=6000))
    world = World((Cluster("hub", (make_core_node("n", cpu=8000, usable=False),)),), pending=(gang,))
    outcome = explain(world, "q").outcome
    pending = getattr(outcome, "pending", None)
    assert isinstance(pending, Pending)
    row = {"reason": pending.reason, "position": 1, "message": pending.message, "advice": GENERAL}
    assert str(advice_of(row)).startswith("Ask the operator about the excluded nodes (1 ")

"""An attempt that the database lacks is found by its request for capacity, and goes on only once that was read."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.kinds.manifest import build
from dispatcher.core.kinds.provisioning_request import API_VERSION, KIND, request_name
from dispatcher.core.model.records.provisioning import Provisioning
from dispatcher.core.model.records.record import Phase, Record
from tests.builders import QUEUED_CLASS, attempt_of, make_appwrapper, make_awaiting, make_owner, make_wrapped
from tests.fakes import Reply, answer, refusal
from tests.unit.controller.test_orphan_gc import page
from tests.unit.controller.test_restore_recovery import UID, Restored, restored
from tests.unit.controller.wire import MISSING, PODS, true
from tests.unit.controller.world import World

__all__ = ["restored"]

Json = dict[str, Any]

GROUP = "/apis/autoscaling.x-k8s.io/v1"
ALL = f"{GROUP}/provisioningrequests"
SILENT = refusal(500, "InternalError")


def path(attempt: int) -> str:
    """The path of the request of an attempt."""
    return f"{GROUP}/namespaces/default/provisioningrequests/{request_name('aw', attempt)}"


def request(attempt: int, namespace: str = "default", **status: Json) -> Json:
    """The request of an attempt as the API server has it."""
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": request_name("aw", attempt)},
        "spec": {"provisioningClassName": QUEUED_CLASS.name},
    }
    built = build(make_wrapped(body, -1), make_owner(attempt=attempt))
    metadata = {**built["metadata"], "namespace": namespace, "uid": f"uid-of-request-{attempt}"}
    return {**built, "metadata": metadata, **status}


@pytest.fixture
def asking(world: World) -> World:
    """A hub that serves requests for capacity; the AppWrapper has no wrapped objects there."""
    resource = {"name": "provisioningrequests", "kind": KIND, "namespaced": True}
    world.server.on("GET", GROUP, answer({"resources": [resource]}))
    world.server.on("GET", f"{PODS}/pod", MISSING)
    world.server.on("GET", ALL, page([]))
    return world


def asked_of(record: Record) -> tuple[Phase, int, str]:
    """Phase, number of the attempt, and the class that is asked for its capacity; empty if none is."""
    asked = record.attempt.provisioning if record.attempt else None
    return record.phase, record.attempts, asked.asked.name if asked else ""


async def test_attempt_is_taken_over_once_its_request_was_read(asking: World, restored: Restored) -> None:
    queued = await asking.admit(make_appwrapper())
    asking.server.on("GET", ALL, page([request(2)]))
    asking.server.on("GET", path(2), SILENT)
    assert await restored.begin() == queued
    assert (restored.recovery.is_in_doubt(UID), restored.settled, restored.queued()) == (True, 0, [])

    asking.server.on("GET", path(2), answer(request(2)))
    assert asked_of(await restored.begin()) == (Phase.DISPATCHING, 2, QUEUED_CLASS.name)
    assert (restored.recovery.is_in_doubt(UID), restored.settled) == (False, 1)


async def test_recorded_attempt_that_waits_is_provisioned_although_its_booking_has_expired(
    asking: World, restored: Restored
) -> None:
    asking.cache.put(make_awaiting(await asking.admit(make_appwrapper())))
    expired = true("Provisioned")["conditions"] + true("BookingExpired")["conditions"]
    asking.server.on("GET", path(1), answer(request(1, status={"conditions": expired})))
    record = await restored.begin()
    assert attempt_of(record).provisioning == Provisioning(
        QUEUED_CLASS,
        "uid-of-request-1",
        message="the capacity was provisioned and its booking expired in cluster hub",
        provisioned_at=record.last_event_at,
    )


async def test_new_appwrapper_is_adopted_with_the_latest_request_of_its_namespace(asking: World) -> None:
    asking.server.on("GET", ALL, page([request(1), request(2), request(9, namespace="evil")]))
    asking.server.on("GET", path(2), answer(request(2)))
    record = await asking.admit(make_appwrapper(status={"canrun": True}))
    assert asked_of(record) == (Phase.DISPATCHING, 2, QUEUED_CLASS.name)


@pytest.mark.parametrize(
    ("at_fault", "reply", "expected"),
    [
        pytest.param(ALL, SILENT, None, id="list-unanswered"),
        pytest.param(path(2), SILENT, None, id="request-unanswered"),
        pytest.param(ALL, refusal(403, "Forbidden"), (Phase.QUEUED, 0, ""), id="no-right-to-read-any"),
    ],
)
async def test_new_appwrapper_waits_until_the_hub_says_whether_it_has_a_request(
    asking: World, at_fault: str, reply: Reply, expected: tuple[Phase, int, str] | None
) -> None:
    asking.server.on("GET", ALL, page([request(2)]))
    asking.server.on("GET", at_fault, reply)
    asking.intake.add(asking.show(make_appwrapper(status={"canrun": True})).uid)
    await asking.intake.take_in_all()
    record = asking.cache.get(UID)
    assert (None if record is None else asked_of(record)) == expected
    assert asking.failed == ([UID] if expected is None else [])

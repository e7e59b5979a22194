"""A month of hourly cycles beside a gang that never fits: how much of the cluster, or of the quota, others get.

Decision 6: incomplete backfill reservations keep capacity, or quota, for at most half of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from dispatcher.controller.scheduling.scheduler import NONE_DECLARED, Lookups, Rules, Scheduler
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.queues.forest import Forest
from dispatcher.core.queues.queue import Preemption, Queue, QueueingStrategy, Quota, Reclaim, WithinQueue
from dispatcher.core.scheduling.cycle.queue_planner import QueueRules
from dispatcher.core.scheduling.fit.backfill_reservation import Reservation
from dispatcher.probes import Metrics
from tests.builders import at, make_core_node, times_told
from tests.unit.controller.test_scheduler import HubAlone
from tests.unit.controller.test_scheduler_queues import START, none_is_finished, put, reason_of
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic

HOURS = 30 * 24
RECLAIMS = Preemption(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)
ORG = (
    Queue("org", None, {"cpu": Quota(48000)}, preemptible_below=100),
    *(
        Queue(name, "org", {"cpu": Quota(16000)}, preemption=RECLAIMS)
        for name in ("serving", "train", "tests")
    ),
)


class Month:
    """A hub with one node and one cycle an hour; every hour a small gang comes, and is gone before the next."""

    def __init__(self, world: World, cpu: int, queues: Sequence[Queue]) -> None:
        self.world = world
        self.now = at(START)
        self.told: list[str] = []
        world.ledger.set_node(make_core_node("n1", cpu=cpu))
        for reflector in (world.cluster._nodes, world.cluster._pods):  # noqa: SLF001
            reflector.synced.set()
        rules = QueueRules(Forest.of(queues)) if queues else NONE_DECLARED
        self._scheduler = Scheduler(
            world.cache,
            world.committer,
            HubAlone(world.cluster),
            Lookups(lambda _record: True, lambda: rules, none_is_finished),
            on_decided=world.taken_in.append,
            now=lambda: self.now,
            metrics=Metrics(),
            rules=Rules(),
            monotonic=monotonic,
        )

    async def run(self, big: Record, put_small: Callable[[int], Record], hours: int = HOURS) -> int:
        """The number of small gangs that were dispatched; `told` has the messages of the big one, each once."""
        dispatched = 0
        for hour in range(hours):
            small = put_small(hour)
            await self._scheduler.cycle()
            decided = self.world.record(small.uid)
            dispatched += decided.phase is Phase.DISPATCHING
            self.world.cache.put(replace(decided, phase=Phase.DELETED))
            pending = self.world.record(big.uid).pending
            if pending is not None and pending.message not in self.told:
                self.told.append(pending.message)
            assert pending is None or [each for each in times_told(pending.message) if each <= self.now] == []
            self.now += timedelta(hours=1)
        return dispatched


@pytest.mark.timeout(60)
@pytest.mark.parametrize("queues", [(), ORG], ids=["no-queues", "queues"])
async def test_small_gangs_get_half_of_the_month_beside_a_gang_that_never_fits(
    world: World, queues: Sequence[Queue]
) -> None:
    month = Month(world, 16000, queues)
    put(world, "server", 8, "serving" if queues else "default", Phase.RUNNING, priority=125)
    big = put(world, "big", 12, "train" if queues else "default", priority=1)

    dispatched = await month.run(
        big, lambda hour: put(world, f"small-{hour}", 2, "tests" if queues else "default")
    )

    assert dispatched == 360
    assert reason_of(world, big) == "InsufficientResources"
    notes = [message.partition("; a backfill reservation ")[2] for message in month.told]
    assert [note for note in notes if note][:2] == [
        "keeps capacity for it on hub until 2026-11-21 09:59:46 UTC",
        "on hub was not complete within its bound and ended; the next begins after 2026-11-22 09:59:46 UTC",
    ]


@pytest.mark.timeout(60)
async def test_small_gangs_of_a_queue_get_half_of_the_month_beside_a_gang_that_waits_for_more_quota(
    world: World,
) -> None:
    month = Month(world, 64000, (Queue("team", None, {"cpu": Quota(16000)}),))
    put(world, "server", 8, "team", Phase.RUNNING)
    big = put(world, "big", 12, "team")

    dispatched = await month.run(big, lambda hour: put(world, f"small-{hour}", 2, "team"))

    assert dispatched == 360
    assert reason_of(world, big) == "InsufficientQuota"
    notes = [message.partition("; a backfill reservation ")[2] for message in month.told]
    assert [note for note in notes if note][:2] == [
        "keeps quota for it in team until 2026-11-21 09:59:46 UTC",
        "in team was not complete within its bound and ended; the next begins after 2026-11-22 09:59:46 UTC",
    ]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("strategy", list(QueueingStrategy))
async def test_other_queues_may_borrow_for_half_of_the_month_what_the_head_of_a_queue_cannot_use(
    world: World, strategy: QueueingStrategy
) -> None:
    """Reclaim is Never: for as long as quota is held back for the head, no other queue may borrow it."""
    queues = (
        Queue("org"),
        Queue("owner", "org", {"cpu": Quota(16000)}, strategy=strategy),
        Queue("guest", "org", {"cpu": Quota(0)}),
    )
    month = Month(world, 64000, queues)
    put(world, "server", 8, "owner", Phase.RUNNING)
    big = put(world, "big", 16, "owner")

    dispatched = await month.run(big, lambda hour: put(world, f"small-{hour}", 2, "guest"))

    assert dispatched == 359  # held back in the hour before the bound, too


@pytest.mark.timeout(60)
async def test_many_gangs_that_wait_for_more_quota_leave_it_to_others_half_of_the_month_too(
    world: World,
) -> None:
    """They take turns, and between two turns the queue's quota rests."""
    month = Month(world, 64000, (Queue("team", None, {"cpu": Quota(16000)}),))
    put(world, "server", 8, "team", Phase.RUNNING)
    bigs = [put(world, f"big-{number}", 12, "team") for number in range(5)]

    dispatched = await month.run(bigs[0], lambda hour: put(world, f"small-{hour}", 2, "team"))

    assert 320 <= dispatched <= 400


TEAM = Queue("team", None, {"cpu": Quota(16000)})
OTHERS = Queue("others", None, {"cpu": Quota(16000)})


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("is_back_at_once", "hours"),
    [
        pytest.param(True, HOURS, id="for-an-hour"),
        pytest.param(
            False, 20 * 24, id="until-room-is-kept-no-more"
        ),  # then two begin that outlast the month
    ],
)
async def test_small_gangs_get_half_of_the_month_beside_a_gang_that_lacks_quota_and_room_in_turn(
    world: World, *, is_back_at_once: bool, hours: int
) -> None:
    """Its owner ends a gang of their own when the reservation of quota ends: then the large one lacks only room."""
    month = Month(world, 16000, (TEAM, OTHERS))
    put(world, "server", 8, "others", Phase.RUNNING)
    big = put(world, "big", 16, "team")
    own = put(world, "own", 2, "team", Phase.RUNNING)
    is_away = False

    def is_over(reservations: Mapping[str, Reservation]) -> bool:
        reservation = reservations.get(big.uid)
        return reservation is not None and bool(reservation.cluster) and reservation.until <= month.now

    def put_small(hour: int) -> Record:
        nonlocal own, is_away
        backfills = world.cache.backfills
        if is_over(backfills.quota.reservations):
            world.cache.put(replace(world.record(own.uid), phase=Phase.DELETED))
            is_away = True
        if is_away and (is_back_at_once or is_over(backfills.room.reservations)):
            own = put(world, f"own-{hour}", 2, "team", priority=5)
            is_away = False
        return put(world, f"small-{hour}", 2, "team")

    dispatched = await month.run(big, put_small, hours)

    assert dispatched >= hours // 2
    notes = [message.partition("; a backfill reservation ")[2] for message in month.told]
    assert [note for note in notes if "keeps quota for it" in note]
    assert is_back_at_once or [note for note in notes if "keeps capacity for it" in note]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("first_cpu", "second_cpu", "hours"),
    [
        pytest.param(16, 14, HOURS, id="quota-first"),
        pytest.param(14, 16, 20 * 24, id="room-first"),  # then a reservation begins that outlasts the month
    ],
)
async def test_small_gangs_get_half_of_the_time_beside_a_gang_that_lacks_quota_and_one_that_lacks_room(
    world: World, first_cpu: int, second_cpu: int, hours: int
) -> None:
    """The second one comes in time to fill the rest after the first one's reservation."""
    month = Month(world, 16000, (TEAM, OTHERS))
    put(world, "server", 8, "others", Phase.RUNNING)
    put(world, "own", 2, "team", Phase.RUNNING)
    first = put(world, "first", first_cpu, "team")

    def put_small(hour: int) -> Record:
        if hour == 22:
            put(world, "second", second_cpu, "team")
        return put(world, f"small-{hour}", 2, "team")

    dispatched = await month.run(first, put_small, hours)

    assert dispatched >= hours // 2

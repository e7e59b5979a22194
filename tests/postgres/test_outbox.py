"""What targets are told of, in turn and once, on a real database, whatever others write and whatever they refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

import psycopg
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.notifications import Occasion, choices_in
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.model.notifications import Cursor, Outgoing, ToldEvent, WaitingGang
from dispatcher.core.model.records.record import Record
from dispatcher.errors import StoreUnavailable
from dispatcher.notify import collector, steps
from dispatcher.notify.collector import LOOK_SECONDS, MOST_MESSAGES, PRUNE_SECONDS
from dispatcher.notify.messages import Message
from dispatcher.notify.retry import Failed, Outcome, Refused
from dispatcher.notify.targets import MOST_TARGETS, Names, QueueAlarms, Subscription, Target
from dispatcher.store.notifications import NotifierStore, connected
from dispatcher.store.readers.reader import NOTIFIER
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import (
    LATER,
    NOW,
    committed,
    forget_replay,
    make_dispatch,
    make_submit,
    rows_of,
)
from tests.postgres.notifying import FOR_LONG, Parts, Scripted, gauge, run
from tests.postgres.test_migrations import with_user
from tests.unit.notify.values import EVERYWHERE, make_target

HOUR: Final = timedelta(hours=1)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[NotifierStore]:
    """The connection of a notifier that sends."""
    async with connected(with_user(database_url, NOTIFIER)) as store:
        assert await store.lead()
        yield store


@pytest.fixture
async def parts(store: NotifierStore) -> Parts:
    """The target `mail`, which is declared before anything happens."""
    parts = Parts(store)
    await parts.collect()
    return parts


class Picky(Scripted):
    """A target that never takes messages about AppWrappers whose name begins with `bad`."""

    async def send(self, message: Message, _now: datetime) -> Outcome:
        """Take a message, or answer as a filter of contents does."""
        if "/bad" in message.about:
            return Failed("it answered 403")
        return await super().send(message, _now)


# --- turns -------------------------------------------------------------------------------------------------


async def test_namespaces_take_turns(queue: QueueStore, parts: Parts) -> None:
    for name in ("a1", "a2", "a3"):
        await run(queue, name, namespace="team-a")
    await run(queue, "b1", namespace="team-b")
    await parts.collect()
    assert await parts.send() == ["Started a1", "Started b1", "Started a2", "Started a3"]


async def test_a_message_that_its_target_never_takes_blocks_no_other_one(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, Picky())
    await parts.collect()
    await run(queue, "bad", namespace="team-a")
    await run(queue, "of-the-same", namespace="team-a")
    await run(queue, "of-another", namespace="team-b")
    await parts.collect()
    assert await parts.send() == ["Started of-another"]
    assert await parts.send(seconds=180) == ["Started of-another", "Started of-the-same"]
    with capture_logs() as logs:
        for number in range(20):
            await run(queue, f"later-{number}", namespace="team-a")
            await parts.collect()
            await parts.send(seconds=180)
    assert len(parts.sender.told) == 22
    [dropped] = [each for each in logs if each["event"] == "notification_dropped"]
    assert (dropped["reason"], dropped["error"]) == ("refused", "it answered 403")
    assert (parts.dropped("refused"), await parts.outbox()) == (1, [])


@pytest.mark.parametrize("lanes", [1, 2, 3])
async def test_messages_that_their_target_never_takes_are_not_tried_each_time_that_it_wakes(
    queue: QueueStore, store: NotifierStore, lanes: int
) -> None:
    """They are older than the others, and each of them is new to the target when the last one was set aside."""
    parts = Parts(store, Picky())
    await parts.collect()
    for number in range(4):
        await run(queue, f"bad-{number}", namespace=f"team-{number % lanes}")
    await parts.collect()
    assert await parts.send(seconds=600) == []
    await run(queue, "good", namespace="team-of-others")
    await parts.collect()
    assert await parts.send(seconds=(lanes + 1) * 300) == ["Started good"]


async def test_a_target_that_is_down_for_hours_loses_nothing(queue: QueueStore, store: NotifierStore) -> None:
    parts = Parts(store, Scripted(*12 * [Failed("no answer")]))
    await parts.collect()
    for name in ("one", "two", "three"):
        await run(queue, name)
    await parts.collect()
    while await parts.outbox():
        await parts.send(seconds=300)
    told = parts.sender.told
    assert sorted(told[12:]) == ["Started one", "Started three", "Started two"]


# --- bounds ------------------------------------------------------------------------------------------------


async def test_events_that_a_target_is_not_told_of_need_no_place(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, bounds=replace(FOR_LONG, most_behind=1))
    await parts.collect()
    await run(queue, "mine")
    for name in ("one", "two", "three"):
        await run(queue, name, "chat=All", namespace="strangers")
    await parts.collect()
    assert (parts.dropped("backlog"), await parts.send()) == (0, ["Started mine"])


async def test_a_target_that_was_not_declared_for_long_does_not_delay_the_others(
    queue: QueueStore, store: NotifierStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(store, targets=(make_target(), make_target("former")))
    for name in ("one", "two", "three"):
        await run(queue, name, "mail=All former=All")
    await store.begin(["mail", "former"])
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE notify.cursor SET event_id = 0 WHERE target = 'former'")
    monkeypatch.setattr(collector, "AT_ONCE", 1)
    await run(queue, "four", "mail=All former=All")
    assert await parts.collector.collect()
    shown = {name: gauge(parts.metrics, "behind_messages", name) for name in ("mail", "former")}
    assert shown == {"mail": 1, "former": 4}
    assert await parts.send() == ["Started four"]
    await parts.collect()
    assert len(await store.outgoing("former", [], [], 10)) == 4


EVENTS: Final[LiteralString] = (
    "INSERT INTO event (at, uid, namespace, name, queue, cause, to_phase, epoch) "
    "SELECT now(), 'uid-' || n, 'team-' || n % 3, 'gang-' || n, 'q', 'completed', 'Completed', 1 "
    "FROM generate_series(1, 12) AS n"
)


async def test_no_statement_grows_with_the_number_of_targets(
    store: NotifierStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that fails leaves those before it in the outbox, so a slow database gets on."""
    subscription = Subscription(EVERYWHERE, frozenset(Occasion))
    targets = tuple(make_target(f"t-{number}", subscription=subscription) for number in range(MOST_TARGETS))
    parts = Parts(store, targets=targets)
    await parts.collect()
    with psycopg.connect(database_url) as connection:
        connection.execute(EVENTS)
    sizes, take_in = list[int](), store.take_in

    async def fail_once(names: Sequence[str], event_id: int, messages: Sequence[Outgoing]) -> None:
        sizes.append(len(messages))
        if len(sizes) == 2:
            raise StoreUnavailable("the statement was cancelled")
        await take_in(names, event_id, messages)

    monkeypatch.setattr(store, "take_in", fail_once)
    with pytest.raises(StoreUnavailable):
        await parts.collect()
    await Parts(store, targets=targets).collect()
    assert sizes == [MOST_MESSAGES, MOST_MESSAGES, MOST_MESSAGES, 200]
    told = rows_of(database_url, "SELECT target, count(*) FROM notify.outbox GROUP BY target")
    assert dict(told) == {target.name: 12 for target in targets}


async def test_beyond_the_bound_the_oldest_of_the_longest_lane_are_dropped(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, bounds=replace(FOR_LONG, most_behind=2))
    await parts.collect()
    await run(queue, "mine", namespace="team-a")
    for name in ("one", "two", "three"):
        await run(queue, name, namespace="team-b")
    await parts.collect()
    assert await parts.send() == ["Started mine", "Started three"]


async def test_messages_of_a_target_that_is_not_declared_any_more_are_forgotten(store: NotifierStore) -> None:
    before = Parts(store, targets=(make_target("former"),))
    await before.collect()
    await store.take_in(["former"], 1, [Outgoing("former", "1", "team-a", NOW, "{}")])
    parts = Parts(store, bounds=replace(FOR_LONG, keep=HOUR))
    await parts.collect()
    assert await before.outbox() == []


# --- waits -------------------------------------------------------------------------------------------------


async def wait(
    queue: QueueStore,
    name: str,
    notifications: str = "mail=Waiting:1h",
    **fields: Any,  # noqa: ANN401
) -> Record:
    """An AppWrapper that is queued for a week, by the clock of tests."""
    return await committed(queue, make_submit(name, notifications=notifications, **fields))


async def look(parts: Parts) -> list[str]:
    """What was told after the next look at waits and queues."""
    parts.clock.seconds += LOOK_SECONDS
    await parts.collect()
    return await parts.send()


TOLD_WAITS: LiteralString = "SELECT target, longer_than, since FROM notify.told_wait"


async def test_a_long_wait_and_an_alarm_of_its_queue_are_told_once(
    queue: QueueStore, store: NotifierStore, database_url: str
) -> None:
    alarms = QueueAlarms(Names(("*",)), longer_than=timedelta(hours=2))
    parts = Parts(store, targets=(make_target(alarms=alarms),))
    await wait(queue, "slow")
    for _ in range(2):
        assert await look(parts) == ["Waiting slow", "queue.waits-longer.began default"]
    assert rows_of(database_url, TOLD_WAITS) == [("mail", HOUR, NOW)]
    assert [(each.alarm, each.queue) for each in await store.alarms("mail")] == [("waits-longer", "default")]


async def test_a_wait_that_is_chosen_late_is_told(queue: QueueStore, parts: Parts) -> None:
    late = await wait(queue, "late", "")
    await wait(queue, "first", "mail=Waiting:2h")
    assert await look(parts) == ["Waiting first"]
    await committed(queue, queue_changes.choose_notifications(late, "mail=Waiting:1h", LATER))
    assert await look(parts) == ["Waiting first", "Waiting late"]


async def test_each_limit_of_a_wait_is_told(queue: QueueStore, parts: Parts) -> None:
    record = await wait(queue, "slow")
    await look(parts)
    await committed(queue, queue_changes.choose_notifications(record, "mail=Waiting:2h", LATER))
    assert await look(parts) == ["Waiting slow", "Waiting slow"]
    assert len({message.id for message in parts.sender.sent}) == 2


async def test_what_was_told_of_a_wait_is_forgotten_once_it_is_over(
    queue: QueueStore, parts: Parts, database_url: str
) -> None:
    record, _ = await wait(queue, "slow"), await wait(queue, "still")
    await look(parts)
    await committed(queue, make_dispatch(record))
    parts.clock.seconds += PRUNE_SECONDS
    await look(parts)
    assert len(rows_of(database_url, TOLD_WAITS)) == 1


async def test_waits_are_looked_at_by_the_clock_whatever_events_there_are(
    queue: QueueStore, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "AT_ONCE", 1)
    await wait(queue, "slow")
    for name in ("one", "two"):
        await run(queue, name)
    parts.clock.seconds += LOOK_SECONDS
    assert await parts.collector.collect()
    assert await parts.send() == ["Started one", "Waiting slow"]


@pytest.mark.parametrize("written", ["1m", "90m", "36h", "2d", "30d"])
async def test_database_reads_a_choice_as_the_annotation_says(
    queue: QueueStore, parts: Parts, database_url: str, written: str
) -> None:
    choices = choices_in(f"chat=Waiting:5h mail=All,Waiting:{written}")
    record = await wait(queue, "slow", str(choices))
    choice = choices.of("mail")
    assert choice is not None
    forget_replay(database_url)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE appwrapper SET phase_since = phase_since - interval '30 days'")
    [cursor] = await parts.store.begin(["mail"])
    [gang] = await parts.store.waits(cursor, ["*"], [], None, 10)
    assert (gang.uid, gang.longer_than) == (record.uid, choice.longer_than)


@pytest.mark.parametrize(
    "notifications", ["", "mail=All", "mail=Waiting:30d", "e-mail=Waiting:1h", "mail=xWaiting:1h"]
)
async def test_what_a_target_was_not_chosen_for_is_not_read(
    queue: QueueStore, parts: Parts, notifications: str
) -> None:
    await wait(queue, "slow", notifications)
    assert await look(parts) == []


@pytest.mark.parametrize(
    ("target", "told"),
    [
        pytest.param(make_target(namespaces=Names()), [], id="open-to-nobody"),
        pytest.param(make_target(namespaces=Names(("team-a",))), ["Waiting a"], id="open-to-one"),
        pytest.param(make_target(namespaces=Names(("team-*",))), ["Waiting a", "Waiting b"], id="by-begin"),
        pytest.param(
            make_target(
                namespaces=Names(), subscription=Subscription(Names(("team-b",)), longer_than=2 * HOUR)
            ),
            ["Waiting b"],
            id="subscribed",
        ),
        pytest.param(
            make_target(subscription=Subscription(EVERYWHERE, longer_than=HOUR)),
            ["Waiting a", "Waiting b", "Waiting of-nobody"],
            id="chosen-and-subscribed",
        ),
    ],
)
async def test_who_is_told_of_a_wait(
    queue: QueueStore, store: NotifierStore, database_url: str, target: Target, told: list[str]
) -> None:
    await store.begin(["mail"])
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE notify.cursor SET since = %s", [NOW])
    for name, namespace in (("a", "team-a"), ("b", "team-b")):
        await wait(queue, name, namespace=namespace)
    await wait(queue, "of-nobody", "", namespace="others")
    assert sorted(await look(Parts(store, targets=(target,)))) == told


async def test_waits_are_looked_for_only_where_a_target_may_be_told_of_them(
    store: NotifierStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, nobody = list[str](), Names()

    async def waits(cursor: Cursor, *_: object) -> list[WaitingGang]:
        asked.append(cursor.target)
        return []

    monkeypatch.setattr(store, "waits", waits)
    events = Subscription(EVERYWHERE, frozenset(Occasion))
    targets = (
        make_target("open"),
        make_target("closed", namespaces=nobody),
        make_target("told-of-events", namespaces=nobody, subscription=events),
        make_target("told-of-waits", namespaces=nobody, subscription=replace(events, longer_than=HOUR)),
    )
    await look(Parts(store, targets=targets))
    assert asked == ["open", "told-of-waits"]


async def test_a_new_target_is_not_told_of_all_that_waits_but_of_what_chooses_it(
    queue: QueueStore, store: NotifierStore
) -> None:
    await wait(queue, "of-nobody", "")
    await wait(queue, "chooses")
    subscription = Subscription(EVERYWHERE, longer_than=2 * HOUR)
    parts = Parts(store, targets=(make_target(subscription=subscription),))
    assert await look(parts) == ["Waiting chooses"]


async def test_waits_are_read_a_few_at_a_time_and_namespaces_take_turns(
    queue: QueueStore, parts: Parts
) -> None:
    for name in ("a1", "a2", "a3"):
        await wait(queue, name, namespace="team-a")
    await wait(queue, "b1", namespace="team-b")
    [cursor] = await parts.store.begin(["mail"])
    first = await parts.store.waits(cursor, ["*"], [], None, 2)
    assert {gang.namespace for gang in first} == {"team-a", "team-b"}
    await parts.store.note_waits("mail", first, [])
    assert len(await parts.store.waits(cursor, ["*"], [], None, 10)) == 2


# --- alarms ------------------------------------------------------------------------------------------------


async def test_an_alarm_that_its_target_refuses_is_one_message(
    queue: QueueStore, store: NotifierStore
) -> None:
    sender = Scripted(*100 * [Refused("it answered 400")])
    parts = Parts(store, sender, (make_target(alarms=QueueAlarms(EVERYWHERE, more_than=0)),))
    await wait(queue, "slow", "")
    for _ in range(4):
        await look(parts)
    assert (len(sender.sent), len({message.id for message in sender.sent})) == (3, 1)
    assert parts.dropped("refused") == 1


async def test_an_alarm_is_told_when_it_is_over(
    queue: QueueStore, store: NotifierStore, database_url: str
) -> None:
    parts = Parts(store, targets=(make_target(alarms=QueueAlarms(EVERYWHERE, more_than=0)),))
    record = await wait(queue, "slow", "")
    await look(parts)
    await committed(queue, make_dispatch(record))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE notify.alarm SET began_at = began_at - interval '10 minutes'")
    for _ in range(2):
        told = await look(parts)
    assert told == ["queue.queued-more.began default", "queue.queued-more.ended default"]
    assert await store.alarms("mail") == []


async def test_alarms_of_a_target_that_is_not_declared_any_more_are_forgotten(
    queue: QueueStore, store: NotifierStore
) -> None:
    alarms = QueueAlarms(EVERYWHERE, more_than=0)
    await wait(queue, "slow", "")
    await look(Parts(store, targets=(make_target("former", alarms=alarms), make_target(alarms=alarms))))
    assert [len(await store.alarms(name)) for name in ("former", "mail")] == [1, 1]
    await Parts(store, targets=(make_target(alarms=alarms),)).collect()
    assert [len(await store.alarms(name)) for name in ("former", "mail")] == [0, 1]


# --- defects and closed targets ----------------------------------------------------------------------------


async def test_an_event_that_raises_is_logged_counted_and_passed_over(
    queue: QueueStore, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def message_about(target: Target, event: ToldEvent) -> Message | None:
        if event.name == "bad":
            raise RuntimeError("nobody thought of this event")
        return steps.message_about(target, event)

    monkeypatch.setattr(collector, "message_about", message_about)
    for name in ("one", "bad", "two"):
        await run(queue, name)
    with capture_logs() as logs:
        await parts.collect()
    assert await parts.send() == ["Started one", "Started two"]
    [error] = [each for each in logs if each["event"] == "notification_error"]
    assert (error["target"], error["log_level"]) == ("mail", "error")
    assert parts.metrics.errors._value.get() == 1  # noqa: SLF001  # it has no reader


async def test_a_message_that_raises_when_it_is_sent_fails_like_others(
    queue: QueueStore, store: NotifierStore
) -> None:
    async def break_down() -> None:
        if sender.told[-1] == "Started bad":
            raise RuntimeError("nobody thought of this message")

    sender = Scripted(before=break_down)
    parts = Parts(store, sender)
    await parts.collect()
    await run(queue, "bad", namespace="team-a")
    await run(queue, "other", namespace="team-b")
    await parts.collect()
    with capture_logs() as logs:
        assert await parts.send() == ["Started bad", "Started other"]
    [failed] = [each for each in logs if each["event"] == "notification_failed"]
    assert failed["error"] == "an unexpected error: RuntimeError"
    assert parts.metrics.errors._value.get() == 1  # noqa: SLF001  # it has no reader


async def test_choices_of_closed_targets_are_counted_once_though_the_first_target_is_dead(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, Scripted(*100 * [Failed("no answer")]))
    await parts.collect()
    with capture_logs() as logs:
        for name in ("one", "two"):
            await run(queue, name, "mail=All typo=Started")
            await parts.collect()
            await parts.send(seconds=60)
    assert parts.metrics.closed._value.get() == 2  # noqa: SLF001  # it has no reader
    assert [each["appwrapper"] for each in logs if each["event"] == "target_closed"] == ["one", "two"]

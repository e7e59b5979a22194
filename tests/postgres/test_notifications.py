"""The notifier on a real database: nothing is lost and little is told twice, whatever ends when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Final, LiteralString

import psycopg
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from dispatcher.api.document import Entry
from dispatcher.core.lifecycle import first_changes, queue_changes, run_changes
from dispatcher.core.lifecycle.record_change import EvictionReason
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.notifications import TOLD, UNDECLARED
from dispatcher.core.model.records.preemption import Reason
from dispatcher.errors import StoreUnavailable
from dispatcher.notify import process
from dispatcher.notify.collector import Collector
from dispatcher.notify.courier import Courier
from dispatcher.notify.process import Notifier, NotifierOptions, declared
from dispatcher.notify.retry import Bounds, Failed, Refused
from dispatcher.store.notifications import NotifierStore, connected
from dispatcher.store.readers.reader import NOTIFIER
from dispatcher.store.state.queue import QueueStore
from tests.postgres.changes import (
    LATER,
    NOW,
    committed,
    make_block,
    make_submit,
    rows_of,
)
from tests.postgres.notifying import FOR_LONG, Parts, Scripted, begin, complete, gauge, run
from tests.postgres.test_migrations import with_user
from tests.receivers import receiving
from tests.unit.notify.values import make_target


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[NotifierStore]:
    """The connection of a notifier that sends."""
    async with connected(with_user(database_url, NOTIFIER)) as store:
        assert await store.lead()
        yield store


# --- what is read ------------------------------------------------------------------------------------------


async def test_events_are_read_with_what_their_appwrappers_choose(
    queue: QueueStore, store: NotifierStore
) -> None:
    await complete(queue, await run(queue, "one", "mail=Ended"))
    events = await store.events(0, 100)
    assert [(each.cause, each.name, each.cluster, each.attempt) for each in events] == [
        ("pods-running", "one", "hub", 1),
        ("completed", "one", "hub", 1),
    ]
    assert {(each.notifications, each.started_at) for each in events} == {("mail=Ended", LATER)}
    assert await store.events(events[0].id, 100) == events[1:]
    assert await store.events(0, 1) == events[:1]


async def test_a_change_of_the_annotation_counts_from_then_on(
    queue: QueueStore, store: NotifierStore
) -> None:
    record = await begin(queue, "one", "")
    record = await committed(queue, queue_changes.choose_notifications(record, "mail=Started", LATER))
    await committed(queue, run_changes.mark_running(record, LATER))
    assert [each.notifications for each in await store.events(0, 100)] == ["mail=Started"]


async def test_rejected_preempted_and_evicted_gangs_are_read(queue: QueueStore, store: NotifierStore) -> None:
    rejected = first_changes.reject(
        first_changes.Submission("u", "g", "default", "bad", NOW, b"", "h", notifications="mail=All"),
        "no",
        NOW,
    )
    await committed(queue, rejected)
    record = await run(queue, "one")
    await committed(queue, run_changes.preempt(record, Reason.FAIR_SHARE, "for default/two", LATER, "uid-2"))
    causes = [(each.cause, each.message) for each in await store.events(0, 100)]
    assert causes == [("rejected", "no"), ("pods-running", ""), ("preempted", "for default/two")]


async def test_termination_message_of_a_failure_is_read_beside_its_message(
    queue: QueueStore, store: NotifierStore
) -> None:
    failure = PodFailure("p", "main", 1, "Error", "batch 7")
    why = EvictionReason("FailedComponent", "it failed", "", failure)
    await committed(queue, run_changes.fail(await begin(queue, "one"), why, LATER))
    [event] = await store.events(0, 100)
    assert (event.message, event.termination_message) == ("it failed", "batch 7")


async def test_waiting_gangs_and_queues_are_read(queue: QueueStore, store: NotifierStore) -> None:
    chooses = await committed(queue, make_submit("chooses", notifications="mail=Waiting:1h"))
    await committed(queue, make_block(chooses))
    await committed(queue, make_submit("other", notifications="chat=Waiting:1h"))
    cursors = {each.target: replace(each, since=NOW) for each in await store.begin(["mail", "nobody"])}
    [gang] = await store.waits(cursors["mail"], ["*"], [], None, 10)
    assert (gang.name, gang.queue, gang.since, gang.message) == ("chooses", "default", NOW, "lacks 1 cpu")
    assert gang.advice.startswith("Wait: it goes when enough is free")
    assert gang.longer_than == timedelta(hours=1)
    waits = await store.waits(cursors["nobody"], [], ["*"], timedelta(minutes=1), 10)
    assert {each.name for each in waits} == {"chooses", "other"}
    [found] = await store.queues()
    assert (found.queue, found.queued, found.oldest_since, found.stop_policy) == ("default", 2, NOW, "None")


DECLARED: Final[LiteralString] = (
    "INSERT INTO queue_spec (queue, position, spec, valid_from, valid_to) VALUES ('vision', 0, "
    "'{\"stopPolicy\": \"Hold\"}', now(), NULL), ('former', 1, '{}', now() - interval '1 day', now())"
)


async def test_queues_of_a_users_choice_count_as_one(
    queue: QueueStore, store: NotifierStore, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(DECLARED)
    for name in ("vision", "default", "q-1", "q-2", "former"):
        await committed(queue, make_submit(name, queue=name))
    found = {each.queue: (each.queued, each.stop_policy) for each in await store.queues()}
    assert found == {"vision": (1, "Hold"), "default": (1, "None"), UNDECLARED: (3, "None")}


@pytest.mark.parametrize("cause", TOLD)
def test_every_cause_that_is_told_of_is_in_the_view(database_url: str, cause: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(INSERT, {"name": "x", "cause": cause})
    assert rows_of(database_url, "SELECT cause FROM notify.events") == [(cause,)]


def test_next_events_are_found_by_their_index_and_not_sorted(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(
            "EXPLAIN SELECT id, is_settled, notifications FROM notify.events WHERE id > 7 ORDER BY id LIMIT 1"
        ).fetchall()
    steps = "\n".join(line for (line,) in plan)
    assert "event_default_id_idx" in steps
    assert "Sort" not in steps


# --- the order of the commits ------------------------------------------------------------------------------

INSERT: LiteralString = (
    "INSERT INTO event (at, uid, namespace, name, queue, cause, to_phase, epoch) "
    "VALUES (now(), %(name)s, 'ns', %(name)s, 'q', %(cause)s, 'Completed', 1) RETURNING id"
)


@pytest.fixture
def slow_commit(database_url: str) -> Iterator[psycopg.Connection]:
    """A transaction that has written the first event, and commits after others."""
    with psycopg.connect(database_url) as connection:
        connection.execute(INSERT, {"name": "first", "cause": "completed"})
        yield connection


async def test_an_event_is_read_once_every_earlier_commit_is_done(
    database_url: str, store: NotifierStore, slow_commit: psycopg.Connection
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute(INSERT, {"name": "second", "cause": "completed"})
    assert await store.events(0, 100) == []
    await asyncio.to_thread(slow_commit.commit)
    assert [each.name for each in await store.events(0, 100)] == ["first", "second"]


async def test_an_event_waits_a_minute_at_most_for_transactions_of_others(
    database_url: str, store: NotifierStore, slow_commit: psycopg.Connection
) -> None:
    with psycopg.connect(database_url) as other:
        for name in ("second", "third"):
            other.execute(INSERT, {"name": name, "cause": "completed"})
        other.execute(
            "UPDATE event SET recorded_at = recorded_at - interval '61 seconds' WHERE name = 'second'"
        )
    assert [each.name for each in await store.events(0, 100)] == ["second"]


# --- cursors -----------------------------------------------------------------------------------------------


async def test_a_new_target_is_told_what_happens_from_then_on(
    queue: QueueStore, store: NotifierStore
) -> None:
    await run(queue, "before")
    parts = Parts(store)
    await parts.collect()
    [cursor] = await store.begin(["mail"])
    [before] = await store.events(0, 100)
    assert cursor.event_id == before.id
    await run(queue, "after")
    await parts.collect()
    assert await parts.send() == ["Started after"]


async def test_a_cursor_moves_and_its_absence_is_an_error(store: NotifierStore) -> None:
    await store.begin(["mail"])
    await store.take_in(["mail"], 7, [])
    [cursor] = await store.begin(["mail"])
    assert (cursor.target, cursor.event_id) == ("mail", 7)
    with pytest.raises(StoreUnavailable, match="the cursor of target nobody is gone"):
        await store.take_in(["mail", "nobody"], 8, [])


async def test_a_crash_between_send_and_commit_repeats_one_message_with_its_id(
    queue: QueueStore, database_url: str
) -> None:
    url = with_user(database_url, NOTIFIER)
    async with connected(url) as store:
        await store.begin(["mail"])
    for name in ("one", "two", "three"):
        await run(queue, name)

    async def cut_off() -> None:
        if len(crashing.sent) == 2:
            await asyncio.to_thread(
                rows_of,
                database_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'dispatcher notify' AND datname = current_database()",
            )

    crashing, after = Scripted(before=cut_off), Scripted()
    async with connected(url) as store:
        parts = Parts(store, crashing)
        await parts.collect()
        with pytest.raises(StoreUnavailable):
            await parts.send()
    async with connected(url) as store:
        assert await Parts(store, after).send() == ["Started two", "Started three"]
    assert [each.facts["name"] for each in crashing.sent] == ["one", "two"]
    assert after.sent[0].id == crashing.sent[1].id


async def test_a_message_that_fails_is_sent_again_before_the_next_one(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, Scripted(Failed("no answer"), Failed("it answered 503")))
    await parts.collect()
    for name in ("one", "two"):
        await run(queue, name)
    await parts.collect()
    with capture_logs() as logs:
        told = await parts.send(seconds=60)
    assert told == ["Started one", "Started one", "Started one", "Started two"]
    failed = [(each["tries"], each["error"]) for each in logs if each["event"] == "notification_failed"]
    assert failed == [(1, "no answer"), (2, "it answered 503")]


async def test_a_refused_message_is_given_up_and_counted(queue: QueueStore, store: NotifierStore) -> None:
    parts = Parts(store, Scripted(*3 * [Refused("it answered 400")]))
    await parts.collect()
    for name in ("one", "two"):
        await run(queue, name)
    await parts.collect()
    with capture_logs() as logs:
        assert await parts.send(seconds=60) == [*3 * ["Started one"], "Started two"]
    [dropped] = [each for each in logs if each["event"] == "notification_dropped"]
    assert (dropped["reason"], dropped["error"]) == ("refused", "it answered 400")
    assert parts.dropped("refused") == 1


async def test_messages_that_are_too_old_are_dropped_unsent(
    queue: QueueStore, store: NotifierStore, database_url: str
) -> None:
    parts = Parts(store, bounds=Bounds())
    await parts.collect()
    await run(queue, "old")
    await complete(queue, await run(queue, "older"))
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE event SET recorded_at = recorded_at - interval '25 hours'")
    await parts.collect()
    assert await parts.send() == []
    assert (parts.dropped("age"), await parts.outbox()) == (3, [])


async def test_a_target_far_behind_loses_the_oldest_messages_and_they_are_counted(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, bounds=replace(FOR_LONG, most_behind=1))
    await parts.collect()
    for name in ("one", "two", "three", "four"):
        await run(queue, name, "" if name == "two" else "mail=All")
    with capture_logs() as logs:
        await parts.collect()
    assert await parts.send() == ["Started four"]
    [skipped] = [each for each in logs if each["event"] == "notifications_skipped"]
    assert (skipped["messages"], parts.dropped("backlog")) == (2, 2)


async def test_a_dead_target_delays_no_other_one(queue: QueueStore, store: NotifierStore) -> None:
    is_called = asyncio.Event()

    async def hang() -> None:
        is_called.set()
        await asyncio.Event().wait()

    both = (make_target("dead"), make_target("mail"))
    dead = Parts(store, Scripted(before=hang), both)
    mail = Parts(store, targets=both[1:])
    await dead.collect()
    for name in ("one", "two"):
        await run(queue, name, "mail=All dead=All")
    await dead.collect()
    task = asyncio.create_task(dead.send())
    await is_called.wait()
    assert await mail.send() == ["Started one", "Started two"]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert dead.sender.told == ["Started one"]


# --- how far it is behind ----------------------------------------------------------------------------------


async def test_events_that_were_not_read_count_as_behind_though_reading_them_fails(
    queue: QueueStore, store: NotifierStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailable("the statement was cancelled")

    parts = Parts(store)
    await parts.collect()
    assert (gauge(parts.metrics, "behind_messages"), gauge(parts.metrics, "lag_seconds")) == (0, 0)
    for name in ("one", "two"):
        await run(queue, name)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE event SET recorded_at = recorded_at - interval '2 hours' WHERE name = 'one'"
        )
    with monkeypatch.context() as failing:
        failing.setattr(store, "take_in", fail)
        with pytest.raises(StoreUnavailable):
            await Parts(store, metrics=parts.metrics).collect()
    assert gauge(parts.metrics, "behind_messages") == 2
    assert 7200 < (gauge(parts.metrics, "lag_seconds") or 0) < 10800
    await parts.collect()
    assert gauge(parts.metrics, "behind_messages") == 2
    await parts.send()
    await parts.collect()
    assert (gauge(parts.metrics, "behind_messages"), gauge(parts.metrics, "lag_seconds")) == (0, 0)


async def test_the_age_of_an_event_does_not_depend_on_the_clock_of_its_leader(
    queue: QueueStore, store: NotifierStore
) -> None:
    parts = Parts(store, bounds=Bounds(keep=timedelta(hours=1)))
    await parts.collect()
    await run(queue, "one")  # a week ago, by the clock of tests
    unread = await store.unread(0, 100)
    assert (unread.count, unread.age < timedelta(hours=1)) == (1, True)
    await parts.collect()
    assert (gauge(parts.metrics, "lag_seconds") or 0) < 3600
    assert await parts.send() == ["Started one"]


async def test_gauges_of_a_target_go_with_its_declaration(
    store: NotifierStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "REREAD_SECONDS", 0.05)
    options = NotifierOptions(lambda: Entry({"targets": []}, ""), "127.0.0.1", 0, FOR_LONG)
    notifier = Notifier(with_user(database_url, NOTIFIER), options, (make_target("former"),))
    metrics = notifier._metrics  # noqa: SLF001  # else a scraper would have to come in time
    metrics.lag.labels("former").set(3600)
    metrics.behind.labels("former").set(7)
    await notifier._send(store)  # noqa: SLF001  # it ends once the declaration has changed
    assert (gauge(metrics, "behind_messages", "former"), gauge(metrics, "lag_seconds", "former")) == (
        None,
        None,
    )


# --- one that sends, and its rights ------------------------------------------------------------------------


async def test_one_notifier_sends_and_another_takes_over_when_it_ends(database_url: str) -> None:
    url = with_user(database_url, NOTIFIER)
    async with connected(url) as second:
        async with connected(url) as first:
            assert await first.lead()
            assert not await second.lead()
        async with asyncio.timeout(15):
            while not await second.lead():  # noqa: ASYNC110  # the server ends the first one's session by itself
                await asyncio.sleep(0.02)


REFUSED: Final[tuple[LiteralString, ...]] = (
    "SELECT * FROM public.appwrapper",
    "SELECT * FROM public.event",
    "SELECT * FROM history.timeline",
    "DELETE FROM notify.cursor",
    "UPDATE notify.outbox SET lane = lane",
    "UPDATE notify.waiting SET name = name",
    "DELETE FROM notify.waiting",
    "UPDATE public.hub SET id = id",
    "SELECT pg_advisory_lock(1)",
    "CREATE TABLE public.mine (n int)",
    "CREATE TABLE notify.mine (n int)",
)


@pytest.mark.parametrize("statement", REFUSED)
def test_notifier_reads_its_views_and_writes_its_cursors_alone(
    database_url: str, statement: LiteralString
) -> None:
    with (
        psycopg.connect(with_user(database_url, NOTIFIER), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_no_other_role_reads_what_is_for_the_notifier(database_url: str) -> None:
    with (
        psycopg.connect(with_user(database_url, "dispatcher_reader"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM notify.events")


async def test_processes_send_to_a_web_server_and_survive_the_end_of_their_connections(
    queue: QueueStore, database_url: str
) -> None:
    url = with_user(database_url, NOTIFIER)
    async with receiving() as receiver:
        document = {
            "targets": [{"name": "hook", "webhook": {"url": receiver.url}, "namespaces": ["default"]}]
        }

        def read() -> Entry:
            return Entry(document, "")

        options = NotifierOptions(read, "127.0.0.1", 0, FOR_LONG)
        async with connected(url) as store:
            await store.begin(["hook"])
        processes = [asyncio.create_task(Notifier(url, options, declared(read)).run()) for _ in range(2)]
        try:
            await run(queue, "one", "hook=Started other=Started")
            await receiver.wait_for(1)
            rows_of(
                database_url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'dispatcher notify' AND datname = current_database()",
            )
            await run(queue, "two", "hook=Started")
            events = await receiver.wait_for(2)
        finally:
            for process in processes:
                process.cancel()
            await asyncio.gather(*processes, return_exceptions=True)
    [(hub_id,)] = rows_of(database_url, "SELECT id::text FROM hub")
    assert [(each["subject"], each["type"]) for each in events] == [
        (f"default/{name}", "dispatcher.codeflare.dev.appwrapper.started") for name in ("one", "two")
    ]
    assert {each["source"] for each in events} == {f"/dispatcher.codeflare.dev/hubs/{hub_id}"}


async def test_a_part_that_raises_ends_no_other_part(
    queue: QueueStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = list[str]()

    class BreakingCourier(Courier):
        async def run(self) -> None:
            if self._target == "bad":
                broken.append("bad")
                raise RuntimeError("a defect of one target")
            await super().run()

    class BreakingCollector(Collector):
        async def run(self) -> None:
            if "collector" not in broken:
                broken.append("collector")
                raise RuntimeError("a defect that a new start mends")
            await super().run()

    monkeypatch.setattr(process, "Courier", BreakingCourier)
    monkeypatch.setattr(process, "Collector", BreakingCollector)
    monkeypatch.setattr(process, "RESTART_SECONDS", 0.05)
    url = with_user(database_url, NOTIFIER)
    async with receiving() as receiver, connected(url) as store:
        document = {
            "targets": [
                {"name": name, "webhook": {"url": receiver.url}, "namespaces": ["default"]}
                for name in ("bad", "hook")
            ]
        }
        await store.begin(["bad", "hook"])
        await run(queue, "one", "hook=Started bad=Started")
        options = NotifierOptions(lambda: Entry(document, ""), "127.0.0.1", 0, FOR_LONG)
        task = asyncio.create_task(Notifier(url, options, declared(options.read)).run())
        try:
            [event] = await receiver.wait_for(1)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert event["subject"] == "default/one"
    assert {"bad", "collector"} == set(broken)

"""Authors are asked about beside intake: nobody waits for another's answer, and nothing goes without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher import errors
from dispatcher.api.names import FINALIZER, GROUPS_ANNOTATION, USER_ANNOTATION
from dispatcher.controller.intake.author_check import (
    ANSWER_SECONDS,
    AT_ONCE_IN_A_NAMESPACE,
    LONGEST_UNSERVED_SECONDS,
    POLICY_SECONDS,
    SECONDS,
    AuthorCheck,
    watch_policy,
)
from dispatcher.core.intake.authorization import Access
from dispatcher.core.model.records.record import Phase, Record
from tests.builders import make_appwrapper, make_template
from tests.fakes import FakeApiServer, answer, client_of, refusal
from tests.unit.controller.wire import APPWRAPPERS, MISSING, PODS, job, secret
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until
from tests.unit.workers import running

Json = dict[str, Any]


class Rights:
    """What users may do, by resource; `asked` is what was asked, `reply` answers in place of the rights."""

    def __init__(self, *resources: str) -> None:
        self.resources = set(resources)
        self.asked: list[Access] = []
        self.reply: Callable[[Access], Awaitable[bool]] | None = None

    async def __call__(self, access: Access) -> bool:
        self.asked.append(access)
        return await self.reply(access) if self.reply else access.resource in self.resources


@asynccontextmanager
async def checking(world: World, rights: Rights, *, is_complete: bool = True) -> AsyncIterator[AuthorCheck]:
    """An intake that has authors checked, whose answers bring new AppWrappers back as the reconciler does."""
    authors = AuthorCheck(
        rights,
        world.clusters,
        lambda: is_complete,
        lambda uid: world.hub.view(uid) is not None,
        lambda uid: world.intake.add(uid),
        monotonic,
    )
    world.intake = world.make_intake(believes_stamps=True, authors=authors)
    world.unserved_of = authors.unserved_of
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(authors.run()), tasks.create_task(world.intake.run())]
        yield authors
        for loop in loops:
            loop.cancel()


def submitted(name: str, *templates: Json, user: str = "alice", **metadata: Any) -> Json:  # noqa: ANN401
    annotations = {USER_ANNOTATION: user, GROUPS_ANNOTATION: "vision"} if user else {}
    return make_appwrapper(name, *templates, annotations=annotations, **metadata)


async def taken_in(world: World, raw: Json) -> Record:
    """The record of an AppWrapper, once there is one."""
    uid = world.show(raw).uid
    world.intake.add(uid)
    await until(lambda: world.cache.get(uid) is not None)
    return world.record(uid)


async def test_appwrapper_is_queued_if_its_author_may_create_all_that_it_wraps(world: World) -> None:
    rights = Rights("pods", "jobs")
    async with checking(world, rights):
        record = await taken_in(world, submitted("aw", make_template(), job()))
    assert (record.phase, record.user) == (Phase.QUEUED, "alice")
    assert [(each.resource, each.group, each.namespace, each.verb) for each in rights.asked] == [
        ("pods", "", "default", "create"),
        ("jobs", "batch", "default", "create"),
    ]


async def test_appwrapper_is_failed_if_its_author_may_not_create_one_kind(world: World) -> None:
    async with checking(world, Rights("pods")):
        record = await taken_in(world, submitted("aw", make_template(), secret()))
    assert (record.phase, record.reason) == (Phase.FAILED, "ItemCreationFailure.")
    assert record.message == (
        "default/aw creation failure: spec.resources.GenericItems[1]: alice may not create secrets in namespace "
        "default. Ask an administrator for that right, then submit the AppWrapper anew."
    )


async def test_rights_are_each_authors_own(world: World) -> None:
    rights = Rights()

    async def alices(access: Access) -> bool:
        return access.submitter.user == "alice"

    rights.reply = alices
    async with checking(world, rights):
        phases = [
            (await taken_in(world, submitted(user, make_template(), user=user))).phase
            for user in ("alice", "bob")
        ]
    assert phases == [Phase.QUEUED, Phase.FAILED]


async def test_appwrapper_with_an_unknown_author_fails(world: World) -> None:
    rights = Rights("pods")
    async with checking(world, rights):
        record = await taken_in(world, submitted("aw", user=""))
    assert (record.phase, rights.asked) == (Phase.FAILED, [])
    assert "does not say who submitted the AppWrapper" in record.message


async def test_author_of_an_ended_appwrapper_is_not_checked(world: World) -> None:
    rights = Rights()
    done = {"state": "Completed", "conditions": [{"type": "Completed", "status": "True"}]}
    async with checking(world, rights):
        record = await taken_in(world, submitted("aw", user="", status=done))
    assert (record.phase, rights.asked) == (Phase.COMPLETED, [])


async def test_author_of_an_appwrapper_that_seems_to_run_is_checked(world: World) -> None:
    """Whoever may create pods can make one that looks like ours, and would be given the Secret beside it."""
    rights = Rights("pods")
    async with checking(world, rights):
        record = await taken_in(
            world, submitted("aw", make_template(), secret(), status={"canrun": True}, finalizers=[FINALIZER])
        )
    assert record.phase is Phase.FAILED
    assert world.server.requests("GET", f"{PODS}/pod") == []


async def test_same_answer_serves_many_for_some_seconds(world: World) -> None:
    rights = Rights("pods")
    async with checking(world, rights):
        for number in range(5):
            await taken_in(world, submitted(f"aw{number}"))
        assert len(rights.asked) == 1

        rights.resources.clear()
        await asyncio.sleep(ANSWER_SECONDS)
        assert (await taken_in(world, submitted("later"))).phase is Phase.FAILED


async def test_question_that_fails_is_asked_again_and_nothing_goes_meanwhile(world: World) -> None:
    rights = Rights("pods")
    failures: list[Exception] = [errors.Unavailable("no"), errors.Forbidden("no"), ValueError("no")]

    async def at_last(access: Access) -> bool:
        if failures:
            raise failures.pop()
        return True

    rights.reply = at_last
    with capture_logs() as logs:
        async with checking(world, rights):
            started = monotonic()
            record = await taken_in(world, submitted("aw"))
    assert (record.phase, len(rights.asked)) == (Phase.QUEUED, 4)
    assert monotonic() - started >= 0.1 + 0.2 + 0.4
    assert [each["event"] for each in logs].count("author_check_failed") == 3


async def test_author_check_does_not_wait_for_answers_about_another_namespace(world: World) -> None:
    rights = Rights("pods")
    hangs = asyncio.Event()

    async def slowly(access: Access) -> bool:
        if access.namespace == "slow":
            await hangs.wait()
        return True

    rights.reply = slowly
    async with checking(world, rights):
        for number in range(40):
            raw = submitted(f"slow{number}", make_template(), user=f"user{number}", namespace="slow")
            world.intake.add(world.show(raw).uid)
        record = await taken_in(world, submitted("aw"))
        assert (record.phase, monotonic() < 1) == (Phase.QUEUED, True)
        assert [each.namespace for each in rights.asked].count("slow") == AT_ONCE_IN_A_NAMESPACE
        hangs.set()
        await until(lambda: len(world.taken_in) == 41)


async def test_check_of_a_deleted_appwrapper_is_forgotten(world: World) -> None:
    rights = Rights("pods")

    async def never(_: Access) -> bool:
        world.hide("uid-of-aw")
        raise errors.Unavailable("no")

    rights.reply = never
    async with checking(world, rights) as authors:
        world.intake.add(world.show(submitted("aw")).uid)
        await asyncio.sleep(60)
        assert (len(rights.asked), authors.waiting) == (1, 0)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        pytest.param(RuntimeError("nobody thought of this"), 1, id="new"),
        pytest.param(errors.Unavailable("no"), 0, id="no-answer"),
    ],
)
async def test_failed_access_review_is_repeated_and_an_unexpected_failure_counted(
    world: World, counted: Callable[[str], int], failure: Exception, expected: int
) -> None:
    rights = Rights("pods")

    async def fails_once(_: Access) -> bool:
        rights.reply = None
        raise failure

    rights.reply = fails_once
    async with checking(world, rights):
        record = await taken_in(world, submitted("aw"))
    assert (record.phase, len(rights.asked), counted("author_check")) == (Phase.QUEUED, 2, expected)


# --- kinds -------------------------------------------------------------------------------------------


@pytest.fixture
async def west(world: World) -> AsyncIterator[FakeApiServer]:
    """A member cluster, which is asked which kinds it serves."""
    async with FakeApiServer() as west, client_of(west) as client:
        world.clusters["west"] = world.make_cluster("west", client)
        yield west


def widget(name: str, version: str = "v1") -> Json:
    raw = submitted(name, make_template("Widget", f"example.com/{version}", name="w"))
    raw["spec"]["resources"]["GenericItems"][0]["custompodresources"] = []
    return raw


async def test_kind_is_known_by_the_resource_that_some_cluster_has_it_as(
    world: World, west: FakeApiServer
) -> None:
    resources = [{"name": "widgetry", "kind": "Widget", "namespaced": True}]
    west.on("GET", "/apis/example.com/v1", answer({"resources": resources}))
    rights = Rights("widgetry")
    async with checking(world, rights):
        record = await taken_in(world, widget("aw"))
    assert (record.phase, [each.resource for each in rights.asked]) == (Phase.QUEUED, ["widgetry"])


WIDGETS: Json = {"resources": [{"name": "widgetry", "kind": "Widget", "namespaced": True}]}


async def waits(world: World, raw: Json) -> str:
    """Why a new AppWrapper waits for its kind, as soon as its status is to say so."""
    uid = world.show(raw).uid
    world.intake.add(uid)
    await until(lambda: world.unserved_of(uid))
    assert world.cache.get(uid) is None
    return world.unserved_of(uid)


@pytest.mark.parametrize(
    ("rights", "phase"),
    [
        pytest.param(["widgetry"], Phase.QUEUED, id="allowed"),
        pytest.param([], Phase.FAILED, id="not-allowed"),
    ],
)
async def test_appwrapper_waits_for_a_kind_that_no_cluster_serves_and_is_reviewed_once_it_is(
    world: World, west: FakeApiServer, rights: list[str], phase: Phase
) -> None:
    async with checking(world, Rights(*rights)):
        assert await waits(world, widget("aw")) == (
            "no cluster serves Widget of example.com/v1: "
            "install its CustomResourceDefinition, or correct apiVersion and kind"
        )
        await asyncio.sleep(600)  # virtual
        assert world.cache.get("uid-of-aw") is None
        west.on("GET", "/apis/example.com/v1", answer(WIDGETS))
        west.on("GET", "/apis", answer(versions("example.com/v1")))
        asked_at = monotonic()
        await until(lambda: world.cache.get("uid-of-aw") is not None)
        assert monotonic() - asked_at <= LONGEST_UNSERVED_SECONDS + SECONDS
    assert (world.record("uid-of-aw").phase, world.unserved_of("uid-of-aw")) == (phase, "")


async def test_appwrapper_whose_kind_its_author_corrects_waits_no_longer(world: World) -> None:
    async with checking(world, Rights("pods")):
        await waits(world, widget("aw"))
        record = await taken_in(world, submitted("aw", make_template(), resourceVersion="2"))
    assert (record.phase, world.unserved_of("uid-of-aw")) == (Phase.QUEUED, "")


async def test_status_says_why_an_appwrapper_waits_for_its_kind(world: World) -> None:
    path = f"{APPWRAPPERS}/aw/status"
    world.server.on("PATCH", path, answer({"metadata": {"resourceVersion": "2"}}))
    async with checking(world, Rights()):
        said = await waits(world, widget("aw"))
        await world.reconcile("uid-of-aw")
    (written,) = world.server.requests("PATCH", path)
    (status,) = [each["value"] for each in written.body if each["path"] == "/status"]
    assert (status["state"], status["canrun"], status["waiting"]) == (
        "Pending",
        False,
        {
            "reason": "KindNotInstalled",
            "message": f"{said}; it is taken in, by its age, once its author can be checked",
        },
    )


async def test_kind_with_a_typing_error_is_answered_with_the_similar_one(
    world: World, west: FakeApiServer
) -> None:
    resources = [{"name": "widgets", "kind": "Widgett", "namespaced": True}]
    west.on("GET", "/apis/example.com/v1", answer({"resources": resources}))
    async with checking(world, Rights()):
        assert "did you mean Widgett?" in await waits(world, widget("aw"))


def versions(*api_versions: str) -> Json:
    """The groups and versions that a cluster lists."""
    return {"groups": [{"versions": [{"groupVersion": each} for each in api_versions]}]}


async def test_invented_kinds_cost_no_question_of_their_own(world: World, west: FakeApiServer) -> None:
    """Any user can write them, and each is looked for as long as its AppWrapper exists."""
    for server in (world.server, west):
        server.on("GET", "/apis", answer(versions("example.com/v1")))
        server.on("GET", "/apis/example.com/v1", answer({"resources": []}))
    async with checking(world, Rights("pods")):
        for number in range(30):
            raw = submitted(f"aw{number}", make_template(f"Kind{number}", "example.com/v1", name="w"))
            other = submitted(f"bw{number}", make_template("Widget", f"invented{number}.com/v1", name="w"))
            for each in (raw, other):
                each["spec"]["resources"]["GenericItems"][0]["custompodresources"] = []
                world.intake.add(world.show(each).uid)
        await until(lambda: world.unserved_of("uid-of-bw29"))
        assert (await taken_in(world, submitted("served"))).phase is Phase.QUEUED
        begun = monotonic()
        await asyncio.sleep(300)  # virtual
        rounds = (monotonic() - begun) / SECONDS + 2
    for server in (world.server, west):
        asked = [each.path for each in server.requests("GET") if each.path.startswith("/apis")]
        assert not [each for each in asked if "invented" in each]
        assert max(asked.count(each) for each in ("/apis", "/apis/example.com/v1")) <= rounds


async def test_deleted_appwrapper_waits_for_no_kind(world: World) -> None:
    async with checking(world, Rights()) as authors:
        await waits(world, widget("aw"))
        world.hide("uid-of-aw")
        await asyncio.sleep(2 * LONGEST_UNSERVED_SECONDS)  # virtual
        assert (authors.waiting, world.unserved_of("uid-of-aw")) == (0, "")


@pytest.mark.parametrize("reason", ["silent", "not-connected"])
async def test_kind_is_not_refused_before_every_cluster_was_asked(
    world: World, west: FakeApiServer, reason: str
) -> None:
    west.on(
        "GET", "/apis/example.com/v1", MISSING if reason == "not-connected" else refusal(500, "InternalError")
    )
    async with checking(world, Rights(), is_complete=reason == "silent"):
        world.intake.add(world.show(widget("aw")).uid)
        await asyncio.sleep(60)
    assert world.taken_in == []


async def test_unserved_version_of_a_kind_does_not_affect_a_served_version(
    world: World, west: FakeApiServer
) -> None:
    resources = [{"name": "widgetry", "kind": "Widget", "namespaced": True}]
    west.on("GET", "/apis/example.com/v1", answer({"resources": resources}))
    async with checking(world, Rights("widgetry")):
        assert "no cluster serves Widget of example.com/v0x1" in await waits(
            world, widget("invented", "v0x1")
        )
        assert (await taken_in(world, widget("aw"))).phase is Phase.QUEUED


# --- the policy --------------------------------------------------------------------------------------


async def test_missing_author_policy_is_logged_once_until_it_is_there() -> None:
    replies: list[object] = [False, errors.Unavailable("no"), False, True, False]
    noted: list[bool] = []

    async def is_bound() -> bool:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)

    with capture_logs() as logs, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLICY_SECONDS * (len(replies) - 0.5)):
            await watch_policy(is_bound, noted.append)
    assert noted == [True, True, False, True]
    assert [each["event"] for each in logs] == [
        "author_policy_missing",
        "author_policy_unknown",
        "author_policy_missing",
    ]


async def test_look_for_the_policy_that_fails_in_a_new_way_is_counted_and_another_follows(
    counted: Callable[[str], int],
) -> None:
    replies: list[object] = [RuntimeError("nobody thought of this"), False]
    noted: list[bool] = []

    async def is_bound() -> bool:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return bool(reply)

    async with running(watch_policy(is_bound, noted.append)) as task:
        await until(lambda: noted)
        assert not task.done()
    assert (noted, counted("author_policy")) == ([True], 1)


async def test_look_for_the_policy_that_the_store_ends_is_the_last() -> None:
    async def is_bound() -> bool:
        raise errors.Fenced("another leads")

    with pytest.raises(errors.Fenced):
        await watch_policy(is_bound, lambda _missing: None)

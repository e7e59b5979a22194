"""What is left of an AppWrapper's pods: asked of the API server, one list for all who ask, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.core.model.gangs.pods import PodCounts
from dispatcher.kube.client import METADATA_LIST, ClusterClient
from dispatcher.kube.objects.live_pod_lister import (
    SECONDS_BETWEEN_FORCES,
    SECONDS_KEPT,
    UNKNOWN_ITEM,
    LiveItems,
    LivePodLister,
)
from dispatcher.kube.objects.nodes import PodView
from dispatcher.kube.paging import FIRST_PAGE, PAGE
from tests.builders import at, make_pod
from tests.fakes import FakeApiServer, Reply, answer, refusal
from tests.unit import workers
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]

PODS = "/api/v1/pods"
IN_DEFAULT = "/api/v1/namespaces/default/pods"
UID_LABEL = "dispatcher.codeflare.dev/appwrapper-uid"
ITEM_LABEL = "dispatcher.codeflare.dev/item"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-of-j"}
ANOTHER = {**JOB, "name": "another"}
AW = ("default", "aw")
GOING = {"deletionTimestamp": "2026-11-20T09:00:00Z"}
OVERDUE = at(114)
"""A moment after it."""
SINCE = at(54)
"""When the hub asked for the deletion: a minute before."""


def pods(*raw: Json, token: str = "") -> Reply:
    return answer({"metadata": {"resourceVersion": "1", "continue": token}, "items": list(raw)})


def pod(name: str = "p", of: str = "aw", item: str | None = None, **fields: Any) -> Json:  # noqa: ANN401
    """A live pod that a Job controls."""
    raw = make_pod(name, of=of, **{"controller": JOB, **fields})
    if item is not None:
        raw["metadata"]["labels"][ITEM_LABEL] = item
    return raw


def held(reply: Reply, started: asyncio.Event, go_on: asyncio.Event) -> Reply:
    """Replies only when it may go on."""

    async def hold(request: Any) -> Any:  # noqa: ANN401
        started.set()
        await go_on.wait()
        return await reply(request)

    return hold


class Asker:
    """Asks, and notes who is woken."""

    def __init__(self, client: ClusterClient) -> None:
        self.woken: list[str] = []
        self.live_pods = LivePodLister(client, self.woken.append, {"away"}.__contains__, self._owner_of)

    async def answered(self, claim: tuple[str, str] = AW, version: int = 1) -> frozenset[int]:
        """Ask, and ask again once woken."""
        before = len(self.woken)
        assert self.live_pods.ask(claim, version) is None
        await until(lambda: len(self.woken) > before)
        left = self.live_pods.ask(claim, version)
        assert left is not None
        return left.live

    def _owner_of(self, view: PodView) -> str | None:
        """The Job was made by the AppWrapper, though not by us."""
        return "aw" if view.controller and view.controller.name == "j" else None


@asynccontextmanager
async def running(client: ClusterClient) -> AsyncIterator[Asker]:
    asker = Asker(client)
    async with workers.running(asker.live_pods.run()):
        yield asker


LIVE = {"labelSelector": UID_LABEL, "fieldSelector": "status.phase!=Failed,status.phase!=Succeeded"}


async def test_only_live_pods_count_and_each_for_its_item(
    server: FakeApiServer, client: ClusterClient
) -> None:
    listed = [
        pod("a", item="0", phase="Running"),
        pod("b", item="1", phase="Pending"),
        pod("c", item="1", phase="Unknown"),
        pod("d", item="2", phase="Succeeded"),
        pod("e", item="3", phase="Failed"),
        pod("copy", item="4", controller=None),
        pod("elsewhere", item="5", namespace="another"),
        pod("another", of="another", item="6"),
    ]
    server.on("GET", PODS, pods(*listed, token="more"), pods(pod("t", item="7", **GOING)))
    async with running(client) as it:
        assert await it.answered() == {0, 1, 7}

    assert [dict(each.query) for each in server.asked] == [
        {**LIVE, "limit": str(FIRST_PAGE)},
        {**LIVE, "limit": str(PAGE), "continue": "more"},
    ]


@pytest.mark.parametrize("item", [None, "", "one", "-3", "٣", "1.5"])
async def test_pod_that_does_not_tell_its_item_holds_on_to_all(
    server: FakeApiServer, client: ClusterClient, item: str | None
) -> None:
    server.on("GET", PODS, pods(pod(item=item)))
    async with running(client) as it:
        assert await it.answered() == {UNKNOWN_ITEM}


async def test_one_list_answers_all_questions_asked_before_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PODS, pods(pod(of="uid-7", item="3")))
    claims = [("default", f"uid-{number}") for number in range(1000)]
    async with running(client) as it:
        assert [it.live_pods.ask(claim, 1) for claim in claims] == [None] * 1000
        await until(lambda: it.woken)
        answers = {uid: it.live_pods.ask((namespace, uid), 1) for namespace, uid in claims}

    assert it.woken == [uid for _, uid in claims]
    assert answers == {uid: LiveItems() for _, uid in claims} | {
        "uid-7": LiveItems(frozenset({3}), frozenset({3}))
    }
    assert len(server.asked) == 1


async def test_asking_before_the_answer_is_there_is_the_same_question(
    server: FakeApiServer, client: ClusterClient
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    server.on("GET", PODS, held(pods(), started, go_on))
    async with running(client) as it:
        assert [it.live_pods.ask(AW, 1) for _ in range(10)] == [None] * 10
        await started.wait()
        assert it.live_pods.ask(AW, 1) is None
        go_on.set()
        await until(lambda: it.woken)
        await asyncio.sleep(5)  # virtual
        assert it.live_pods.ask(AW, 1) == LiveItems()
    assert (it.woken, len(server.asked)) == (["aw"], 1)


async def test_answer_is_given_once_and_a_second_question_reads_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PODS, pods(pod(item="0")), pods())
    async with running(client) as it:
        assert await it.answered() == {0}
        asked_at = monotonic()
        assert await it.answered() == frozenset()
        assert monotonic() - asked_at == pytest.approx(1, abs=0.1)


async def test_answer_is_never_older_than_the_question(server: FakeApiServer, client: ClusterClient) -> None:
    """Who asks while a list is under way gets the next one: of another AppWrapper, or with another version."""
    started, go_on = asyncio.Event(), asyncio.Event()
    early = pods(pod(item="0"), pod(of="late", item="0"))
    server.on("GET", PODS, held(early, started, go_on), pods())
    async with running(client) as it:
        it.live_pods.ask(AW, 1)
        it.live_pods.ask(("default", "moves-on"), 1)
        await started.wait()
        it.live_pods.ask(("default", "late"), 1)
        it.live_pods.ask(("default", "moves-on"), 2)
        go_on.set()
        await until(lambda: it.woken)
        assert it.woken == ["aw"]
        await until(lambda: len(it.woken) == 3)
        assert it.live_pods.ask(AW, 1) == LiveItems(frozenset({0}), frozenset({0}))
        assert it.live_pods.ask(("default", "late"), 1) == LiveItems()
        assert it.live_pods.ask(("default", "moves-on"), 2) == LiveItems()


async def test_answer_to_an_earlier_version_answers_nothing(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on("GET", PODS, pods(), pods(pod(item="0")))
    async with running(client) as it:
        it.live_pods.ask(AW, 1)
        await until(lambda: it.woken)
        assert await it.answered(version=2) == {0}


async def test_question_stands_until_a_list_succeeds(server: FakeApiServer, client: ClusterClient) -> None:
    away = refusal(503, "ServiceUnavailable")
    server.on("GET", PODS, away, pods(pod(item="0"), token="more"), away, pods(pod(item="1")))
    async with running(client) as it:
        assert await it.answered() == {1}
        assert monotonic() == pytest.approx(2, abs=0.1)
    assert it.woken == ["aw"]


@pytest.mark.parametrize("others_ask", [True, False])
async def test_answer_not_fetched_in_time_is_forgotten(
    server: FakeApiServer, client: ClusterClient, others_ask: bool
) -> None:
    late = ("default", "late")
    server.on("GET", PODS, pods(pod(of="late", item="0")), pods())
    async with running(client) as it:
        it.live_pods.ask(late, 1)
        await until(lambda: it.woken)
        await asyncio.sleep(SECONDS_KEPT + 1)  # virtual
        if others_ask:
            assert await it.answered() == frozenset()
        assert await it.answered(late) == frozenset()


async def test_answer_is_kept_while_others_are_given_theirs(
    server: FakeApiServer, client: ClusterClient
) -> None:
    late = ("default", "late")
    server.on("GET", PODS, pods(pod(of="late", item="0")), pods())
    async with running(client) as it:
        it.live_pods.ask(late, 1)
        await until(lambda: it.woken)
        for _ in range(5):
            await it.answered()
        assert it.live_pods.ask(late, 1) == LiveItems(frozenset({0}), frozenset({0}))


async def test_count_is_of_the_pods_as_they_are_now(server: FakeApiServer, client: ClusterClient) -> None:
    failed = {**pod("f"), "status": {"phase": "Failed", "reason": "Evicted"}}
    server.on(
        "GET",
        IN_DEFAULT,
        pods(pod("a"), pod("b", node="away"), failed, pod("copy", controller=None), token="more"),
        pods(pod("c", phase="Pending")),
    )
    expected = PodCounts(pending=1, running=2, failed=1, starting=1, lost=1, evicted=1)
    assert await Asker(client).live_pods.count(AW) == expected
    assert server.asked[0].query["labelSelector"] == f"{UID_LABEL}=aw"


async def test_pods_that_bear_no_label_of_ours_are_counted_by_their_owners(
    server: FakeApiServer, client: ClusterClient
) -> None:
    foreign = pod("foreign", of="", controller=ANOTHER)
    server.on("GET", IN_DEFAULT, pods(), pods(foreign, pod("mcads", of="")))
    assert await Asker(client).live_pods.count(AW) == PodCounts(running=1)
    selectors = [each.query["labelSelector"] for each in server.asked]
    assert selectors == [f"{UID_LABEL}=aw", f"!{UID_LABEL}", f"!{UID_LABEL}"]


async def test_pods_of_others_are_looked_through_without_their_contents(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on(
        "GET", IN_DEFAULT, pods(), pods(pod("foreign", of="", controller=ANOTHER), token="more"), pods()
    )
    assert await Asker(client).live_pods.count(AW) == PodCounts()
    assert [each.headers["Accept"] == METADATA_LIST for each in server.asked] == [False, True, True]


@pytest.mark.parametrize("of", ["aw", ""])
async def test_pod_that_cannot_be_read_is_left_out_as_the_watch_leaves_it_out(
    server: FakeApiServer, client: ClusterClient, of: str
) -> None:
    odd = pod("odd", of=of)
    odd["metadata"]["name"] = ""
    listed = pods(odd, pod("good", of=of))
    server.on("GET", IN_DEFAULT, *([listed] if of else [pods(), listed]))
    assert await Asker(client).live_pods.count(AW) == PodCounts(running=1)


async def test_count_without_an_answer_is_none(server: FakeApiServer, client: ClusterClient) -> None:
    server.on("GET", IN_DEFAULT, refusal(503, "ServiceUnavailable"))
    with pytest.raises(errors.Unavailable):
        await Asker(client).live_pods.count(AW)


async def test_only_live_pods_that_should_have_gone_are_forced(
    server: FakeApiServer, client: ClusterClient
) -> None:
    server.on(
        "GET",
        IN_DEFAULT,
        pods(
            pod("stuck", **GOING),
            pod("stays"),
            pod("has-time", deletionTimestamp="2026-11-20T09:00:01Z"),
            pod("cannot-be-read", cpu="1E", **GOING),
            pod("over", phase="Failed", **GOING),
            pod("copy", controller=None, **GOING),
            pod("went", **GOING),
            pod("replaced", **GOING),
        ),
    )
    server.on("DELETE", f"{IN_DEFAULT}/stuck", answer({}))
    server.on("DELETE", f"{IN_DEFAULT}/cannot-be-read", answer({}))
    server.on("DELETE", f"{IN_DEFAULT}/went", refusal(404, "NotFound"))
    server.on("DELETE", f"{IN_DEFAULT}/replaced", refusal(409, "Conflict"))
    assert await Asker(client).live_pods.force(AW, OVERDUE, SINCE) == 2
    sent = {each.path.rpartition("/")[2]: each.body for each in server.requests("DELETE")}
    assert set(sent) == {"stuck", "cannot-be-read", "went", "replaced"}
    assert sent["stuck"] == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "uid-of-stuck"},
        "propagationPolicy": "Background",
        "gracePeriodSeconds": 0,
    }


async def test_pods_are_forced_so_often_only_however_often_that_is_asked_for(
    server: FakeApiServer, client: ClusterClient
) -> None:
    live_pods = Asker(client).live_pods
    server.on("GET", IN_DEFAULT, pods(pod(**GOING)))
    server.on("DELETE", f"{IN_DEFAULT}/p", answer({}))
    for _ in range(4):
        await live_pods.force(AW, OVERDUE, SINCE)
        await live_pods.force(("default", "another"), OVERDUE, SINCE)
        await asyncio.sleep(SECONDS_BETWEEN_FORCES / 3)  # virtual
    assert len(server.requests("GET")) == len(server.requests("DELETE")) == 4


async def test_force_that_failed_is_tried_again_at_once(server: FakeApiServer, client: ClusterClient) -> None:
    live_pods = Asker(client).live_pods
    server.on("GET", IN_DEFAULT, pods(pod(**GOING)))
    server.on("DELETE", f"{IN_DEFAULT}/p", refusal(503, "ServiceUnavailable"), answer({}))
    with pytest.raises(errors.Unavailable):
        await live_pods.force(AW, OVERDUE, SINCE)
    assert await live_pods.force(AW, OVERDUE, SINCE) == 1


@pytest.mark.parametrize(
    ("deleted", "forced"),
    [
        pytest.param(GOING | {"deletionGracePeriodSeconds": 60}, 1, id="its-grace-is-over-by-both-clocks"),
        pytest.param(GOING | {"deletionGracePeriodSeconds": 61}, 0, id="the-clock-of-the-cluster-lags"),
        pytest.param(GOING | {"deletionGracePeriodSeconds": "60"}, 0, id="its-grace-is-a-text"),
        pytest.param(GOING | {"deletionGracePeriodSeconds": 2**62}, 0, id="its-grace-never-ends"),
        pytest.param({"deletionTimestamp": ""}, 0, id="its-time-is-empty"),
        pytest.param({"deletionTimestamp": 7}, 0, id="its-time-is-a-number"),
        pytest.param({"deletionTimestamp": "yesterday"}, 0, id="its-time-is-none"),
    ],
)
async def test_pod_has_its_grace_by_the_clock_of_the_hub_too(
    server: FakeApiServer, client: ClusterClient, deleted: Json, forced: int
) -> None:
    server.on("GET", IN_DEFAULT, pods(pod(**deleted), pod("stuck", **GOING)))
    server.on("DELETE", f"{IN_DEFAULT}/p", answer({}))
    server.on("DELETE", f"{IN_DEFAULT}/stuck", answer({}))
    assert await Asker(client).live_pods.force(AW, OVERDUE, SINCE) == forced + 1

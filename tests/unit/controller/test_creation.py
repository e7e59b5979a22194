"""Creating a gang in a member: who is asked in which order, when it may still go elsewhere, and when it may not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import FINALIZER
from dispatcher.controller.members.cluster import WatchedCluster
from dispatcher.controller.reconcile.creation import LONGEST_IN_THE_WAY, MOST_FAILURES, Creator
from dispatcher.controller.reconcile.result import Result
from dispatcher.core.kinds.manifest import Anchor, anchor_name, build
from dispatcher.core.lifecycle import queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import live_attempt
from dispatcher.core.model.clusters.nodes import Node
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet
from dispatcher.core.model.gangs.pods import Pod, PodPhase
from dispatcher.core.model.records.pending_reasons import CREATION_POSTPONED
from dispatcher.core.model.records.record import Pending, Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.scheduling.capacity.capacity_ledger import CapacityLedger, FitMode
from dispatcher.core.scheduling.fit.cluster_filters import has_no_cluster_left
from dispatcher.kube.questions import SELF_PATH
from tests.builders import QUEUED_CLASS, attempt_of, make_appwrapper, make_metadata, make_owner, make_wrapped
from tests.fakes import FakeApiServer, Reply, answer, client_of, hang_up, refusal, text
from tests.unit.controller.wire import APPWRAPPERS, JOBS, MISSING, job, made, secret
from tests.unit.controller.world import SERVES, World, members_without_any

Json = dict[str, Any]

UID = "uid-of-aw"
AW = f"{APPWRAPPERS}/aw"
TRAIN, TOKEN = job("train"), secret("token")
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NAME = anchor_name(UID, 1)
ANCHOR = f"{CONFIGMAPS}/{NAME}"
SECRETS = "/api/v1/namespaces/default/secrets"
TAKEN = refusal(409, "AlreadyExists")
QUOTA = refusal(403, "Forbidden", "exceeded quota: configmaps")


def anchor(appwrapper: str = UID, **metadata: object) -> Json:
    """An anchor as a member has it."""
    labels = {"dispatcher.codeflare.dev/appwrapper-uid": appwrapper}
    return {"metadata": make_metadata(NAME, uid="uid-of-anchor", labels=labels, **metadata)}


NOTED = [("east", "default")]
"""The one noted error, with the namespace of the gang."""


class East:
    """A member that accepts all creations, the requests to it and to the hub, and the members with noted errors."""

    def __init__(self, world: World, server: FakeApiServer, cluster: WatchedCluster) -> None:
        self.world = world
        self.server = server
        self.cluster = cluster
        self.order: list[str] = []
        self.errors_noted: list[tuple[str, str]] = []
        self.over: set[tuple[str, int]] = set()
        self.labels: dict[str, dict[str, str]] = {}
        for path, kinds in SERVES.items():
            resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]
            server.on("GET", path, answer({"resources": resources}))
        self.on("GET", ANCHOR, MISSING)
        self.on("POST", CONFIGMAPS, answer(anchor()))
        self.on("POST", JOBS, answer(made(TRAIN)))
        self.on("POST", SECRETS, answer(made(TOKEN, 1)))
        world.server.on("PATCH", AW, self.noting("add finalizer", answer({})))
        world.clusters["east"] = cluster

    def on(self, method: str, path: str, *replies: Reply) -> None:
        """Script a member that notes what it is asked."""
        what = f"{method} {path.rpartition('/')[2]}"
        self.server.on(method, path, *(self.noting(what, reply) for reply in replies))

    def noting(self, what: str, reply: Reply) -> Reply:
        async def noted(request: web.Request) -> web.StreamResponse:
            self.order.append(what)
            return await reply(request)

        return noted

    def _note_error(self, cluster: str, namespace: str) -> None:
        self.errors_noted.append((cluster, namespace))

    def _has_no_cluster_left(self, where: ClusterRequirements) -> bool:
        return has_no_cluster_left(where, self.labels) if self.labels else bool(where.ruled_out)

    async def dispatched(self, *templates: Json, cluster: str = "east") -> Record:
        """An AppWrapper that this leader has dispatched there."""
        record = await self.world.admit(make_appwrapper("aw", *(templates or (TRAIN,))))
        return await self.world.commit(queue_changes.dispatch(record, cluster, self.world.now()))

    async def creates(self, denied_namespaces: frozenset[str] = frozenset()) -> Record:
        """What has become of it after one step."""
        record = self.world.record(UID)
        await self.world.reconciling.results.apply(UID, await self.result(denied_namespaces), record)
        return self.world.record(UID)

    async def result(self, denied_namespaces: frozenset[str] = frozenset()) -> Result:
        """The result of one step, which is not applied."""
        world = self.world
        creator = Creator(
            world.context,
            world.cache,
            world.queue.failures,
            members_without_any(self._has_no_cluster_left, self._note_error),
            lambda appwrapper, attempt: (appwrapper, attempt) in self.over,
            denied_namespaces,
            gates_growth=True,
        )
        return await creator.create(world.record(UID))


@pytest.fixture
async def east(world: World) -> AsyncIterator[East]:
    """A member that answers."""
    async with FakeApiServer() as server, client_of(server) as client:
        cluster = world.make_cluster("east", client)
        yield East(world, server, cluster)


# --- in which order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "is_bound", "waits"),
    [
        pytest.param(9, False, True, id="unbound"),
        pytest.param(9, True, False, id="bound"),
        pytest.param(11, False, False, id="unbound-for-too-long"),
    ],
)
async def test_gang_on_several_nodes_is_made_once_pods_of_an_earlier_gang_there_are_bound(
    east: East, seconds: int, is_bound: bool, waits: bool
) -> None:
    world, ledger = east.world, CapacityLedger(FitMode.NODE)
    east.cluster.ledger = ledger
    requests = Resources({"cpu": 1000})
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, requests * 2))
    record = await east.dispatched()
    decided_at = world.now() - timedelta(seconds=seconds)
    earlier = replace(record, uid="earlier", attempt=replace(live_attempt(record), decided_at=decided_at))
    world.cache.put(earlier)
    ledger.reserve("earlier", Gang(requests, 1, (PodSet(1, requests),)), Assignment(((("n1", 1),),)))
    both = Assignment(((("n1", 1), ("n2", 2)),))
    ledger.reserve(UID, Gang(requests * 3, 3, (PodSet(3, requests),)), both)
    if is_bound:
        ledger.set_pod(Pod("p", requests, "n1", PodPhase.RUNNING, owner="earlier"))
    assert (await east.creates()).phase is (Phase.DISPATCHING if waits else Phase.DISPATCHED)
    assert ("POST jobs" in east.order) is not waits


@pytest.mark.parametrize(("earlier", "pause"), [(1, 0.1), (3, 0.3), (50, 1.0)])
async def test_gang_that_follows_more_gangs_is_looked_at_less_often(
    east: East, earlier: int, pause: float
) -> None:
    ledger = east.cluster.ledger = CapacityLedger(FitMode.NODE)
    requests = Resources({"cpu": 1000})
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, requests * 100))
    record = await east.dispatched()
    for number in range(earlier):
        east.world.cache.put(replace(record, uid=f"earlier-{number}"))
        ledger.reserve(
            f"earlier-{number}", Gang(requests, 1, (PodSet(1, requests),)), Assignment(((("n1", 1),),))
        )
    ledger.reserve(UID, Gang(requests * 2, 2, (PodSet(2, requests),)), Assignment(((("n1", 1), ("n2", 1)),)))
    assert (await east.result()).after == pytest.approx(pause)


async def test_finalizer_is_added_before_the_anchor_and_the_anchor_before_anything_else(east: East) -> None:
    await east.dispatched(TRAIN, TOKEN)
    record = await east.creates()
    assert east.order == [f"GET {NAME}", "add finalizer", "POST configmaps", "POST jobs", "POST secrets"]
    (patch,) = east.world.server.requests("PATCH", AW)
    assert patch.body == {"metadata": {"uid": UID, "resourceVersion": "1", "finalizers": [FINALIZER]}}
    owners = [each.body["metadata"].get("ownerReferences") for each in east.server.requests("POST")]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": NAME, "uid": "uid-of-anchor"}
    owned = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    assert owners == [None, owned, owned]
    assert (record.phase, [ref.uid for ref in attempt_of(record).objects]) == (
        Phase.DISPATCHED,
        ["uid-of-train", "uid-of-token"],
    )


async def test_pods_prefer_the_nodes_of_the_places_that_the_gang_has_when_they_are_made(east: East) -> None:
    ledger = east.cluster.ledger = CapacityLedger(FitMode.NODE)
    for name in ("n1", "n2"):
        ledger.set_node(Node(name, Resources({"cpu": 64_000, "memory": 2**40, "nvidia.com/gpu": 8})))
    record = await east.dispatched()
    (pod_set,) = record.gang.pod_sets
    ledger.reserve(UID, record.gang, Assignment(((("n1", pod_set.count),),)))
    ledger.set_pod(Pod("p", Resources({"cpu": 64_000}), "n1", PodPhase.RUNNING))
    record = await east.creates()
    (made_job,) = east.server.requests("POST", JOBS)
    by_node = made_job.body["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = by_node["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]
    assert live_attempt(record).assignment == Assignment(((("n2", pod_set.count),),))


async def test_warnings_of_a_member_are_committed_with_the_creation_each_with_its_object(east: East) -> None:
    east.on("POST", JOBS, answer(made(TRAIN), 201, "unknown field"))
    await east.dispatched(TRAIN, TOKEN)
    found = (await east.creates()).condition(ConditionType.CREATED_WITH_WARNINGS)
    assert found is not None
    assert (found.status, found.message) == (True, "Job train: unknown field")


async def test_nothing_is_made_in_a_namespace_that_is_denied(east: East) -> None:
    """Also of one that was taken in before it was."""
    await east.dispatched(TRAIN)
    record = await east.creates(frozenset({"default"}))
    assert (record.phase, east.server.requests("POST"), east.world.server.requests("PATCH", AW)) == (
        Phase.FAILING,
        [],
        [],
    )
    assert 'nothing is dispatched in "default"' in record.message


@pytest.mark.parametrize(
    ("reply", "error"),
    [(refusal(500, "InternalError"), errors.Unavailable), (refusal(409, "Conflict"), errors.Conflict)],
)
async def test_no_object_is_created_if_the_finalizer_could_not_be_added(
    east: East, reply: Reply, error: type[Exception]
) -> None:
    await east.dispatched()
    east.world.server.on("PATCH", AW, reply)
    with pytest.raises(error):
        await east.creates()
    assert east.server.requests("POST") == []
    assert east.world.record(UID).phase is Phase.DISPATCHING


@pytest.mark.parametrize("case", ["going", "gone", "a-successor"])
async def test_no_object_of_a_deleted_appwrapper_is_created(east: East, case: str) -> None:
    await east.dispatched()
    going = make_appwrapper("aw", TRAIN, deletionTimestamp="2026-11-20T09:00:00Z")
    replies = {"going": answer(going), "gone": MISSING, "a-successor": answer(make_appwrapper("aw", uid="b"))}
    east.world.server.on("GET", AW, replies[case])
    await east.world.forget_wakes()
    await east.creates()
    assert (east.order, east.world.record(UID).phase) == ([f"GET {NAME}"], Phase.DISPATCHING)
    assert await east.world.is_woken_within(1)


async def test_no_further_object_of_an_appwrapper_deleted_meanwhile_is_created(east: East) -> None:
    await east.dispatched(TRAIN, TOKEN)

    async def is_deleted_meanwhile(request: web.Request) -> web.StreamResponse:
        east.world.show(make_appwrapper("aw", TRAIN, TOKEN, deletionTimestamp="2026-11-20T09:00:00Z"))
        return await answer(made(TRAIN))(request)

    east.on("POST", JOBS, is_deleted_meanwhile)
    await east.world.forget_wakes()
    assert (await east.creates()).phase is Phase.DISPATCHING
    assert east.order[-1] == "POST jobs"
    assert await east.world.is_woken_within(1)


async def test_nothing_is_made_where_the_anchor_could_not_be(east: East) -> None:
    await east.dispatched()
    east.on("POST", CONFIGMAPS, hang_up)
    with pytest.raises(errors.Unavailable):
        await east.creates()
    assert east.server.requests("POST", JOBS) == []
    assert east.world.record(UID).phase is Phase.DISPATCHING


async def test_object_created_before_a_lost_answer_is_found_and_not_created_twice(east: East) -> None:
    await east.dispatched()
    east.on("POST", JOBS, hang_up)
    with pytest.raises(errors.Unavailable):
        await east.creates()
    there = made(TRAIN)
    there["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": NAME, "uid": "uid-of-anchor", "controller": True}
    ]
    east.on("POST", CONFIGMAPS, TAKEN)
    east.on("GET", ANCHOR, answer(anchor()))
    east.on("POST", JOBS, TAKEN)
    east.on("GET", f"{JOBS}/train", answer(there))
    assert (await east.creates()).phase is Phase.DISPATCHED


# --- a member that is removed and put back -------------------------------------------------------------------


@pytest.mark.parametrize("path", [CONFIGMAPS, JOBS, SECRETS])
async def test_creation_goes_on_once_a_member_that_was_removed_within_it_is_put_back(
    east: East, path: str
) -> None:
    await east.dispatched(TRAIN, TOKEN)

    async def is_removed(request: web.Request) -> web.StreamResponse:
        del east.world.clusters["east"]
        return await hang_up(request)

    east.on("POST", path, is_removed)
    with pytest.raises(errors.Unavailable):
        await east.creates()
    asked = list(east.order)
    for _ in range(3):
        assert (await east.creates()).phase is Phase.DISPATCHING
    assert east.order == asked
    replies = {CONFIGMAPS: anchor(), JOBS: made(TRAIN), SECRETS: made(TOKEN, 1)}
    east.on("POST", path, answer(replies[path]))
    east.world.clusters["east"] = east.cluster
    record = await east.creates()
    assert (record.phase, record.attempts, len(attempt_of(record).objects)) == (Phase.DISPATCHED, 1, 2)


# --- a member that does not answer ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        pytest.param(refusal(500, "InternalError", "broken"), f"GET {ANCHOR}: 500 broken", id="fails"),
        pytest.param(refusal(401, "Unauthorized", "no entry"), "no entry", id="refuses-us"),
        pytest.param(refusal(403, "Forbidden", "may not"), "may not", id="forbids-it"),
        pytest.param(text("a page", 404), "no clear answer: a page", id="a-proxys-page"),
    ],
)
async def test_attempt_that_meets_silence_before_anything_was_sent_goes_elsewhere(
    east: East, reply: Reply, message: str
) -> None:
    record = await east.dispatched()
    east.on("GET", ANCHOR, reply)
    wakes, now = east.world.dispatch_wakes, east.world.now()
    withdrawn = await east.creates()
    assert (withdrawn.phase, withdrawn.pending) == (
        Phase.QUEUED,
        Pending(CREATION_POSTPONED, f"cluster east: {message}", cluster="east"),
    )
    assert withdrawn.eligible_at is not None
    assert timedelta(0) < withdrawn.eligible_at - now < timedelta(seconds=10)
    assert (east.order, east.errors_noted) == ([f"GET {NAME}"], NOTED)
    assert east.world.dispatch_wakes > wakes
    assert (record.attempts, withdrawn.requeuings) == (1, 0)


async def test_attempt_goes_elsewhere_if_its_cluster_is_lost_before_anything_was_sent(east: East) -> None:
    await east.dispatched()
    del east.world.clusters["east"]
    withdrawn = await east.creates()
    assert (withdrawn.phase, withdrawn.message) == (
        Phase.QUEUED,
        "cluster east: its cluster cannot be reached",
    )
    assert (east.order, east.errors_noted) == ([], NOTED)


async def another_leader(east: East) -> None:
    record = east.world.record(UID)
    east.world.cache.put(replace(record, phase=Phase.DELETED))
    east.world.cache.load([record])


async def a_step_that_asked(east: East) -> None:
    east.world.server.on("PATCH", AW, refusal(500, "InternalError"))
    with pytest.raises(errors.Unavailable):
        await east.creates()


async def a_step_that_made_its_anchor(east: East) -> None:
    east.on("POST", JOBS, refusal(500, "InternalError"))
    with pytest.raises(errors.Unavailable):
        await east.creates()


@pytest.mark.parametrize("before", [another_leader, a_step_that_asked, a_step_that_made_its_anchor])
async def test_attempt_of_which_something_may_be_there_waits_for_its_cluster(
    east: East, before: Callable[[East], Awaitable[None]]
) -> None:
    await east.dispatched()
    await before(east)
    record = east.world.record(UID)
    asked = len(east.server.requests("GET", ANCHOR))
    east.on("GET", ANCHOR, refusal(500, "InternalError"))
    east.on("POST", CONFIGMAPS, refusal(500, "InternalError"))
    east.world.server.on("PATCH", AW, answer({}))
    with pytest.raises(errors.Unavailable):
        await east.creates()
    assert len(east.server.requests("GET", ANCHOR)) == asked
    del east.world.clusters["east"]
    assert await east.creates() == record
    assert east.errors_noted == []


async def test_busy_member_is_not_silent(east: East) -> None:
    record = await east.dispatched()
    east.on("GET", ANCHOR, refusal(429, "TooManyRequests"), MISSING)
    with pytest.raises(errors.Throttled):
        await east.creates()
    assert (east.world.record(UID), east.errors_noted, east.order) == (record, [], [f"GET {NAME}"])
    assert (await east.creates()).phase is Phase.DISPATCHED


async def test_creation_that_keeps_failing_gives_its_capacity_back_for_a_while(east: East) -> None:
    await east.dispatched()
    for _ in range(MOST_FAILURES):
        east.world.queue.add_failed(UID)
    record = await east.creates()
    assert (record.phase, record.message) == (
        Phase.REQUEUEING,
        "the API server kept failing to create it",
    )
    assert (east.order, east.errors_noted) == ([], NOTED)


# --- namespaces and anchors that cannot be had ---------------------------------------------------------------


NO_NAMESPACE = refusal(404, "NotFound", 'namespaces "default" not found')


async def test_gang_waits_if_its_namespace_may_not_be_created_in_the_member(east: East) -> None:
    await east.dispatched()
    east.on("POST", CONFIGMAPS, NO_NAMESPACE)
    record = await east.creates()
    assert (record.phase, record.message) == (Phase.REQUEUEING, 'cluster east has no namespace "default"')
    assert (east.order[-1], east.errors_noted) == ("POST configmaps", NOTED)


async def test_namespace_that_a_member_lacks_is_made_once_if_it_may_be(east: East) -> None:
    await east.dispatched()
    east.cluster.may_create_namespaces = True
    east.on("POST", CONFIGMAPS, NO_NAMESPACE, answer(anchor()))
    east.on("POST", "/api/v1/namespaces", answer({}))
    secured = {
        "pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    labels = {**secured, "team": "vision"}
    east.world.server.on(
        "GET", "/api/v1/namespaces/default", answer({"metadata": make_metadata("default", labels=labels)})
    )
    while (await east.creates()).phase is Phase.DISPATCHING:
        assert await east.world.is_woken_within(1)
    assert east.world.record(UID).phase is Phase.DISPATCHED
    (asked,) = east.server.requests("POST", "/api/v1/namespaces")
    made = {**secured, "dispatcher.codeflare.dev/dispatch": "enabled"}
    assert asked.body["metadata"] == {"name": "default", "labels": made}


async def test_namespace_is_not_made_while_that_of_the_hub_cannot_be_read(east: East) -> None:
    await east.dispatched()
    east.cluster.may_create_namespaces = True
    east.on("POST", CONFIGMAPS, NO_NAMESPACE)
    east.world.server.on(
        "GET", "/api/v1/namespaces/default", refusal(403, "Forbidden", "cannot get namespaces")
    )
    record = await east.creates()
    assert (record.phase, record.message) == (Phase.REQUEUEING, "cannot get namespaces")
    assert east.server.requests("POST", "/api/v1/namespaces") == []


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        pytest.param((QUOTA,), "exceeded quota: configmaps", id="quota"),
        pytest.param(
            (TAKEN,), f"ConfigMap default/{NAME} exists already and is not ours", id="anchor-of-another"
        ),
    ],
)
async def test_gang_with_a_refused_anchor_is_postponed(
    east: East, replies: tuple[Reply, ...], message: str
) -> None:
    await east.dispatched()
    east.on("POST", CONFIGMAPS, *replies)
    east.server.on("GET", ANCHOR, MISSING, answer(anchor("uid-of-another")))
    record = await east.creates()
    assert (record.phase, record.message, record.attempt and record.attempt.objects) == (
        Phase.REQUEUEING,
        message,
        (),
    )
    assert (east.server.requests("POST", JOBS), east.errors_noted) == ([], NOTED)


async def test_configmap_that_was_there_before_anything_was_sent_is_no_anchor_whatever_marks_it_bears(
    east: East,
) -> None:
    """Whoever reads the AppWrapper knows its uid, and the next number."""
    await east.dispatched()
    east.on("GET", ANCHOR, answer(anchor()))
    record = await east.creates()
    assert (record.phase, record.message) == (
        Phase.REQUEUEING,
        f"ConfigMap default/{NAME} exists already and is not ours",
    )
    assert (east.server.requests("POST"), east.errors_noted) == ([], NOTED)


async def test_anchor_that_is_on_its_way_out_is_waited_for(east: East) -> None:
    await east.dispatched()
    east.on("POST", CONFIGMAPS, TAKEN)
    east.server.on("GET", ANCHOR, MISSING, answer(anchor(deletionTimestamp="2026-11-20T09:00:00Z")))
    with pytest.raises(errors.Unavailable):
        await east.creates()
    assert (east.world.record(UID).phase, east.errors_noted) == (Phase.DISPATCHING, [])


# --- names that are taken ------------------------------------------------------------------------------------


def has_foreign(server: FakeApiServer, name: str = "train") -> None:
    """Have a Job of that name be somebody else's."""
    server.on("POST", JOBS, TAKEN)
    server.on("GET", f"{JOBS}/{name}", answer({"metadata": make_metadata(name)}))


IN_THE_WAY = "Job default/train exists already and is not this AppWrapper's; delete it or choose another name"


async def test_cluster_where_a_name_is_taken_is_ruled_out_if_another_is_left(east: East) -> None:
    east.labels = {"east": {}, "west": {}}
    record = await east.dispatched(TOKEN, TRAIN)
    east.on("POST", SECRETS, answer(made(TOKEN, 0)))
    has_foreign(east.server)
    ruled_out = await east.creates()
    assert (ruled_out.phase, ruled_out.message) == (Phase.REQUEUEING, IN_THE_WAY)
    assert ruled_out.requirements == record.requirements.without("east", IN_THE_WAY)
    assert [ref.name for ref in attempt_of(ruled_out).objects] == ["token"]  # to be removed again
    assert (ruled_out.eligible_at, ruled_out.requeuings) == (east.world.now(), 0)
    assert east.errors_noted == []


async def test_gang_with_a_name_taken_in_every_cluster_fails_with_a_message_for_each(east: East) -> None:
    east.labels = {"east": {}, "west": {}}
    record = await east.dispatched()
    await east.world.commit(
        run_changes.rule_out(
            record, (), record.requirements.without("west", "Job x exists"), "no", east.world.now()
        )
    )
    record = await east.world.commit(removal.removed(east.world.record(UID), east.world.now()))
    await east.world.commit(queue_changes.dispatch(record, "east", east.world.now()))
    east.on("GET", f"{CONFIGMAPS}/{anchor_name(UID, 2)}", MISSING)
    has_foreign(east.server)
    failing = await east.creates()
    assert (failing.phase, failing.message) == (
        Phase.FAILING,
        f"default/aw creation failure: cluster east: {IN_THE_WAY}; cluster west: Job x exists",
    )


async def test_gang_that_only_one_cluster_may_have_fails_with_the_words_of_that_one(east: East) -> None:
    east.labels = {"east": {}}
    await east.dispatched()
    has_foreign(east.server)
    failing = await east.creates()
    assert (failing.phase, failing.message) == (
        Phase.FAILING,
        f"default/aw creation failure: {IN_THE_WAY}",
    )


PREDECESSOR = make_owner("predecessor", attempt=3)


def has_leftover(server: FakeApiServer, hub: str = "the-hub") -> None:
    """Have a Job of that name be under an anchor of another AppWrapper, which is there still."""
    anchored = replace(
        PREDECESSOR, hub_id=hub, anchor=Anchor(anchor_name("uid-of-predecessor", 3), "uid-of-theirs")
    )
    server.on("POST", JOBS, TAKEN)
    left = build(make_wrapped(TRAIN), anchored)
    server.on(
        "GET", f"{JOBS}/train", answer({**left, "metadata": {**left["metadata"], "uid": "uid-of-left"}})
    )
    server.on(
        "GET",
        f"{CONFIGMAPS}/{anchor_name('uid-of-predecessor', 3)}",
        answer({"metadata": make_metadata("x", uid="uid-of-theirs")}),
    )


async def test_creation_waits_for_the_removal_of_an_object_of_a_deleted_appwrapper(east: East) -> None:
    east.labels = {"east": {}}
    east.over.add(("uid-of-predecessor", 3))
    await east.dispatched()
    has_leftover(east.server)
    await east.world.forget_wakes()
    assert (await east.creates()).phase is Phase.DISPATCHING
    assert await east.world.is_woken_within(1)
    await asyncio.sleep(LONGEST_IN_THE_WAY.total_seconds())  # virtual
    postponed = await east.creates()
    assert (postponed.phase, postponed.requirements.ruled_out) == (Phase.REQUEUEING, frozenset())
    assert "Job default/train of an attempt that is over is to be removed" in postponed.message


@pytest.mark.parametrize("hub", ["the-hub", "another-hub"])
async def test_name_that_another_appwrapper_has_is_taken(east: East, hub: str) -> None:
    east.labels = {"east": {}}
    if hub != "the-hub":
        east.over.add(("uid-of-predecessor", 3))
    await east.dispatched()
    has_leftover(east.server, hub)
    failing = await east.creates()
    assert (failing.phase, failing.message) == (Phase.FAILING, f"default/aw creation failure: {IN_THE_WAY}")


async def test_hub_without_members_refuses_a_name_that_is_taken_as_ever(east: East) -> None:
    await east.dispatched(cluster="hub")
    has_foreign(east.world.server)
    failing = await east.creates()
    assert (failing.phase, failing.message) == (
        Phase.FAILING,
        f"default/aw creation failure: {IN_THE_WAY}",
    )
    assert (east.order, east.world.server.requests("PATCH")) == ([], [])


async def test_cluster_that_does_not_serve_requests_for_capacity_counts_as_one_that_fails(
    world: World,
) -> None:
    world.server.on("GET", "/apis/autoscaling.x-k8s.io/v1", MISSING)
    world.server.on("GET", f"{JOBS}/train", MISSING)
    record = await world.admit(make_appwrapper("aw", TRAIN))
    asked = Assignment(provisioning=QUEUED_CLASS)
    await world.commit(queue_changes.dispatch(record, "hub", world.now(), assignment=asked))
    await world.reconcile(UID, times=3)
    found = world.record(UID)
    assert (found.phase, found.provisioning_failures) == (Phase.QUEUED, 1)
    assert found.pending is not None
    assert found.pending.reason == "ProvisioningFailed"
    assert 'cluster hub: no matches for kind "ProvisioningRequest"' in found.pending.message
    assert "retry 1 of 3 in 60 s" in found.pending.message


async def test_gang_whose_kind_is_removed_after_its_dispatch_is_queued_again_and_not_failed(
    east: East,
) -> None:
    gone = text("404 page not found", 404)
    kinds = frozenset({("batch/v1", "Job")})
    await east.cluster.discovery.load("batch/v1")
    east.server.on("GET", "/apis/batch/v1", gone)
    east.on("POST", JOBS, gone)
    await east.dispatched(TOKEN, TRAIN)
    found = await east.creates()
    assert found.phase is Phase.REQUEUEING
    assert 'no matches for kind "Job" in version "batch/v1": install' in found.message
    assert [each.name for each in found.attempt.objects if each.uid] == ["token"] if found.attempt else False
    assert east.cluster.missing_kinds(kinds) == kinds


async def test_gang_of_a_kind_that_the_dispatcher_may_not_create_is_queued_again_until_it_may(
    east: East,
) -> None:
    said = 'jobs.batch is forbidden: User "hub" cannot create resource "jobs"'
    east.on("POST", JOBS, refusal(403, "Forbidden", said))
    east.server.on("POST", SELF_PATH, answer({"status": {"allowed": False}}, 201))
    await east.dispatched(TOKEN, TRAIN)
    found = await east.creates()
    assert (found.phase, found.message) == (Phase.REQUEUEING, said)
    assert [each.name for each in attempt_of(found).objects if each.uid] == ["token"]
    assert east.cluster.forbidden_kinds == {("default", ("batch/v1", "Job"))}

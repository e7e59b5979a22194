"""What wrapped objects say of themselves, as their watches have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.client import JSON, METADATA, METADATA_LIST, ClusterClient
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects.object_informers import MOST_UNKNOWN_KINDS, Edition, ObjectInformers
from dispatcher.kube.paging import FIRST_PAGE
from tests.builders import make_metadata, make_owner, make_ref
from tests.fakes import FakeApiServer, Reply, answer, never, refusal, text, watch
from tests.unit import workers
from tests.unit.virtual_time import until

Json = dict[str, Any]

UID = "dispatcher.codeflare.dev/appwrapper-uid"
JOBS = "/apis/batch/v1/jobs"
SECRETS = "/api/v1/secrets"
SERVICES = "/api/v1/services"
PODS = "/api/v1/pods"
KINDS = {
    "/api/v1": {"secrets": "Secret", "services": "Service", "pods": "Pod"},
    "/apis/batch/v1": {"jobs": "Job"},
    "/apis/ray.io/v1": {"rayclusters": "RayCluster"},
}
COMPLETE: Json = {"conditions": [{"type": "Complete", "status": "True"}]}
DONE = ObjectState(End.SUCCEEDED, frozenset({"Complete"}))


def made(name: str = "x", *, of: str = "aw", version: int = 1, status: Json | None = None) -> Json:
    """An object that was created for the AppWrapper `of`."""
    metadata = make_metadata(
        name,
        resourceVersion=str(version),
        labels={UID: f"uid-of-{of}"},
        annotations={"dispatcher.codeflare.dev/item": "0"},
        ownerReferences=[make_owner(of).reference()],
    )
    return {"metadata": metadata, "status": status or {}}


def page(*raw: Json, version: int = 10) -> Reply:
    return answer({"metadata": {"resourceVersion": str(version)}, "items": list(raw)})


def event(type_: str, raw: Json) -> Json:
    return {"type": type_, "object": raw}


def ref(kind: str = "Job", uid: str = "uid-of-x") -> ObjectRef:
    api_version = "batch/v1" if kind == "Job" else "v1"
    return ObjectRef(0, api_version, kind, "default", "x", uid)


def script(server: FakeApiServer, path: str, listed: Reply, watched: Reply = never) -> None:
    """Script the lists and watches of a kind apart, though they share a path."""

    async def reply(request: Any) -> Any:  # noqa: ANN401
        return await (watched if "watch" in request.query else listed)(request)

    server.on("GET", path, reply)


class Watched:
    """The watches of a cluster, and the AppWrappers they have told of."""

    def __init__(self, client: ClusterClient, kinds: Kinds) -> None:
        self.told: list[str] = []
        self.unwanted: list[tuple[str, set[tuple[str, str]]]] = []
        self.watches = ObjectInformers(
            client, Discovery(client), self.told.append, kinds, self._note_unwanted
        )

    def _note_unwanted(self, uid: str, pods: frozenset[tuple[str, str]]) -> None:
        self.unwanted.append((uid, set(pods)))


@asynccontextmanager
async def running(
    server: FakeApiServer, client: ClusterClient, kinds: Kinds = BUILT_IN
) -> AsyncIterator[Watched]:
    for path, served in KINDS.items():
        resources = [{"name": name, "kind": kind, "namespaced": True} for name, kind in served.items()]
        server.on("GET", path, answer({"resources": resources}))
    it = Watched(client, kinds)
    async with workers.running(it.watches.run()) as task:
        yield it
    assert task.cancelled()


async def test_unwanted_kind_is_not_watched_and_its_objects_are_unknown(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async with running(server, client) as it:
        await asyncio.sleep(60)  # virtual
    assert server.asked == []
    assert it.watches.state(ref()) is None
    assert it.watches.is_absent(ref()) is False


async def test_each_change_of_an_object_state_is_cached_and_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    done = made(version=11, status=COMPLETE)
    script(server, JOBS, page(made()), watch(event("MODIFIED", done), then=never))
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.state(ref()) == DONE)
        assert it.told == ["uid-of-aw", "uid-of-aw"]


async def test_change_outside_the_cached_state_wakes_no_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    heartbeat = made(version=11, status={"active": 1})
    done = made(version=12, status=COMPLETE)
    script(
        server, JOBS, page(made()), watch(event("MODIFIED", heartbeat), event("MODIFIED", done), then=never)
    )
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.state(ref()) == DONE)
        assert it.told == ["uid-of-aw", "uid-of-aw"]


def generation(number: int, version: int = 1, status: Json | None = None) -> Json:
    """An object of that generation."""
    raw = made(version=version, status=status)
    raw["metadata"]["generation"] = number
    return raw


async def test_each_generation_of_an_object_is_an_edition_that_is_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    heartbeat, edit = generation(1, 11, {"active": 1}), generation(2, 12, {"active": 1})
    listed = page(generation(1))
    script(server, JOBS, listed, watch(event("MODIFIED", heartbeat), event("MODIFIED", edit), then=never))
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.edition(ref()) == Edition(2))
        assert it.told == ["uid-of-aw", "uid-of-aw"]


@pytest.mark.parametrize(
    ("kind", "path", "edition"),
    [
        pytest.param("Service", SERVICES, Edition(0, "7"), id="its-version-of-what-makes-no-pods"),
        pytest.param("Pod", PODS, None, id="unknown-of-what-has-a-status-that-changes"),
        pytest.param("Secret", SECRETS, None, id="none-of-what-is-never-read"),
    ],
)
async def test_edition_of_an_object_without_a_generation(
    server: FakeApiServer, client: ClusterClient, kind: str, path: str, edition: Edition | None
) -> None:
    script(server, path, page(made(version=7)))
    async with running(server, client) as it:
        it.watches.want("v1", kind)
        await until(lambda: it.watches.state(ref(kind)) is not None)
        assert it.watches.edition(ref(kind)) == edition


async def test_no_edition_is_known_of_a_secret_with_a_generation_or_of_an_unseen_object(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, SECRETS, page(generation(2)))
    async with running(server, client) as it:
        it.watches.want("v1", "Secret")
        await until(lambda: it.watches.state(ref("Secret")) is not None)
        assert [it.watches.edition(ref(kind)) for kind in ("Secret", "Job")] == [None, None]


async def test_deleted_object_is_reported_and_absent(server: FakeApiServer, client: ClusterClient) -> None:
    script(server, JOBS, page(made()), watch(event("DELETED", made(version=11)), then=never))
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.is_absent(ref()))
        assert it.watches.state(ref()) is None
        assert it.told == ["uid-of-aw", "uid-of-aw"]


async def test_end_of_a_cleaned_up_object_is_known_as_long_as_an_appwrapper_expects_it(
    server: FakeApiServer, client: ClusterClient
) -> None:
    done = made(version=11, status=COMPLETE)
    cleaned_up = event("DELETED", made(version=12, status=COMPLETE))
    script(server, JOBS, page(made()), watch(event("MODIFIED", done), cleaned_up, then=never))
    async with running(server, client) as it:
        it.watches.expect("uid-of-aw", (ref(),))
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.is_absent(ref()))
        assert it.watches.state(ref()) == DONE
        it.watches.expect("uid-of-aw", (ref(),))
        assert it.watches.state(ref()) == DONE
        it.watches.expect("uid-of-aw", ())
        assert it.watches.state(ref()) is None


async def test_object_with_a_changed_owner_label_wakes_both_appwrappers(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, JOBS, page(made()), watch(event("MODIFIED", made(of="other", version=11)), then=never))
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: len(it.told) == 3)
        assert it.told[0] == "uid-of-aw"
        assert set(it.told[1:]) == {"uid-of-aw", "uid-of-other"}


async def test_nothing_is_absent_before_a_complete_list(server: FakeApiServer, client: ClusterClient) -> None:
    script(server, JOBS, never)
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: server.requests(path=JOBS))
        assert it.watches.is_absent(ref()) is False
        assert it.watches.state(ref()) is None


GONE = ref(uid="uid-of-gone")


async def test_first_list_without_an_expected_object_wakes_its_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Its object went before anybody watched: no event will ever say so."""
    script(server, JOBS, page(made()))
    script(server, SECRETS, page())
    async with running(server, client) as it:
        it.watches.expect("uid-of-aw", (ref(),))
        it.watches.expect("uid-of-bereft", (ref("Secret", uid=""), GONE))
        it.watches.want("batch/v1", "Job")
        it.watches.want("v1", "Secret")
        await until(lambda: len(server.requests(path=JOBS) + server.requests(path=SECRETS)) == 4)
        assert it.told == ["uid-of-aw", "uid-of-bereft"]
        assert it.watches.is_absent(GONE)


async def test_each_later_list_without_an_expected_object_wakes_its_appwrapper(
    server: FakeApiServer, client: ClusterClient
) -> None:
    """Its object came and went while the watch was cut, so that no event says so."""
    expired = event("ERROR", {"kind": "Status", "code": 410})
    expects = asyncio.Event()

    async def watched(request: Any) -> Any:  # noqa: ANN401
        await expects.wait()
        return await (watch(expired) if request.query["resourceVersion"] == "10" else never)(request)

    pages = iter([page(), page(version=90)])
    script(server, JOBS, lambda request: next(pages)(request), watched)
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: len(server.requests(path=JOBS)) == 2)
        it.watches.expect("uid-of-aw", (GONE,))
        it.watches.expect("uid-of-done", (GONE,))
        it.watches.expect("uid-of-done", ())
        assert it.told == []
        expects.set()
        await until(lambda: len(server.requests(path=JOBS)) == 4)
        assert it.told == ["uid-of-aw"]


async def test_object_with_an_unknown_uid_is_never_absent(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, JOBS, page())
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")
        await until(lambda: it.watches.is_absent(ref()))
        assert it.watches.is_absent(ref(uid="")) is False


async def test_kind_is_watched_once_however_often_it_is_wanted(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, JOBS, page(made()))
    async with running(server, client) as it:
        for _ in range(3):
            it.watches.want("batch/v1", "Job")
            it.watches.want("batch/v1", "Job", contents=True)
            await until(lambda: len(server.requests(path=JOBS)) == 2)
        assert [dict(each.query) for each in server.requests(path=JOBS)] == [
            {"labelSelector": UID, "limit": str(FIRST_PAGE)},
            {
                "labelSelector": UID,
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": "10",
                "timeoutSeconds": server.requests(path=JOBS)[1].query["timeoutSeconds"],
            },
        ]
        assert it.watches.reconnects == {"job.batch": 0}


async def test_kind_wanted_before_it_runs_is_watched_when_it_does(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, JOBS, page(made()))
    async with running(server, client) as it:
        it.watches.want("batch/v1", "Job")  # the task has not begun yet
        await until(lambda: it.watches.state(ref()) == ObjectState())


async def test_pods_that_a_controller_made_are_not_kept(server: FakeApiServer, client: ClusterClient) -> None:
    of_a_job = made("of-a-job")
    of_a_job["metadata"] |= {"annotations": {}, "ownerReferences": [{"kind": "Job", "controller": True}]}
    nobodys = made("nobodys")
    nobodys["metadata"] |= {"annotations": None, "ownerReferences": None}
    made_by_mcad = made("made-by-mcad")
    made_by_mcad["metadata"] |= {"annotations": None}
    without_owner = made("without-owner")
    without_owner["metadata"] |= {"ownerReferences": []}
    script(server, PODS, page(of_a_job, nobodys, made_by_mcad, without_owner))
    async with running(server, client) as it:
        it.watches.want("v1", "Pod")
        await until(lambda: it.told)
        kept = ("of-a-job", "nobodys", "made-by-mcad", "without-owner")
        assert [it.watches.state(ref("Pod", f"uid-of-{name}")) for name in kept] == [
            None,
            None,
            ObjectState(),
            ObjectState(),
        ]


async def test_only_the_metadata_is_asked_for_of_kinds_that_make_no_pods(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, SECRETS, page(made()))
    script(server, JOBS, page())
    async with running(server, client) as it:
        it.watches.want("v1", "Secret")
        it.watches.want("batch/v1", "Job")
        await until(lambda: len(server.requests(path=SECRETS) + server.requests(path=JOBS)) == 4)
        assert it.watches.state(ref("Secret")) == ObjectState()
    accepted = {
        path: [each.headers["Accept"] for each in server.requests(path=path)] for path in (SECRETS, JOBS)
    }
    assert accepted == {SECRETS: [METADATA_LIST, METADATA], JOBS: [JSON, JSON]}


async def test_contents_are_listed_once_a_completion_condition_needs_them(
    server: FakeApiServer, client: ClusterClient
) -> None:
    async def listed(request: Any) -> Any:  # noqa: ANN401
        status = COMPLETE if request.headers["Accept"] == JSON else None
        return await page(made(status=status))(request)

    script(server, SECRETS, listed)
    async with running(server, client) as it:
        it.watches.want("v1", "Secret")
        await until(lambda: it.watches.state(ref("Secret")) == ObjectState())
        it.watches.want("v1", "Secret", contents=True)
        await until(
            lambda: it.watches.state(ref("Secret")) == ObjectState(conditions=frozenset({"Complete"}))
        )
        assert it.watches.reconnects == {"secret": 0}


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(refusal(403, "Forbidden"), id="forbidden"),
        pytest.param(refusal(503, "ServiceUnavailable"), id="away"),
        pytest.param(answer([]), id="nonsense"),
        pytest.param(answer({"metadata": {}, "items": [{"metadata": {}}]}), id="objects-without-uid"),
    ],
)
async def test_kind_that_cannot_be_listed_disturbs_no_other_and_is_known_when_it_can(
    server: FakeApiServer, client: ClusterClient, trouble: Reply
) -> None:
    script(server, PODS, trouble)
    script(server, JOBS, page(made()))
    async with running(server, client) as it:
        for api_version, kind in (("v1", "Pod"), ("example.com/v1", "Widget"), ("batch/v1", "Job")):
            it.watches.want(api_version, kind)
        await until(lambda: it.watches.state(ref()) == ObjectState())
        await asyncio.sleep(300)  # virtual
        assert it.watches.is_absent(ref("Pod")) is False
        script(server, PODS, page(made()))
        await until(lambda: it.watches.state(ref("Pod")) == ObjectState())


def raycluster(version: int, *unwanted: str) -> Json:
    """A RayCluster whose autoscaler wants these workers to be deleted."""
    spec = {"workerGroupSpecs": [{"scaleStrategy": {"workersToDelete": list(unwanted)}}]}
    return {**made(version=version), "spec": spec}


async def test_each_change_of_the_workers_that_ray_wants_deleted_is_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    events = [
        event("MODIFIED", raycluster(11, "w-1", "w-2")),
        event("MODIFIED", raycluster(12, "w-1", "w-2")),
        event("MODIFIED", raycluster(13, "w-2")),
        event("DELETED", raycluster(14, "w-2")),
    ]
    script(server, "/apis/ray.io/v1/rayclusters", page(raycluster(1)), watch(*events, then=never))
    async with running(server, client) as it:
        it.watches.want("ray.io/v1", "RayCluster")
        await until(lambda: len(it.unwanted) == 3)
    first, second = ("default", "w-1"), ("default", "w-2")
    assert it.unwanted == [("uid-of-x", {first, second}), ("uid-of-x", {second}), ("uid-of-x", set())]


def wants_too_many(watches: ObjectInformers) -> None:
    """Have somebody wrap more odd kinds than are watched, and wrap some of them again."""
    for number in [*range(MOST_UNKNOWN_KINDS + 1), MOST_UNKNOWN_KINDS, 0]:
        watches.want("example.com/v1", f"Widget{number}")


async def test_connections_are_left_for_other_work_however_many_kinds_are_wrapped(
    server: FakeApiServer, client: ClusterClient
) -> None:
    watches = ObjectInformers(client, Discovery(client), lambda _: None)
    with capture_logs() as logged:
        wants_too_many(watches)
    assert len(watches.reconnects) == MOST_UNKNOWN_KINDS
    assert [entry["kind"] for entry in logged] == [f"Widget{MOST_UNKNOWN_KINDS}"]


async def test_kinds_we_know_are_watched_however_many_others_are_wrapped(
    server: FakeApiServer, client: ClusterClient
) -> None:
    script(server, JOBS, page(made()))
    script(server, SECRETS, page(made()))
    async with running(server, client) as it:
        wants_too_many(it.watches)
        it.watches.want("batch/v1", "Job")
        it.watches.want("v1", "Secret")
        await until(lambda: it.watches.state(ref()) == it.watches.state(ref("Secret")) == ObjectState())


async def test_others_are_watched_however_many_kinds_we_know_are_wrapped(
    server: FakeApiServer, client: ClusterClient
) -> None:
    watches = ObjectInformers(client, Discovery(client), lambda _: None)
    for group, kind in BUILT_IN.derivable:
        watches.want(f"{group}/v1" if group else "v1", kind)
    known = len(watches.reconnects)
    with capture_logs() as logged:
        wants_too_many(watches)
    assert len(watches.reconnects) == known + MOST_UNKNOWN_KINDS
    assert len(logged) == 1


def widget(number: int) -> ObjectRef:
    return ObjectRef(0, "example.com/v1", f"Widget{number}", "default", "x", f"uid-of-{number}")


def serve_widgets(server: FakeApiServer, numbers: range) -> None:
    kinds = [
        {"name": f"widget{number}s", "kind": f"Widget{number}", "namespaced": True} for number in numbers
    ]
    server.on("GET", "/apis/example.com/v1", answer({"resources": kinds}))
    for number in numbers:
        script(server, f"/apis/example.com/v1/widget{number}s", page())


async def test_watch_is_given_back_when_no_appwrapper_uses_its_kind(
    server: FakeApiServer, client: ClusterClient
) -> None:
    serve_widgets(server, range(MOST_UNKNOWN_KINDS + 1))
    async with running(server, client) as it:
        for number in range(MOST_UNKNOWN_KINDS + 1):
            it.watches.want("example.com/v1", f"Widget{number}")
            it.watches.expect(f"aw-{number}", (widget(number),))
        it.watches.expect("aw-too", (widget(0),))
        last = f"widget{MOST_UNKNOWN_KINDS}.example.com"
        it.watches.expect("aw-0", ())
        assert last not in it.watches.reconnects  # another still uses that kind
        it.watches.expect("aw-too", ())
        assert (last in it.watches.reconnects, "widget0.example.com" in it.watches.reconnects) == (
            True,
            False,
        )
        await until(lambda: server.requests("GET", f"/apis/example.com/v1/widget{MOST_UNKNOWN_KINDS}s"))

        it.watches.want("example.com/v1", "Widget0")
        it.watches.expect("aw-0", (widget(0),))
        it.watches.expect("aw-1", ())
        assert "widget0.example.com" in it.watches.reconnects


async def test_unused_watch_of_an_unknown_kind_makes_room_after_a_minute(
    server: FakeApiServer, client: ClusterClient
) -> None:
    watches = ObjectInformers(client, Discovery(client), lambda _: None)
    for number in range(MOST_UNKNOWN_KINDS):
        watches.want("example.com/v1", f"Widget{number}")
    await asyncio.sleep(61)  # virtual
    watches.want("example.com/v1", "Late")
    assert "late.example.com" in watches.reconnects
    assert len(watches.reconnects) == MOST_UNKNOWN_KINDS


async def test_kind_is_looked_up_again_once_its_watch_finds_no_such_path(
    server: FakeApiServer, client: ClusterClient
) -> None:
    served = answer({"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]})
    server.on("GET", "/apis/batch/v1", served, text("404 page not found", 404))
    discovery = Discovery(client)
    informers = ObjectInformers(client, discovery, lambda _uid: None)
    informers.want("batch/v1", "Job")
    async with workers.running(informers.run()):
        await until(lambda: bool(server.requests("GET", JOBS)))
        await until(lambda: not discovery.serves(("batch/v1", "Job")))
        server.on("GET", "/apis/batch/v1", served)
        script(server, JOBS, page(made()))
        await until(lambda: informers.state(ref()) is not None)
    assert discovery.serves(("batch/v1", "Job"))


async def test_appwrapper_is_woken_once_a_kind_that_it_expects_is_no_longer_served_and_once_it_is_again(
    server: FakeApiServer, client: ClusterClient
) -> None:
    served = answer({"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]})
    gone = text("404 page not found", 404)
    server.on("GET", "/apis/batch/v1", gone)
    woken: list[str] = []
    informers = ObjectInformers(client, Discovery(client), woken.append)
    informers.expect("the-appwrapper", (ref(),))
    informers.expect("another", (make_ref(1, "Widget"),))
    informers.want("batch/v1", "Job")
    assert not informers.is_unserved(ref())
    async with workers.running(informers.run()):
        server.on("GET", "/readyz", refusal(500, "InternalError"), answer({}))
        await until(lambda: informers.is_unserved(ref()))
        assert not informers.is_unserved(make_ref(1, "Widget"))
        assert woken == ["the-appwrapper"]
        await asyncio.sleep(120)  # virtual
        assert woken == ["the-appwrapper"]
        server.on("GET", "/apis/batch/v1", served)
        script(server, JOBS, page(made()))
        await until(lambda: not informers.is_unserved(ref()))
    assert woken[1] == "the-appwrapper"

"""Admission: new AppWrappers are taken in once, in order, and what runs already is adopted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from dispatcher import errors
from dispatcher.api.annotations import UNKNOWN, Submitter
from dispatcher.api.names import FINALIZER, GROUPS_ANNOTATION, UID_LABEL, USER_ANNOTATION
from dispatcher.controller.intake.attempt_search import SEARCH_SECONDS
from dispatcher.controller.intake.intake import LARGEST_BATCH_BYTES
from dispatcher.controller.intake.specs import Specs
from dispatcher.core.kinds.manifest import anchor_name, build
from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.gangs.pods import Pod
from dispatcher.core.model.records.record import Phase
from dispatcher.core.model.resources import Resources
from dispatcher.kube.objects.appwrappers import AppWrapperView
from tests.builders import (
    at,
    attempt_of,
    make_appwrapper,
    make_metadata,
    make_owner,
    make_template,
    make_wrapped,
)
from tests.fakes import FakeApiServer, Reply, answer, client_of, never, refusal
from tests.unit.controller.wire import APPWRAPPERS, MISSING, PODS
from tests.unit.controller.world import World
from tests.unit.virtual_time import monotonic, until

Json = dict[str, Any]
UNKNOWN_KIND = make_template("Widget", "example.com/v1", name="w")


async def test_batch_is_taken_in_by_creation_then_by_resource_version(world: World) -> None:
    for name, second, version in [
        ("late", 9, "1"),
        ("tenth", 5, "10"),
        ("ninth", 5, "9"),
        ("early", 1, "50"),
    ]:
        made = f"2026-11-20T08:58:0{second}Z"
        view = world.show(make_appwrapper(name, creationTimestamp=made, resourceVersion=version))
        world.intake.add(view.uid)
    await world.intake.take_in_all()

    assert world.taken_in == ["early", "ninth", "tenth", "late"]
    assert [name for batch in world.store.batches for name, _ in batch] == ["early", "ninth", "tenth", "late"]


async def test_new_appwrapper_is_queued_with_its_demand(world: World) -> None:
    record = await world.admit(make_appwrapper(spec={"priority": 9, "priorityslope": 0.5}))
    assert (record.phase, record.priority, record.priority_slope) == (Phase.QUEUED, 9, 0.5)
    assert dict(record.gang.demand) == {"cpu": 1000}


async def test_appwrapper_that_can_never_be_dispatched_fails_with_the_reason(world: World) -> None:
    record = await world.admit(make_appwrapper("aw", UNKNOWN_KIND))
    assert record.phase is Phase.FAILED
    assert record.message.startswith("default/aw creation failure: spec.resources.GenericItems[0]: ")
    assert "custompodresources" in record.message


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        pytest.param("template.spec.groups[0].template", 'leads to nothing at "groups"', id="nothing"),
        pytest.param(
            "template.metadata",
            "leads to something that is no pod template with containers",
            id="no-pod-template",
        ),
    ],
)
@pytest.mark.parametrize("template", [UNKNOWN_KIND, make_template()], ids=["unknown-kind", "pod"])
async def test_appwrapper_with_a_path_to_no_pod_template_fails_and_names_the_path(
    world: World, template: Json, path: str, problem: str
) -> None:
    raw = make_appwrapper()
    raw["spec"] = {"components": [{"template": template, "podSets": [{"path": path, "replicas": 2}]}]}
    record = await world.admit(raw)
    assert (record.phase, record.message) == (
        Phase.FAILED,
        f'default/aw creation failure: spec.components[0].podSets[0].path: "{path}" {problem}. '
        "Name where the pod template is, beginning with `template` for the wrapped object.",
    )


@pytest.mark.parametrize("status", [{}, {"canrun": True}], ids=["new", "seems-to-run"])
async def test_appwrapper_in_a_denied_namespace_fails_at_once(world: World, status: Json) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(1)))
    world.intake = world.make_intake(denied_namespaces=frozenset({"default"}))
    record = await world.admit(make_appwrapper(status=status))
    assert (record.phase, record.message) == (
        Phase.FAILED,
        'default/aw creation failure: metadata.namespace: nothing is dispatched in "default". '
        "Submit the AppWrapper in another namespace.",
    )


SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "hunter2"}}


async def test_secret_with_values_is_refused_and_kept_nowhere(world: World) -> None:
    record = await world.admit(make_appwrapper("aw", SECRET))
    assert record.phase is Phase.FAILED
    assert record.message.startswith(
        "default/aw creation failure: spec.resources.GenericItems[0]: wraps a Secret with values"
    )
    assert world.store.specs == {}
    await world.reconcile(record.uid)  # nothing asks for the spec of one that was refused
    assert world.failed == []


async def test_secret_is_refused_to_an_appwrapper_that_only_seems_to_run(world: World) -> None:
    world.server.on("GET", "/api/v1/namespaces/default/secrets/s", MISSING)
    record = await world.admit(make_appwrapper("aw", SECRET, status={"canrun": True}))
    assert (record.phase, world.store.specs) == (Phase.FAILED, {})


async def test_operator_may_say_that_secrets_are_stored(world: World) -> None:
    world.intake = world.make_intake(takes_secrets=True)
    record = await world.admit(make_appwrapper("aw", SECRET))
    assert record.phase is Phase.QUEUED
    assert b"hunter2" in world.store.specs[record.spec_hash]


async def test_running_gang_with_a_secret_is_adopted(world: World) -> None:
    built = build(make_wrapped(SECRET), make_owner())
    there = {**built, "metadata": {**built["metadata"], "uid": "uid-of-s"}}
    world.server.on("GET", "/api/v1/namespaces/default/secrets/s", answer(there))
    record = await world.admit(make_appwrapper("aw", SECRET, status={"canrun": True}))
    assert record.phase is Phase.DISPATCHING


ENDS = [
    {"state": "Completed", "conditions": [{"type": "Completed", "status": "True"}]},
    {"state": "Failed", "conditions": [{"type": "Failed", "status": "True"}]},
]


@pytest.mark.parametrize("kept", [{}, {"keptUntil": "2026-11-20T08:58:10Z"}], ids=["gone", "kept"])
@pytest.mark.parametrize("end", ENDS, ids=["completed", "failed"])
async def test_ended_appwrapper_with_a_secret_is_recorded_without_its_spec(
    world: World, end: Json, kept: Json
) -> None:
    record = await world.admit(make_appwrapper("aw", SECRET, status=end | kept))
    assert (record.phase.value, world.store.specs) == (end["state"], {})
    await world.reconcile(record.uid)
    assert world.server.requests("DELETE") == []


async def test_setting_lets_secrets_of_ended_appwrappers_be_stored(world: World) -> None:
    world.intake = world.make_intake(takes_secrets=True)
    record = await world.admit(make_appwrapper("aw", SECRET, status=ENDS[0]))
    assert b"hunter2" in world.store.specs[record.spec_hash]


async def test_kept_secret_of_an_ended_gang_is_removed_when_its_time_is_up(
    world: World,
) -> None:
    """Another leader, which has never seen the spec, knows from the record what there is to remove."""
    built = build(make_wrapped(SECRET), make_owner())
    there = {**built, "metadata": {**built["metadata"], "uid": "uid-of-s"}}
    path = "/api/v1/namespaces/default/secrets/s"
    world.server.on("GET", path, answer(there), MISSING)
    world.server.on("DELETE", path, answer({}))
    until_then = {"keptUntil": "2026-11-20T08:58:10Z"}
    record = await world.admit(make_appwrapper("aw", SECRET, status=ENDS[0] | until_then))
    later = world.compose(Specs(world.store)).reconciler
    await asyncio.sleep(60)  # virtual

    await later.reconcile(record.uid)
    await later.reconcile(record.uid)

    assert [each.path for each in world.server.requests("DELETE")] == [path]
    assert world.record(record.uid).kept_until is None


async def test_appwrapper_that_the_database_cannot_hold_fails_with_the_reason(world: World) -> None:
    world.store.verdict = lambda change: "value too long" if change.after.priority == 9 else ""
    record = await world.admit(make_appwrapper("aw", spec={"priority": 9}))
    assert record.phase is Phase.FAILED
    assert record.message == (
        "default/aw creation failure: something in it is beyond what can be stored; the dispatcher's log says "
        "what (change_refused)"
    )


@pytest.mark.parametrize("case", ["known", "deleting", "gone"])
async def test_nothing_is_taken_in_twice_or_in_vain(world: World, case: str) -> None:
    metadata: Json = {"deletionTimestamp": "2026-11-20T09:00:00Z"} if case == "deleting" else {}
    view = world.show(make_appwrapper(**metadata))
    if case == "known":
        await world.admit(make_appwrapper())
    if case == "gone":
        world.hide(view.uid)
    world.intake.add(view.uid)
    await world.intake.take_in_all()
    assert len(world.taken_in) == (1 if case == "known" else 0)


def running(attempt: int) -> Json:
    built = build(make_wrapped(), make_owner(attempt=attempt))
    return {**built, "metadata": {**built["metadata"], "uid": "uid-of-pod"}}


async def test_running_gang_that_the_database_does_not_know_is_adopted(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(3)))
    record = await world.admit(make_appwrapper(status={"canrun": True}))
    assert (record.phase, attempt_of(record).number, attempt_of(record).cluster) == (
        Phase.DISPATCHING,
        3,
        "hub",
    )


# --- what a tenant can make look like a gang that runs ----------------------------------------------------------

YOUNG: Json = {"creationTimestamp": timestamp(at(3600))}
"""Of an AppWrapper that was created long after the key of the database."""


def shows(world: World, uid: str) -> None:
    """Have a live pod of the AppWrapper in the hub, as anybody can make one."""
    world.ledger.set_pod(Pod("thief", Resources({"cpu": 1000}), owner=uid))


@pytest.mark.parametrize(
    "status",
    [pytest.param({}, id="with-a-pod"), pytest.param({"canrun": True}, id="with-a-status-that-says-it-runs")],
)
async def test_new_appwrapper_is_queued_whatever_was_made_under_its_uid(world: World, status: Json) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(3)))
    shows(world, "uid-of-aw")
    record = await world.admit(make_appwrapper(status=status, **YOUNG))
    assert (record.phase, record.attempt) == (Phase.QUEUED, None)


async def test_new_appwrapper_is_queued_whatever_anchors_a_member_shows(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, anchors(("uid-of-aw", 1)))
    record = await world.admit(make_appwrapper(**FORGED, **YOUNG))
    assert (record.phase, record.attempt) == (Phase.QUEUED, None)


async def test_young_gang_is_adopted_by_the_seal_of_its_objects(world: World) -> None:
    built = build(make_wrapped(), make_owner(attempt=3, seals=world.seals))
    built["metadata"]["uid"] = "uid-of-pod"
    world.server.on("GET", f"{PODS}/pod", answer(built))
    record = await world.admit(make_appwrapper(status={"canrun": True}, **YOUNG))
    assert (record.phase, attempt_of(record).number) == (Phase.DISPATCHING, 3)


async def test_latest_attempt_is_adopted_where_an_earlier_one_has_left_something(world: World) -> None:
    templates = [make_template(name=name) for name in ("done", "runs", "also-done")]
    for template, number in zip(templates, (1, 3, 2), strict=True):
        built = build(make_wrapped(template), make_owner(attempt=number))
        built["metadata"]["uid"] = f"uid-of-{template['metadata']['name']}"
        world.server.on("GET", f"{PODS}/{template['metadata']['name']}", answer(built))
    record = await world.admit(make_appwrapper("aw", *templates, status={"canrun": True}))
    assert (record.phase, attempt_of(record).number) == (Phase.DISPATCHING, 3)


@pytest.mark.parametrize("canrun", [True, False])
@pytest.mark.parametrize(
    ("state", "condition", "expected"),
    [
        pytest.param(
            "Completed", {"type": "Completed", "status": "True"}, (Phase.COMPLETED, "", ""), id="completed"
        ),
        pytest.param(
            "Failed",
            {"type": "Failed", "status": "True", "reason": "FailedComponent", "message": "it\nfailed"},
            (Phase.FAILED, "FailedComponent", r"it\nfailed"),
            id="failed",
        ),
        pytest.param(
            "Failed", {"type": "Failed", "status": "True"}, (Phase.FAILED, "", ""), id="failed-without-a-word"
        ),
    ],
)
async def test_appwrapper_with_an_ended_status_never_runs_again(
    world: World, state: str, condition: Json, expected: tuple[Phase, str, str], canrun: bool
) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(1)))
    status = {"state": state, "canrun": canrun, "conditions": [condition]}
    record = await world.admit(make_appwrapper(status=status))
    assert (record.phase, record.reason, record.message) == expected
    assert record.attempt is None
    await world.reconcile(record.uid)
    assert world.server.requests("POST") == []


@pytest.mark.parametrize(
    ("kept_until", "expected"),
    [
        pytest.param("2026-11-20T08:58:10Z", datetime(2026, 11, 20, 8, 58, 10, tzinfo=UTC), id="a-time"),
        pytest.param("2026-11-20T08:58:10", None, id="a-time-of-no-zone"),
    ],
)
async def test_objects_are_kept_until_the_time_in_the_status(
    world: World, kept_until: object, expected: datetime | None
) -> None:
    done = {"type": "Completed", "status": "True"}
    status = {"state": "Completed", "conditions": [done], "keptUntil": kept_until}
    record = await world.admit(make_appwrapper(status=status))
    assert (record.phase, record.kept_until) == (Phase.COMPLETED, expected)
    assert (record.attempt is not None, record.holds_capacity) == (expected is not None, False)


async def test_appwrapper_with_a_contradictory_status_is_queued(world: World) -> None:
    record = await world.admit(make_appwrapper(status={"state": "Completed", "conditions": []}))
    assert record.phase is Phase.QUEUED


async def test_new_appwrapper_that_is_suspended_is_suspended_from_the_start(world: World) -> None:
    record = await world.admit(make_appwrapper(spec={"suspend": True}))
    assert record.phase is Phase.SUSPENDED
    assert list(world.cache.queued()) == []


@pytest.mark.parametrize(
    ("generation", "suspend", "is_as_created"),
    [(1, False, True), (1, True, False), (2, False, False), (7, True, False)],
)
async def test_age_of_an_appwrapper_that_may_have_been_suspended_begins_when_it_is_read(
    world: World, generation: int, suspend: bool, is_as_created: bool
) -> None:
    record = await world.admit(make_appwrapper(spec={"suspend": suspend}, generation=generation))
    assert record.age_begins_at == (record.created_at if is_as_created else record.phase_since)
    assert record.created_at < record.phase_since


async def test_new_appwrapper_that_is_suspended_though_it_runs_is_adopted_and_then_taken_back(
    world: World,
) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(1)))
    record = await world.admit(make_appwrapper(spec={"suspend": True}, status={"canrun": True}))
    assert record.phase is Phase.DISPATCHING
    await world.reconcile(record.uid)
    assert world.record(record.uid).phase is Phase.SUSPENDING


async def test_dispatch_duration_is_remembered(world: World) -> None:
    spec = {"schedulingSpec": {"dispatchDuration": {"expected": 3600, "limit": 7200}}}
    record = await world.admit(make_appwrapper(spec=spec))
    assert (record.expected_seconds, record.limit_seconds) == (3600, 7200)


STAMPED = {USER_ANNOTATION: "alice", GROUPS_ANNOTATION: "vision\nllm"}


@pytest.mark.parametrize(
    ("believes_stamps", "annotations", "submitter"),
    [
        pytest.param(True, STAMPED, Submitter("alice", ("vision", "llm")), id="believed"),
        pytest.param(True, {}, UNKNOWN, id="older-than-the-policy"),
        pytest.param(False, STAMPED, UNKNOWN, id="anybody-may-have-written-it"),
    ],
)
@pytest.mark.parametrize(
    ("template", "status", "phase"),
    [
        pytest.param(make_template(), {}, Phase.QUEUED, id="queued"),
        pytest.param(UNKNOWN_KIND, {}, Phase.FAILED, id="rejected"),
        pytest.param(make_template(), {"canrun": True}, Phase.DISPATCHING, id="adopted"),
        pytest.param(
            make_template(),
            {"state": "Completed", "conditions": [{"type": "Completed", "status": "True"}]},
            Phase.COMPLETED,
            id="recalled",
        ),
    ],
)
async def test_submitter_is_recorded_if_its_annotations_are_trusted(
    world: World,
    template: Json,
    status: Json,
    phase: Phase,
    believes_stamps: bool,
    annotations: Json,
    submitter: Submitter,
) -> None:
    world.server.on("GET", f"{PODS}/pod", answer(running(1)))
    world.intake = world.make_intake(believes_stamps=believes_stamps)
    record = await world.admit(make_appwrapper("aw", template, status=status, annotations=annotations))
    assert (record.phase, record.user, record.groups) == (phase, submitter.user, submitter.groups)


async def test_appwrapper_that_only_says_it_can_run_is_queued(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", refusal(404, "NotFound"))
    record = await world.admit(make_appwrapper(status={"canrun": True}))
    assert record.phase is Phase.QUEUED


async def test_appwrapper_that_cannot_be_read_now_comes_back_and_delays_no_other(world: World) -> None:
    world.server.on("GET", f"{PODS}/pod", refusal(503, "ServiceUnavailable"))
    for raw in (make_appwrapper("troubled", status={"canrun": True}), make_appwrapper("fine")):
        world.intake.add(world.show(raw).uid)
    await world.intake.take_in_all()
    assert (world.taken_in, world.failed) == (["fine"], ["uid-of-troubled"])


async def test_member_that_goes_while_it_is_asked_is_no_reason_to_fail(world: World) -> None:
    async with FakeApiServer() as far, client_of(far) as client:
        west = world.make_cluster("west", client)

        async def goes(request: web.Request) -> web.StreamResponse:
            del world.clusters["west"]
            return await MISSING(request)

        far.on("GET", CONFIGMAPS, goes)
        hub = world.clusters.pop("hub")
        world.clusters |= {"west": west, "hub": hub}
        world.server.on("GET", f"{PODS}/pod", MISSING)
        record = await world.admit(make_appwrapper(finalizers=[FINALIZER]))
    assert (record.phase, world.failed) == (Phase.QUEUED, [])


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        pytest.param(RuntimeError("nobody thought of this"), 1, id="new"),
        pytest.param(errors.Unavailable("no"), 0, id="no-answer"),
    ],
)
async def test_unexpected_failure_of_a_member_during_intake_is_counted(
    world: World,
    west: FakeApiServer,
    counted: Callable[[str], int],
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    expected: int,
) -> None:
    def fails(_uids: object) -> None:
        raise failure

    monkeypatch.setattr(world.clusters["west"].anchors, "all", fails)
    uid = await comes(world, make_appwrapper(finalizers=[FINALIZER]))
    assert (world.failed, counted("anchor_search")) == ([uid], expected)


async def test_member_that_is_too_slow_is_not_counted(
    world: World, west: FakeApiServer, counted: Callable[[str], int]
) -> None:
    west.on("GET", CONFIGMAPS, never)
    uid = await comes(world, make_appwrapper(finalizers=[FINALIZER]))
    assert (world.failed, counted("anchor_search")) == ([uid], 0)


# --- what was deleted before it was known ----------------------------------------------------------------------

CONFIGMAPS = "/api/v1/configmaps"


def anchors(*found: tuple[str, int]) -> Reply:
    """Replies a list of anchors, of these attempts by the uid of their AppWrappers."""
    items = [
        {"metadata": make_metadata(anchor_name(uid, attempt), labels={UID_LABEL: uid})}
        for uid, attempt in found
    ]
    return answer({"metadata": {"resourceVersion": "1"}, "items": items})


LEAVING: Json = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-11-20T09:00:00Z"}


@pytest.fixture
async def west(world: World) -> AsyncIterator[FakeApiServer]:
    """A member that has no anchors; nor has the hub anything."""
    async with FakeApiServer() as west, client_of(west) as client:
        world.clusters["west"] = world.make_cluster("west", client)
        west.on("GET", CONFIGMAPS, anchors())
        world.server.on("GET", f"{PODS}/pod", MISSING)
        yield west


def finalizer_removed(world: World) -> bool:
    return [each.path for each in world.server.requests("PATCH")] == [f"{APPWRAPPERS}/aw"]


async def comes(world: World, raw: Json) -> str:
    """Have an AppWrapper seen for the first time, as at a start; its uid."""
    world.server.on("PATCH", f"{APPWRAPPERS}/aw", answer({}))
    uid = world.show(raw).uid
    world.intake.add(uid)
    await world.intake.take_in_all()
    return uid


async def test_deleted_appwrapper_is_taken_in_to_remove_its_objects_in_a_member(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, anchors(("uid-of-aw", 1), ("uid-of-aw", 2)))
    uid = await comes(world, make_appwrapper(**LEAVING))
    record = world.record(uid)
    assert (record.phase, attempt_of(record).number, attempt_of(record).cluster) == (
        Phase.DISPATCHING,
        2,
        "west",
    )
    await world.reconcile(uid)
    assert (world.record(uid).phase, finalizer_removed(world)) == (Phase.DELETING, False)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(make_appwrapper(**LEAVING), id="of-which-there-is-nothing"),
        pytest.param(make_appwrapper("aw", UNKNOWN_KIND, **LEAVING), id="that-could-never-be-dispatched"),
    ],
)
async def test_deleted_appwrapper_without_objects_loses_its_finalizer(
    world: World, west: FakeApiServer, raw: Json
) -> None:
    uid = await comes(world, raw)
    assert (world.cache.get(uid), world.failed) == (None, [])
    await world.reconcile(uid)
    assert finalizer_removed(world)


async def test_deleted_appwrapper_keeps_its_finalizer_until_every_member_was_asked(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, refusal(500, "InternalError"))
    uid = await comes(world, make_appwrapper(**LEAVING))
    for _ in range(2):
        await world.reconcile(uid)
        await world.intake.take_in_all()
    assert (finalizer_removed(world), world.failed) == (False, [uid] * 3)

    west.on("GET", CONFIGMAPS, anchors())
    await world.reconcile(uid)
    await world.intake.take_in_all()
    assert world.failed == [uid] * 4  # to come again
    await world.reconcile(uid)
    assert finalizer_removed(world)


async def test_appwrapper_that_was_not_searched_keeps_its_finalizer_after_its_deletion(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, refusal(500, "InternalError"))
    uid = await comes(world, make_appwrapper(finalizers=[FINALIZER]))
    world.show(make_appwrapper(**LEAVING))
    await world.reconcile(uid)
    assert (finalizer_removed(world), world.cache.get(uid)) == (False, None)
    west.on("GET", CONFIGMAPS, anchors((uid, 1)))
    await world.intake.take_in_all()
    assert world.record(uid).phase is Phase.DISPATCHING


# --- while not every member can be asked --------------------------------------------------------------------------

WITH_FINALIZER: Json = {"finalizers": [FINALIZER]}


@pytest.mark.parametrize("found", [[], [("uid-of-aw", 1)]], ids=["found-nowhere", "found-in-one-member"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(False, False, id="all-the-time"),
        pytest.param(False, True, id="until-one-came-that-was-not-asked"),
        pytest.param(True, False, id="since-one-has-gone"),
    ],
)
async def test_appwrapper_with_a_finalizer_waits_while_a_member_cannot_be_asked(
    world: World, west: FakeApiServer, *, before: bool, after: bool, found: list[tuple[str, int]]
) -> None:
    are_all_here = before

    async def asked(request: web.Request) -> web.StreamResponse:
        nonlocal are_all_here
        are_all_here = after
        return await anchors(*found)(request)

    world.intake = world.make_intake(is_complete=lambda: are_all_here)
    west.on("GET", CONFIGMAPS, asked)
    uid = await comes(world, make_appwrapper(**WITH_FINALIZER))
    assert (world.cache.get(uid), world.taken_in, world.failed) == (None, [], [uid])

    are_all_here = after = True
    record = await world.admit(make_appwrapper(**WITH_FINALIZER))
    assert record.phase is (Phase.DISPATCHING if found else Phase.QUEUED)


async def test_appwrapper_with_a_finalizer_is_adopted_in_the_cluster_of_its_status(
    world: World, west: FakeApiServer
) -> None:
    world.intake = world.make_intake(is_complete=lambda: False)
    west.on("GET", CONFIGMAPS, anchors(("uid-of-aw", 1)))
    record = await world.admit(make_appwrapper(status={"cluster": "west"}, **WITH_FINALIZER))
    assert (record.phase, attempt_of(record).cluster) == (Phase.DISPATCHING, "west")


@pytest.mark.parametrize("status", [{}, {"canrun": True, "cluster": "east"}], ids=["new", "seems-to-run"])
async def test_appwrapper_without_a_finalizer_is_queued_though_a_member_cannot_be_asked(
    world: World, west: FakeApiServer, status: Json
) -> None:
    world.intake = world.make_intake(is_complete=lambda: False)
    assert (await world.admit(make_appwrapper(status=status))).phase is Phase.QUEUED


# --- our finalizer, written by somebody else -------------------------------------------------------------------

FORGED: Json = {"finalizers": [FINALIZER]}


async def test_forged_finalizers_cost_one_list_of_each_member_and_nothing_on_the_hub(
    world: World, west: FakeApiServer
) -> None:
    items = [make_template(name=f"pod-{number}") for number in range(256)]
    for number in range(20):
        world.intake.add(world.show(make_appwrapper(f"forged-{number}", *items, **FORGED)).uid)
    await world.intake.take_in_all()
    assert len(world.taken_in) == 20
    assert (len(west.requests()), len(world.server.requests())) == (1, 0)
    (asked,) = west.requests("GET", CONFIGMAPS)
    assert asked.query["labelSelector"].startswith(f"{UID_LABEL} in (uid-of-forged-0,uid-of-forged-1,")


async def test_many_forged_finalizers_still_cost_one_list(world: World, west: FakeApiServer) -> None:
    for number in range(60):
        world.intake.add(world.show(make_appwrapper(f"forged-{number}", **FORGED)).uid)
    await world.intake.take_in_all()
    (asked,) = west.requests()
    assert (asked.query["labelSelector"], len(world.taken_in)) == (UID_LABEL, 60)


async def test_new_appwrappers_that_have_to_be_looked_for_hold_up_no_others(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, never)
    running = asyncio.create_task(world.intake.run())
    for number in range(20):
        world.intake.add(world.show(make_appwrapper(f"forged-{number}", **FORGED)).uid)
    await until(lambda: west.requests("GET", CONFIGMAPS))
    begun = monotonic()
    for name in ("canary", "another"):
        world.intake.add(world.show(make_appwrapper(name)).uid)
        await until(lambda name=name: name in world.taken_in)  # type: ignore[misc]
    assert monotonic() - begun < 1
    assert world.taken_in == ["canary", "another"]
    await until(lambda: len(world.failed) == 20)
    assert monotonic() - begun < SEARCH_SECONDS + 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_forged_finalizer_of_an_appwrapper_that_never_ran_is_removed_on_its_deletion(
    world: World, west: FakeApiServer
) -> None:
    uid = await comes(world, make_appwrapper(**FORGED))
    assert world.record(uid).phase is Phase.QUEUED
    world.show(make_appwrapper(**LEAVING))
    await world.reconcile(uid, times=2)
    patched = [each.path for each in world.server.requests("PATCH")]
    assert (world.cache.get(uid), f"{APPWRAPPERS}/aw" in patched) == (None, True)


async def test_gang_in_a_member_is_adopted_there_without_any_status(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, anchors(("uid-of-aw", 1)))
    record = await world.admit(make_appwrapper(**FORGED))
    assert (record.phase, attempt_of(record).cluster) == (Phase.DISPATCHING, "west")


async def test_gang_that_moved_from_a_member_to_the_hub_is_adopted_on_the_hub(
    world: World, west: FakeApiServer
) -> None:
    west.on("GET", CONFIGMAPS, anchors(("uid-of-aw", 1)))
    world.server.on("GET", f"{PODS}/pod", answer(running(2)))
    record = await world.admit(make_appwrapper(status={"state": "Pending"}, **FORGED))
    assert (attempt_of(record).number, attempt_of(record).cluster) == (2, "hub")


async def test_batch_has_a_largest_size_in_bytes_too(world: World) -> None:
    """Thousands of AppWrappers at the bound must not be in memory at once."""
    data = {"data": {"a": "x" * 200_000}}
    for number in range(50):
        template = make_template("ConfigMap", name=f"c-{number}") | data
        world.intake.add(world.show(make_appwrapper(f"aw-{number:02}", template)).uid)
    await world.intake.take_in_all()
    assert sorted(world.taken_in) == [f"aw-{number:02}" for number in range(50)]
    most = LARGEST_BATCH_BYTES // 200_000  # of a transaction; one more begins to be too many
    assert [len(batch) for batch in world.store.batches] == [most, 1, most, 1, 50 - 2 * (most + 1)]


async def test_small_new_appwrapper_waits_for_at_most_one_large_appwrapper(world: World) -> None:
    """Large ones are read one after the other; who comes meanwhile is taken in before the next."""
    for number in range(3):
        template = make_template("ConfigMap", name=f"large-{number}") | {"data": {"a": "x" * 40_000}}
        large = make_appwrapper(f"large-{number}", template, resourceVersion=str(number))
        world.intake.add(world.show(large).uid)
    world.intake.add(world.show(make_appwrapper("small")).uid)
    late = world.show(make_appwrapper("late"))
    asked, with_spec = list[str](), world.hub.with_spec

    async def reads(view: AppWrapperView) -> AppWrapperView | None:
        asked.append(view.name)
        if asked == ["small", "large-0"]:
            world.intake.add(late.uid)
        return await with_spec(view)

    world.hub.with_spec = reads  # type: ignore[method-assign]
    await world.intake.take_in_all()

    assert world.taken_in == ["small", "large-0", "late", "large-1", "large-2"]
    assert [len(batch) for batch in world.store.batches] == [1, 1, 1, 2]

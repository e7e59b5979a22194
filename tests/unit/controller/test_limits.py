"""What one namespace may have: of the queue, of priority, and of what it declares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.api.conditions import ConditionType
from dispatcher.api.names import FINALIZER, MAX_PRIORITY, QUEUE_LABEL
from dispatcher.controller.intake.limits import PATH, Namespaces
from dispatcher.core.intake.labels import PriorityClasses
from dispatcher.core.intake.namespace_bounds import Ceiling
from dispatcher.core.kinds.manifest import build
from dispatcher.core.lifecycle import queue_changes
from dispatcher.core.lifecycle.transitions import Cause
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.kube.client import METADATA_LIST, ClusterClient
from dispatcher.kube.objects.appwrappers import AppWrapperView
from tests.builders import make_appwrapper, make_owner, make_template, make_wrapped
from tests.fakes import FakeApiServer, answer, never, refusal, watch
from tests.unit.controller.wire import PODS, job, made
from tests.unit.controller.world import World
from tests.unit.virtual_time import until

Json = dict[str, Any]


def numbered(number: int, **fields: Any) -> Json:  # noqa: ANN401
    """One of a series of AppWrappers, each a second younger than the one before."""
    made = f"2026-11-20T08:58:{number:02}Z"
    return make_appwrapper(f"aw-{number}", creationTimestamp=made, uid=f"uid-{number}", **fields)


async def submit(world: World, *numbers: int, **fields: Any) -> list[AppWrapperView]:  # noqa: ANN401
    views = [world.show(numbered(number, **fields)) for number in numbers]
    for view in views:
        world.intake.add(view.uid)
    await world.intake.take_in_all()
    return views


async def dispatch(world: World, number: int) -> None:
    """Have it leave the queue."""
    await world.commit(queue_changes.dispatch(world.record(f"uid-{number}"), "hub", world.now()))


def first_event(world: World) -> tuple[str, str]:
    """The cause of the last change, and what is said of it."""
    event = world.store.changes[-1].events[0]
    return event.cause, event.message


# --- how much it may queue -----------------------------------------------------------------------------


async def test_appwrappers_beyond_the_bound_stay_outside_and_enter_by_age(world: World) -> None:
    world.bound.most = 2
    await submit(world, 4, 2, 1, 3)
    assert world.taken_in == ["aw-1", "aw-2"]
    assert [world.cache.get(f"uid-{number}") for number in (3, 4)] == [None, None]
    assert len(list(world.cache.queued())) == 2

    await dispatch(world, 2)
    await world.intake.take_in_all()
    assert world.taken_in == ["aw-1", "aw-2", "aw-3"]
    await dispatch(world, 1)
    await dispatch(world, 3)
    await world.intake.take_in_all()
    assert world.taken_in == ["aw-1", "aw-2", "aw-3", "aw-4"]
    assert len(world.bound) == 0


async def test_appwrapper_that_leaves_the_queue_lets_the_next_enter(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 2)
    intake = asyncio.create_task(world.intake.run())
    await dispatch(world, 1)
    await asyncio.sleep(0.1)  # virtual
    intake.cancel()
    assert world.taken_in == ["aw-1", "aw-2"]


async def test_new_appwrapper_does_not_enter_before_older_deferred_appwrappers(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 3)
    await dispatch(world, 1)
    await submit(world, 5)
    assert world.taken_in == ["aw-1", "aw-3"]
    await dispatch(world, 3)
    await submit(world, 4)
    assert world.taken_in == ["aw-1", "aw-3", "aw-4"], "the older of the two, though it came later"


async def test_age_of_a_deferred_appwrapper_begins_when_it_enters_the_queue(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, spec={"suspend": True})
    await submit(world, 2)
    await world.commit(queue_changes.resume(world.record("uid-1"), world.now()))
    await dispatch(world, 1)
    entered = world.now()
    await world.intake.take_in_all()
    [record] = [each for each in world.cache.queued() if each.name == "aw-2"]
    assert record.created_at < record.age_begins_at
    assert record.age_begins_at >= entered


async def test_bound_counts_each_namespace_by_itself_and_includes_suspended_appwrappers(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, spec={"suspend": True})
    await submit(world, 2)
    await submit(world, 3, namespace="other")
    assert world.taken_in == ["aw-1", "aw-3"]


async def test_appwrapper_that_has_run_or_ended_takes_no_place(world: World) -> None:
    world.bound.most = 1
    running = build(make_wrapped(), make_owner(uid="uid-2"))
    world.server.on(
        "GET", f"{PODS}/pod", answer({**running, "metadata": {**running["metadata"], "uid": "p"}})
    )
    done = {"state": "Completed", "conditions": [{"type": "Completed", "status": "True"}]}
    await submit(world, 1)
    await submit(world, 2, status={"canrun": True})
    await submit(world, 3, status=done)
    assert [world.record(f"uid-{number}").phase for number in (2, 3)] == [Phase.DISPATCHING, Phase.COMPLETED]


@pytest.mark.parametrize(
    "fields", [{"finalizers": [FINALIZER]}, {"status": {"canrun": True}}], ids=["finalizer", "canrun"]
)
async def test_marks_of_having_run_are_no_way_around_the_bound(world: World, fields: Json) -> None:
    world.bound.most = 1
    await submit(world, 1)
    await submit(world, 2, **fields)
    assert world.taken_in == ["aw-1"]


async def test_rejected_appwrapper_leaves_its_place_to_the_next(world: World) -> None:
    world.bound.most = 1
    views = [
        world.show(
            {**numbered(0), "spec": make_appwrapper("bad", make_template("Widget", "example.com/v1"))["spec"]}
        ),
        world.show(numbered(1)),
    ]
    for view in views:
        world.intake.add(view.uid)
    await world.intake.take_in_all()
    assert world.record("uid-0").phase is Phase.FAILED
    assert world.record("uid-1").phase is Phase.QUEUED


async def test_status_of_an_appwrapper_outside_says_so_once(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 2)
    await world.reconcile("uid-2", times=3)
    [written] = world.statuses()
    assert written["waiting"]["reason"] == "NamespaceQueueFull"
    assert world.store.batches == [[("aw-1", "submitted")]]

    world.show(numbered(2, status=written, resourceVersion="9"))
    await world.reconcile("uid-2", times=3)
    assert len(world.statuses()) == 1


async def test_new_leader_does_not_write_a_deferred_status_again(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 2)
    await world.reconcile("uid-2")
    [written] = world.statuses()
    world.bound.forget("uid-2")  # as in the memory of a new leader
    await submit(world, 2, status=written)
    await world.reconcile("uid-2")
    assert len(world.statuses()) == 1
    assert world.bound.is_deferred("uid-2")


async def test_deleted_appwrapper_outside_is_forgotten(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 2, 3)
    world.hide("uid-2")
    await world.reconcile("uid-2")
    assert len(world.bound) == 1
    await dispatch(world, 1)
    await world.intake.take_in_all()
    assert world.taken_in == ["aw-1", "aw-3"]


async def test_appwrapper_outside_that_vanishes_lets_the_next_enter(world: World) -> None:
    world.bound.most = 1
    await submit(world, 1, 2, 3)
    world.hide("uid-2")
    await dispatch(world, 1)
    await world.intake.take_in_all()
    assert world.taken_in == ["aw-1", "aw-3"]


# --- how urgent it may be ------------------------------------------------------------------------------


async def test_priority_above_the_ceiling_counts_as_the_ceiling_and_gives_a_warning(world: World) -> None:
    world.ceilings["default"] = Ceiling(100, 0.5)
    record = await world.admit(make_appwrapper(spec={"priority": 900, "priorityslope": 2}))
    assert (record.priority, record.priority_slope) == (100, 0.5)
    said = "priority 900 counts as 100 and priorityslope 2 counts as 0.5, the ceiling of namespace default"
    assert first_event(world) == (Cause.SUBMITTED, said)
    await world.forget_wakes()
    await world.reconcile(record.uid)
    assert world.record(record.uid).version == record.version, "and stays so"


async def ask_for(world: World, priority: int) -> Record:
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    view = world.show(make_appwrapper(spec={"priority": priority}))
    await world.reconcile(view.uid)
    return world.record(view.uid)


async def test_new_priority_counts_up_to_the_ceiling(world: World) -> None:
    world.ceilings["default"] = Ceiling(100)
    await world.admit(make_appwrapper(spec={"priority": 5}))
    assert (await ask_for(world, 60)).priority == 60
    assert first_event(world) == (Cause.REPRIORITISED, "priority 5 → 60, slope 0 → 0")
    assert (await ask_for(world, 900)).priority == 100
    said = "priority 60 → 100, slope 0 → 0: priority 900 counts as 100, the ceiling of namespace default"
    assert first_event(world) == (Cause.REPRIORITISED, said)
    before = len(world.store.changes)
    assert (await ask_for(world, 901)).priority == 100
    assert len(world.store.changes) == before


async def test_changed_ceiling_moves_pending_appwrappers(world: World) -> None:
    record = await world.admit(make_appwrapper(spec={"priority": 900}))
    world.ceilings["default"] = Ceiling(10)
    await world.reconcile(record.uid)
    assert world.record(record.uid).priority == 10
    world.ceilings["default"] = Ceiling(1000)
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    await world.reconcile(record.uid)
    assert world.record(record.uid).priority == 900


# --- what it declares ----------------------------------------------------------------------------------


async def test_declared_demand_that_differs_from_the_template_sets_a_condition_and_an_event(
    world: World,
) -> None:
    items = [{"generictemplate": job(), "custompodresources": []}]
    view = world.show(make_appwrapper(spec={"resources": {"GenericItems": items}}))
    world.intake.add(view.uid)
    await world.intake.take_in_all()
    assert dict(world.record(view.uid).gang.demand) == {"cpu": 1000}
    said = (
        "spec.resources.GenericItems[0].custompodresources: cpu: 0 declared, 1 by the template; "
        "the larger is charged"
    )
    assert first_event(world) == (Cause.SUBMITTED, said)
    found = world.record(view.uid).condition(ConditionType.DEMAND_DIFFERS)
    assert found is not None
    assert (found.status, found.reason, found.message) == (True, "DeclarationDiffers", said)


async def test_declaration_that_agrees_with_the_template_is_no_news(world: World) -> None:
    declared = [{"replicas": 1, "requests": {"cpu": 1}}]
    items = [{"generictemplate": job(), "custompodresources": declared}]
    view = world.show(make_appwrapper(spec={"resources": {"GenericItems": items}}))
    world.intake.add(view.uid)
    await world.intake.take_in_all()
    assert first_event(world) == (Cause.SUBMITTED, "")
    assert world.record(view.uid).condition(ConditionType.DEMAND_DIFFERS) is None


async def test_finalizers_of_a_template_give_a_warning(world: World) -> None:
    await world.admit(make_appwrapper("aw", make_template(name="pod", finalizers=["a/b"])))
    said = "not created: spec.resources.GenericItems[0].generictemplate.metadata.finalizers"
    assert first_event(world) == (Cause.SUBMITTED, said)


# --- which class it names ------------------------------------------------------------------------------

TRAIN = {"priorityClassName": "train"}
NO_TRAIN = (
    "there is no PriorityClass train, which label priorityClassName names: the priority counts as 0, "
    "and no gang is preempted for it"
)


def warning(record: Record) -> tuple[bool, str, str] | None:
    """The condition PriorityClassUnknown; None if there is none."""
    found = record.condition(ConditionType.PRIORITY_CLASS_UNKNOWN)
    return (found.status, found.reason, found.message) if found else None


async def look_at(world: World, classes: PriorityClasses, **fields: Any) -> Record:  # noqa: ANN401
    """Have these classes known, and the AppWrapper looked at."""
    world.classes = classes
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    view = world.show(make_appwrapper(labels=TRAIN, **fields))
    await world.reconcile(view.uid, times=2)
    return world.record(view.uid)


async def follow(world: World, classes: dict[str, int], **fields: Any) -> Record:  # noqa: ANN401
    """Have these classes there, and the AppWrapper looked at."""
    return await look_at(world, PriorityClasses(of_pods=classes), **fields)


async def test_priority_of_the_class_counts_up_to_the_ceiling(world: World) -> None:
    world.ceilings["default"] = Ceiling(100)
    world.classes = PriorityClasses(of_pods={"train": 900})
    record = await world.admit(make_appwrapper(labels=TRAIN))
    assert (record.priority, warning(record)) == (100, None)
    said = "priority 900 counts as 100, the ceiling of namespace default"
    assert first_event(world) == (Cause.SUBMITTED, said)
    assert (await follow(world, {"train": 900})).version == record.version, "and stays so"
    assert (await follow(world, {"train": 70})).priority == 70
    assert first_event(world) == (Cause.REPRIORITISED, "priority 100 → 70, slope 0 → 0")
    assert (await follow(world, {"train": 800})).priority == 100
    assert first_event(world) == (
        Cause.REPRIORITISED,
        f"priority 70 → 100, slope 0 → 0: {said.replace('9', '8')}",
    )


async def test_unknown_priority_class_gives_a_warning_until_it_exists(world: World) -> None:
    record = await world.admit(make_appwrapper(labels=TRAIN))
    assert (record.priority, warning(record)) == (0, (True, "PriorityClassNotFound", NO_TRAIN))
    assert first_event(world) == (Cause.SUBMITTED, NO_TRAIN)
    assert [each.type for each in record.conditions] == ["Init", "PriorityClassUnknown", "Queueing"]
    assert (await follow(world, {})).version == record.version

    known = await follow(world, {"train": 50})
    assert (known.priority, warning(known)) == (50, (False, "PriorityClassNotFound", NO_TRAIN))
    assert first_event(world) == (
        Cause.REPRIORITISED,
        "priority 0 → 50, slope 0 → 0, may preempt",
    )

    gone = await follow(world, {})
    assert (gone.priority, warning(gone)) == (0, (True, "PriorityClassNotFound", NO_TRAIN))
    assert first_event(world) == (
        Cause.REPRIORITISED,
        f"priority 50 → 0, slope 0 → 0, preempts no gang: {NO_TRAIN}",
    )

    zero = await follow(world, {"train": 0})
    assert (zero.priority, warning(zero)) == (0, (False, "PriorityClassNotFound", NO_TRAIN))
    before = len(world.store.changes)
    await follow(world, {"train": 0})
    assert len(world.store.changes) == before


async def test_priority_class_that_becomes_unknown_adds_its_condition_after_init(world: World) -> None:
    await world.admit(make_appwrapper(labels=TRAIN, spec={"priority": 3}))
    record = await follow(world, {})
    assert (record.priority, warning(record)) == (0, (True, "PriorityClassNotFound", NO_TRAIN))
    assert [each.type for each in record.conditions] == ["Init", "PriorityClassUnknown", "Queueing"]


async def test_priority_in_the_spec_counts_whatever_the_label_says(world: World) -> None:
    record = await world.admit(make_appwrapper(labels=TRAIN, spec={"priority": 3}))
    assert (record.priority, warning(record)) == (3, None)
    assert (await follow(world, {"train": 50}, spec={"priority": 3})).version == record.version


def pod_says(**fields: Any) -> Json:  # noqa: ANN401
    """A Job whose pod template has these fields as well."""
    raw = job("train")
    raw["spec"]["template"]["spec"] = {**raw["spec"]["template"]["spec"], **fields}
    return raw


@pytest.mark.parametrize(
    ("labels", "pod", "expected"),
    [
        ({}, {}, False),
        ({}, {"preemptionPolicy": "Never"}, True),
        ({}, {"preemptionPolicy": "PreemptLowerPriority"}, False),
        ({}, {"priorityClassName": "polite"}, True),
        ({}, {"priorityClassName": "usual"}, False),
        ({"priorityClassName": "polite"}, {}, True),
        ({"kueue.x-k8s.io/priority-class": "polite"}, {}, True),
        ({"kueue.x-k8s.io/priority-class": "usual"}, {"priorityClassName": "polite"}, True),
        ({"kueue.x-k8s.io/priority-class": "unknown"}, {}, True),
    ],
)
async def test_gang_preempts_no_other_if_its_pods_or_its_class_say_so(
    world: World, labels: dict[str, str], pod: Json, expected: bool
) -> None:
    world.classes = PriorityClasses(of_pods={"polite": 5, "usual": 5}, never_preempting={"polite"})
    record = await world.admit(make_appwrapper("aw", pod_says(**pod), labels=labels))
    assert record.never_preempts is expected


async def test_preemption_policy_of_the_label_is_followed_and_that_of_the_pods_stays(world: World) -> None:
    classes = {"train": 5}
    world.classes = PriorityClasses(of_pods=classes, never_preempting={"train"})
    record = await world.admit(make_appwrapper(labels=TRAIN))
    assert record.never_preempts
    record = await follow(world, classes)
    assert not record.never_preempts
    assert first_event(world) == (
        Cause.REPRIORITISED,
        "priority 5 → 5, slope 0 → 0, may preempt",
    )


async def test_class_that_is_not_surely_gone_changes_no_queued_gang(world: World) -> None:
    """A leader that begins while the class is replaced does not know its value: the record does."""
    world.classes = PriorityClasses(of_pods={"train": 50}, never_preempting={"train"})
    record = await world.admit(make_appwrapper(labels=TRAIN))
    assert (record.priority, record.class_never_preempts) == (50, True)
    unsure = await look_at(world, PriorityClasses(are_all=False))
    assert (unsure.version, warning(unsure)) == (record.version, None)
    world.ceilings["default"] = Ceiling(40)
    assert (await look_at(world, PriorityClasses(are_all=False))).priority == 40
    assert first_event(world) == (
        Cause.REPRIORITISED,
        "priority 50 → 40, slope 0 → 0: priority 50 counts as 40, the ceiling of namespace default",
    )
    gone = await look_at(world, PriorityClasses())
    assert (gone.priority, warning(gone)) == (0, (True, "PriorityClassNotFound", NO_TRAIN))


async def test_policy_of_a_class_that_is_not_surely_gone_counts_with_a_written_priority(world: World) -> None:
    world.classes = PriorityClasses(of_pods={"train": 50}, never_preempting={"train"})
    record = await world.admit(make_appwrapper(labels=TRAIN, spec={"priority": 7}))
    assert (record.priority, record.class_never_preempts) == (7, True)
    unsure = await look_at(world, PriorityClasses(are_all=False), spec={"priority": 7})
    assert unsure.version == record.version
    unsure = await look_at(world, PriorityClasses(are_all=False), spec={"priority": 9})
    assert (unsure.priority, unsure.class_never_preempts) == (9, True)


async def test_class_that_nobody_knew_counts_as_unknown_also_while_it_is_not_surely_gone(
    world: World,
) -> None:
    world.classes = PriorityClasses(are_all=False)
    record = await world.admit(make_appwrapper(labels=TRAIN))
    assert (record.priority, warning(record)) == (0, (True, "PriorityClassNotFound", NO_TRAIN))
    unsure = await look_at(world, PriorityClasses(are_all=False))
    assert unsure.version == record.version
    assert (await look_at(world, PriorityClasses(of_pods={"train": 5}, are_all=False))).priority == 5


async def test_class_of_a_running_gang_changes_nothing(world: World) -> None:
    world.classes = PriorityClasses(of_pods={"train": 50})
    world.jobs.has(made(job("train")))
    record = await world.running(make_appwrapper("aw", job("train"), labels=TRAIN))
    world.classes = PriorityClasses()
    await asyncio.sleep(1)  # of virtual time: wishes are followed once a second
    await world.reconcile(record.uid)
    assert (world.record(record.uid).priority, warning(world.record(record.uid))) == (50, None)


# --- Ceilings are what namespaces say, and what they said last ---------------------------------------------


DEFAULT = Ceiling(7)


def namespace(name: str, version: int = 1, labels: dict[str, str] | None = None, **annotations: str) -> Json:
    keys = {key.replace("_", "-"): value for key, value in annotations.items()}
    ours = {f"dispatcher.codeflare.dev/{key}": value for key, value in keys.items()}
    metadata = {"uid": name, "name": name, "resourceVersion": str(version), "annotations": ours}
    metadata["labels"] = labels or {}
    return {"metadata": metadata}


@asynccontextmanager
async def running(namespaces: Namespaces) -> AsyncIterator[None]:
    task = asyncio.create_task(namespaces.run())
    try:
        await namespaces.wait_until_listed()
        yield
    finally:
        task.cancel()


async def test_ceilings_follow_the_annotations(server: FakeApiServer, client: ClusterClient) -> None:
    listed = [namespace("low", max_priority="1"), namespace("plain")]
    events = [
        {"type": "MODIFIED", "object": namespace("low", 6, max_priority="2", max_priority_slope="0.5")},
        {"type": "MODIFIED", "object": namespace("low", 7, max_priority="2", max_priority_slope="0.5")},
        {"type": "ADDED", "object": namespace("bad", 8, max_priority="high")},
        {"type": "MODIFIED", "object": namespace("plain", 9)},
    ]
    server.on(
        "GET",
        PATH,
        answer({"metadata": {"resourceVersion": "5"}, "items": listed}),
        watch(*events),
        watch(
            {"type": "MODIFIED", "object": namespace("low", 10)},
            {"type": "DELETED", "object": namespace("bad", 11)},
        ),
        never,
    )
    told: list[tuple[str, Ceiling]] = []
    with capture_logs() as logs:
        namespaces = Namespaces(
            client, DEFAULT, lambda name: told.append((name, namespaces.ceiling_of(name))), lambda: None
        )
        async with running(namespaces):
            assert namespaces.ceiling_of("plain") == namespaces.ceiling_of("unheard-of") == DEFAULT
            await until(lambda: len(told) == 5)
    assert told == [
        ("low", Ceiling(1)),
        ("low", Ceiling(2, 0.5)),
        ("bad", Ceiling(0)),
        ("low", DEFAULT),
        ("bad", DEFAULT),
    ]
    assert [each["annotation"] for each in logs if each["event"] == "ceiling_unreadable"] == [MAX_PRIORITY]
    assert server.requests("GET", PATH)[0].headers["Accept"] == METADATA_LIST


@pytest.mark.parametrize("status", [403, 404])
async def test_namespaces_that_may_not_be_listed_delay_nothing(
    server: FakeApiServer, client: ClusterClient, status: int
) -> None:
    server.on("GET", PATH, refusal(status, "Forbidden" if status == 403 else "NotFound"))
    namespaces = Namespaces(client, DEFAULT, lambda _name: None, lambda: None)
    with capture_logs() as logs:
        async with running(namespaces):
            assert namespaces.ceiling_of("low") == DEFAULT
    assert ("ceilings_unknown" in [each["event"] for each in logs]) is (status == 403)


async def test_labels_of_namespaces_are_cached_and_their_changes_reported(
    server: FakeApiServer, client: ClusterClient
) -> None:
    tier, team = {"tier": "gold"}, {"tier": "gold", QUEUE_LABEL: "team"}
    events = [
        {"type": "MODIFIED", "object": namespace("gold", 6, team)},
        {"type": "MODIFIED", "object": namespace("gold", 7, {**team, "x": "y"})},
        {"type": "ADDED", "object": namespace("late", 8, tier)},
        {"type": "DELETED", "object": namespace("late", 9, tier)},
        {"type": "MODIFIED", "object": namespace("gold", 10)},
    ]
    listed = [namespace("gold", 1, tier), namespace("plain")]
    server.on(
        "GET", PATH, answer({"metadata": {"resourceVersion": "5"}, "items": listed}), watch(*events), never
    )
    changed: list[str] = []
    seen: list[dict[str, dict[str, str]]] = []
    namespaces = Namespaces(
        client,
        DEFAULT,
        changed.append,
        lambda: seen.append({name: dict(labels) for name, labels in namespaces.labels.items()}),
    )
    async with running(namespaces):
        assert (namespaces.labels_of("plain"), namespaces.labels_of("unheard-of")) == ({}, {})
        await until(lambda: len(seen) == 6)
    assert changed == ["gold", "gold"], "its queue was named, and is not any more"
    assert seen == [
        {"gold": tier},
        {"gold": team},
        {"gold": {**team, "x": "y"}},
        {"gold": {**team, "x": "y"}, "late": tier},
        {"gold": {**team, "x": "y"}},
        {},
    ]

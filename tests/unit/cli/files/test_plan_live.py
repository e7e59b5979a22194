"""`dispatcher plan --live`: Kubernetes objects applied to the leader's snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.conditions import ConditionType, State
from dispatcher.api.names import APPROVALS
from dispatcher.cli.files.plan_live import (
    ANEW,
    CHARGED,
    DISPATCHED,
    ENDED,
    LEAVING,
    NO_LABELS,
    SUSPENDED,
    live_world_of,
)
from dispatcher.core.kinds.pods.pod_defaults import DefaultsSurvey
from dispatcher.core.model.records.pending_reasons import NOT_CONNECTED
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Access, Queue, Quota
from dispatcher.core.scheduling.cycle.outcomes import Outcome, Placed
from dispatcher.core.scheduling.explain.leader_snapshot import (
    ClusterFacts,
    SchedulingRules,
    running_gang,
    world_of,
)
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.errors import InvalidFile
from dispatcher.store.snapshot.snapshot_reader import Snapshot
from tests.builders import NOW, at, attempt_of, make_core_node, make_gang, make_record
from tests.unit.cli.files.test_plan_manifests import gang, node, queue, read
from tests.unit.core.scheduling.test_applied_queues import LAST, RESEARCH, VISION, Leader, early

Json = dict[str, Any]

A_POD = ClusterRequirements(kinds=frozenset({("v1", "Pod")}))
RUNS = make_record(Phase.RUNNING, name="r", uid="r", queue="default", gang=make_gang(cpu=3000))
WAITS = make_record(name="w", uid="w", namespace="team-a", gang=make_gang(cpu=9000), requirements=A_POD)


def snapshot(*clusters: str, queues: tuple[Queue, ...] = ()) -> Snapshot:
    """Clusters of one node of 4 cpu each; a gang of 3 cpu runs in the first, and a large one waits."""
    run = RUNS if clusters == ("hub",) else _moved(RUNS, clusters[0])
    return Snapshot(
        world=World(
            tuple(Cluster(name, (make_core_node("n1", cpu=4000, pods=110),)) for name in clusters),
            running=(running_gang(run, attempt_of(run), (), set() if queues else None),),
            pending=(WAITS,),
            now=NOW,
            queues=queues or None,
        ),
        records={"r": run, "w": WAITS},
        rules=SchedulingRules(queues=queues),
        taken_at=NOW,
        has_leader=True,
    )


def _moved(record: Record, cluster: str) -> Record:
    return replace(record, attempt=replace(attempt_of(record), cluster=cluster))


def outcomes(world: World) -> dict[str, str | None]:
    """The cluster of each pending gang that is dispatched, by name; None of one that waits."""
    found: tuple[Outcome, ...] = world.plan()
    return {each.record.name: each.cluster if isinstance(each, Placed) else None for each in found}


def test_objects_are_put_on_the_snapshot() -> None:
    here = snapshot("hub")
    assert outcomes(live_world_of(read(gang("a", "2")), here, "")) == {"w": None, "a": None}
    assert outcomes(live_world_of(read(gang("a", "2"), node("n2")), here, "")) == {"w": None, "a": "hub"}


def test_object_replaces_the_one_of_its_name() -> None:
    smaller = live_world_of(read(gang("w", "1")), snapshot("hub"), "")
    assert outcomes(smaller) == {"w": "hub"}
    grown = live_world_of(read(node("n1", "16")), snapshot("hub"), "")
    assert outcomes(grown) == {"w": "hub"}


def test_nodes_go_to_the_named_cluster() -> None:
    two = snapshot("east", "west")
    with pytest.raises(InvalidFile, match="say with --cluster which cluster gets the Nodes: east, west"):
        live_world_of(read(node("n2")), two, "")
    with pytest.raises(InvalidFile, match="there is no cluster south: the clusters are east, west"):
        live_world_of(read(node("n2")), two, "south")
    assert outcomes(live_world_of(read(node("n2", "9")), two, "west")) == {"w": "west"}


def test_queues_are_added_to_those_that_are_declared_and_what_runs_is_charged() -> None:
    declared = (Queue("vision", resources={"cpu": Quota(1000)}),)
    raised = live_world_of(
        read(queue("vision", 2), gang("a", "1", "vision")), snapshot("hub", queues=declared), ""
    )
    assert raised.queues == (Queue("vision", resources={"cpu": Quota(2000)}), Queue("default"))
    assert outcomes(raised)["a"] == "hub"

    first = live_world_of(read(queue("default", 3), gang("a", "1")), snapshot("hub"), "")
    assert [each.active is not None for each in first.running] == [True]
    assert outcomes(first)["a"] is None  # the gang that runs has all of the quota


# --- queues as the leader judges them -----------------------------------------------------------------------


SMALL = replace(WAITS, gang=make_gang(cpu=1000))
OF_VISION = replace(SMALL, queue="vision")


def live(rules: SchedulingRules, *records: Record) -> Snapshot:
    """The snapshot of a leader with these rules, and one node of 4 cpu."""
    facts = ClusterFacts(
        Cluster("hub", (make_core_node("n1", cpu=4000, pods=110),)), rules=rules, taken_at=NOW
    )
    known = {each.uid: each for each in records}
    return Snapshot(world_of([facts], records, (), NOW), known, rules, NOW, has_leader=True)


@pytest.mark.parametrize(("access", "cluster"), [(Access.SELECTED, None), (Access.OPEN, "hub")], ids=str)
def test_first_queue_stops_the_gangs_that_name_none_unless_queues_are_open(
    access: Access, cluster: str | None
) -> None:
    here = live(SchedulingRules(access=access), SMALL)
    assert outcomes(here.world) == {"w": "hub"}
    assert outcomes(live_world_of(read(queue("vision", 2)), here, "")) == {"w": cluster}


@pytest.mark.parametrize(("nominal", "cluster"), [(2, None), (3, "hub")])
def test_queue_that_was_deleted_takes_its_gangs_by_its_quota_once_it_is_declared_again(
    nominal: int, cluster: str | None
) -> None:
    runs = replace(RUNS, queue="vision", gang=make_gang(cpu=2000))
    here = live(Leader(early(RESEARCH), frozenset({"vision"}), LAST, Access.OPEN).rules, runs, OF_VISION)
    assert outcomes(here.world) == {"w": None}
    resources = {"cpu": {"nominalQuota": nominal, "borrowingLimit": 0}}

    world = live_world_of(read(queue("vision", 0, parent="research", resources=resources)), here, "")

    assert outcomes(world) == {"w": cluster}
    assert dict(world.plan_queues()[0]["vision"].used) == {"cpu": 2000}
    assert world.held == ()


def test_queue_takes_gangs_once_its_parent_is_declared() -> None:
    here = live(Leader(early(VISION), last=LAST, access=Access.OPEN).rules, OF_VISION)
    assert outcomes(here.world) == {"w": None}
    assert outcomes(live_world_of(read(queue("research", 4)), here, "")) == {"w": "hub"}


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        pytest.param([queue("vision", 2)], "", id="selects-none"),
        pytest.param([queue("vision", 2, namespaceSelector="team=a")], f"{NO_LABELS}\n", id="unknown-labels"),
        pytest.param(
            [
                queue("vision", 2, namespaceSelector="team=a"),
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}},
            ],
            "",
            id="given-labels",
        ),
    ],
)
def test_note_says_that_the_snapshot_lacks_labels_which_queues_select_now(
    objects: list[Json], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    live_world_of(read(*objects), live(SchedulingRules(), SMALL), "")
    assert capsys.readouterr().err == said


def test_queue_that_is_not_edited_leaves_the_next_cycle_as_it_is() -> None:
    declared = early(Queue("vision", resources={"cpu": Quota(2000)}))
    here = live(Leader(declared, access=Access.OPEN).rules, RUNS, OF_VISION)
    world = live_world_of(read(queue("vision", 2)), here, "")
    assert outcomes(here.world) == {"w": "hub"}
    assert (world.queues, world.pending) == (here.world.queues, here.world.pending)
    assert world.plan() == here.world.plan()


# --- AppWrappers that the leader knows ----------------------------------------------------------------------


STARVES = replace(WAITS, created_at=at(-9000), blocked_since=at(-7000), enqueue_seq=7)


def test_gang_that_waits_keeps_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    here = live(SchedulingRules(), STARVES)
    assert live_world_of(read(gang("w", "9")), here, "").pending == (STARVES,)
    [urgent] = live_world_of(read(gang("w", "9", priority=8)), here, "").pending
    assert (urgent.priority, urgent.created_at, urgent.blocked_since) == (8, at(-9000), at(-7000))
    assert capsys.readouterr().err == ""


def surveyed(*records: Record, **surveys: DefaultsSurvey | None) -> Snapshot:
    """The snapshot of a leader with these clusters, and what each adds to pods; one without a survey is closed."""
    facts = [
        ClusterFacts(
            Cluster(
                name,
                (make_core_node("n1", cpu=4000, pods=110),),
                closed=CLOSED if survey is None else None,
            ),
            taken_at=NOW,
            defaults=survey,
        )
        for name, survey in surveys.items()
    ]
    known = {each.uid: each for each in records}
    world = world_of(facts, records, (), NOW)
    return Snapshot(world, known, SchedulingRules(), NOW, has_leader=True, surveys=surveys)


def of_memory(default: str) -> DefaultsSurvey:
    return DefaultsSurvey({"team-a": {"memory": default}}, {})


NO_DEFAULTS = DefaultsSurvey({}, {})
CLOSED = Closed(NOT_CONNECTED, "no kubeconfig")


@pytest.mark.parametrize(
    ("then", "today", "is_noted"),
    [
        pytest.param({"hub": of_memory("1Gi")}, {"hub": of_memory("1Gi")}, False, id="as-before"),
        pytest.param({"hub": NO_DEFAULTS}, {"hub": of_memory("1Gi")}, True, id="limit-range-is-new"),
        pytest.param({"hub": of_memory("1Gi")}, {"hub": NO_DEFAULTS}, True, id="limit-range-is-gone"),
        pytest.param({"hub": of_memory("1Gi")}, {"hub": of_memory("2Gi")}, True, id="limit-range-is-another"),
        pytest.param(
            {"east": of_memory("1Gi"), "west": of_memory("2Gi")},
            {"east": of_memory("1Gi"), "west": None},
            True,
            id="member-is-closed",
        ),
        pytest.param(
            {"east": of_memory("1Gi")},
            {"east": of_memory("1Gi"), "west": of_memory("2Gi")},
            True,
            id="member-is-new",
        ),
    ],
)
def test_gang_that_waits_keeps_its_record_whatever_is_added_to_pods_today(
    then: dict[str, DefaultsSurvey | None],
    today: dict[str, DefaultsSurvey | None],
    is_noted: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [submitted] = live_world_of(read(gang("w", "9")), surveyed(**then), "").pending
    record = replace(STARVES, gang=submitted.gang)
    assert live_world_of(read(gang("w", "9")), surveyed(record, **today), "").pending == (record,)
    assert capsys.readouterr().err == (f"{CHARGED}: team-a/w.\n" if is_noted else "")


def test_gang_with_other_objects_is_planned_as_a_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    world = live_world_of(read(gang("w", "1")), live(SchedulingRules(), STARVES), "")
    assert [each.created_at for each in world.pending] == [NOW]
    assert outcomes(world) == {"w": "hub"}
    assert capsys.readouterr().err == f"{ANEW}: team-a/w.\n"


@pytest.mark.parametrize("survey", [NO_DEFAULTS, of_memory("1Gi")], ids=["equal-demand", "default-is-new"])
def test_gang_of_another_kind_is_planned_as_a_new_one(
    survey: DefaultsSurvey, capsys: pytest.CaptureFixture[str]
) -> None:
    of_job = replace(STARVES, requirements=ClusterRequirements(kinds=frozenset({("batch/v1", "Job")})))
    world = live_world_of(read(gang("w", "9")), surveyed(of_job, hub=survey), "")
    assert [each.created_at for each in world.pending] == [NOW]
    assert capsys.readouterr().err == f"{ANEW}: team-a/w.\n"


@pytest.mark.parametrize(
    ("record", "spec", "said"),
    [
        pytest.param(RUNS, {}, DISPATCHED, id="runs"),
        pytest.param(RUNS, {"suspend": True}, LEAVING, id="leaves"),
        pytest.param(
            replace(SMALL, name="r", namespace="default"), {"suspend": True}, SUSPENDED, id="waited"
        ),
        pytest.param(make_record(Phase.COMPLETED, name="r", uid="r"), {}, ENDED, id="completed"),
        pytest.param(make_record(Phase.FAILED, name="r", uid="r"), {}, ENDED, id="failed"),
    ],
)
def test_gang_that_would_not_be_queued_is_not_planned(
    record: Record, spec: Json, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = str(record.gang.demand["cpu"] // 1000)
    here = live(SchedulingRules(queues=(Queue("default"),)), record)
    world = live_world_of(read(gang("r", cpu, namespace="default", **spec)), here, "")
    assert (world.pending, len(world.running)) == ((), len(here.world.running))
    assert [each.active is not None and each.active.is_leaving for each in world.running] == [
        said is LEAVING for _ in world.running
    ]
    assert capsys.readouterr().err == f"{said}: default/r.\n"


def test_many_gangs_that_run_are_named_in_one_note(capsys: pytest.CaptureFixture[str]) -> None:
    records = [replace(RUNS, uid=name, name=name, namespace="team-a") for name in "abcde"]
    live_world_of(read(*(gang(each.name, "3") for each in records)), live(SchedulingRules(), *records), "")
    assert capsys.readouterr().err == f"{DISPATCHED}: team-a/a, team-a/b, team-a/c and 2 more.\n"


def test_gang_that_has_ended_by_its_status_is_not_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """The snapshot lacks those that ended before it, and `kubectl get appwrappers -o yaml` prints them."""
    done = {"type": ConditionType.COMPLETED.value, "status": "True"}
    ended = {**gang("old"), "status": {"state": State.COMPLETED.value, "conditions": [done]}}
    world = live_world_of(read(ended, gang("new")), live(SchedulingRules()), "")
    assert outcomes(world) == {"new": "hub"}
    assert capsys.readouterr().err == f"{ENDED}: team-a/old.\n"


def test_gang_that_was_deleted_is_a_new_one() -> None:
    gone = make_record(Phase.DELETED, name="w", uid="w", namespace="team-a")
    assert outcomes(live_world_of(read(gang("w")), live(SchedulingRules(), gone), "")) == {"w": "hub"}


def test_gang_that_is_resumed_is_planned_by_its_age() -> None:
    held = replace(WAITS, phase=Phase.SUSPENDED, name="s", uid="s", gang=make_gang(), created_at=at(-9000))
    world = live_world_of(read(gang("s")), live(SchedulingRules(), held), "")
    assert outcomes(world) == {"s": "hub"}
    assert [each.uid for each in world.pending] == ["s"]


def test_gang_keeps_its_approvals_and_awaits_those_that_its_queues_name_now() -> None:
    rules = Leader(early(Queue("gate", approvals=("window",))), access=Access.OPEN).rules
    here = live(rules, replace(SMALL, queue="gate"))
    written = gang("w", "1", "gate")
    written["metadata"]["annotations"] = {APPROVALS: "budget"}
    assert outcomes(live_world_of(read(written), here, "")) == {"w": "hub"}

    world = live_world_of(read(queue("gate", 4, approvals=["window", "staged"])), here, "")

    [lacking] = world.lacking_approvals()
    assert (lacking.record.uid, lacking.pending.approvals) == ("w", ("staged",))


def test_gang_that_is_resumed_awaits_approvals_which_nothing_says_it_has() -> None:
    held = replace(WAITS, phase=Phase.SUSPENDED, name="s", uid="s", gang=make_gang(), queue="gate")
    rules = Leader(early(Queue("gate", approvals=("window",))), access=Access.OPEN).rules
    world = live_world_of(read(gang("s", queue="gate")), live(rules, held), "")
    assert [each.pending.approvals for each in world.lacking_approvals()] == [("window",)]


def test_new_gang_has_the_defaults_of_pods_that_the_leader_counts() -> None:
    survey = DefaultsSurvey({"team-a": {"memory": "1Gi"}}, {})
    here = replace(live(SchedulingRules()), surveys={"hub": survey})
    [new] = live_world_of(read(gang("a", "2")), here, "").pending
    assert new.gang.demand == Resources({"cpu": 2000, "memory": 2**30})


def test_two_objects_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidFile, match=r"f\.yaml: another AppWrapper is named team-a/a"):
        live_world_of(read(gang("a", "1"), gang("a", "2")), live(SchedulingRules()), "")

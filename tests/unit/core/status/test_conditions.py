"""The status as a projection of the record, held against what MCAD itself wrote."""

from __future__ import annotations

import json
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.conditions import OUR_TYPES, ConditionType, State
from dispatcher.core.lifecycle import first_changes, queue_changes, removal, run_changes
from dispatcher.core.lifecycle.record_change import new_condition, with_failure
from dispatcher.core.model.clock import timestamp
from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.gangs.growth import GrowthRequest
from dispatcher.core.model.gangs.pods import PodCounts, PodFailure
from dispatcher.core.model.records.record import Borrower, NotedIssue, Pending, Phase, QuotaSummary, Record
from dispatcher.core.model.records.requirements import Rejection
from dispatcher.core.model.resources import NOTHING, Resources
from dispatcher.core.scheduling.cycle.gang_decisions import MOST_NAMED
from dispatcher.core.scheduling.cycle.refusals import MOST_BORROWERS
from dispatcher.core.status.conditions import MOST_OF_OTHERS, Shown, conditions_of_others, project
from tests.builders import (
    NOW,
    WAITS,
    at,
    attempt_of,
    make_blocked,
    make_evicted,
    make_failed_run,
    make_failing_run,
    make_gang,
    make_record,
    make_submission,
)
from tests.yaml_files import load_yaml

TESTS = Path(__file__).parents[3]
GOLDEN = load_yaml(TESTS / "golden" / "mcad-conditions.yaml")
CRD = load_yaml(TESTS.parent / "crds" / "workload.codeflare.dev_appwrappers.yaml")
TIMES = {"lastTransitionMicroTime", "lastUpdateMicroTime", "lastTransitionTime"}
OURS = {"about", "lifecyclePhase", "cluster", "waiting", "reason", "gpus", "queue", "user"}
STUCK = {
    "podname": "aw-0",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}],
}
EVERYTHING = Shown(PodCounts(pending=1, running=1, succeeded=1, failed=1), (STUCK,), has_components=True)


def without_times(status: dict[str, Any]) -> dict[str, Any]:
    """A status less its times and what only we add."""
    conditions = [
        {key: value for key, value in condition.items() if key not in TIMES}
        for condition in status["conditions"]
    ]
    rest = {key: value for key, value in status.items() if key not in {"controllerfirsttimestamp", *OURS}}
    return {**rest, "conditions": conditions}


def test_status_of_a_dispatched_appwrapper_equals_that_of_mcad() -> None:
    record = make_record(Phase.DISPATCHED, priority=9)
    assert without_times(project(record)) == without_times(GOLDEN["raycluster-glue"])


def test_status_of_a_pending_appwrapper_equals_that_of_mcad_and_has_canrun_false() -> None:
    record = make_blocked(make_record(priority=9))
    golden = without_times(GOLDEN["raycluster-glue-1"])
    assert without_times(project(record)) == {**golden, "canrun": False}


@pytest.mark.parametrize("name", GOLDEN)
def test_times_are_written_as_mcad_writes_them(name: str) -> None:
    record = make_record(Phase.DISPATCHED) if name == "raycluster-glue" else make_blocked()
    status, golden = project(record), GOLDEN[name]

    assert status["controllerfirsttimestamp"] == "2026-11-20T08:58:06.842261Z"
    assert len(status["controllerfirsttimestamp"]) == len(golden["controllerfirsttimestamp"])
    for ours, theirs in zip(status["conditions"], golden["conditions"], strict=True):
        assert ours.keys() - theirs.keys() == {"lastTransitionTime"}
        assert not theirs.keys() - ours.keys()
        for key in TIMES & theirs.keys():
            assert len(ours[key]) == len(theirs[key])


def test_whole_status_of_an_appwrapper_that_was_blocked_and_then_ran() -> None:
    record = make_blocked(make_record(priority=9), seconds=1.5)
    record = queue_changes.dispatch(record, "hub", at(2)).after
    record = run_changes.created(record, (), at(3)).after
    record = run_changes.mark_running(record, at(4)).after

    assert project(record, Shown(PodCounts(pending=1, running=2, succeeded=3, failed=4))) == {
        "conditions": [
            entry("Init", "06.842261"),
            entry("Queueing", "06.842261", reason="AwaitingHeadOfLine"),
            entry("HeadOfLine", "08.342261", reason="FrontOfQueue."),
            entry(
                "Backoff",
                "08.842261",
                status="False",
                reason="AppWrapperNotRunnable.",
                message="Insufficient resources to dispatch AppWrapper.",
            ),
            entry("Dispatched", "09.842261", reason="AppWrapperRunnable"),
            entry("Running", "10.842261", reason="PodsRunning"),
        ],
        "controllerfirsttimestamp": "2026-11-20T08:58:06.842261Z",
        "about": {"cluster": "hub", "phase": "Running"},
        "canrun": True,
        "cluster": "hub",
        "filterignore": True,
        "lifecyclePhase": "Running",
        "queue": "default",
        "queuejobstate": "Running",
        "sender": "before manageQueueJob - afterEtcdDispatching",
        "state": "Running",
        "systempriority": 9,
        "pending": 1,
        "running": 2,
        "Succeeded": 3,
        "failed": 4,
    }


def entry(type_: str, second: str, *, status: str = "True", **said: str) -> dict[str, str]:
    whole = second.split(".")[0]
    return {
        "type": type_,
        "status": status,
        "lastUpdateMicroTime": f"2026-11-20T08:58:{second}Z",
        "lastTransitionMicroTime": f"2026-11-20T08:58:{second}Z",
        "lastTransitionTime": f"2026-11-20T08:58:{whole}Z",
        **said,
    }


DIFFERS = "spec.resources.GenericItems[0].custompodresources: cpu: 1 declared, 4 by the template"


def test_differing_demand_adds_one_condition_to_those_of_mcad() -> None:
    submission = make_submission(priority=9, demand_differs=DIFFERS)
    record = make_blocked(first_changes.submit(submission, make_gang(), NOW).after)
    status = project(record)
    added = status["conditions"].pop(1)
    assert added == entry("DemandDiffers", "06.842261", reason="DeclarationDiffers", message=DIFFERS)
    assert status == project(make_blocked(make_record(priority=9)))
    assert without_times(status) == {**without_times(GOLDEN["raycluster-glue-1"]), "canrun": False}


@pytest.mark.parametrize("phase", Phase)
def test_differing_demand_changes_nothing_else_of_the_status(phase: Phase) -> None:
    record = make_record(phase)
    first, *others = record.conditions
    differs = new_condition(ConditionType.DEMAND_DIFFERS, NOW, "DeclarationDiffers", DIFFERS)
    status = project(replace(record, conditions=(first, differs, *others)), EVERYTHING)
    assert status["conditions"].pop(1)["type"] == "DemandDiffers"
    assert status == project(record, EVERYTHING)


def test_unknown_priority_class_adds_one_condition_to_those_of_mcad() -> None:
    said = "there is no PriorityClass train"
    submission = make_submission(priority=9, unknown_class=said, demand_differs=DIFFERS)
    status = project(make_blocked(first_changes.submit(submission, make_gang(), NOW).after))
    added = status["conditions"].pop(1)
    assert added == entry("PriorityClassUnknown", "06.842261", reason="PriorityClassNotFound", message=said)
    assert status["conditions"].pop(1)["type"] == "DemandDiffers"
    assert status == project(make_blocked(make_record(priority=9)))


def test_unknown_fields_add_one_condition_to_those_of_mcad_that_is_not_the_last() -> None:
    waiting = make_blocked(make_record(priority=9))
    change = queue_changes.warn(waiting, ["Job a: unknown field"], NOW)
    assert change is not None
    status = project(change.after)
    added = status["conditions"].pop(1)
    assert (added["type"], added["message"]) == ("UnknownFields", "Job a: unknown field")
    assert status == project(waiting)


REQUEUED = removal.removed(make_evicted(), at(5)).after
FAILED_DEADLINE = make_failing_run(reason="DispatchDeadlineExceeded")
SHOWN = [
    pytest.param(make_record(), "Pending", "Queueing", False, id="queued"),
    pytest.param(make_blocked(), "Pending", "Backoff", False, id="blocked"),
    pytest.param(make_record(Phase.SUSPENDED), "Pending", "Suspended", False, id="suspended"),
    pytest.param(make_record(Phase.DISPATCHING), "Pending", "HeadOfLine", True, id="dispatching"),
    pytest.param(make_record(Phase.DISPATCHED), "Running", "Dispatched", True, id="dispatched"),
    pytest.param(make_record(Phase.RUNNING), "Running", "Running", True, id="running"),
    pytest.param(
        make_record(Phase.RUNNING_HOLD_COMPLETION),
        "RunningHoldCompletion",
        "RunningHoldCompletion",
        True,
        id="some-is-done",
    ),
    pytest.param(make_record(Phase.COMPLETED), "Completed", "Completed", False, id="completed"),
    pytest.param(make_record(Phase.REQUEUEING), "Pending", "Backoff", False, id="not-created-for-now"),
    pytest.param(make_evicted(), "Pending", "Backoff", False, id="being-taken-back"),
    pytest.param(REQUEUED, "Pending", "Backoff", False, id="taken-back"),
    pytest.param(make_record(Phase.SUSPENDING), "Pending", "Suspended", False, id="suspending"),
    pytest.param(make_record(Phase.FAILING), "Pending", "HeadOfLine", False, id="never-to-be-created"),
    pytest.param(make_failing_run(), "Pending", "HeadOfLine", False, id="failing-by-itself"),
    pytest.param(FAILED_DEADLINE, "Pending", "PreemptCandidate", False, id="failing-by-its-deadline"),
    pytest.param(make_record(Phase.FAILED), "Failed", "Failed", False, id="failed"),
    pytest.param(make_failed_run(), "Failed", "Failed", False, id="failed-in-its-run"),
    pytest.param(make_record(Phase.DELETING), "Deleted", "Running", False, id="deleting"),
    pytest.param(make_record(Phase.DELETED), "Deleted", "Running", False, id="deleted"),
]


@pytest.mark.parametrize(("record", "state", "queue_job_state", "can_run"), SHOWN)
def test_each_phase_is_shown_in_words_of_mcad(
    record: Record, state: str, queue_job_state: str, can_run: bool
) -> None:
    status = project(record)
    assert (status["state"], status["queuejobstate"], status["canrun"]) == (state, queue_job_state, can_run)


@pytest.mark.parametrize("phase", Phase)
def test_canrun_never_stands_alone_and_no_word_is_not_mcads(phase: Phase) -> None:
    status = project(make_record(phase))
    assert {"state", "queuejobstate", "canrun"} <= status.keys()
    assert status["state"] in set(State)
    assert status["queuejobstate"] in set(ConditionType)


@pytest.mark.parametrize("phase", Phase)
def test_same_record_gives_the_same_status_as_json_too(phase: Phase) -> None:
    record = make_record(phase)
    status = project(record, EVERYTHING)
    assert project(replace(record), EVERYTHING) == status
    assert json.loads(json.dumps(status)) == status


def test_cluster_is_shown_while_capacity_is_held_there_and_after_the_end() -> None:
    shown = {phase for phase in Phase if "cluster" in project(make_record(phase))}
    assert shown == {
        Phase.COMPLETED,
        Phase.FAILED,
        Phase.DISPATCHING,
        Phase.DISPATCHED,
        Phase.RUNNING,
        Phase.RUNNING_HOLD_COMPLETION,
        Phase.REQUEUEING,
        Phase.SUSPENDING,
        Phase.FAILING,
        Phase.DELETING,
    }


def conditions_of(record: Record) -> list[tuple[str, str, str, str]]:
    return [
        (each["type"], each["status"], each.get("reason", ""), each.get("message", ""))
        for each in project(record)["conditions"]
    ]


BEFORE = [
    ("Init", "True", "", ""),
    ("Queueing", "True", "AwaitingHeadOfLine", ""),
    ("HeadOfLine", "True", "FrontOfQueue.", ""),
]
RAN = [
    *BEFORE,
    ("Dispatched", "True", "AppWrapperRunnable", ""),
    ("Running", "True", "PodsRunning", ""),
]
OVER = [*RAN[:-1], ("Running", "False", "PodsRunning", "")]
GONE_BACK = [
    *BEFORE,
    ("Dispatched", "False", "AppWrapperRunnable", ""),
    ("Running", "False", "PodsRunning", ""),
]
CANDIDATE = ("PreemptCandidate", "True", "MinPodsNotRunning", "too few pods")
TAKEN_BACK = ("Backoff", "True", "PreemptionTriggered", "too few pods")
HELD_BACK = [
    ("Init", "True", "", ""),
    ("Queueing", "False", "AwaitingHeadOfLine", ""),
    ("HeadOfLine", "False", "FrontOfQueue.", ""),
]
STORIES = [
    pytest.param(make_record(Phase.RUNNING), RAN, id="runs"),
    pytest.param(
        run_changes.note_health_issue(
            make_record(Phase.RUNNING), "InsufficientPodsReady", "0 of 1 pods run", at(5)
        ).after,
        RAN,
        id="has-lost-its-pods",
    ),
    pytest.param(
        make_record(Phase.RUNNING_HOLD_COMPLETION),
        [*RAN, ("RunningHoldCompletion", "True", "SomeItemsCompleted", "")],
        id="some-is-done",
    ),
    pytest.param(
        make_record(Phase.COMPLETED), [*OVER, ("Completed", "True", "PodsCompleted", "")], id="completed"
    ),
    pytest.param(make_evicted(), [*GONE_BACK, CANDIDATE], id="being-taken-back"),
    pytest.param(REQUEUED, [*GONE_BACK, CANDIDATE, TAKEN_BACK], id="taken-back"),
    pytest.param(
        make_blocked(REQUEUED), [*GONE_BACK, CANDIDATE, TAKEN_BACK], id="taken-back-and-does-not-fit-now"
    ),
    pytest.param(
        queue_changes.dispatch(REQUEUED, "hub", at(100)).after,
        [*GONE_BACK, CANDIDATE, ("Backoff", "False", "PreemptionTriggered", "too few pods")],
        id="dispatched-again",
    ),
    pytest.param(make_failing_run(), OVER, id="failing"),
    pytest.param(
        make_failed_run(), [*OVER, ("Failed", "True", "FailedComponent", "it failed")], id="failed-by-itself"
    ),
    pytest.param(
        make_failed_run(reason="DispatchDeadlineExceeded"),
        [
            *OVER,
            ("PreemptCandidate", "True", "DispatchDeadlineExceeded", "it failed"),
            ("Failed", "True", "DispatchDeadlineExceeded", "it failed"),
        ],
        id="ran-too-long",
    ),
    pytest.param(make_record(Phase.SUSPENDING), GONE_BACK, id="suspending"),
    pytest.param(
        removal.removed(make_record(Phase.SUSPENDING), at(5)).after,
        [*HELD_BACK, *GONE_BACK[3:], ("Suspended", "True", "SuspendedByUser", "")],
        id="suspended-while-it-ran",
    ),
    pytest.param(
        queue_changes.suspend(make_blocked(), at(5)).after,
        [
            *HELD_BACK,
            (
                "Backoff",
                "False",
                "AppWrapperNotRunnable.",
                "Insufficient resources to dispatch AppWrapper.",
            ),
            ("Suspended", "True", "SuspendedByUser", ""),
        ],
        id="suspended-while-it-waited",
    ),
    pytest.param(
        queue_changes.resume(make_record(Phase.SUSPENDED), at(5)).after,
        [*BEFORE[:2], ("Suspended", "False", "SuspendedByUser", "")],
        id="released",
    ),
]


@pytest.mark.parametrize(("record", "conditions"), STORIES)
def test_running_is_true_until_the_run_is_over_and_the_others_turn_false_only_on_the_way_back(
    record: Record, conditions: list[tuple[str, str, str, str]]
) -> None:
    assert conditions_of(record) == conditions


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        pytest.param(make_record(Phase.RUNNING), {}, id="never"),
        pytest.param(
            make_evicted(), {"numberOfRequeueings": 1, "requeueingTimeInSeconds": 600}, id="at-once"
        ),
        pytest.param(
            queue_changes.dispatch(REQUEUED, "hub", at(100)).after,
            {"numberOfRequeueings": 1, "requeueingTimeInSeconds": 600},
            id="from-then-on",
        ),
    ],
)
def test_requeuings_are_counted_in_words_of_mcad(record: Record, shown: dict[str, int]) -> None:
    status = project(record)
    words = ("numberOfRequeueings", "requeueingTimeInSeconds")
    assert {word: status[word] for word in words if word in status} == shown


@pytest.mark.parametrize(
    ("phase", "issue", "shown"),
    [
        pytest.param(Phase.RUNNING, None, None, id="well"),
        pytest.param(
            Phase.RUNNING,
            NotedIssue("InsufficientPodsReady", "1 of 2 pods run", at(5)),
            {
                "reason": "InsufficientPodsReady",
                "message": "1 of 2 pods run",
                "since": "2026-11-20T08:58:11Z",
            },
            id="ill",
        ),
    ],
)
def test_health_issue_is_shown_with_its_begin(
    phase: Phase, issue: NotedIssue | None, shown: dict[str, str] | None
) -> None:
    assert project(make_record(phase, unhealthy=issue)).get("unhealthy") == shown


def test_kept_objects_are_shown_with_the_time_of_their_removal() -> None:
    shown = {phase: project(make_record(phase)).get("keptUntil") for phase in Phase}
    assert {phase: time for phase, time in shown.items() if time} == {Phase.COMPLETED: "2026-11-27T08:58:10Z"}
    assert project(make_failed_run())["keptUntil"] == "2026-11-27T08:58:11Z"


def test_pods_that_cannot_be_scheduled_are_listed_as_mcad_lists_them() -> None:
    record = make_record(Phase.DISPATCHED)
    assert project(record, Shown(pending_pods=(STUCK,)))["pendingpodconditions"] == [STUCK]


@pytest.mark.parametrize(
    ("pending", "waiting"),
    [
        pytest.param(None, None, id="does-not-wait"),
        pytest.param(
            WAITS,
            {
                "reason": "InsufficientResources",
                "message": "cluster hub: cpu: needs 1, 0 free",
                "resource": "cpu",
                "cluster": "hub",
            },
            id="for-a-resource",
        ),
        pytest.param(
            Pending("NoCluster", "no cluster has reported its capacity yet"),
            {"reason": "NoCluster", "message": "no cluster has reported its capacity yet"},
            id="for-a-cluster",
        ),
        pytest.param(
            replace(
                WAITS,
                clusters=(
                    Rejection("east", "ClusterCordoned", "new racks"),
                    Rejection("hub", "InsufficientResources", "cpu: needs 1, 0 free", "cpu"),
                ),
            ),
            {
                "reason": "InsufficientResources",
                "message": "cluster hub: cpu: needs 1, 0 free",
                "resource": "cpu",
                "cluster": "hub",
                "clusters": [
                    {"reason": "ClusterCordoned", "message": "new racks", "cluster": "east"},
                    {
                        "reason": "InsufficientResources",
                        "message": "cpu: needs 1, 0 free",
                        "resource": "cpu",
                        "cluster": "hub",
                    },
                ],
            },
            id="for-any-of-several-clusters",
        ),
    ],
)
def test_waiting_says_why_in_words_and_in_codes(
    pending: Pending | None, waiting: dict[str, Any] | None
) -> None:
    assert project(make_record(pending=pending)).get("waiting") == waiting


def test_waiting_says_why_of_as_many_clusters_as_the_crd_has_room_for() -> None:
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    clusters = schema["properties"]["status"]["properties"]["waiting"]["properties"]["clusters"]
    pending = replace(WAITS, clusters=(Rejection("east", "ClusterCordoned", "new racks"),) * 300)
    shown = project(make_record(pending=pending))["waiting"]["clusters"]
    assert len(shown) == clusters["maxItems"]
    assert set(clusters["items"]["properties"]) == {"cluster", "reason", "resource", "message"}


def test_schema_has_room_for_as_many_borrowers_and_victims_as_an_answer_names() -> None:
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    waiting = schema["properties"]["waiting"]["properties"]
    bounds = waiting["quota"]["properties"]["borrowers"]["maxItems"], waiting["preempting"]["maxItems"]
    assert bounds == (MOST_BORROWERS, MOST_NAMED)


COLUMNS = ("reason", "gpus", "queue", "user")


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        pytest.param(make_blocked(), {"reason": "InsufficientResources", "queue": "default"}, id="waits"),
        pytest.param(
            make_record(Phase.RUNNING, user="alice"), {"queue": "default", "user": "alice"}, id="runs"
        ),
        pytest.param(
            make_record(Phase.FAILED, queue="a", more_queues=("b",)),
            {"reason": "ItemCreationFailure.", "queue": "a"},
            id="failed",
        ),
        pytest.param(
            make_record(
                gang=make_gang(
                    **{"nvidia.com/gpu": 2, "amd.com/gpu": 1, "gpu.intel.com/i915": 4, "rdma/hca": 8}
                )
            ),
            {"gpus": 7, "queue": "default"},
            id="gpus-of-all-vendors",
        ),
    ],
)
def test_status_has_every_field_of_the_printer_columns(record: Record, shown: dict[str, Any]) -> None:
    status = project(record)
    assert {word: status[word] for word in COLUMNS if word in status} == shown


def test_status_of_a_grown_gang_shows_the_resources_it_holds_until_it_is_gone() -> None:
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000, gpu=1))
    assert "held" not in project(record)
    grown = run_changes.note_growth(record, record.gang.demand * 3 + {"memory": 2**30}, at(10)).after
    status = project(grown)
    assert (status["gpus"], status["held"]) == (3, {"cpu": "3", "memory": "1Gi", "nvidia.com/gpu": "3"})
    leaving = removal.delete(grown, at(20)).after
    assert project(leaving)["held"] == status["held"]
    shrunk = run_changes.note_growth(grown, NOTHING, at(20)).after
    assert (project(shrunk)["gpus"], "held" in project(shrunk)) == (1, False)


def test_gang_on_trust_shows_the_nodes_that_it_trusts_until_it_has_run() -> None:
    record = make_record(Phase.DISPATCHED)
    assert "trusts" not in project(record)
    places = Assignment(((("n", 1), ("potential/l4/0", 1), ("potential/l4/1", 1)),))
    trusting = replace(record, attempt=replace(attempt_of(record), assignment=places))
    assert project(trusting)["trusts"] == [{"pool": "l4", "nodes": 2}]
    assert "trusts" not in project(run_changes.mark_running(trusting, at(20)).after)
    assert "trusts" not in project(replace(trusting, phase=Phase.REQUEUEING))


def test_growth_on_trust_shows_the_nodes_that_it_trusts_until_its_pods_have_nodes() -> None:
    trusted = ("potential/l4/0", "potential/l4/1")
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000))
    grown = run_changes.grant(record, record.gang.demand, None, "1 pod", at(20), trusted=trusted).after
    assert project(grown)["trusts"] == [{"pool": "l4", "nodes": 2}]
    assert "trusts" not in project(run_changes.note_growth(grown, record.gang.demand * 2, at(30)).after)


def test_status_of_a_gang_with_pending_growth_shows_the_request_and_the_reason() -> None:
    record = make_record(Phase.RUNNING, gang=make_gang(1, cpu=1000, gpu=1))
    assert "growth" not in project(record)
    request = GrowthRequest(2, Resources({"cpu": 2500}), at(20), "InsufficientQuota", "2 more pods wait")
    waits = run_changes.note_growth_request(record, request, at(20)).after
    shown = {
        "pods": 2,
        "requested": {"cpu": "2500m"},
        "since": timestamp(at(20)),
        "reason": "InsufficientQuota",
        "message": "2 more pods wait",
    }
    assert project(waits)["growth"] == shown
    granted = run_changes.grant(waits, record.gang.demand, request, "1 pod may start", at(30)).after
    assert project(granted)["growth"] == {**shown, "granted": {"cpu": "1", "nvidia.com/gpu": "1"}}
    assert "growth" not in project(run_changes.note_growth_request(granted, None, at(40)).after)


def test_only_a_gang_that_grew_says_that_it_is_beyond_its_quota() -> None:
    record, shown = make_record(Phase.RUNNING), Shown(beyond_quota="too much")
    grown = run_changes.note_growth(record, record.gang.demand * 2, at(10)).after
    assert (project(grown, shown)["beyondQuota"], "beyondQuota" in project(grown)) == ("too much", False)
    assert "beyondQuota" not in project(record, shown)


def test_status_lists_as_many_held_resources_as_the_crd_has_room_for() -> None:
    demand = Resources({f"a{number}.example.com/device": 1 for number in range(70)})
    record = make_record(Phase.RUNNING, gang=Gang(demand, 1))
    grown = run_changes.note_growth(record, demand + {"nvidia.com/gpu": 1}, at(10)).after
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    held = project(grown)["held"]
    assert len(held) == schema["held"]["maxProperties"]
    assert held["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize("phase", Phase)
def test_only_a_queued_appwrapper_has_an_outlook(phase: Phase) -> None:
    status = project(make_record(phase, pending=WAITS), Shown(outlook={"position": 1}))
    assert status.get("waiting", {}).get("position") == (1 if phase is Phase.QUEUED else None)


def test_failed_appwrapper_says_why() -> None:
    record = make_record(Phase.FAILED)
    assert without_times(project(record))["conditions"][-1] == {
        "type": "Failed",
        "status": "True",
        "reason": "ItemCreationFailure.",
        "message": "it is invalid",
    }


SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


@pytest.mark.parametrize("phase", Phase)
def test_everything_that_is_shown_is_in_the_schema_else_the_api_server_drops_it(phase: Phase) -> None:
    record = make_record(
        phase,
        pending=replace(
            WAITS,
            clusters=(Rejection("east", "ClusterCordoned", "new racks", "cpu"),),
            queue="a",
            quota=QuotaSummary("8", "6", "2", "12", (Borrower("b", "2"),)),
            preempting=("red/one",),
        ),
        unhealthy=NotedIssue("InsufficientPodsReady", "1 of 2 pods run", at(5)),
        requeuings=2,
        requeuing_seconds=1200,
        kept_until=at(9),
    )
    fits(project(record, EVERYTHING), SCHEMA, "status")


def fits(value: object, schema: dict[str, Any], path: str) -> None:
    assert isinstance(value, JSON_TYPES[schema["type"]]), path
    assert isinstance(value, bool) is (schema["type"] == "boolean"), path
    if isinstance(value, dict):
        for key, part in value.items():
            known = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            assert known is not None, f"{path}.{key}"
            fits(part, known, f"{path}.{key}")
    if isinstance(value, list):
        for index, part in enumerate(value):
            fits(part, schema["items"], f"{path}[{index}]")


def test_priority_is_a_whole_number() -> None:
    priority = project(make_record(priority=9, priority_slope=0.5))["systempriority"]
    assert (priority, type(priority)) == (9, int)


def test_times_of_other_zones_are_shown_in_utc() -> None:
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    record = make_record()
    moved = replace(record, conditions=tuple(replace(each, since=local) for each in record.conditions))
    assert project(moved) == project(record)


def condition(type_: object, status: object = "True") -> dict[str, object]:
    return {"type": type_, "status": status}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        pytest.param(None, [], id="none"),
        pytest.param("no list", [], id="no-list"),
        pytest.param([3, None, {}, {"type": 3}, {"type": ["a"]}], [], id="no-conditions"),
        pytest.param([condition(each) for each in sorted(OUR_TYPES)], [], id="all-of-ours"),
        pytest.param(
            [condition("b"), condition("Init"), condition("example.com/a", 7)],
            [condition("b"), condition("example.com/a", 7)],
            id="of-others-in-their-order-as-they-are",
        ),
        pytest.param(
            [condition("a"), condition("b"), condition("a", "False")],
            [condition("b"), condition("a", "False")],
            id="the-last-of-a-type",
        ),
    ],
)
def test_conditions_of_other_controllers_are_conditions_of_other_types(
    written: object, kept: list[dict[str, object]]
) -> None:
    assert conditions_of_others({"conditions": written}) == tuple(kept)


def test_conditions_of_others_and_ours_are_not_more_than_the_crd_allows() -> None:
    many = [condition(f"a{number}") for number in range(100)]
    kept = conditions_of_others({"conditions": many})
    most = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"][
        "conditions"
    ]["maxItems"]
    assert len(kept) == MOST_OF_OTHERS
    assert MOST_OF_OTHERS + len(OUR_TYPES) <= most


def test_conditions_of_others_stand_before_ours() -> None:
    record = make_blocked()
    others = ({"type": "budget", "status": "True"},)
    assert project(record, Shown(others=others))["conditions"] == [*others, *project(record)["conditions"]]


FAILED_POD = PodFailure("train-0", "main", 137, "OOMKilled", "batch 7", at(9), has_restarted=True)
SHOWN_FAILURE = {
    "pod": "train-0",
    "container": "main",
    "exitCode": 137,
    "reason": "OOMKilled",
    "message": "batch 7",
    "at": "2026-11-20T08:58:15Z",
}


@pytest.mark.parametrize(
    ("record", "failure", "expected"),
    [
        pytest.param(
            make_failing_run(),
            FAILED_POD,
            {**SHOWN_FAILURE, "logs": "kubectl aw logs aw -n default --pod train-0 -c main --previous"},
            id="its-objects-are-kept",
        ),
        pytest.param(REQUEUED, FAILED_POD, SHOWN_FAILURE, id="its-objects-are-gone"),
        pytest.param(
            make_failing_run(),
            PodFailure("x; rm -r ~", reason="Evicted"),
            {
                "pod": "x; rm -r ~",
                "reason": "Evicted",
                "logs": "kubectl aw logs aw -n default --pod 'x; rm -r ~'",
            },
            id="a-name-that-a-shell-would-run",
        ),
        pytest.param(make_failing_run(), None, None, id="no-pod-failed"),
    ],
)
def test_failed_pod_is_shown_with_the_command_for_its_log(
    record: Record, failure: PodFailure | None, expected: dict[str, Any] | None
) -> None:
    failed = replace(record, conditions=with_failure(record.conditions, failure))
    assert project(failed).get("failure") == expected

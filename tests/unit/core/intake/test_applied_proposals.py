"""An AppWrapper that is applied again, as `plan --live` foresees it: the leader follows what its user may change."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from dispatcher.api.names import CLUSTER_SELECTOR, PRIORITY_LABEL, QUEUE_LABEL
from dispatcher.api.selector import parse_selector
from dispatcher.core.intake.proposal import applied, may_be_charge_of, propose, with_pod_defaults
from dispatcher.core.kinds.pods.pod_defaults import NO_DEFAULTS, ClusterDefaults, PodDefaults
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from tests.builders import at, make_appwrapper, make_record, make_template

Json = dict[str, Any]
NO_RULES: Final = SchedulingRules()
POD: Final = frozenset({("v1", "Pod")})
KNOWN: Final = make_record(
    requirements=ClusterRequirements(
        namespace="default", kinds=POD, ruled_out=frozenset({("west", "its Job has another owner")})
    ),
    priority=5,
    blocked_since=at(60),
)


def after(raw: Json, record: Record = KNOWN, rules: SchedulingRules = NO_RULES) -> Record:
    """The record after this AppWrapper was applied; without what every change notes of itself."""
    found = applied(record, propose(raw, "default", rules, at(300)), rules, at(300))
    return replace(found, version=record.version, last_event_at=record.last_event_at)


def written(priority: int = 5, **spec: object) -> Json:
    return make_appwrapper(spec={"priority": priority, **spec})


def labelled(raw: Json, key: str, text: str) -> Json:
    return {**raw, "metadata": {**raw["metadata"], "labels": {key: text}}}


def test_appwrapper_that_is_as_before_changes_nothing() -> None:
    proposal = propose(written(), "default", NO_RULES, at(300))
    assert applied(KNOWN, proposal, NO_RULES, at(300)) is KNOWN


def test_priority_and_selector_change_and_all_that_the_gang_has_learnt_stays() -> None:
    annotations = {CLUSTER_SELECTOR: "gpu=a100"}
    raw = make_appwrapper(spec={"priority": 7, "priorityslope": 0.5}, annotations=annotations)
    selector = parse_selector("gpu=a100", "")
    assert after(raw) == replace(
        KNOWN,
        priority=7,
        priority_slope=0.5,
        requirements=replace(KNOWN.requirements, selector=selector),
    )


def test_gang_that_is_moved_keeps_its_age_and_loses_what_its_queue_granted() -> None:
    raw = labelled(written(), QUEUE_LABEL, "vision")
    assert after(raw) == replace(KNOWN, queue="vision", blocked_since=None)


def test_gang_that_is_suspended_or_resumed_is_so_at_once() -> None:
    suspended = after(written(suspend=True))
    assert (suspended.phase, suspended.created_at) == (Phase.SUSPENDED, KNOWN.created_at)
    resumed = after(written(), suspended)
    assert (resumed.phase, resumed.created_at) == (Phase.QUEUED, KNOWN.created_at)


@pytest.mark.parametrize(
    ("raw", "rules", "priority"),
    [
        pytest.param(labelled(written(0), PRIORITY_LABEL, "high"), NO_RULES, 5, id="of-a-class"),
        pytest.param(labelled(written(6), PRIORITY_LABEL, "high"), NO_RULES, 6, id="beside-a-class"),
        pytest.param(written(0), NO_RULES, 0, id="none"),
        pytest.param(written(9), SchedulingRules(ceilings={"default": 6}), 6, id="ceiling-of-its-namespace"),
        pytest.param(written(9), SchedulingRules(highest_priority=7), 7, id="ceiling-of-all"),
    ],
)
def test_priority_counts_as_far_as_the_leader_lets_it(
    raw: Json, rules: SchedulingRules, priority: int
) -> None:
    assert after(raw, rules=rules).priority == priority


def test_policy_of_a_priority_class_stays_while_a_class_is_named() -> None:
    record = replace(KNOWN, class_never_preempts=True)
    assert after(labelled(written(), PRIORITY_LABEL, "high"), record).class_never_preempts
    assert not after(written(), record).class_never_preempts


def test_slope_grows_no_more_where_there_is_a_ceiling() -> None:
    record, rules = replace(KNOWN, priority_slope=0.5), SchedulingRules(highest_priority=7)
    assert after(written(priorityslope=2), record, rules).priority_slope == 0.5
    assert after(written(priorityslope=0.25), record, rules).priority_slope == 0.25


@pytest.mark.parametrize("phase", [Phase.DISPATCHING, Phase.RUNNING])
def test_gang_that_holds_capacity_follows_a_suspension_and_nothing_else(phase: Phase) -> None:
    record = make_record(phase)
    assert after(labelled(written(9), QUEUE_LABEL, "vision"), record) == record
    assert after(written(suspend=True), record).phase is Phase.SUSPENDING


@pytest.mark.parametrize("phase", [Phase.COMPLETED, Phase.FAILED, Phase.DELETING, Phase.REQUEUEING])
def test_gang_that_has_ended_or_leaves_stays_as_it_is(phase: Phase) -> None:
    record = make_record(phase)
    assert after(written(9), record) == record


# --- whether the wrapped objects are those that were charged -----------------------------------------------


def pods(*requests: Json, **spec: object) -> Json:
    """An AppWrapper of one pod with a container for each of these requests; `spec` is put into the pod's."""
    pod = make_template()
    pod["spec"] = {
        "containers": [
            {"name": f"c{number}", "resources": {"requests": each}} for number, each in enumerate(requests)
        ],
        **spec,
    }
    return make_appwrapper("train", pod)


def workers(count: int) -> Json:
    """An AppWrapper of a Job with so many pods at once."""
    job = make_template("Job", "batch/v1")
    job["spec"] = {"parallelism": count, "completions": count, "template": {"spec": job["spec"]}}
    return make_appwrapper("train", job)


MEMORY: Final = PodDefaults({"memory": "1Gi"})
OF_KATA: Final = PodDefaults(overheads={"kata": {"cpu": "250m"}})
INIT: Final = {"initContainers": [{"name": "fetch"}]}


@pytest.mark.parametrize(
    ("submitted", "then", "file", "expected"),
    [
        pytest.param(pods({"cpu": 2}), NO_DEFAULTS, pods({"cpu": 2}), True, id="as-it-was"),
        pytest.param(pods({"cpu": 2}), MEMORY, pods({"cpu": "2000m"}), True, id="limit-range"),
        pytest.param(pods({}, {"cpu": 1}), PodDefaults({"cpu": 4}), pods({}, {"cpu": 1}), True, id="sidecar"),
        pytest.param(
            pods({"cpu": 2}, runtimeClassName="kata"),
            OF_KATA,
            pods({"cpu": 2}, runtimeClassName="kata"),
            True,
            id="overhead",
        ),
        pytest.param(
            pods({"cpu": 2}, **INIT),
            PodDefaults({"cpu": 9}),
            pods({"cpu": 2}, **INIT),
            True,
            id="init-container",
        ),
        pytest.param(workers(3), MEMORY, workers(3), True, id="several-pods"),
        pytest.param(pods({"cpu": 2}), NO_DEFAULTS, pods({"cpu": 1}), False, id="requests-less"),
        pytest.param(pods({"cpu": 2}), NO_DEFAULTS, pods({"cpu": 3}), False, id="requests-more"),
        pytest.param(pods({"cpu": 2}), MEMORY, pods({"cpu": 1}), False, id="requests-less-beside-a-default"),
        pytest.param(
            pods({"cpu": 2, "memory": "2Gi"}),
            MEMORY,
            pods({"cpu": 2, "memory": "1Gi"}),
            False,
            id="requests-less-of-what-has-a-default",
        ),
        pytest.param(
            pods({"cpu": 2}), MEMORY, pods({"cpu": 2, "memory": "1Mi"}), False, id="states-a-default"
        ),
        pytest.param(pods({"cpu": 2}), OF_KATA, pods({"cpu": 1}), False, id="no-such-class"),
        pytest.param(workers(3), MEMORY, workers(2), False, id="fewer-pods"),
        pytest.param(pods({"cpu": 2}), MEMORY, pods({"cpu": 2}, {"cpu": 2}), False, id="more-containers"),
        pytest.param(
            pods({"cpu": 2}), MEMORY, pods({"cpu": 2}, nodeSelector={"zone": "a"}), False, id="node-selector"
        ),
        # A default of 1 cpu for the other container would have been charged alike.
        pytest.param(pods({"cpu": 2}, {}), NO_DEFAULTS, pods({"cpu": 1}, {}), True, id="like-a-default"),
    ],
)
def test_demand_is_that_of_a_file_whatever_defaults_of_pods_counted(
    submitted: Json, then: PodDefaults, file: Json, expected: bool
) -> None:
    charged = with_pod_defaults(
        propose(submitted, "default", NO_RULES, at(0)), ClusterDefaults(then), NO_RULES
    )
    written = propose(file, "default", NO_RULES, at(300))
    assert may_be_charge_of(charged.record.gang, written, NO_RULES) is expected

"""Manifests as people write them, before any API server has seen them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from dispatcher.api.conditions import State
from dispatcher.api.names import (
    APPROVALS,
    CLUSTER_SELECTOR,
    KAI_QUEUE_LABEL,
    KUEUE_QUEUE_LABEL,
    LEGACY_GROUP,
    QUEUE_LABEL,
    WORKLOAD_GROUP,
)
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.proposal import LAST, propose, with_pod_defaults
from dispatcher.core.intake.status_end import StatusEnd, end_in_status
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, ClusterDefaults, PodDefaults
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.queue import Queue
from dispatcher.core.scheduling.explain.leader_snapshot import SchedulingRules
from tests.builders import CREATED, NOW, make_template

Json = dict[str, Any]

DEFAULT = SchedulingRules()


def manifest(**fields: object) -> Json:
    """An AppWrapper of one small pod, without anything that an API server adds."""
    return {
        "apiVersion": f"{WORKLOAD_GROUP}/v1beta1",
        "kind": "AppWrapper",
        "metadata": {"name": "train"},
        "spec": {"resources": {"GenericItems": [{"generictemplate": make_template()}]}},
        **fields,
    }


def proposed(
    raw: Json, namespace: str = "default", rules: SchedulingRules = DEFAULT, number: int = 0
) -> Record:
    return propose(raw, namespace, rules, NOW, number).record


def test_defaults_of_pods_raise_the_demand_where_a_container_requests_nothing() -> None:
    proposal = propose(manifest(), "default", DEFAULT, NOW)
    defaults = PodDefaults({"memory": "1Gi", "cpu": "7"}, {"kata": {"cpu": "1"}})
    changed = with_pod_defaults(proposal, ClusterDefaults(defaults), DEFAULT)
    assert changed.record.gang.demand == Resources({"cpu": 1000, "memory": 2**30})
    assert replace(changed.record, gang=proposal.record.gang) == proposal.record
    assert with_pod_defaults(proposal, ClusterDefaults(PodDefaults({"cpu": "7"})), DEFAULT) is proposal


def test_a_proposal_is_queued_now_after_every_submitted_appwrapper() -> None:
    record = proposed(manifest(), number=2)
    assert (record.uid, record.key, record.phase) == ("proposal/2", "default/train", Phase.QUEUED)
    assert (record.created_at, record.enqueue_seq) == (NOW, LAST + 2)
    assert (record.gang.demand, record.attempt) == (Resources({"cpu": 1000}), None)
    assert NOW > CREATED


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"name": "train"}, "team-a/train"),
        ({"name": "train", "namespace": "team-b"}, "team-b/train"),
        ({"name": "train", "namespace": ""}, "team-a/train"),
        ({"generateName": "train-"}, "team-a/train-*"),
        ({"name": "train", "generateName": "other-"}, "team-a/train"),
        ({"name": None, "namespace": None, "annotations": None}, "team-a/*"),
        ({}, "team-a/*"),
    ],
)
def test_names_and_namespaces_have_defaults(metadata: Json, key: str) -> None:
    record = proposed(manifest(metadata=metadata), "team-a")
    assert (record.key, record.requirements.namespace) == (key, key.partition("/")[0])


def test_a_suspended_appwrapper_is_not_queued() -> None:
    raw = manifest()
    raw["spec"]["suspend"] = True
    assert proposed(raw).phase is Phase.SUSPENDED


@pytest.mark.parametrize(("rule", "cpu"), [(ChargeRule.LARGER, 1000), (ChargeRule.TRUSTED, 500)])
def test_declared_demand_counts_by_the_rule_of_the_leader(rule: ChargeRule, cpu: int) -> None:
    raw = manifest()
    (item,) = raw["spec"]["resources"]["GenericItems"]
    item["custompodresources"] = [{"replicas": 1, "requests": {"cpu": "500m"}}]
    assert proposed(raw, rules=SchedulingRules(declared_demand=rule)).gang.demand == Resources({"cpu": cpu})


def test_kinds_that_the_leader_knows_by_declaration_are_charged_by_their_templates() -> None:
    raw = manifest()
    (item,) = raw["spec"]["resources"]["GenericItems"]
    item["generictemplate"] = {
        "apiVersion": "example.com/v1",
        "kind": "Training",
        "metadata": {"name": "train"},
        "spec": {"replicas": 3, "template": {"spec": make_template()["spec"]}},
    }
    training = KindDeclaration(
        "example.com", "Training", (PodSetDeclaration("spec.template", "spec.replicas"),)
    )
    rules = SchedulingRules(kinds=Kinds((training,)))
    assert proposed(raw, rules=rules).gang.demand == Resources({"cpu": 3000})
    with pytest.raises(SpecError, match="cannot be derived from its template"):
        proposed(raw)


TEAMS = {"team-a": {QUEUE_LABEL: "research"}, "team-b": {KAI_QUEUE_LABEL: "serving", "tier": "gold"}}
HUB = SchedulingRules(namespaces=TEAMS, trees=("context", "service"))


@pytest.mark.parametrize(
    ("labels", "namespace", "queues"),
    [
        ({}, "team-a", ("research", "context/default", "service/default")),
        ({}, "team-b", ("serving", "context/default", "service/default")),
        ({}, "elsewhere", ("default", "context/default", "service/default")),
        ({QUEUE_LABEL: "own"}, "team-a", ("own", "context/default", "service/default")),
        ({KUEUE_QUEUE_LABEL: "local"}, "team-a", ("research", "context/default", "service/default")),
        (
            {"service": "gold", "context": "bronze", "other": "x"},
            "team-a",
            ("research", "context/bronze", "service/gold"),
        ),
    ],
)
def test_queues_are_those_of_the_hub(labels: Json, namespace: str, queues: tuple[str, ...]) -> None:
    raw = manifest(metadata={"name": "train", "labels": labels})
    assert proposed(raw, namespace, HUB).leaves == queues
    raw["metadata"]["namespace"] = namespace
    assert proposed(raw, "elsewhere", HUB).leaves == queues


@pytest.mark.parametrize(
    ("names", "queue"),
    [
        pytest.param(frozenset({"local"}), "local", id="malformed-or-replaced"),
        pytest.param(frozenset(), "research", id="nowhere"),
        pytest.param(None, "research", id="leader-of-an-earlier-release"),
    ],
)
def test_name_in_kueues_label_is_that_of_a_queue_if_the_leader_knows_one(
    names: frozenset[str] | None, queue: str
) -> None:
    """The leader knows also queues that are not valid, and those that are gone for a moment."""
    raw = manifest(metadata={"name": "train", "labels": {KUEUE_QUEUE_LABEL: "local"}})
    rules = SchedulingRules(queues=(Queue("research"),), namespaces=TEAMS, names=names)
    assert proposed(raw, "team-a", rules).leaves == (queue,)


def test_a_proposal_lacks_the_approvals_that_it_and_its_queue_name() -> None:
    rules = SchedulingRules(queues=(Queue("default", approvals=("window",)),))
    record = proposed(manifest(metadata={"annotations": {APPROVALS: "budget"}}), rules=rules)
    assert record.awaits_approval
    assert record.pending is not None
    assert record.pending.approvals == ("budget", "window")


def test_the_old_group_is_an_appwrapper_too() -> None:
    assert proposed(manifest(apiVersion=f"{LEGACY_GROUP}/v1beta1")).group == LEGACY_GROUP


ODD = "Write an AppWrapper."
WRAP = "Wrap it in an AppWrapper (docs/kinds.md, Wrap an object)."
VERSIONS = "Write workload.codeflare.dev/v1beta1, workload.codeflare.dev/v1beta2 or mcad.ibm.com/v1beta1."


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (make_template("Job", "batch/v1"), f'kind: is not AppWrapper, but "Job". {WRAP}'),
        (make_template("RayJob", "ray.io/v1"), f'kind: is not AppWrapper, but "RayJob". {WRAP}'),
        (
            make_template("Gateway", "gateway.networking.k8s.io/v1"),
            'kind: is not AppWrapper, but "Gateway". It may make pods beside the gang: submit the file without it, or '
            "wrap it in an AppWrapper that declares its pods (docs/kinds.md, Wrap an object).",
        ),
        (
            manifest(apiVersion="example.com/v1"),
            f'apiVersion: has no AppWrappers: "example.com/v1". {VERSIONS}',
        ),
        (
            manifest(apiVersion="workload.codeflare.dev/v1beta3"),
            f'apiVersion: has no AppWrappers: "workload.codeflare.dev/v1beta3". {VERSIONS}',
        ),
        (manifest(kind="Appwrapper"), 'kind: is not AppWrapper, but "Appwrapper". Did you mean AppWrapper?'),
        (manifest(apiVersion=None), f"apiVersion: has no AppWrappers: null. {VERSIONS}"),
        ({}, f"kind: is not AppWrapper, but null. {WRAP}"),
        (manifest(kind=["Job"]), f"kind: is not AppWrapper, but a list. {WRAP}"),
        (manifest(metadata=None), f"metadata: must be an object, not null. {ODD}"),
        (manifest(metadata=[]), f"metadata: must be an object, not a list. {ODD}"),
        (manifest(spec="x"), f'spec: must be an object, not "x". {ODD}'),
        (manifest(metadata={"name": 7}), "metadata.name: must be text, not 7. Write a name."),
        (manifest(metadata={"name": "a\nb"}), 'metadata.name: must be text, not "a\\nb". Write a name.'),
        (
            manifest(metadata={"generateName": ["x"]}),
            "metadata.generateName: must be text, not a list. Write a name.",
        ),
        (
            manifest(metadata={"annotations": "x"}),
            "metadata.annotations: must be an object. Write names and texts.",
        ),
        (
            manifest(metadata={"annotations": {APPROVALS: "Running"}}),
            f'metadata.annotations["{APPROVALS}"]: names Running, a condition that the dispatcher writes itself. '
            'Write names such as "budget" or "example.com/budget", with commas between.',
        ),
        (
            manifest(metadata={"annotations": {CLUSTER_SELECTOR: 7}}),
            f'metadata.annotations["{CLUSTER_SELECTOR}"]: must be text, not 7. Write it in quotes.',
        ),
        (
            manifest(metadata={"annotations": {CLUSTER_SELECTOR: None}}),
            f'metadata.annotations["{CLUSTER_SELECTOR}"]: must be text, not null. Write it in quotes.',
        ),
    ],
)
def test_a_wrong_manifest_is_answered_with_what_to_write(raw: Json, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        proposed(raw)
    assert str(refused.value) == message


# --- A status that says that an AppWrapper has ended is believed, unless it contradicts itself -------------


def condition(type_: str, status: str = "True", **fields: str) -> Json:
    return {"type": type_, "status": status, **fields}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({}, None, id="no-status"),
        pytest.param(
            {"state": "Completed", "conditions": [condition("Completed")]},
            StatusEnd(State.COMPLETED, "", "", None),
            id="completed",
        ),
        pytest.param(
            {"state": "Failed", "conditions": [condition("Failed", reason="PodsFailed", message="2 of 4")]},
            StatusEnd(State.FAILED, "PodsFailed", "2 of 4", None),
            id="failed",
        ),
        pytest.param({"state": "Completed", "conditions": []}, None, id="state-without-its-condition"),
        pytest.param(
            {"state": "Completed", "conditions": [condition("Completed", "False")]},
            None,
            id="condition-that-is-false",
        ),
        pytest.param(
            {"state": "Failed", "conditions": [condition("Completed")]}, None, id="condition-of-another-state"
        ),
        pytest.param(
            {"state": "Running", "conditions": [condition("Completed")]}, None, id="state-that-is-no-end"
        ),
        pytest.param({"state": "Completed", "conditions": "Completed"}, None, id="conditions-unreadable"),
        pytest.param({"state": "Completed", "conditions": ["Completed"]}, None, id="condition-unreadable"),
    ],
)
def test_status_is_believed_unless_it_contradicts_itself(status: Json, expected: StatusEnd | None) -> None:
    assert end_in_status(status) == expected


@pytest.mark.parametrize(
    ("kept_until", "expected"),
    [
        pytest.param("2026-11-20T08:58:10Z", datetime(2026, 11, 20, 8, 58, 10, tzinfo=UTC), id="a-time"),
        pytest.param("2026-11-20T08:58:10", None, id="a-time-of-no-zone"),
        pytest.param("0001-01-01T00:00:00+14:00", None, id="a-time-before-all-that-there-are"),
        pytest.param("9999-12-31T23:59:59-12:00", None, id="a-time-after-all-that-there-are"),
        pytest.param("soon", None, id="no-time"),
        pytest.param(7, None, id="no-text"),
    ],
)
def test_objects_are_kept_until_a_time_that_can_be_read(
    kept_until: object, expected: datetime | None
) -> None:
    status = {"state": "Completed", "conditions": [condition("Completed")], "keptUntil": kept_until}
    end = end_in_status(status)
    assert end is not None
    assert end.kept_until == expected


QUEUES_WITH_RUNTIMES = (
    Queue("research", expected_runtime=timedelta(hours=4)),
    Queue("vision", parent="research"),
    Queue("probes", parent="research", expected_runtime=timedelta(minutes=10)),
    Queue("any", parent="research", expected_runtime=timedelta(0)),
)


@pytest.mark.parametrize(
    ("queue", "namespace", "stated", "expected"),
    [
        pytest.param("vision", "team-a", {}, 4 * 3600, id="that-of-the-queue-above"),
        pytest.param("probes", "team-a", {}, 600, id="its-own-queue"),
        pytest.param("any", "team-a", {}, 0, id="a-queue-that-inherits-none"),
        pytest.param("vision", "team-b", {}, 900, id="its-namespace-before-its-queue"),
        pytest.param("gone", "team-a", {}, 0, id="no-queue"),
        pytest.param("vision", "team-b", {"expected": 60}, 60, id="what-the-author-states"),
        pytest.param("vision", "team-b", {"limit": 86400}, 0, id="a-limit-is-stated"),
    ],
)
def test_expected_run_time_is_stated_or_that_of_the_namespace_or_of_the_queue(
    queue: str, namespace: str, stated: Json, expected: int
) -> None:
    rules = SchedulingRules(queues=QUEUES_WITH_RUNTIMES, expected={"team-b": 900})
    raw = manifest(metadata={"name": "train", "labels": {QUEUE_LABEL: queue}})
    raw["spec"] = {**raw["spec"], "schedulingSpec": {"dispatchDuration": stated}}
    assert proposed(raw, namespace, rules).expected_seconds == expected


def test_expected_run_time_is_bounded_by_what_a_record_can_hold() -> None:
    rules = SchedulingRules(queues=(Queue("q", expected_runtime=timedelta(seconds=10**10)),))
    raw = manifest(metadata={"name": "train", "labels": {QUEUE_LABEL: "q"}})
    assert proposed(raw, rules=rules).expected_seconds == 2**31 - 1

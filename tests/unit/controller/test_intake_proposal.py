"""A proposal is the record that intake makes of the same manifest."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR, LEGACY_GROUP
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.intake.proposal import propose
from dispatcher.core.model.record import Phase, Record
from dispatcher.core.scheduling.leader_snapshot import SchedulingRules
from tests.builders import make_appwrapper, make_template
from tests.unit.controller.world import World

Json = dict[str, Any]

JOB = make_template("Job", "batch/v1", name="j")
JOB["spec"] = {"parallelism": 3, "completions": 3, "template": {"spec": make_template()["spec"]}}
GPU = make_template()
GPU["spec"] = {
    "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
WIDGET = make_template("Widget", "example.com/v1", name="w")


def declared(**requests: str) -> Json:
    """An item with declared pods."""
    resources = {"replicas": 4, "requests": requests}
    return {"resources": {"GenericItems": [{"generictemplate": WIDGET, "custompodresources": [resources]}]}}


def components(*templates: Json) -> Json:
    raw = make_appwrapper()
    raw["spec"] = {"components": [{"template": each} for each in templates]}
    return raw


MANIFESTS = [
    pytest.param(make_appwrapper(), id="pod"),
    pytest.param(make_appwrapper("aw", JOB, GPU, namespace="default"), id="job-and-pod"),
    pytest.param(make_appwrapper(group=LEGACY_GROUP), id="old-group"),
    pytest.param(make_appwrapper(spec=declared(cpu="2", memory="3Gi")), id="declared"),
    pytest.param(components(JOB, GPU), id="components"),
    pytest.param(make_appwrapper(spec={"priority": 9, "priorityslope": 0.5}), id="priority"),
    pytest.param(make_appwrapper(labels={"kueue.x-k8s.io/queue-name": "team", "a": "b"}), id="queue"),
    pytest.param(make_appwrapper(spec={"suspend": True}), id="suspended"),
    pytest.param(
        make_appwrapper(
            spec={"schedulingSpec": {"minAvailable": 1, "dispatchDuration": {"expected": 90, "limit": 120}}}
        ),
        id="dispatch-duration",
    ),
    pytest.param(
        make_appwrapper(
            "aw", JOB, annotations={CLUSTER_SELECTOR: "region in (eu, us)", CLUSTER_PREFERENCE: "!spot"}
        ),
        id="clusters",
    ),
]


def deciding(record: Record) -> dict[str, object]:
    """The parts of a record that decisions depend on."""
    parts = "group namespace name phase priority priority_slope gang requirements conditions queue"
    durations = "expected_seconds limit_seconds"
    return {each: getattr(record, each) for each in (*parts.split(), *durations.split())}


@pytest.mark.parametrize("raw", MANIFESTS)
async def test_a_proposal_is_the_record_that_intake_makes(world: World, raw: Json) -> None:
    record = await world.admit(raw)
    assert record.phase in {Phase.QUEUED, Phase.SUSPENDED}
    proposal = propose(raw, "default", SchedulingRules(), record.phase_since)
    assert deciding(proposal.record) == deciding(record)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(make_appwrapper("aw", WIDGET), id="unknown-kind"),
        pytest.param(make_appwrapper(annotations={CLUSTER_SELECTOR: "region in"}), id="no-selector"),
        pytest.param(make_appwrapper(annotations={CLUSTER_PREFERENCE: "=,"}), id="no-preference"),
        pytest.param(make_appwrapper(spec={"priority": "high"}), id="no-priority"),
        pytest.param(components(WIDGET), id="unknown-component"),
    ],
)
async def test_a_proposal_is_refused_with_the_words_of_intake(world: World, raw: Json) -> None:
    record = await world.admit(raw)
    with pytest.raises(SpecError) as refused:
        propose(raw, "default", SchedulingRules(), record.phase_since)
    assert record.phase is Phase.FAILED
    assert record.message == f"default/aw creation failure: {refused.value}"

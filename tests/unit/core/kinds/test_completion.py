"""When a gang is complete, and what holds it open."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.api.appwrapper import DeclaredPodSet, WrappedObject
from dispatcher.core.kinds.completion import CompletionRule, Progress, completion_rule, progress
from dispatcher.core.kinds.object_status import End, ObjectState

NONE, SOME, ALL = Progress.NONE, Progress.SOME, Progress.ALL

RUNS = ObjectState()
SUCCEEDED = ObjectState(End.SUCCEEDED, frozenset({"Complete"}))
FAILED = ObjectState(End.FAILED, frozenset({"Failed"}), "BackoffLimitExceeded")
EVICTED = ObjectState(End.EVICTED, frozenset({"DisruptionTarget"}), "Evicted")
UNKNOWN = None


def says(*conditions: str) -> ObjectState:
    return ObjectState(conditions=frozenset(conditions))


def item(
    api_version: str, kind: str, *words: str, declared: tuple[DeclaredPodSet, ...] | None = None
) -> CompletionRule:
    template: dict[str, Any] = {"apiVersion": api_version, "kind": kind}
    return completion_rule(WrappedObject(0, template, declared, words))


JOB = item("batch/v1", "Job")
POD = item("v1", "Pod")
DEPLOYMENT = item("apps/v1", "Deployment")
RAY_CLUSTER = item("ray.io/v1", "RayCluster")
SIMULATION = item("example.com/v1", "Simulation")
DASHBOARD = item("example.com/v1", "Dashboard", declared=())
SERVICE = item("v1", "Service")
CONFIG_MAP = item("v1", "ConfigMap")
JOB_NAMED = item("batch/v1", "Job", "Complete")
DEPLOYMENT_NAMED = item("apps/v1", "Deployment", "Progressing")
SIMULATION_NAMED = item("example.com/v1", "Simulation", "Done", "Succeeded")


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (JOB, CompletionRule(ends=True, holds=True)),
        (JOB_NAMED, CompletionRule(words=("Complete",), ends=True, holds=True)),
        (DEPLOYMENT, CompletionRule(holds=True)),
        (SIMULATION, CompletionRule(holds=True)),
        (
            item("example.com/v1", "Simulation", declared=(DeclaredPodSet(1, {}, {}),)),
            CompletionRule(holds=True),
        ),
        (SIMULATION_NAMED, CompletionRule(words=("Done", "Succeeded"), holds=True)),
        (DASHBOARD, CompletionRule(serves=True)),
        (item("apps/v1", "Deployment", declared=()), CompletionRule(holds=True)),
        (SERVICE, CompletionRule(exposes=True)),
        (item("networking.k8s.io/v1", "Ingress"), CompletionRule(exposes=True)),
        (item("route.openshift.io/v1", "Route"), CompletionRule(exposes=True)),
        (item("v1", "Service", "Ready"), CompletionRule(words=("Ready",), holds=True)),
        (CONFIG_MAP, CompletionRule()),
        (item("v1", "Secret"), CompletionRule()),
        (item("v1", "ServiceAccount"), CompletionRule()),
        (item("v1", "PersistentVolumeClaim"), CompletionRule()),
        (item("rbac.authorization.k8s.io/v1", "RoleBinding"), CompletionRule()),
        (item("networking.k8s.io/v1", "NetworkPolicy"), CompletionRule()),
        (item("policy/v1", "PodDisruptionBudget"), CompletionRule()),
        (item("scheduling.x-k8s.io/v1alpha1", "PodGroup"), CompletionRule()),
    ],
)
def test_terms_of_an_item_are_its_words_and_its_kind(terms: CompletionRule, expected: CompletionRule) -> None:
    assert terms == expected


@pytest.mark.parametrize(
    ("items", "states", "expected"),
    [
        pytest.param([], [], NONE, id="nothing wrapped is never complete"),
        pytest.param([JOB_NAMED], [SUCCEEDED], ALL, id="job with a word (MCAD 22)"),
        pytest.param([JOB_NAMED], [RUNS], NONE, id="job with a word that still runs"),
        pytest.param([JOB_NAMED], [UNKNOWN], NONE, id="job of which nothing is known"),
        pytest.param([JOB_NAMED] * 2, [SUCCEEDED] * 2, ALL, id="two jobs with words (MCAD 23)"),
        pytest.param([JOB_NAMED] * 2, [SUCCEEDED, RUNS], SOME, id="one of two jobs with words"),
        pytest.param([JOB_NAMED] * 2, [SUCCEEDED, UNKNOWN], SOME, id="the other is not known"),
        pytest.param([JOB], [SUCCEEDED], ALL, id="job without a word ends by itself (MCAD 25)"),
        pytest.param([JOB, POD], [SUCCEEDED, RUNS], SOME, id="a job ended but a pod has not"),
        pytest.param([JOB, POD], [SUCCEEDED, SUCCEEDED], ALL, id="all that end have ended"),
        pytest.param(
            [DEPLOYMENT_NAMED, DEPLOYMENT],
            [says("Available", "Progressing"), says("Available", "Progressing")],
            SOME,
            id="a deployment without a word holds the one with it (MCAD 28)",
        ),
        pytest.param([DEPLOYMENT_NAMED], [says("Progressing")], ALL, id="a deployment with a word ends"),
        pytest.param([SERVICE], [RUNS], NONE, id="service alone never ends (MCAD 29)"),
        pytest.param([CONFIG_MAP], [RUNS], NONE, id="passive alone never ends"),
        pytest.param([DEPLOYMENT], [says("Available")], NONE, id="deployment never ends"),
        pytest.param([RAY_CLUSTER], [says("HeadPodReady")], NONE, id="ray cluster never ends"),
        pytest.param(
            [item("scheduling.x-k8s.io/v1alpha1", "PodGroup"), JOB],
            [UNKNOWN, RUNS],
            NONE,
            id="pod group tells nothing (MCAD 24, in its own namespace)",
        ),
        pytest.param(
            [CONFIG_MAP, item("scheduling.x-k8s.io/v1alpha1", "PodGroup"), JOB],
            [RUNS, UNKNOWN, SUCCEEDED],
            ALL,
            id="passive items hold nothing",
        ),
        pytest.param([JOB, SERVICE], [SUCCEEDED, RUNS], ALL, id="a service goes with the pods of its gang"),
        pytest.param(
            [DEPLOYMENT_NAMED, SERVICE], [says("Progressing"), RUNS], ALL, id="also with named ones"
        ),
        pytest.param([JOB, SERVICE, JOB], [SUCCEEDED, RUNS, RUNS], SOME, id="and with the last of them"),
        pytest.param([JOB, DEPLOYMENT, SERVICE], [SUCCEEDED, RUNS, RUNS], SOME, id="which may never end"),
        pytest.param([JOB, DASHBOARD], [SUCCEEDED, RUNS], SOME, id="a kind we do not know may go on"),
        pytest.param(
            [JOB_NAMED, SERVICE], [SUCCEEDED, RUNS], ALL, id="a service counts for nothing beside a word"
        ),
        pytest.param([JOB_NAMED, DASHBOARD], [SUCCEEDED, RUNS], ALL, id="nor does a podless kind"),
        pytest.param([JOB, RAY_CLUSTER], [SUCCEEDED, RUNS], SOME, id="ray cluster holds a job"),
        pytest.param([JOB_NAMED, RAY_CLUSTER], [SUCCEEDED, RUNS], SOME, id="ray cluster holds a named job"),
        pytest.param([JOB_NAMED, SIMULATION], [SUCCEEDED, RUNS], SOME, id="so does an unknown kind"),
        pytest.param([JOB_NAMED, JOB], [SUCCEEDED, RUNS], SOME, id="an unnamed job is waited for"),
        pytest.param([JOB_NAMED, JOB], [RUNS, SUCCEEDED], SOME, id="an unnamed job alone is not all"),
        pytest.param([JOB_NAMED, JOB], [SUCCEEDED, SUCCEEDED], ALL, id="named and unnamed jobs ended"),
        pytest.param([SIMULATION_NAMED], [says("Succeeded")], ALL, id="any one of the words will do"),
        pytest.param([SIMULATION_NAMED], [says("SucceededSoon", "done")], NONE, id="only the whole word"),
        pytest.param(
            [item("batch/v1", "Job", "Suspended")], [SUCCEEDED], NONE, id="words replace the own end"
        ),
        pytest.param(
            [item("batch/v1", "Job", "Complete", "Failed")],
            [FAILED],
            NONE,
            id="what failed is not done, even if failing was named",
        ),
        pytest.param([POD, POD], [SUCCEEDED, EVICTED], SOME, id="what was evicted is not done"),
    ],
)
def test_progress_of_a_gang(
    items: list[CompletionRule], states: list[ObjectState | None], expected: Progress
) -> None:
    assert (
        progress(items, [item.is_met_by(state) for item, state in zip(items, states, strict=True)])
        is expected
    )


def test_each_item_is_said_to_be_done_or_not() -> None:
    with pytest.raises(ValueError, match="zip"):
        progress([JOB], [True, True])

"""Declarations of queues: what is read of a DispatchQueue and of a scenario file, and what is refused where."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.clusters.provisioning import ProvisioningClass, RetryRule
from dispatcher.api.document import Entry
from dispatcher.api.selector import EVERYTHING, Requirement, Selector, SelectorOperator
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.queues.declaration import parse_dispatch_queue, read_queue
from dispatcher.core.queues.queue import (
    MOST_RESOURCES,
    Elastic,
    Order,
    Preemption,
    Queue,
    QueueingStrategy,
    Quota,
    Reclaim,
    Sharing,
    StopPolicy,
    WhileBorrowing,
    WithinQueue,
)

Json = dict[str, Any]

EVERY_FIELD: Json = {
    "parent": "research",
    "resources": {
        "cpu": {"nominalQuota": "1500m"},
        "nvidia.com/gpu": {"nominalQuota": 8, "borrowingLimit": 4, "lendingLimit": "6"},
    },
    "weight": "1.5",
    "priority": -3,
    "sharing": "Division",
    "queueingStrategy": "StrictFIFO",
    "starvationBoundSeconds": 600,
    "order": "Usage",
    "preemption": {
        "withinQueue": "LowerOrNewerEqualPriority",
        "reclaim": "LowerPriority",
        "whileBorrowing": {"maxPriority": 10},
    },
    "minRuntimeSeconds": 60,
    "maxPreemptions": 5,
    "preemptibleBelow": 100,
    "clusterSelector": "gpu=h100",
    "namespaceSelector": "tier in (gold, silver)",
    "stopPolicy": "HoldAndDrain",
    "approvals": ["example.com/budget", "data-staged"],
    "provisioning": {
        "className": "queued-provisioning.gke.io",
        "managedResources": ["nvidia.com/gpu"],
        "parameters": {"maxRunDurationSeconds": "3600"},
        "authorParameters": ["zone"],
        "acceptWithinSeconds": 120,
        "retry": {"limit": 2, "baseSeconds": 30, "maxSeconds": 90},
    },
    "elastic": "First",
    "expectedRuntimeSeconds": 7200,
}
READ = Queue(
    name="a",
    parent="research",
    resources={"cpu": Quota(1500), "nvidia.com/gpu": Quota(8, 4, 6)},
    weight=Fraction(3, 2),
    priority=-3,
    sharing=Sharing.DIVISION,
    strategy=QueueingStrategy.STRICT_FIFO,
    starvation_bound=timedelta(minutes=10),
    order=Order.USAGE,
    preemption=Preemption(
        WithinQueue.LOWER_OR_NEWER_EQUAL_PRIORITY, Reclaim.LOWER_PRIORITY, WhileBorrowing(10)
    ),
    min_runtime=timedelta(minutes=1),
    max_preemptions=5,
    preemptible_below=100,
    cluster_selector=Selector((Requirement("gpu", SelectorOperator.IN, frozenset({"h100"})),)),
    namespace_selector=Selector((Requirement("tier", SelectorOperator.IN, frozenset({"gold", "silver"})),)),
    stop_policy=StopPolicy.HOLD_AND_DRAIN,
    approvals=("example.com/budget", "data-staged"),
    provisioning=ProvisioningClass(
        "queued-provisioning.gke.io",
        frozenset({"nvidia.com/gpu"}),
        (("maxRunDurationSeconds", "3600"),),
        RetryRule(2, timedelta(seconds=30), timedelta(seconds=90)),
        timedelta(minutes=2),
        frozenset({"zone"}),
    ),
    elastic=Elastic.FIRST,
    expected_runtime=timedelta(hours=2),
)


def dispatch_queue(spec: object, name: str = "a") -> Json:
    body = {"apiVersion": "dispatcher.codeflare.dev/v1alpha1", "kind": "DispatchQueue"}
    return {**body, "metadata": {"name": name, "uid": "u"}, "spec": spec, "status": {"pending": 3}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(EVERY_FIELD, READ, id="every-field"),
        pytest.param({}, Queue("a"), id="empty"),
        pytest.param(None, Queue("a"), id="no-spec"),
        pytest.param(dict.fromkeys(EVERY_FIELD), Queue("a"), id="nulls"),
        pytest.param(
            {"resources": {"cpu": {"nominalQuota": 0, "borrowingLimit": 0, "lendingLimit": 0}}},
            Queue("a", resources={"cpu": Quota(0, 0, 0)}),
            id="zero-is-not-absent",
        ),
        pytest.param({"resources": {}, "preemption": {}}, Queue("a"), id="empty-objects"),
        pytest.param(
            {
                "minRuntimeSeconds": 0,
                "starvationBoundSeconds": 0,
                "maxPreemptions": 0,
                "preemptibleBelow": 0,
                "weight": 0,
            },
            Queue(
                "a",
                min_runtime=timedelta(0),
                starvation_bound=timedelta(0),
                max_preemptions=0,
                preemptible_below=0,
                weight=Fraction(0),
            ),
            id="zero-is-not-inherited",
        ),
        pytest.param(
            {"preemption": {"reclaim": "Any", "whileBorrowing": {}}},
            Queue("a", preemption=Preemption(reclaim=Reclaim.ANY, while_borrowing=WhileBorrowing(None))),
            id="while-borrowing-without-a-highest-priority",
        ),
        pytest.param({"approvals": []}, Queue("a", approvals=()), id="no-approvals-is-not-inherited"),
        pytest.param({"weight": "0.1"}, Queue("a", weight=Fraction(1, 10)), id="a-tenth-is-exactly-a-tenth"),
        pytest.param({"weight": 0.1}, Queue("a", weight=Fraction(1, 10)), id="a-float-is-what-it-prints-as"),
        pytest.param(
            {"clusterSelector": "", "namespaceSelector": " "},
            Queue("a", cluster_selector=EVERYTHING, namespace_selector=EVERYTHING),
            id="empty-selectors",
        ),
        pytest.param(
            {"sharing": "Priority", "parent": "b"},
            Queue("a", parent="b", sharing=Sharing.PRIORITY),
            id="sharing-below-a-root",
        ),
        pytest.param(
            {"sharing": "Division", "resources": {"cpu": {"nominalQuota": 1, "lendingLimit": 1}}},
            Queue("a", sharing=Sharing.DIVISION, resources={"cpu": Quota(1000, lending_limit=1000)}),
            id="lending-limit-under-division",
        ),
    ],
)
def test_dispatch_queue_is_read_as_declared(spec: object, expected: Queue) -> None:
    assert parse_dispatch_queue(dispatch_queue(spec)) == expected


def test_scenario_file_declares_the_same_fields() -> None:
    assert read_queue("a", Entry({"name": "a", **EVERY_FIELD}, "queues[0]")) == READ


NEWER: Json = {
    "colour": "red",
    "resources": {"cpu": {"nominalQuota": 1, "burst": 2}},
    "preemption": {"reclaim": "Any", "pace": 1, "whileBorrowing": {"maxPriority": 1, "minPriority": 0}},
}
KNOWN = Queue(
    "a",
    resources={"cpu": Quota(1000)},
    preemption=Preemption(reclaim=Reclaim.ANY, while_borrowing=WhileBorrowing(1)),
)


def test_fields_of_a_newer_crd_are_ignored() -> None:
    assert parse_dispatch_queue(dispatch_queue(NEWER)) == KNOWN


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"resources": NEWER["resources"]},
            "queues[0].resources.cpu.burst: is unknown here; known are nominalQuota, borrowingLimit, lendingLimit",
            id="quota",
        ),
        pytest.param(
            {"preemption": {"pace": 1}},
            "queues[0].preemption.pace: is unknown here; known are withinQueue, reclaim, whileBorrowing",
            id="preemption",
        ),
        pytest.param(
            {"preemption": {"whileBorrowing": {"minPriority": 0}}},
            "queues[0].preemption.whileBorrowing.minPriority: is unknown here; known are maxPriority",
            id="while-borrowing",
        ),
    ],
)
def test_unknown_key_of_a_scenario_file_is_refused(spec: Json, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_queue("a", Entry(spec, "queues[0]"))
    assert str(caught.value) == message


def test_resource_that_begins_with_x_is_limited_in_a_dispatch_queue() -> None:
    spec = {"resources": {"x-corp.io/npu": {"nominalQuota": 2}}}

    assert parse_dispatch_queue(dispatch_queue(spec)).resources == {"x-corp.io/npu": Quota(2)}
    assert read_queue("a", Entry(spec, "queues[0]")).resources == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param([], "spec: must be an object, not a list", id="list-for-a-spec"),
        pytest.param({"parent": "a"}, "spec.parent: a queue cannot be its own parent", id="own-parent"),
        pytest.param({"parent": ""}, "spec.parent: must have 1 to 253 characters", id="empty-parent"),
        pytest.param({"parent": 3}, "spec.parent: must be a text, not 3", id="number-for-a-parent"),
        pytest.param(
            {"resources": "cpu"}, 'spec.resources: must be an object, not "cpu"', id="text-for-quotas"
        ),
        pytest.param(
            {"resources": {"cpu": 8}}, "spec.resources.cpu: must be an object, not 8", id="bare-quota"
        ),
        pytest.param(
            {"resources": {"cpu": None}}, "spec.resources.cpu.nominalQuota: is required", id="null-quota"
        ),
        pytest.param(
            {"resources": {"nvidia.com/gpu": {"borrowingLimit": 1}}},
            'spec.resources["nvidia.com/gpu"].nominalQuota: is required',
            id="no-nominal-quota",
        ),
        pytest.param(
            {"resources": {"cpu": {"nominalQuota": -1}}},
            "spec.resources.cpu.nominalQuota: -1 is negative; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
            id="negative-nominal-quota",
        ),
        pytest.param(
            {"resources": {"cpu": {"nominalQuota": 1, "borrowingLimit": "-1m"}}},
            "spec.resources.cpu.borrowingLimit: '-1m' is negative; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
            id="negative-borrowing-limit",
        ),
        pytest.param(
            {"resources": {"cpu": {"nominalQuota": 1, "lendingLimit": "much"}}},
            "spec.resources.cpu.lendingLimit: 'much' is not a quantity; "
            "allowed are numbers like 2, 0.5, 500m, 1e3, 16G or 16Gi",
            id="unreadable-lending-limit",
        ),
        pytest.param(
            {"resources": {"memory": {"nominalQuota": "1e30"}}},
            "spec.resources.memory.nominalQuota: '1e30' is too large; "
            "allowed are at most 9223372036854775807 units",
            id="too-large-nominal-quota",
        ),
        pytest.param(
            {"resources": {"a b": {"nominalQuota": 1}}},
            "spec.resources: 'a b' is not a resource name; "
            "allowed are names like cpu or nvidia.com/gpu (an optional DNS prefix, "
            "then at most 63 of letters, digits, '-', '_' and '.')",
            id="no-resource-name",
        ),
        pytest.param(
            {"resources": {f"r{number}": {} for number in range(MOST_RESOURCES + 1)}},
            "spec.resources: has 65 resources; at most 64 are allowed",
            id="too-many-resources",
        ),
        pytest.param(
            {"weight": "-1"},
            'spec.weight: must be a decimal number of at least 0, not "-1"',
            id="weight-below-0",
        ),
        pytest.param(
            {"weight": "1e3"}, 'spec.weight: must be a decimal number of at least 0, not "1e3"', id="exponent"
        ),
        pytest.param(
            {"weight": True},
            "spec.weight: must be a decimal number of at least 0, not true",
            id="true-weight",
        ),
        pytest.param(
            {"priority": 2**31},
            "spec.priority: must be a whole number from -2147483648 to 2147483647, not 2147483648",
            id="priority-beyond-32-bits",
        ),
        pytest.param(
            {"sharing": "Fair"},
            'spec.sharing: must be one of Priority, DominantShare, Division, not "Fair"',
            id="no-such-sharing",
        ),
        pytest.param(
            {"queueingStrategy": "FIFO"},
            'spec.queueingStrategy: must be one of BestEffortFIFO, StrictFIFO, not "FIFO"',
            id="no-such-strategy",
        ),
        pytest.param(
            {"order": "usage"}, 'spec.order: must be one of Priority, Usage, not "usage"', id="no-such-order"
        ),
        pytest.param(
            {"stopPolicy": "Drain"},
            'spec.stopPolicy: must be one of None, Hold, HoldAndDrain, not "Drain"',
            id="no-such-stop-policy",
        ),
        pytest.param(
            {"preemption": {"withinQueue": "Any"}},
            "spec.preemption.withinQueue: must be one of Never, LowerPriority, LowerOrNewerEqualPriority, "
            'not "Any"',
            id="no-such-preemption-within-the-queue",
        ),
        pytest.param(
            {"preemption": {"reclaim": ["Any"]}},
            "spec.preemption.reclaim: must be one of Never, LowerPriority, Any, not a list",
            id="list-for-reclaim",
        ),
        pytest.param(
            {"preemption": "Never"},
            'spec.preemption: must be an object, not "Never"',
            id="text-for-preemption",
        ),
        pytest.param(
            {"preemption": {"reclaim": "Never", "whileBorrowing": {}}},
            'spec.preemption.whileBorrowing: has no effect with reclaim "Never"',
            id="while-borrowing-without-reclaim",
        ),
        pytest.param(
            {"preemption": {"whileBorrowing": {"maxPriority": 0}}},
            'spec.preemption.whileBorrowing: has no effect with reclaim "Never"',
            id="while-borrowing-and-reclaim-absent",
        ),
        pytest.param(
            {"starvationBoundSeconds": -1},
            "spec.starvationBoundSeconds: must be seconds from 0 to 10000000000, not -1",
            id="negative-starvation-bound",
        ),
        pytest.param(
            {"minRuntimeSeconds": "60"},
            'spec.minRuntimeSeconds: must be a number, not "60"',
            id="quoted-seconds",
        ),
        pytest.param(
            {"maxPreemptions": -1},
            "spec.maxPreemptions: must be a whole number from 0 to 2147483647, not -1",
            id="negative-preemptions",
        ),
        pytest.param(
            {"clusterSelector": "gpu=h100,"},
            "spec.clusterSelector: is no label selector: at character 10, expected a label, not the end. "
            "Write requirements such as a=b, c!=d, e in (x,y), f notin (z), g or !h, separated by commas.",
            id="half-a-selector",
        ),
        pytest.param(
            {"namespaceSelector": "a" * 4097},
            "spec.namespaceSelector: is 4097 characters long, of 4096 at most. "
            "Label the clusters so that a short selector finds them.",
            id="endless-selector",
        ),
    ],
)
def test_malformed_dispatch_queue_is_refused_with_its_place(spec: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_dispatch_queue(dispatch_queue(spec))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param("a", 'document: must be an object, not "a"', id="text"),
        pytest.param({"spec": {}}, "metadata.name: is required", id="no-metadata"),
        pytest.param(
            {"metadata": {"name": 1}}, "metadata.name: must be a text, not 1", id="number-for-a-name"
        ),
        pytest.param({"metadata": []}, "metadata: must be an object, not a list", id="list-for-metadata"),
    ],
)
def test_object_without_a_name_is_refused(document: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_dispatch_queue(document)
    assert str(caught.value) == message


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


HUGE = 10**5
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.sampled_from([2**63, 10**400, "1e1000000", "9" * 500, "-1", "\ud800", "\0", "Any", "Never", "a=b"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
QUOTAS = st.dictionaries(
    st.sampled_from(["cpu", "x-a/b", "\0"]) | st.text(max_size=4),
    st.dictionaries(st.sampled_from(["nominalQuota", "borrowingLimit", "lendingLimit"]), ANYTHING) | ANYTHING,
    max_size=3,
)


@given(
    st.fixed_dictionaries(
        {}, optional={name: ANYTHING | (QUOTAS if name == "resources" else SCALARS) for name in EVERY_FIELD}
    )
    | ANYTHING
)
def test_any_spec_is_read_or_refused_in_one_short_line(spec: Any) -> None:  # noqa: ANN401
    try:
        parse_dispatch_queue(dispatch_queue(spec))
    except SpecError as error:
        said = str(error)
    else:
        said = ""
    assert said.isprintable()
    assert len(said) < 5000


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        pytest.param({"priority": nested(HUGE)}, "spec.priority", id="nested"),
        pytest.param({"parent": "a" * HUGE}, "spec.parent", id="long-parent"),
        pytest.param({"clusterSelector": "(" * HUGE}, "spec.clusterSelector", id="long-selector"),
        pytest.param({"weight": 10**400}, "spec.weight", id="large-weight"),
        pytest.param(
            {"resources": {"r" * HUGE: {"nominalQuota": nested(HUGE)}}},
            "spec.resources",
            id="long-name",
        ),
        pytest.param(
            {"resources": {f"r{number}": nested(3) for number in range(HUGE)}},
            "spec.resources",
            id="many-quotas",
        ),
        pytest.param([nested(3)] * HUGE, "spec", id="long-list"),
    ],
)
def test_absurd_spec_is_refused_at_its_place(spec: object, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_dispatch_queue(dispatch_queue(spec))
    assert caught.value.path == place
    assert len(str(caught.value)) < 5000


def test_unknown_fields_are_ignored_however_many() -> None:
    unknown = {"deep": nested(HUGE)} | {f"field{number}": number for number in range(HUGE)}

    assert parse_dispatch_queue(dispatch_queue(unknown)) == Queue("a")

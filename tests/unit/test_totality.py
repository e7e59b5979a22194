"""Readers of what tenants, members and API servers write: any JSON is read, or refused as documented.

`ALWAYS` is what the watch has checked of an object before it decodes it; in every other place there may be anything.
"""

# ruff: noqa: SLF001  # decoders are private to the module that has the watch

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from msgspec import Struct

from dispatcher import errors
from dispatcher.api.annotations import fault_tolerance, submitter_of
from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.clusters.membercluster import parse_member_cluster
from dispatcher.api.clusters.potential import parse_potential
from dispatcher.api.clusters.provisioning import parse_provisioning
from dispatcher.api.conditions import approvals_in, granted_in
from dispatcher.api.document import Entry
from dispatcher.api.mutable_spec import mutable_spec
from dispatcher.api.names import CLUSTER_SELECTOR, HUB_ANNOTATION, ITEM_ANNOTATION, UID_LABEL
from dispatcher.api.selector import parse_selector
from dispatcher.api.spec_errors import SpecError
from dispatcher.controller.intake import limits, priority_class_watch
from dispatcher.controller.members import cluster, member
from dispatcher.controller.scheduling import queue_watch
from dispatcher.core.kinds import drift
from dispatcher.core.kinds.asked import asked_of, makes_pods_in_order, named_to_delete
from dispatcher.core.kinds.breakdown import breakdown_of
from dispatcher.core.kinds.built_in import ROWS
from dispatcher.core.kinds.completion import completion_rule
from dispatcher.core.kinds.declaration import read_declarations
from dispatcher.core.kinds.demand import charge_of, pods_by_item
from dispatcher.core.kinds.manifest import adoption, build, owned_by, ownership_of
from dispatcher.core.kinds.pods.pod_defaults import (
    PodDefaults,
    add_requests,
    default_requests,
    overhead,
    overheads_by_class,
    runtime_classes,
    with_defaults,
)
from dispatcher.core.kinds.provisioning_request import read_request
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.kinds.template_fields import warning as server_fields_warning
from dispatcher.core.kinds.template_fields import without_server_fields
from dispatcher.core.model.clock import time_in
from dispatcher.core.queues.declaration import parse_dispatch_queue
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.core.queues.quota_subtrees import read_quota_subtrees
from dispatcher.core.scheduling.explain.scenario import parse_scenario
from dispatcher.kube import bounds, discovery, paging
from dispatcher.kube.api_calls import items_of, one_object
from dispatcher.kube.objects import anchors, events, live_pod_lister, object_client, object_informers
from dispatcher.kube.objects.appwrappers import decode
from dispatcher.kube.objects.nodes import NotAPod, decode_node, decode_pod
from dispatcher.kube.objects.owner_resolver import controller_ref
from dispatcher.settings import Settings
from tests.builders import at as moment
from tests.builders import make_appwrapper, make_metadata, make_node, make_owner, make_template, make_wrapped
from tests.outside_objects import altered, nested, replaced

Json = dict[str, Any]
Places = tuple[tuple[object, ...], ...]

ALWAYS: Final[Places] = tuple(
    ("metadata", key) for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
)
VERSION: Final[Places] = (*ALWAYS, ("apiVersion",))
CONDITIONS: Final = [
    {
        "type": each,
        "status": "True",
        "reason": "Because",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    for each in ("Failed", "Complete", "budget", "Provisioned")
]
JOB_SPEC: Final[Json] = {
    "parallelism": 2,
    "completions": 2,
    "suspend": False,
    "template": {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "runtimeClassName": "gvisor",
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
                        ]
                    }
                },
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "labelSelector": {"matchLabels": {"a": "b"}},
                            "topologyKey": "kubernetes.io/hostname",
                        }
                    ]
                },
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {},
                }
            ],
            "overhead": {"cpu": "1"},
            "initContainers": [
                {"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
            ],
            "containers": [
                {
                    "name": "c",
                    "resources": {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": 1}},
                    "env": [],
                }
            ],
        },
    },
}
RAY_SPEC: Final[Json] = {
    "headGroupSpec": {"template": JOB_SPEC["template"]},
    "workerGroupSpecs": [
        {
            "groupName": "w",
            "replicas": 1,
            "minReplicas": 0,
            "maxReplicas": 3,
            "numOfHosts": 2,
            "scaleStrategy": {"workersToDelete": ["p"]},
            "template": JOB_SPEC["template"],
        }
    ],
}
WRAPPED: Final = {
    "Job": make_template("Job", "batch/v1") | {"spec": JOB_SPEC},
    "RayCluster": make_template("RayCluster", "ray.io/v1") | {"spec": RAY_SPEC},
    "Pod": make_template() | {"spec": JOB_SPEC["template"]["spec"]},
}
STATUS: Final[Json] = {
    "phase": "Failed",
    "state": {"phase": "Completed", "applicationState": {"state": "FAILED"}},
    "jobStatus": "SUCCEEDED",
    "jobDeploymentStatus": "Complete",
    "applicationState": {"state": "COMPLETED", "errorMessage": "m"},
    "conditions": CONDITIONS,
    "containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}],
    "replicas": 1,
}
CLASS: Final[Json] = {
    "className": "queued-provisioning.gke.io",
    "managedResources": ["nvidia.com/gpu"],
    "parameters": {"a": "b"},
    "acceptWithinSeconds": 60,
    "retry": {"limit": 1, "baseSeconds": 1, "maxSeconds": 2},
}
POOL: Final[Json] = {
    "name": "l4",
    "max": 3,
    "node": {
        "allocatable": {"cpu": "8", "memory": "1Gi"},
        "labels": {"pool": "l4"},
        "taints": [{"key": "gpu", "value": "a", "effect": "NoSchedule"}],
    },
}
MEMBER: Final[Json] = {
    "metadata": make_metadata("east", labels={"gpu": "a100"}),
    "spec": {
        "kubeconfigSecretRef": {"name": "east", "key": "config"},
        "cordoned": True,
        "cordonReason": "repair",
        "reserve": {"cpu": "4"},
        "onClusterLost": {"policy": "requeue", "graceSeconds": 60},
        "acceptedNamespaces": "All",
        "provisioning": CLASS,
        "potential": [POOL],
        "onPotential": "Wait",
        "bindWithinSeconds": 60,
    },
}
QUEUE: Final[Json] = {
    "metadata": make_metadata("research"),
    "spec": {
        "parent": "org",
        "resources": {"cpu": {"nominalQuota": "6", "borrowingLimit": 4, "lendingLimit": "2"}},
        "weight": "1.5",
        "priority": 3,
        "sharing": "Division",
        "queueingStrategy": "StrictFIFO",
        "starvationBoundSeconds": 60,
        "preemption": {
            "withinQueue": "LowerPriority",
            "reclaim": "Any",
            "whileBorrowing": {"maxPriority": 3},
        },
        "preemptibleBelow": 5,
        "clusterSelector": "a in (b)",
        "namespaceSelector": "a=b",
        "approvals": ["budget"],
        "provisioning": CLASS,
    },
    "status": {"conditions": CONDITIONS},
}
SUBTREE: Final[Json] = {
    "apiVersion": "quota.codeflare.dev/v1alpha1",
    "metadata": make_metadata("tree", labels={"tree": "quota"}),
    "spec": {
        "parent": "nil",
        "children": [
            {"name": "a", "quotas": {"requests": {"cpu": "4"}, "hardLimit": True, "disabled": False}}
        ],
    },
}
LIMITS: Final[Json] = {
    "metadata": make_metadata("limits"),
    "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1", "memory": "1Gi"}}]},
}
RUNTIME_CLASS: Final[Json] = {"metadata": make_metadata("gvisor"), "overhead": {"podFixed": {"cpu": "250m"}}}
REQUEST: Final[Json] = {
    "metadata": make_metadata("request"),
    "spec": {"provisioningClassName": "a"},
    "status": {"conditions": CONDITIONS},
}
OWNED: Final[Json] = {
    "metadata": make_metadata(
        "job",
        labels={UID_LABEL: "aw"},
        annotations={ITEM_ANNOTATION: "0", HUB_ANNOTATION: "hub"},
        ownerReferences=[
            {"apiVersion": "v1", "kind": "AppWrapper", "name": "a", "uid": "u", "controller": True}
        ],
        generation=1,
    ),
    "spec": JOB_SPEC,
    "status": STATUS,
}
APPWRAPPER: Final = make_appwrapper(
    "aw",
    *WRAPPED.values(),
    spec={
        "priority": 1,
        "priorityslope": 0.5,
        "suspend": False,
        "managedBy": "x",
        "schedulingSpec": {
            "minAvailable": 2,
            "requeuing": {"timeInSeconds": 60, "growthType": "linear", "maxNumRequeuings": 3},
            "dispatchDuration": {"expected": 1, "limit": 2},
        },
    },
    annotations={CLUSTER_SELECTOR: "a=b", "workload.codeflare.dev.appwrapper/retryLimit": "3"},
    labels={"a": "b"},
    finalizers=["f"],
    status={"conditions": CONDITIONS},
)
COMPONENTS: Final[Json] = {
    "components": [
        {
            "template": WRAPPED["Job"],
            "podSets": [{"replicas": 2, "path": "template.spec.template"}],
            "podSetInfos": [{"annotations": {"a": "b"}, "labels": {}, "nodeSelector": {}, "tolerations": []}],
        }
    ]
}
DECLARED: Final[Json] = {
    "kinds": [
        {
            "group": "example.com",
            "kind": "Thing",
            "podSets": [{"template": "spec.template", "count": "spec.n"}],
        }
    ]
}
SCENARIO: Final[Json] = {
    "clusters": [
        {
            "name": "east",
            "nodes": [{"name": "n", "count": 2, "allocatable": {"cpu": 4}}],
            "potential": [POOL | {"node": POOL["node"] | {"allocatable": {"cpu": 8}}}],
        }
    ],
    "queues": [{"name": "org"}, {"name": "a", "parent": "org", "resources": {"cpu": {"nominalQuota": 2}}}],
    "running": [{"name": "r", "queue": "a", "cluster": "east", "pods": [{"requests": {"cpu": 1}}]}],
    "pending": [{"name": "p", "queue": "a", "pods": [{"count": 2, "requests": {"cpu": 1}}]}],
}


INIT: Final[Json] = {
    "name": "i",
    "restartPolicy": "Always",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": 1}},
}
"""A sidecar."""

POD: Final[Json] = {
    "metadata": make_metadata(
        "p",
        labels={"app": "a", UID_LABEL: "uid-of-aw"},
        annotations={"dispatcher.codeflare.dev/growth": "1 0.workers 2"},
        ownerReferences=[
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-of-j", "controller": True}
        ],
    ),
    "spec": {
        "nodeName": "n",
        "schedulingGates": [],
        "overhead": {"cpu": "1"},
        "initContainers": [INIT],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "status": {
        "phase": "Running",
        "conditions": CONDITIONS,
        "containerStatuses": [
            {
                "name": "c",
                "state": {"terminated": {"exitCode": 1, "reason": "Error"}},
                "allocatedResources": {},
            }
        ],
    },
}

WARNING: Final[Json] = {
    "metadata": {"name": "j.1", "resourceVersion": "7"},
    "type": "Warning",
    "reason": "FailedCreate",
    "message": "pods is forbidden: exceeded quota",
    "involvedObject": {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-of-j"},
    "lastTimestamp": "2026-01-01T00:00:00Z",
    "eventTime": None,
    "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
}


class Reader(Struct, frozen=True):
    """A function of an outside object, a real one, where that is never altered, and the errors that it documents."""

    real: object
    read: Callable[[Any], object]
    fixed: Places = ()
    errors: tuple[type[Exception], ...] = ()


def the_spec(raw: Any) -> object:  # noqa: ANN401
    return parse_spec(raw, namespace="default")


def all_of_a_spec(raw: Any) -> object:  # noqa: ANN401
    """What intake, creation and the commands make of a spec that can be parsed."""
    spec = parse_spec(raw, namespace="default")
    runtime_classes(spec)
    server_fields_warning(spec)
    defaulted = with_defaults(spec, PodDefaults({"cpu": "1"}, {"gvisor": {"cpu": "1"}}))
    rules = [completion_rule(each, 1) for each in spec.wrapped]
    manifests = [build(each, make_owner()) for each in spec.wrapped]
    differ = [
        drift.differences(made, each.template) for made, each in zip(manifests, spec.wrapped, strict=True)
    ]
    return charge_of(spec), pods_by_item(spec), charge_of(defaulted), rules, differ


def forest_of(raw: Any) -> object:  # noqa: ANN401
    return DeclaredQueues.of([queue_watch._dispatch_queue(raw)], [raw])


def of_every_kind(raw: Any) -> object:  # noqa: ANN401
    return [BUILT_IN.state_of(row.group, row.kind, raw) for row in ROWS]


def as_sent(raw: Any) -> Any:  # noqa: ANN401
    """The object after it came over the wire, which has no other texts and numbers than a parser takes."""
    try:
        return bounds.loads_unbounded(json.dumps(raw).encode())
    except ValueError:
        reject()


def workers_to_delete(raw: Any) -> object:  # noqa: ANN401
    return named_to_delete("ray.io", "RayCluster", raw)


def limit_ranges(raw: Any) -> object:  # noqa: ANN401
    found: dict[str, dict[str, object]] = {}
    add_requests(found, [raw])
    return found, default_requests([raw])


def annotations_of(raw: Any) -> object:  # noqa: ANN401
    """Annotations and labels: an API server refuses any value that is no text."""
    texts = {str(key): str(value) for key, value in raw.items()} if isinstance(raw, dict) else {}
    return fault_tolerance(texts), submitter_of(texts), mutable_spec({}, texts)


def warnings_in(raw: Any) -> object:  # noqa: ANN401
    return events.warned_in([raw], "default"), events.newest_words([raw])


def asked_by_every_kind(raw: Any) -> object:  # noqa: ANN401
    return [(asked_of(row, raw), makes_pods_in_order(row, raw)) for row in ROWS]


def page_of(raw: Any) -> object:  # noqa: ANN401
    return paging._understood("/api/v1/pods", raw)


def edition_of(raw: Any) -> object:  # noqa: ANN401
    return [object_informers._edition(row, raw) for row in ROWS]


def items(raw: Any) -> object:  # noqa: ANN401
    return list(items_of(raw))


READERS: Final[Mapping[str, Reader]] = {
    "appwrapper": Reader(APPWRAPPER, lambda raw: decode(as_sent(raw)), VERSION),
    "spec-v1beta1": Reader(APPWRAPPER["spec"], all_of_a_spec, errors=(SpecError,)),
    "spec-v1beta2": Reader(COMPONENTS, all_of_a_spec, errors=(SpecError,)),
    "mutable-spec": Reader(APPWRAPPER["spec"], lambda raw: mutable_spec(raw, {})),
    "annotations": Reader(APPWRAPPER["metadata"]["annotations"], annotations_of),
    "granted": Reader(APPWRAPPER["status"], lambda raw: granted_in(raw) if isinstance(raw, dict) else None),
    "breakdown": Reader(APPWRAPPER, breakdown_of, (("apiVersion",),), (SpecError,)),
    "member": Reader(MEMBER, parse_member_cluster, ALWAYS, (SpecError,)),
    "declared-member": Reader(MEMBER, member.decode, ALWAYS),
    "queue": Reader(QUEUE, parse_dispatch_queue, errors=(SpecError,)),
    "declared-queue": Reader(QUEUE, forest_of, ALWAYS),
    "quota-subtree": Reader(SUBTREE, lambda raw: read_quota_subtrees([raw])),
    "watched-subtree": Reader(
        SUBTREE, lambda raw: read_quota_subtrees([queue_watch._decoder("ibm.com/v1")(raw)]), ALWAYS
    ),
    "kinds": Reader(DECLARED, lambda raw: read_declarations(Entry(raw, "")), errors=(SpecError,)),
    "scenario": Reader(SCENARIO, parse_scenario, errors=(SpecError,)),
    "node": Reader(make_node("n"), decode_node, ALWAYS),
    "namespace": Reader(OWNED, limits._decode, ALWAYS),
    "namespace-of-member": Reader(OWNED, cluster._namespace, ALWAYS),
    "pod": Reader(POD, decode_pod, (("metadata",), *ALWAYS)),
    "pod-without-identity": Reader(POD, decode_pod, errors=(NotAPod,)),
    "listed-pod": Reader(POD, live_pod_lister._decoded),
    "warning": Reader(WARNING, warnings_in, (("type",),)),
    "asked": Reader({"spec": RAY_SPEC | JOB_SPEC}, asked_by_every_kind),
    "mark": Reader(OWNED["metadata"], lambda raw: object_client._mark_in("uid", raw), (("name",),)),
    "item": Reader(OWNED["metadata"]["labels"], live_pod_lister._item, (("app",),)),
    "edition": Reader(OWNED["metadata"], edition_of, (("name",), ("resourceVersion",))),
    "page": Reader({"metadata": {}, "items": [OWNED]}, page_of, errors=(errors.Unavailable,)),
    "priority-class": Reader(
        {"metadata": make_metadata("high"), "value": 100}, priority_class_watch._decode, ALWAYS
    ),
    "limit-range": Reader(LIMITS, limit_ranges),
    "runtime-class": Reader(RUNTIME_CLASS, lambda raw: (overhead(raw), overheads_by_class([raw]))),
    "provisioning-request": Reader(REQUEST, read_request, ALWAYS),
    "object-status": Reader(OWNED, of_every_kind),
    "workers-to-delete": Reader(
        {"kind": "RayCluster", "spec": RAY_SPEC},
        lambda raw: named_to_delete("ray.io", "RayCluster", raw),
        (("kind",),),
    ),
    "wrapped-object": Reader(
        OWNED,
        lambda raw: object_informers._wrapped_object(BUILT_IN.row("batch", "Job"), raw),
        (*ALWAYS, ("metadata", "labels", UID_LABEL)),
    ),
    "owner": Reader(OWNED["metadata"], lambda raw: controller_ref(raw, "default"), (("name",),)),
    "owned": Reader(OWNED["metadata"], owned_by, (("name",),)),
    "ownership": Reader(OWNED, lambda raw: ownership_of(raw, make_owner()), ALWAYS),
    "adoption": Reader(OWNED, lambda raw: adoption(raw, make_wrapped(), make_owner()), ALWAYS),
    "drift": Reader(OWNED, lambda raw: drift.edited(OWNED, raw), ALWAYS),
    "server-fields": Reader(OWNED["metadata"], without_server_fields, (("name",),)),
    "anchor": Reader(OWNED["metadata"], anchors._found),
    "overdue-pod": Reader(
        OWNED["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        lambda raw: live_pod_lister._is_overdue(raw, moment(0), moment(0)),
        (("name",),),
    ),
    "live-pod": Reader(OWNED, live_pod_lister._is_live, ALWAYS),
    "discovered-kind": Reader(
        {"name": "jobs", "kind": "Job", "namespaced": True, "verbs": ["get"]},
        lambda raw: discovery._kind_of("v1", raw),
    ),
    "one-object": Reader(OWNED, lambda raw: one_object(raw, "/"), errors=(errors.Unavailable,)),
    "list": Reader({"metadata": {}, "items": [OWNED]}, items, errors=(errors.Unavailable,)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_real_object_is_read(name: str) -> None:
    reader = READERS[name]
    reader.read(reader.real)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=15)  # each draws from hundreds of places
@given(data=st.data())
def test_any_json_is_read_or_refused_with_the_documented_error(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    raw = data.draw(altered(reader.real, reader.fixed))
    try:
        reader.read(raw)
    except reader.errors:
        return


SETTINGS: Final[Mapping[str, tuple[Callable[[str], object], Json]]] = {
    "provisioning": (
        parse_provisioning,
        {"className": "queued.example.com", "managedResources": ["cpu"], "parameters": {"a": "b"}},
    ),
    "potential": (
        parse_potential,
        {"pools": [{"name": "gpu", "max": 3, "node": {"allocatable": {"cpu": "4"}, "labels": {"a": "b"}}}]},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_real_setting_is_read(name: str) -> None:
    parse, real = SETTINGS[name]
    assert parse(json.dumps(real))


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=15)
@given(data=st.data())
def test_any_setting_in_json_is_read_or_refused_with_a_value_error(name: str, data: st.DataObject) -> None:
    parse, real = SETTINGS[name]
    raw = data.draw(altered(real))
    try:
        parse(json.dumps(raw))
    except ValueError:
        return


@pytest.mark.parametrize("name", SETTINGS)
@given(text=st.text(max_size=30) | st.sampled_from(("[" * 100_000, "{", "null", "9" * 5000, "\x00")))
def test_any_text_of_a_setting_is_read_or_refused_with_a_value_error(name: str, text: str) -> None:
    parse, _ = SETTINGS[name]
    try:
        parse(text)
    except ValueError:
        return


@settings(max_examples=30)
@given(st.sampled_from(sorted(each.upper() for each in Settings.model_fields)), st.text(max_size=20))
def test_any_text_of_an_environment_variable_is_read_or_refused_as_a_setting(name: str, text: str) -> None:
    try:
        Settings.read({f"DISPATCHER_{name}": text})
    except ValueError:
        return


@given(
    text=st.text(max_size=30)
    | st.sampled_from(("a in (b", "a" * 100_000, "!" * 5000, "a in (" + "b," * 5000))
)
def test_texts_are_parsed_or_refused_with_the_documented_error(text: str) -> None:
    time_in(text)
    for parse in (lambda written: parse_selector(written, "here"), approvals_in):
        try:
            parse(text)
        except SpecError:
            continue


LARGE: Final[Mapping[str, Callable[[], tuple[str, object]]]] = {
    "256 items of 64 containers": lambda: (
        "spec-v1beta1",
        {
            "resources": {
                "GenericItems": [
                    {
                        "generictemplate": make_template("Pod", "v1", name=f"p{number}")
                        | {"spec": {"containers": [{"name": f"c{each}"} for each in range(64)]}}
                    }
                    for number in range(256)
                ]
            }
        },
    ),
    "1,024 components": lambda: (
        "spec-v1beta2",
        {
            "components": [
                {"template": make_template("Pod", "v1", name=f"p{number}")} for number in range(1024)
            ]
        },
    ),
    "16,384 values of a selector": lambda: (
        "spec-v1beta1",
        {
            "resources": {
                "GenericItems": [
                    {
                        "generictemplate": make_template()
                        | {
                            "spec": {
                                "containers": [{"name": "c"}],
                                "affinity": {
                                    "nodeAffinity": {
                                        "requiredDuringSchedulingIgnoredDuringExecution": {
                                            "nodeSelectorTerms": [
                                                {
                                                    "matchExpressions": [
                                                        {
                                                            "key": "a",
                                                            "operator": "In",
                                                            "values": [f"v{each}" for each in range(16_384)],
                                                        }
                                                    ]
                                                }
                                            ]
                                        }
                                    }
                                },
                            }
                        }
                    }
                ]
            }
        },
    ),
    "16,384 init containers": lambda: (
        "pod",
        replaced(POD, ("spec", "initContainers"), [{**INIT, "name": f"i{each}"} for each in range(16_384)]),
    ),
    "16,384 init containers of a template": lambda: (
        "spec-v1beta2",
        {
            "components": [
                {
                    "template": make_template("Pod", "v1", name="p")
                    | {
                        "spec": {
                            "initContainers": [{**INIT, "name": f"i{each}"} for each in range(16_384)],
                            "containers": [{"name": "c"}],
                        }
                    }
                }
            ]
        },
    ),
    "16,384 Events of one object": lambda: ("warning", WARNING | {"series": {"count": 16_384}}),
    "16,384 conditions": lambda: ("object-status", {"status": {"conditions": CONDITIONS * 4096}}),
    "16,384 labels of a node": lambda: (
        "node",
        make_node("n") | {"metadata": make_metadata("n", labels={f"l{each}": "" for each in range(16_384)})},
    ),
}


MOST_BYTES_OF_EACH: Final = 100
"""Bytes of memory, at most, that a reader takes for each byte of the object's JSON, and `MOST_BYTES_OF_ANY` beside."""
MOST_BYTES_OF_ANY: Final = 2**16


@pytest.mark.parametrize("name", LARGE)
def test_the_largest_objects_are_read_or_refused(name: str) -> None:
    reader, raw = LARGE[name]()
    with suppress(*READERS[reader].errors):
        READERS[reader].read(raw)


@pytest.mark.sweep  # memory is traced at the cost of many times the time
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", LARGE)
def test_the_largest_objects_are_read_or_refused_within_a_bound_on_memory(name: str) -> None:
    reader, raw = LARGE[name]()
    READERS[reader].read(READERS[reader].real)  # what is kept once for all objects
    tracemalloc.start()
    try:
        with suppress(*READERS[reader].errors):
            READERS[reader].read(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= MOST_BYTES_OF_ANY + MOST_BYTES_OF_EACH * len(orjson.dumps(raw))


@pytest.mark.parametrize("name", READERS)
def test_the_deepest_json_that_a_parser_returns_is_read_or_refused(name: str) -> None:
    reader = READERS[name]
    assert isinstance(reader.real, dict)
    for place in ("spec", "status", "metadata", "components", "kinds", "items", "running", "conditions"):
        if place in reader.real and place != "metadata":
            try:
                reader.read(reader.real | {place: nested(500)})
            except reader.errors:
                continue

"""Values of objects that nothing has checked: they are read within bounds, and a pod as far as it is sound."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher import errors
from dispatcher.api.clusters.membercluster import parse_member_cluster
from dispatcher.api.names import ATTEMPT_LABEL, GROWTH_GATE, HUB_ANNOTATION, ITEM_LABEL, UID_LABEL
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.kinds.manifest import attempt_number
from dispatcher.core.model.gangs.pods import PodPhase
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.kube import paths
from dispatcher.kube.objects.live_pod_lister import _item
from dispatcher.kube.objects.nodes import MOST_NAMES_OF_POD, NotAPod, decode_node, decode_pod
from tests.builders import make_node, make_pod
from tests.outside_objects import anything, replaced, scalars

Json = dict[str, Any]


JOB: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
STATUS: Final = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}],
    "containerStatuses": [
        {"name": "c", "state": {"waiting": {"reason": "x"}, "terminated": {"exitCode": 1}}}
    ],
    "allocatable": {"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": 8},
}
LABELS: Final = {UID_LABEL: "aw", ATTEMPT_LABEL: "1", ITEM_LABEL: "0"}


def marked(raw: Json) -> Json:
    metadata = {
        **raw["metadata"],
        "labels": LABELS,
        "annotations": {HUB_ANNOTATION: "hub"},
        "ownerReferences": [JOB],
    }
    return {**raw, "metadata": metadata, "status": {**(raw.get("status") or {}), **STATUS}}


POD, NODE = marked(make_pod("p", node="")), marked(make_node("n"))


@given(quantity=scalars, resource=st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]) | st.text(max_size=8))
@example(quantity="1e1000000", resource="cpu")
@example(quantity="1e999", resource="memory")
@example(quantity=2**63, resource="nvidia.com/gpu")
def test_amounts_of_nodes_and_pods_are_bounded_and_never_negative(quantity: Any, resource: str) -> None:  # noqa: ANN401
    node = decode_node(replaced(NODE, ("status", "allocatable"), {resource: quantity, "pods": "3"}))
    assert all(0 < amount <= LARGEST_AMOUNT for amount in node.allocatable.values())
    assert node.allocatable["pods"] == 3 or resource == "pods"
    container = {"name": "c", "resources": {"requests": {resource: quantity}}}
    try:
        pod = decode_pod(replaced(POD, ("spec",), {"containers": [container]})).pod
    except ValueError:
        return  # it is left out, and told
    assert all(0 < amount <= LARGEST_AMOUNT for amount in pod.requests.values())


@given(
    st.text(st.characters(), max_size=300) | st.sampled_from(["?", ".", "..", "%2e", "a/b", "\ud800", "\0"])
)
def test_any_name_is_one_segment_of_a_path_or_no_name(name: str) -> None:
    try:
        path = paths.item("apps/v1", "replicasets", "default", name)
    except errors.ImpossibleName:
        return
    assert paths.checked(path) == path
    assert path.count("/") == "/apis/apps/v1/namespaces/default/replicasets/x".count("/")
    assert "?" not in path
    assert "#" not in path


@given(st.text(st.characters(), max_size=80))
@example("apps/v1?")
@example("v1?")
@example("a/b/c")
def test_any_api_version_is_a_root_of_paths_or_none(api_version: str) -> None:
    try:
        root = paths.root(api_version)
    except errors.ImpossibleName:
        return
    assert paths.checked(root) == root
    assert root.count("/") in (2, 3)


@given(scalars)
def test_number_of_an_attempt_or_an_item_is_small_or_none(written: Any) -> None:  # noqa: ANN401
    number = attempt_number({"labels": {ATTEMPT_LABEL: written}})
    assert number is None or 0 <= number < 10**9
    assert -1 <= _item({ITEM_LABEL: written}) < 10**9


@given(anything)
def test_any_member_cluster_is_parsed_or_refused_in_one_line(spec: Any) -> None:  # noqa: ANN401
    try:
        parse_member_cluster({"metadata": {"name": "east", "uid": "u"}, "spec": spec})
    except SpecError as error:
        said = str(error)
    else:
        said = ""
    assert said.isprintable()


# --- A pod with fields of any type is decoded as far as it is sound ----------------------------------------


SPEC: Final = ("spec",)
CONTAINER: Final = {"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
SOUND: Final = replaced(POD, SPEC, {"containers": [CONTAINER]})
ENDING: Final = {**SOUND, "metadata": {**SOUND["metadata"], "deletionTimestamp": None}}
ALL: Final = Resources({"cpu": 2000, "memory": 2**30})

ODD: Final[dict[str, tuple[tuple[str, ...], object, Resources]]] = {
    "labels-are-a-number": (("metadata", "labels"), 7, ALL),
    "annotations-are-a-number": (("metadata", "annotations"), 7, ALL),
    "owners-are-a-text": (("metadata", "ownerReferences"), "x", ALL),
    "deletion-is-a-number": (("metadata", "deletionTimestamp"), 7, ALL),
    "containers-are-null": (("spec", "containers"), None, Resources()),
    "containers-are-a-number": (("spec", "containers"), 7, Resources()),
    "one-container-is-a-text": (("spec", "containers"), ["x", CONTAINER], ALL),
    "spec-is-a-list": (("spec",), ["x"], Resources()),
    "status-is-a-text": (("status",), "x", ALL),
    "phase-is-unknown": (("status", "phase"), "Odd", ALL),
    "phase-is-an-object": (("status", "phase"), {}, ALL),
    "conditions-are-a-number": (("status", "conditions"), 7, ALL),
    "statuses-are-texts": (("status", "containerStatuses"), ["x"], ALL),
    "an-amount-is-an-object": (
        ("spec", "containers"),
        [{"name": "c", "resources": {"requests": {"cpu": {}, "memory": "1Gi"}}}],
        Resources({"memory": 2**30}),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_sound_part_of_an_odd_pod_counts(name: str) -> None:
    where, value, requests = ODD[name]
    pod = decode_pod(replaced(ENDING, where, value)).pod
    assert (pod.uid, pod.requests) == (SOUND["metadata"]["uid"], requests)


def test_gates_that_are_no_list_are_no_gates() -> None:
    spec = {"containers": [CONTAINER], "schedulingGates": 7}
    pod = decode_pod(replaced(SOUND, SPEC, spec)).pod
    assert (pod.gate, pod.requests) == (None, ALL)


def test_gated_pod_with_an_amount_that_cannot_be_read_keeps_its_gate() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": "1E"}}}
    spec = {"containers": [container], "schedulingGates": [{"name": GROWTH_GATE}]}
    with pytest.raises(NotAPod):
        decode_pod(replaced(SOUND, SPEC, spec))


def test_pod_in_an_unknown_phase_may_be_alive() -> None:
    assert decode_pod(replaced(SOUND, ("status", "phase"), "Odd")).pod.phase is PodPhase.UNKNOWN


@pytest.mark.parametrize("field", ["uid", "namespace", "name"])
@pytest.mark.parametrize("value", [None, 7, "", {}])
def test_object_without_identity_is_no_pod(field: str, value: object) -> None:
    with pytest.raises(NotAPod):
        decode_pod(replaced(SOUND, ("metadata", field), value))


def test_names_of_resources_of_one_pod_are_bounded_and_cpu_goes_first() -> None:
    requests = {**{f"example.com/r{i}": "1" for i in range(1000)}, "memory": "1Gi", "cpu": "2"}
    container = {"name": "c", "resources": {"requests": requests}}
    read = decode_pod(replaced(SOUND, SPEC, {"containers": [container]})).pod.requests
    assert len(read) == MOST_NAMES_OF_POD
    assert (read["cpu"], read["memory"]) == (2000, 2**30)

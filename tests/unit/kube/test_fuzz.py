"""Objects that nothing has checked: a decoder reads them or says that it cannot, soon, and in bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dispatcher import errors
from dispatcher.api.membercluster import parse_member_cluster
from dispatcher.api.names import ATTEMPT_LABEL, HUB_ANNOTATION, ITEM_LABEL, UID_LABEL
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.kinds.manifest import adoption, attempt_number, owned_by, ownership_of
from dispatcher.core.kinds.registry import BUILT_IN
from dispatcher.core.model.resources import LARGEST_AMOUNT
from dispatcher.kube import paths
from dispatcher.kube.api_calls import items_of, one_object
from dispatcher.kube.discovery import _kind_of
from dispatcher.kube.objects.anchors import _found
from dispatcher.kube.objects.appwrappers import decode
from dispatcher.kube.objects.live_pod_lister import _item
from dispatcher.kube.objects.nodes import decode_node, decode_pod
from dispatcher.kube.objects.object_informers import _wrapped_object
from dispatcher.kube.objects.owner_resolver import controller_ref
from tests.builders import make_appwrapper, make_node, make_owner, make_pod, make_wrapped
from tests.outside_objects import anything, paths_of, replaced, scalars

Json = dict[str, Any]

UNREADABLE: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What a decoder raises of an object that it cannot read; a watch leaves it out, and says so."""

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
AW = make_appwrapper(finalizers=["f"], annotations={"a": "b"}, status={"conditions": [{"type": "Failed"}]})

JOB_ROW = BUILT_IN.row("batch", "Job")
DECODERS: Final[dict[str, tuple[Json, Callable[[Any], object]]]] = {
    "pod": (POD, decode_pod),
    "running-pod": ({**POD, "status": {**STATUS, "phase": "Failed"}}, decode_pod),
    "node": (NODE, decode_node),
    "appwrapper": (AW, decode),
    "wrapped": (POD, lambda raw: _wrapped_object(JOB_ROW, raw)),
    "anchor": (POD["metadata"], _found),
    "owner": (POD["metadata"], lambda raw: controller_ref(raw, "default")),
    "owned": (POD["metadata"], owned_by),
    "ownership": (POD, lambda raw: ownership_of(raw, make_owner())),
    "adoption": (POD, lambda raw: adoption(raw, make_wrapped(), make_owner())),
    "kind": (
        {"name": "jobs", "kind": "Job", "namespaced": True, "verbs": ["get"]},
        lambda raw: _kind_of("v1", raw),
    ),
    "one-object": (POD, lambda raw: one_object(raw, "/")),
    "list": ({"metadata": {}, "items": [POD]}, lambda raw: list(items_of(raw))),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_decoder_reads_anything_or_says_that_it_cannot(name: str, data: st.DataObject) -> None:
    raw, read = DECODERS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        raw = replaced(raw, data.draw(st.sampled_from(paths_of(raw))), data.draw(anything))
    try:
        read(raw)
    except UNREADABLE:
        return
    except errors.ClusterError:
        return


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

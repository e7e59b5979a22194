"""A pod with fields of any type is decoded as far as it is sound."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.names import GROWTH_GATE
from dispatcher.core.model.pods import PodPhase
from dispatcher.core.model.resources import Resources
from dispatcher.kube.objects.nodes import MOST_NAMES_OF_POD, NotAPod, decode_pod
from tests.outside_objects import anything, paths_of, replaced
from tests.unit.kube.test_fuzz import POD

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


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_object_is_a_pod_or_has_no_identity(data: st.DataObject) -> None:
    raw: Any = {**SOUND, "spec": {**SOUND["spec"], "nodeName": data.draw(st.sampled_from(["", "n"]))}}
    for _ in range(data.draw(st.integers(1, 4))):
        raw = replaced(raw, data.draw(st.sampled_from(paths_of(raw))), data.draw(anything))
    try:
        view = decode_pod(raw)
    except NotAPod:
        return
    assert view.pod.uid == raw["metadata"]["uid"]

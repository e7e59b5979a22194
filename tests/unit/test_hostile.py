"""The hostile tenant's acts are what they are meant to be: many, large, intricate, and the same in every run."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.names import UID_LABEL
from dispatcher.api.validation import LARGEST_SPEC, count_containers
from dispatcher.kube import bounds
from tests.builders import gang_of
from tests.hostile import (
    APPWRAPPER,
    MOST_ANNOTATED_BYTES,
    POD,
    TOUCHES,
    UNKNOWN_KINDS,
    VICTIMS_UID,
    Act,
    acts,
    against,
    known,
)

Json = dict[str, Any]


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def annotated(act: Act) -> int:
    """Bytes of its first object's annotations."""
    return sum(len(key) + len(value) for key, value in _metadata(act).get("annotations", {}).items())


def _metadata(act: Act) -> Json:
    metadata: Json = act.bodies[0]["metadata"]
    return metadata


def versions(act: Act) -> list[str]:
    return [
        entry["generictemplate"].get("apiVersion", "")
        for body in act.bodies
        if act.kind == APPWRAPPER
        for entry in body["spec"]["resources"]["GenericItems"]
    ]


def test_acts_are_the_same_in_every_run_and_each_object_has_a_name_of_its_own() -> None:
    first = acts(40)
    assert first == acts(40)
    assert len(first) == len(known()) + 40
    names = [body["metadata"]["name"] for act in first for body in act.bodies]
    assert len(set(names)) == len(names)


def test_drawn_acts_are_bursts_loops_and_deletions_of_both_kinds_with_labels_of_any_sort() -> None:
    found = acts(200)[-200:]
    assert {act.kind for act in found if len(act.bodies) > 1} == {APPWRAPPER, POD}
    assert {act.kind for act in found if len(act.patches) == TOUCHES} == {APPWRAPPER, POD}
    assert {act.kind for act in found if act.is_deleted} == {APPWRAPPER, POD}
    changed = {
        (field, key) for act in found for patch in act.patches for field in patch for key in patch[field]
    }
    assert changed >= {
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("metadata", "finalizers"),
        ("spec", "priority"),
        ("spec", "suspend"),
    }
    labels = [_metadata(act).get("labels", {}) for act in found if act.kind == POD]
    assert any(UID_LABEL in each for each in labels)
    assert any(each and UID_LABEL not in each for each in labels)


def test_known_strings_of_brackets_are_as_long_as_annotations_may_be() -> None:
    stuffed = [act for act in known() if annotated(act) > 2**17]
    assert {act.kind for act in stuffed} == {APPWRAPPER, POD}
    assert max(map(annotated, stuffed)) <= MOST_ANNOTATED_BYTES
    large = [act for act in stuffed if len(compact(_metadata(act))) > 3 * 2**17]
    assert {(act.kind, bool(act.patches)) for act in large} >= {
        (kind, patched) for kind in (APPWRAPPER, POD) for patched in (False, True)
    }
    assert any(_metadata(act)["labels"].get(UID_LABEL) for act in large if act.kind == POD)


def test_known_burst_of_large_specs_is_refused_unread_but_small_enough_to_be_answered() -> None:
    (burst,) = (act for act in known() if len(act.bodies) == 60)
    spec = compact(burst.bodies[0]["spec"])
    assert len(spec) > LARGEST_SPEC
    assert count_containers(compact(burst.bodies[0])) < bounds.MOST_CONTAINERS


def test_known_invented_versions_are_all_different_and_pass_intake() -> None:
    (burst,) = (act for act in known() if "ray.io/v0x1" in versions(act))
    assert len(burst.bodies) == 10
    assert len(set(versions(burst))) == 10 * UNKNOWN_KINDS
    for body in burst.bodies:
        assert gang_of(parse_spec(body["spec"], namespace="default")).pods > 0


def test_act_against_a_victim_has_its_uid_in_place_of_the_stand_in() -> None:
    body = {"kind": POD, "metadata": {"labels": {UID_LABEL: VICTIMS_UID}}}
    act = Act((body,), ({"metadata": {"labels": {"a": VICTIMS_UID}}},))
    aimed = against(act, "the-uid")
    assert aimed.bodies[0]["metadata"]["labels"] == {UID_LABEL: "the-uid"}
    assert aimed.patches == ({"metadata": {"labels": {"a": "the-uid"}}},)

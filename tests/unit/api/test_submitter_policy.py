"""The policies that write who submitted an AppWrapper stand at every door that the CRDs open."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dispatcher.api.annotations import LONGEST_NAME, MOST_GROUPS, UNKNOWN, Submitter, submitter_of
from dispatcher.api.names import (
    APPWRAPPER_KIND,
    APPWRAPPER_VERSION,
    GROUPS_ANNOTATION,
    LEGACY_GROUP,
    USER_ANNOTATION,
)
from tests.crds import load_crds

WRITER, WRITERS_BINDING, KEEPER, KEEPERS_BINDING = yaml.safe_load_all(
    (Path(__file__).parents[3] / "manifests" / "submitter-policy.yaml").read_text()
)
ANNOTATIONS = (USER_ANNOTATION, GROUPS_ANNOTATION)
MCADS_OWN = (LEGACY_GROUP, APPWRAPPER_VERSION, "appwrappers")
"""What MCAD's definition of the old group serves, which is watched where it is installed."""
DOORS = {MCADS_OWN} | {
    (crd["spec"]["group"], version["name"], crd["spec"]["names"]["plural"])
    for crd in load_crds()
    if crd["spec"]["names"]["kind"] == APPWRAPPER_KIND
    for version in crd["spec"]["versions"]
}


@pytest.mark.parametrize("door", sorted(DOORS), ids="/".join)
@pytest.mark.parametrize(
    ("policy", "operation"), [(WRITER, "CREATE"), (WRITER, "UPDATE"), (KEEPER, "UPDATE")]
)
def test_policy_stands_at_every_door(
    policy: dict[str, Any], operation: str, door: tuple[str, str, str]
) -> None:
    guards = [
        rule
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        if rule["operations"] == [operation]
        and all(
            {asked, "*"} & set(rule[field])
            for asked, field in zip(door, ("apiGroups", "apiVersions", "resources"), strict=True)
        )
    ]

    assert len(guards) == 1


def test_bindings_enforce_the_policies() -> None:
    name = "submitter.dispatcher.codeflare.dev"
    assert [each["metadata"]["name"] for each in (WRITER, KEEPER)] == [name, name]
    assert WRITERS_BINDING["spec"] == {"policyName": name}
    assert KEEPERS_BINDING["spec"] == {"policyName": name, "validationActions": ["Deny"]}


def test_policies_speak_of_the_annotations_that_are_read_and_write_no_more_than_is_read() -> None:
    groups, kept, recorded = (each["expression"] for each in WRITER["spec"]["variables"])
    written, restored = recorded.split(" : ")
    assert [written.count(f"'{each}':") for each in ANNOTATIONS] == [1, 1]
    assert f"key in {list(ANNOTATIONS)}" in restored
    (condition,) = WRITER["spec"]["matchConditions"]
    assert [condition["expression"].count(f"[?'{each}']") for each in ANNOTATIONS] == [2, 2]
    assert [
        validation["expression"].count(f"[?'{annotation}']")
        for validation, annotation in zip(KEEPER["spec"]["validations"], ANNOTATIONS, strict=True)
    ] == [2, 2]
    assert (f"size(group) <= {LONGEST_NAME} " in groups, f"slice(0, {MOST_GROUPS})" in kept) == (True, True)


def test_submitter_is_written_again_over_annotations_of_other_webhooks() -> None:
    assert WRITER["spec"]["reinvocationPolicy"] == "IfNeeded"


# --- Who submitted an AppWrapper is read from annotations that may hold anything ---------------------------


USER, GROUPS = "dispatcher.codeflare.dev/user", "dispatcher.codeflare.dev/groups"
SERVICE_ACCOUNT = f"system:serviceaccount:{'n' * 63}:{'a' * 253}"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({USER: "alice"}, Submitter("alice"), id="in-no-group"),
        pytest.param({USER: "alice", GROUPS: ""}, Submitter("alice"), id="in-no-group-that-is-told"),
        pytest.param(
            {USER: "alice", GROUPS: "vision\nll m"}, Submitter("alice", ("vision", "ll m")), id="in-groups"
        ),
        pytest.param({USER: SERVICE_ACCOUNT}, Submitter(SERVICE_ACCOUNT), id="longest-service-account"),
        pytest.param({USER: "Zoë Ärmel <z@ex.org>"}, Submitter("Zoë Ärmel <z@ex.org>"), id="any-letters"),
        pytest.param({USER: "u" * LONGEST_NAME}, Submitter("u" * LONGEST_NAME), id="longest"),
        pytest.param(
            {USER: "alice", GROUPS: "\n".join(map(str, range(MOST_GROUPS + 1)))},
            Submitter("alice", tuple(map(str, range(MOST_GROUPS)))),
            id="more-groups-than-are-kept",
        ),
        pytest.param(
            {USER: "alice", GROUPS: f"a\n\nb\tc\n{'d' * (LONGEST_NAME + 1)}\ne\r\nf"},
            Submitter("alice", ("a", "f")),
            id="groups-that-are-none",
        ),
    ],
)
def test_submitter_is_the_user_with_its_groups(annotations: dict[str, str], expected: Submitter) -> None:
    assert submitter_of(annotations) == expected


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({}, id="nothing-written"),
        pytest.param({GROUPS: "vision"}, id="only-groups"),
        pytest.param({USER: "", GROUPS: "vision"}, id="empty"),
        pytest.param({USER: "u" * (LONGEST_NAME + 1), GROUPS: "vision"}, id="too-long"),
        pytest.param({USER: "alice\nbob", GROUPS: "vision"}, id="two-lines"),
        pytest.param({USER: "alice\x00", GROUPS: "vision"}, id="nul"),
        pytest.param({USER: "\x1b[2Jalice", GROUPS: "vision"}, id="escape"),
        pytest.param({USER: "alice\N{RIGHT-TO-LEFT OVERRIDE}", GROUPS: "vision"}, id="turns-the-line-around"),
        pytest.param({"example.com/user": "alice"}, id="another-annotation"),
    ],
)
def test_submitter_that_cannot_be_read_counts_as_not_written(annotations: dict[str, str]) -> None:
    assert submitter_of(annotations) == UNKNOWN


def test_same_user_is_one_value_however_many_appwrappers_it_submits() -> None:
    first, second = (submitter_of({USER: "alice", GROUPS: "a\nb"}) for _ in range(2))
    assert first is second

"""Whatever is wrong with an AppWrapper, it is told in one line; and what is not told can be kept and created."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from dispatcher.api.appwrapper import parse_spec
from dispatcher.api.spec_errors import LONGEST_MESSAGE, SpecError, one_line
from dispatcher.core.kinds.manifest import build
from dispatcher.core.lifecycle import first_changes
from dispatcher.store import rows
from tests.builders import at, gang_of, make_owner, make_submission, make_template, make_wrapped
from tests.mutations import mutants, mutated

Json = dict[str, Any]


@settings(max_examples=300, derandomize=True, deadline=None)
@given(mutated())
def test_mutated_appwrapper_is_explained_or_can_be_kept_and_created(document: Json) -> None:
    try:
        spec = parse_spec(document.get("spec") or {}, namespace="default")
        gang = gang_of(spec)
    except SpecError as error:
        said = str(error)
        assert said == one_line(said)  # either outcome is fine
        return
    change = first_changes.submit(make_submission(), gang, at(1))
    assert b"\\u0000" not in rows.to_json([rows.new_row(change.after)]).encode()
    for wrapped in spec.wrapped:
        assert orjson.loads(orjson.dumps(build(wrapped, make_owner())))["metadata"]["name"]


def test_mutants_are_the_same_every_time_and_bear_names_of_their_own() -> None:
    first, second = mutants(40), mutants(40)
    assert first == second
    assert [each["metadata"]["name"] for each in first] == [f"mutant-{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("spec: is wrong", "spec: is wrong", id="as-it-is"),
        pytest.param("a\0b\nc\td\x1be", "a\\x00b\\nc\\td\\x1be", id="control-characters"),
        pytest.param("é…\u200b", "é…\\u200b", id="invisible"),
    ],
)
def test_message_becomes_one_printable_line(text: str, expected: str) -> None:
    assert one_line(text) == expected


def test_long_message_keeps_both_ends() -> None:
    shortened = one_line(f"labels: {'v' * 10**6}: must be no more than 63 bytes")

    assert len(shortened) == LONGEST_MESSAGE
    assert shortened.startswith("labels: vvv")
    assert shortened.endswith("vvv: must be no more than 63 bytes")


@pytest.mark.parametrize("metadata", [{"labels": "x"}, {"labels": ["x"]}, "x", ["x"]])
def test_malformed_pod_template_is_left_for_the_api_server_to_refuse(metadata: object) -> None:
    template = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    wrapped = make_wrapped({**make_template("Job", "batch/v1"), "spec": {"template": template}})

    assert build(wrapped, make_owner())["spec"] == {"template": template}


def test_generated_name_is_no_longer_than_one_the_api_server_would_make() -> None:
    built = build(make_wrapped(make_template(generateName="g" * 200)), make_owner())

    assert len(built["metadata"]["name"]) == 63

"""Scenario files from the tests of Kueue, KAI and MCAD, from published posts, and our own; each with its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher.core.scheduling.explain.scenario import parse_scenario
from tests.unit.core.scheduling.queue_answers import answer_of, differences
from tests.yaml_files import load_yaml

Json = dict[str, Any]

FOLDER = Path(__file__).parent / "queue_scenarios"
SCENARIOS: dict[str, Json] = {path.stem: load_yaml(path) for path in sorted(FOLDER.iterdir())}


def test_no_scenario_is_missing() -> None:
    assert len(SCENARIOS) == 167


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=f"{name}: {each['source']}") for name, each in SCENARIOS.items()]
)
def test_a_scenario_has_the_answer_that_its_file_expects(name: str) -> None:
    document = SCENARIOS[name]
    assert document["expect"]
    assert differences(document["expect"], answer_of(parse_scenario(document))) == []


ANSWER: Json = {
    "decisions": [
        {"preempt": ["r"], "for": "", "reasons": {"r": "QueueStopped"}},
        {"dispatch": "p", "cluster": "east"},
        {"waiting": "s", "reason": "InsufficientQuota"},
        {
            "preempt": ["v", "w"],
            "for": "q",
            "cluster": "west",
            "reasons": {"v": "FairShare", "w": "FairShare"},
        },
    ],
    "queues": {
        "a": {"used": {"cpu": 2000}, "share": None},
        "b": {"used": {}, "fairShare": {"cpu": 5, "gpu": 1}},
    },
}
DRAIN, DISPATCH, WAIT, PREEMPT = ANSWER["decisions"]


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(ANSWER, id="the answer itself"),
        pytest.param({"decisions": [DRAIN, WAIT, DISPATCH, PREEMPT]}, id="waiting gangs have no order"),
        pytest.param(
            {"decisions": [DRAIN, {"dispatch": "p"}, {"waiting": "s"}, {"for": "q", "preempt": ["v", "w"]}]},
            id="fewer keys",
        ),
        pytest.param({"queues": {"a": {"share": None}}}, id="one number"),
        pytest.param({"queues": {"b": {"fairShare": {"gpu": 1}}}}, id="one resource"),
    ],
)
def test_an_answer_with_all_that_is_expected_is_right(expected: Json) -> None:
    assert differences(expected, ANSWER) == []


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param({"decisions": []}, id="nothing is expected"),
        pytest.param({"decisions": [DRAIN, DISPATCH, PREEMPT]}, id="another gang is decided"),
        pytest.param({"decisions": [DISPATCH, WAIT, PREEMPT]}, id="another queue is drained"),
        pytest.param(
            {"decisions": [DRAIN, DISPATCH, WAIT, PREEMPT, {"waiting": "t"}]}, id="a gang is not decided"
        ),
        pytest.param({"decisions": [DRAIN, PREEMPT, WAIT, DISPATCH]}, id="another order"),
        pytest.param(
            {"decisions": [DRAIN, DISPATCH | {"cluster": "west"}, WAIT, PREEMPT]}, id="another cluster"
        ),
        pytest.param(
            {"decisions": [DRAIN, DISPATCH, WAIT | {"reason": "LargerThanQuota"}, PREEMPT]},
            id="another reason",
        ),
        pytest.param(
            {"decisions": [DRAIN, DISPATCH, WAIT, PREEMPT | {"preempt": ["v"]}]}, id="a victim more"
        ),
        pytest.param(
            {
                "decisions": [
                    DRAIN,
                    DISPATCH,
                    WAIT,
                    PREEMPT | {"reasons": {"v": "FairShare", "w": "QueueStopped"}},
                ]
            },
            id="another reason for a victim",
        ),
        pytest.param({"decisions": [DRAIN, {"waiting": "p"}, WAIT, PREEMPT]}, id="it waits instead"),
        pytest.param({"queues": {"a": {"share": 0}}}, id="another share"),
        pytest.param({"queues": {"b": {"fairShare": {"cpu": 4}}}}, id="another fair share"),
        pytest.param({"queues": {"b": {"share": None}}}, id="no such number"),
        pytest.param({"queues": {"c": {"used": {}}}}, id="no such queue"),
    ],
)
def test_an_answer_that_differs_is_wrong(expected: Json) -> None:
    assert differences(expected, ANSWER) != []

"""What would happen to a gang of equal pods: which questions are read, and what the answer draws."""

from __future__ import annotations

import pytest

from dispatcher.cli.command_line import NotWritten
from dispatcher.web.what_if import Question, submitted
from dispatcher.web.why import Why, why_of
from tests.unit.web.waiting import waiting


def answer(question: Question, after: int | None = None) -> Why:
    snapshot = waiting()
    return why_of(snapshot, *submitted(snapshot, question), after)


def test_gang_that_fits_is_drawn_on_its_nodes() -> None:
    found = answer(Question(pods="2", gpus="3"))
    (strip,) = found.strips
    assert strip.sentence == "2 pods on 2 nodes"
    assert {each.name: each.pods for each in strip.nodes if each.pods} == {"a-0": 1, "a-1": 1}
    assert "fits: the next cycle dispatches it to west" in found.document.heading
    assert found.changes == ()


def test_gang_that_waits_is_told_what_would_dispatch_it_and_where_it_would_go() -> None:
    found = answer(Question(pods="3", gpus="8"))
    assert found.changes
    (strip,) = answer(Question(pods="3", gpus="8"), after=0).strips
    assert sum(each.pods for each in strip.nodes) == 3


def test_gang_of_no_gpus_is_drawn_by_cores() -> None:
    (strip,) = answer(Question(pods="4", gpus="0", cpu="32")).strips
    assert sum(each.pods for each in strip.nodes) == 4


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(pods="many"), "pods is 'many', which is no whole number"),
        (Question(pods="0"), "pods is 0: from 1 to 10000"),
        (Question(gpus="-1"), "gpus is -1: from 0 to 1024"),
        (Question(cpu="9" * 5000), "which is no whole number"),
        (Question(memory="\u0665"), "which is no whole number"),
        (Question(priority="9999999999"), "priority is 9999999999: from"),
        (Question(queue="No Queue!"), "queue"),
        (Question(namespace="../etc"), "namespace"),
    ],
)
def test_question_that_cannot_be_asked_says_why(question: Question, said: str) -> None:
    with pytest.raises(NotWritten, match=said):
        submitted(waiting(), question)


def test_address_of_a_question_is_read_as_it_was_written() -> None:
    question = Question(pods="8", gpus="4", queue="nlp")
    assert Question.of({**question.parameters, "after": "1", "colour": "red", "cpu": " "}) == question

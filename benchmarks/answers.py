"""The time of each question about history, asked through a reader's account, and its query plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg

from benchmarks import plans
from benchmarks.company import as_reader
from benchmarks.plans import Access
from benchmarks.questions import Command, Question, Subject
from dispatcher.errors import StoreError
from dispatcher.store.readers.reports import Reports, reports

REPEATS: Final = 3
LONG_SECONDS: Final = 5.0
"""Questions that take longer are asked once."""
MOST: Final = timedelta(minutes=2)
"""Four times the limit of the role, so that the figure shows by how much a question exceeds it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answered:
    """The median time in seconds, the number of rows, and the access to each table; `failure` explains missing rows."""

    name: str
    seconds: float
    rows: int
    access: dict[str, Access]
    failure: str = ""


def subject_of(url: str) -> Subject:
    """An old AppWrapper that was dispatched twice."""
    with psycopg.connect(url) as connection:
        found = connection.execute(_SUBJECT).fetchone()
    return Subject(*found) if found else Subject("", "", "")


async def ask_commands(url: str, commands: Sequence[Command], subject: Subject, say: Say) -> list[Answered]:
    """Asks the questions of each command through its own code; the plan covers all its queries."""
    async with reports(as_reader(url), MOST) as there:
        with psycopg.connect(as_reader(url), autocommit=True) as connection:
            return [await _command(each, there, subject, connection, say) for each in commands]


def ask_questions(url: str, questions: Sequence[Question], subject: Subject, say: Say) -> list[Answered]:
    """Asks every question."""
    with psycopg.connect(as_reader(url), autocommit=True) as connection:
        connection.execute(f"SET statement_timeout = {MOST // timedelta(milliseconds=1)}".encode())
        return [_question(connection, each, subject, say) for each in questions]


async def _command(
    command: Command, reports: Reports, subject: Subject, connection: psycopg.Connection, say: Say
) -> Answered:
    taken: list[float] = []
    with plans.recorded() as sent:
        try:
            while len(taken) < REPEATS and sum(taken) < LONG_SECONDS:
                started = time.monotonic()
                rows = await command.ask(reports, subject)
                taken.append(time.monotonic() - started)
        except StoreError as error:
            return _reported(say, Answered(command.name, 0.0, 0, {}, str(error).partition("\n")[0]))
    access = plans.accesses(*(plans.explain(connection, *each) for each in plans.queries(sent).items()))
    return _reported(say, Answered(command.name, statistics.median(taken), rows, access))


def _question(connection: psycopg.Connection, question: Question, subject: Subject, say: Say) -> Answered:
    taken: list[float] = []
    asked = question.query, question.parameters(subject.uid)
    try:
        access = plans.accesses(plans.explain(connection, *asked))
        while len(taken) < REPEATS and sum(taken) < LONG_SECONDS:
            started = time.monotonic()
            rows = connection.execute(asked[0].encode(), asked[1]).fetchall()
            taken.append(time.monotonic() - started)
    except psycopg.Error as error:
        return _reported(say, Answered(question.name, 0.0, 0, {}, str(error).partition("\n")[0]))
    count = rows[0][0] if question.is_count else len(rows)
    return _reported(say, Answered(question.name, statistics.median(taken), count, access))


def _reported(say: Say, answered: Answered) -> Answered:
    say(f"{answered.name}: {answered.failure or f'{answered.seconds:.2f} s'}")
    return answered


_SUBJECT: Final = "SELECT namespace, name, uid FROM past_appwrapper WHERE attempts > 1 LIMIT 1"

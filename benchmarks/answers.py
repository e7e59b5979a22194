"""How long each question about history takes, asked as a person's account is let in, and how it is answered."""

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
from dispatcher.store.reports import Reports, reports

REPEATS: Final = 3
LONG_SECONDS: Final = 5.0
"""What takes longer is asked once."""
MOST: Final = timedelta(minutes=2)
"""Four times what the role allows: how much too long something takes is a figure, too."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answered:
    """The median time in seconds, how many rows, and how each table is read; `failure` says why there are none."""

    name: str
    seconds: float
    rows: int
    access: dict[str, Access]
    failure: str = ""


def subject_of(url: str) -> Subject:
    """One of long ago that was dispatched twice."""
    with psycopg.connect(url) as connection:
        found = connection.execute(_SUBJECT).fetchone()
    return Subject(*found) if found else Subject("", "", "")


async def ask_commands(url: str, commands: Sequence[Command], subject: Subject, say: Say) -> list[Answered]:
    """Ask what each command asks, by its own way; a plan is that of all its queries together."""
    async with reports(as_reader(url), MOST) as there:
        with psycopg.connect(as_reader(url), autocommit=True) as connection:
            return [await _command(each, there, subject, connection, say) for each in commands]


def ask_questions(url: str, questions: Sequence[Question], subject: Subject, say: Say) -> list[Answered]:
    """Ask every question."""
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
            return _told(say, Answered(command.name, 0.0, 0, {}, str(error).partition("\n")[0]))
    access = plans.accesses(*(plans.explain(connection, *each) for each in plans.queries(sent).items()))
    return _told(say, Answered(command.name, statistics.median(taken), rows, access))


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
        return _told(say, Answered(question.name, 0.0, 0, {}, str(error).partition("\n")[0]))
    count = rows[0][0] if question.is_count else len(rows)
    return _told(say, Answered(question.name, statistics.median(taken), count, access))


def _told(say: Say, answered: Answered) -> Answered:
    say(f"{answered.name}: {answered.failure or f'{answered.seconds:.2f} s'}")
    return answered


_SUBJECT: Final = "SELECT namespace, name, uid FROM past_appwrapper WHERE attempts > 1 LIMIT 1"

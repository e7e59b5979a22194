"""How long each question about history takes, asked as a person's account is let in, and how it is answered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from benchmarks import plans
from benchmarks.company import as_reader
from benchmarks.plans import Access
from benchmarks.questions import Question

REPEATS: Final = 3
LONG_SECONDS: Final = 5.0
"""What takes longer is asked once."""
MOST_SECONDS: Final = 300
"""Ten times what the role allows: what takes longer than that is to be told as a figure, too."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The median time in seconds, how many rows, and how each table was read; `failure` says why there are none."""

    name: str
    seconds: float
    rows: int
    access: dict[str, Access]
    failure: str = ""


def answer_all(url: str, questions: Sequence[Question], say: Callable[[str], None]) -> list[Answered]:
    """Ask every question; those about one AppWrapper are about one that was dispatched twice."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(_SUBJECT).fetchone() or ("", "", "")
    subject = {"namespace": found[0], "name": found[1], "uids": [found[2]]}
    answered = []
    with psycopg.connect(as_reader(url), autocommit=True) as connection:
        connection.execute(f"SET statement_timeout = '{MOST_SECONDS}s'".encode())
        for each in questions:
            asked = replace(each, values={**subject, **each.values})
            answered.append(_answer(connection, asked))
            say(f"{each.name}: {answered[-1].seconds:.2f} s")
    return answered


def _answer(connection: psycopg.Connection, question: Question) -> Answered:
    taken: list[float] = []
    try:
        access = plans.accesses(plans.explain(connection, question.query, question.parameters))
        while len(taken) < REPEATS and sum(taken) < LONG_SECONDS:
            started = time.monotonic()
            rows = connection.execute(question.query.encode(), question.parameters).fetchall()
            taken.append(time.monotonic() - started)
    except psycopg.Error as error:
        return Answered(question.name, 0.0, 0, {}, str(error).partition("\n")[0])
    count = rows[0][0] if question.is_count else len(rows)
    return Answered(question.name, statistics.median(taken), count, access)


_SUBJECT: Final = "SELECT namespace, name, uid FROM past_appwrapper WHERE attempts > 1 LIMIT 1"

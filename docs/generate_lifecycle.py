"""Writes docs/lifecycle.md from the tables of `dispatcher.core`: `python docs/generate_lifecycle.py`.

A test fails if the page differs from the output of this generator.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from dispatcher.core.lifecycle.step import Act
from dispatcher.core.lifecycle.transitions import TRANSITIONS, Transition
from dispatcher.core.model.records.record import HOLDING, Phase, Record
from dispatcher.core.status import conditions

PAGE: Final = Path(__file__).parent / "lifecycle.md"

HEAD: Final = """\
# The life of an AppWrapper

<!-- Made by `python docs/generate_lifecycle.py` from `core.lifecycle.transitions`. Change that, not this page. -->

An AppWrapper is in exactly one phase. The phase is a column of its row in Postgres; its status is projected from
the row. Every change of phase is one of the transitions below. A transition and its event are committed in one
transaction, so `history.timeline` is a path through this diagram.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        "```mermaid\n" + "\n".join(_diagram()) + "\n```\n",
        "## Phases\n",
        "A phase that *holds* charges the demand of the gang to the cluster of its attempt. *Shown as* is "
        "`status.state` and `status.queuejobstate`; a pending AppWrapper shows its furthest condition.\n",
        _table(["phase", "meaning", "holds", "shown as"], _phases()),
        "## Transitions\n",
        "*Cause* is the word in `history.timeline`. Some causes change no phase: they record an observation.\n",
        _table(["from", "cause", "to", "when"], map(_transition, TRANSITIONS)),
        "## Acts\n",
        "Where nothing is awaited, `decide` returns the change of a transition; else it returns one of these acts. "
        "Every act is safe to repeat: the intent is committed before the act, and the outcome after it.\n",
        _table(["act", "meaning"], ([f"`{act}`", _meanings(Act)[act.name]] for act in Act)),
    ]
    return "\n".join(parts)


def _diagram() -> Iterator[str]:
    yield "stateDiagram-v2"
    for row in TRANSITIONS:
        if row.source is not row.target:
            yield f"    {row.source or '[*]'} --> {row.target}: {row.cause}"
    yield f"    {Phase.DELETED} --> [*]"


def _phases() -> Iterator[list[str]]:
    for phase in Phase:
        record = Record("", "", "", "", _EPOCH, phase, _EPOCH)
        shown = f"{conditions.state(record)}, {conditions.queue_job_state(record)}"
        yield [f"**{phase}**", _meanings(Phase)[phase.name], "yes" if phase in HOLDING else "", shown]


def _transition(row: Transition) -> list[str]:
    return [str(row.source or "(new)"), f"`{row.cause}`", str(row.target), row.meaning]


def _meanings(words: type[StrEnum]) -> dict[str, str]:
    """The docstring below each member of an enum, read from the source because Python does not keep it."""
    body = ast.parse(inspect.getsource(words)).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101  # the source of a class is one
    found = {}
    for member, text in zip(body.body, body.body[1:], strict=False):
        match member, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(sentence))):
                found[name] = " ".join(sentence.split())
    return found


def _table(titles: list[str], rows: Iterable[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

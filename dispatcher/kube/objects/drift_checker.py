"""Compares wrapped objects with what was created, one object after another, in the background.

A reconcile asks about an object in the edition that a watch has shown. The answer comes at once from the last
comparison, if there is one; a comparison of a newer edition is queued. An object is queued once however often it is
edited, and an AppWrapper is woken only by a result that differs.

At most `1 / SECONDS_BETWEEN` objects are read a second, whatever autoscalers write. If many objects are edited at once,
results take longer. No task waits for a result, and a cluster that hangs delays only its own comparisons.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.objects.object_informers import Edition

SECONDS_BETWEEN: Final = 0.05
AGAIN_SECONDS: Final = 30.0
"""Pause before a failed comparison is repeated."""

REFUSED_SECONDS: Final = 600.0
"""Pause before the next look at an object repeats a comparison that was refused: the answer is mostly the same."""

MOST_COMPARED: Final = 50_000
"""Results kept; an older one is computed again."""

Edits = tuple[str, ...]
"""The paths of the changed fields."""

_log = log.get("drift_checker")


class Question(Struct, frozen=True):
    """Asks whether an object of an AppWrapper, in that edition, is as it was created; `compare` finds it out."""

    appwrapper: str
    ref: ObjectRef
    edition: Edition
    compare: Callable[[], Awaitable[Edits]]


class _Answer(Struct, frozen=True):
    edition: Edition
    edits: Edits
    holds_until: float = math.inf
    """In seconds of the loop's clock; a refused comparison is no answer for ever."""


class DriftChecker:
    """The comparisons of one cluster, while `run` runs; `on_change` gets the uid of an AppWrapper with a new result."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._answers: BoundedDict[str, _Answer] = BoundedDict(MOST_COMPARED)
        self._questions: dict[str, Question] = {}
        self._wake = asyncio.Event()

    def ask(self, question: Question) -> Edits | None:
        """The edits found by the last comparison; None before the first. Safe to repeat."""
        last = self._answers.get(question.ref.uid)
        if last is None or last.edition != question.edition or _now() >= last.holds_until:
            self._questions[question.ref.uid] = question
            self._wake.set()
        return last.edits if last else None

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._wake.wait()
            while self._questions:
                await self._answer(self._questions.pop(next(iter(self._questions))))
                await asyncio.sleep(SECONDS_BETWEEN)
            self._wake.clear()

    async def _answer(self, question: Question) -> None:
        last = self._answers.get(question.ref.uid)
        edits, holds_until = last.edits if last else (), _now() + REFUSED_SECONDS
        try:
            edits, holds_until = await question.compare(), math.inf
        except (errors.Forbidden, errors.Invalid) as error:
            _not_compared(question, error)
        except errors.DispatcherError as error:
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._put_back, question)
            _not_compared(question, error)
            return
        except Exception:  # noqa: BLE001  # the loop's edge: one object must not end the watches beside it
            log.count_internal_error("drift_checker")
            _log.exception("comparison_failed", **_named(question))
        self._answers[question.ref.uid] = _Answer(question.edition, edits, holds_until)
        if last is None or last.edits != edits:
            self._on_change(question.appwrapper)

    def _put_back(self, question: Question) -> None:
        """Queue a question again, unless there is a newer one about its object."""
        self._questions.setdefault(question.ref.uid, question)
        self._wake.set()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _not_compared(question: Question, error: errors.DispatcherError) -> None:
    _log.info("not_compared", **_named(question), error=str(error))


def _named(question: Question) -> dict[str, str]:
    ref = question.ref
    return {"uid": question.appwrapper, "object": ref.title}

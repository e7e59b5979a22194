"""The steps of `submit`: check fields of objects, create the AppWrappers, and print the first decision about each.

The decision is read from the status alone. A scheduling cycle usually decides within a second of the submission. The
status of a gang that waits first has the reason alone; the leader adds the position soon after. So a decision says
whether it is whole, and `first_decision` waits for a whole one until its time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Final

import click
from msgspec import Struct

from dispatcher import errors
from dispatcher.api.schema import unknown_fields
from dispatcher.cli.files.submission import Submission, name_in
from dispatcher.cli.files.unknown_fields import UnknownFields
from dispatcher.cli.hub import Found, Hub
from dispatcher.cli.people.following import TimeIsUp, progress, states
from dispatcher.cli.query import note
from dispatcher.cli.screens.explanation import meant_queue, missing_queue_in, position_of
from dispatcher.cli.screens.output import put
from dispatcher.core.model.records.pending_reasons import NEEDS_ANOTHER_PLACE, codes
from dispatcher.core.model.records.record import Phase
from dispatcher.core.status.phases import phase_in
from dispatcher.kube.user_client import UserClient
from dispatcher.text import mapping_of, mappings_of, name_of, one_line, text_of

Json = dict[str, Any]

IS_IMPOSSIBLE: Final = 4
"""The exit code of --fail-if-never where that is so."""
SECONDS: Final = 3.0
"""The longest wait for the decisions about all AppWrappers of one submission."""
NOT_DECIDED: Final = "is not decided yet, after {:g} s: kubectl aw show {} shows its state"

_WITHOUT_POSITION: Final = codes(lambda each: each.is_in_no_cycle)
_ENDS: Final = frozenset({Phase.FAILING, Phase.FAILED, Phase.DELETING, Phase.DELETED})
_HELD: Final = frozenset({Phase.SUSPENDED, Phase.SUSPENDING})


class Outcome(StrEnum):
    """The state of a submitted AppWrapper after its first decision."""

    DISPATCHED = "dispatched"
    """The gang is or was dispatched."""
    QUEUED = "queued"
    """The AppWrapper is queued, or held."""
    IMPOSSIBLE = "impossible"
    """It is queued, and more free capacity would not dispatch it: it, its queue or the clusters have to change."""
    FAILED = "failed"
    """It failed, or is being deleted."""


class FirstDecision(Struct, frozen=True):
    """A decision; `sentence` follows the name of the AppWrapper. It `is_whole` if no more is to come soon.

    The sentence ends with the `missing_queue`, if the decision is that there is no such queue.
    """

    outcome: Outcome
    sentence: str
    is_whole: bool = True
    missing_queue: str = ""


def check_fields(hub: Hub, written: Iterable[Submission]) -> None:
    """Look for fields that kinds do not have, before anything is created.

    Raises `InvalidFile` for an object that was wrapped: kubectl would refuse it, too. Those of an AppWrapper of a file
    are named on stderr, because the operator may ignore unknown fields.
    """
    fields = UnknownFields(hub.client)
    for each in written:
        for template in _templates(each.raw):
            title = f"{each.key}: {template.get('kind')}/{name_in(template)}"
            for sentence in fields.of(template, each.namespace):
                if each.wraps:
                    raise errors.InvalidFile(_closed(f"{title}: {sentence}", "Nothing was created"))
                note(f"{title}: warning: {sentence}")
    hub.client.take_warnings()  # of objects that were not created


def _templates(raw: Json) -> list[Json]:
    """The objects that an AppWrapper wraps, in either spelling."""
    spec = mapping_of(raw.get("spec"))
    items = mappings_of(mapping_of(spec.get("resources")).get("GenericItems"))
    components = mappings_of(spec.get("components"))
    found = [*(each.get("generictemplate") for each in items), *(each.get("template") for each in components)]
    return [each for each in found if isinstance(each, dict)]


def create(hub: Hub, written: Submission, mark: str) -> Found:
    """Create an AppWrapper and say so, with that mark; raises `CommandFailed` if the hub refuses it."""
    try:
        found = hub.submit(written.namespace, written.raw)
    except errors.AlreadyExists as error:
        raise errors.CommandFailed(
            f"{written.key} exists: nothing more was submitted. Delete it with kubectl aw cancel, or choose another "
            "name"
        ) from error
    except errors.Invalid as error:
        meant = unknown_fields(written.raw.get("spec")) if "unknown field" in str(error) else []
        why = "; ".join(meant) or str(error)
        said = _closed(f"the hub refuses {written.key}: {why}", "Nothing more was submitted")
        raise errors.CommandFailed(said) from error
    of = f": {', '.join(written.wraps)}" if written.wraps else ""
    put(one_line(f"{found.key} submitted{mark}{of}"), None)
    for warning in (*written.warnings, *hub.client.take_warnings()):
        note(f"{found.key}: warning: {warning}")
    return found


def _closed(sentence: str, after: str) -> str:
    """The sentence with its end, and the one after it; a question has an end."""
    return one_line(f"{sentence}{'' if sentence.endswith('?') else '.'} {after}")


def say_decisions(hub: Hub, submitted: Sequence[Found], *, fails_if_never: bool) -> None:
    """Print the first decision about each AppWrapper; wait for all of them for `SECONDS` at most.

    Exits with 1 if one failed or was deleted, and with 4 if `fails_if_never` and one can never run as it is.
    """
    ends, queues = time.monotonic() + SECONDS, cache(hub.queue_names)
    outcomes = [_say_decision(hub, each, ends, queues) for each in submitted]
    if fails_if_never and not {Outcome.IMPOSSIBLE, Outcome.FAILED}.isdisjoint(outcomes):
        raise click.exceptions.Exit(IS_IMPOSSIBLE)
    if Outcome.FAILED in outcomes:
        raise click.exceptions.Exit(1)


def _say_decision(hub: Hub, found: Found, ends: float, queues: Callable[[], Iterable[str]]) -> Outcome:
    try:
        decision = first_decision(hub.client, found, ends)
    except errors.ClusterError as error:
        note(f"{found.key}: the first decision is not known: {error}")
        return Outcome.QUEUED
    if decision is None:
        decision = FirstDecision(Outcome.QUEUED, NOT_DECIDED.format(SECONDS, found.key))
    meant = meant_queue(decision.missing_queue, queues()) if decision.missing_queue else ""
    put(f"{found.key} {decision.sentence}{meant}", None)
    return decision.outcome


def first_decision(client: UserClient, found: Found, ends: float) -> FirstDecision | None:
    """The decision about an AppWrapper, as whole as it is at the monotonic time `ends`; None if there is none by then.

    At that time or later the hub is asked once. Raises `ClusterError` if the hub refuses that.
    """
    if time.monotonic() >= ends:
        return decision_in(client.get(found.path))
    known: FirstDecision | None = None
    try:
        for raw in states(client, found, ends):
            known = decision_in(raw) or known
            if known is not None and known.is_whole:
                return known
    except TimeIsUp:
        return known
    return FirstDecision(Outcome.FAILED, "was deleted")


def decision_in(appwrapper: Json) -> FirstDecision | None:
    """The decision that a status has; None if there is none yet."""
    status = appwrapper.get("status") or {}
    waiting = status.get("waiting") or {}
    phase = Phase.DELETING if appwrapper["metadata"].get("deletionTimestamp") else phase_in(status)
    if phase in _ENDS:
        return FirstDecision(Outcome.FAILED, progress(appwrapper))
    if phase in _HELD:
        return FirstDecision(Outcome.QUEUED, "is held: kubectl aw release queues it")
    if phase is Phase.QUEUED or phase is None:
        return _pending(waiting) if waiting else None
    if phase is Phase.COMPLETED:
        return FirstDecision(Outcome.DISPATCHED, progress(appwrapper))
    where = f"dispatched to {name_of(status.get('cluster')) or 'a cluster'}"
    return FirstDecision(Outcome.DISPATCHED, where, is_whole=phase is not Phase.DISPATCHING)


def _pending(waiting: Json) -> FirstDecision:
    reason, position = name_of(waiting.get("reason")), position_of(waiting)
    why = ": ".join(filter(None, (reason, text_of(waiting.get("message")))))
    if reason in NEEDS_ANOTHER_PLACE:
        sentence, missing = one_line(f"cannot run as it is: {why}"), missing_queue_in(waiting)
        return FirstDecision(Outcome.IMPOSSIBLE, sentence, missing_queue=missing)
    where = f"waits at position {position}" if position else "waits"
    is_whole = bool(position) or reason in _WITHOUT_POSITION
    return FirstDecision(Outcome.QUEUED, one_line(f"{where}: {why}"), is_whole)

"""The steps of `submit`: check fields of objects, create the AppWrappers, and print the first decision about each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

import click

from dispatcher import errors
from dispatcher.api.schema import unknown_fields
from dispatcher.cli.files.submission import Submission, name_in
from dispatcher.cli.files.unknown_fields import UnknownFields
from dispatcher.cli.hub import Found, Hub
from dispatcher.cli.people.first_decision import NOT_DECIDED, SECONDS, FirstDecision, Outcome, first_decision
from dispatcher.cli.query import note
from dispatcher.cli.screens.explanation import meant_queue
from dispatcher.cli.screens.output import put
from dispatcher.text import mapping_of, mappings_of, one_line

Json = dict[str, Any]

IS_IMPOSSIBLE: Final = 4
"""The exit code of --fail-if-never where that is so."""


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

"""The description of one AppWrapper for people: its state, its attempts and its events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from dispatcher.api.spec_errors import one_line
from dispatcher.cli.screens.output import Column, as_table, how_long, message_of, plain, text, value
from dispatcher.cli.screens.tables import NARROWEST, Heading, span, wrapped
from dispatcher.store.readers.reports import Description, Row

ATTEMPTS: Final = (
    plain("ATTEMPT", "attempt"),
    plain("CLUSTER", "cluster"),
    plain("DISPATCHED", "decided_at"),
    plain("STARTED", "started_at", 2),
    plain("ENDED", "ended_at", 1),
    how_long("HELD", "held_s"),
    plain("OUTCOME", "outcome"),
    plain("REASON", "error_class"),
    plain("GPU-H", "gpu_h", 3),
)
TIMELINE: Final = (
    plain("STATE", "to_phase"),
    how_long("FOR", "seconds_in_state"),
    plain("CAUSE", "cause", 2),
    plain("CLUSTER", "cluster", 1),
    plain("REASON", "reason"),
    Column(Heading("MESSAGE", wraps=True), message_of),
)

_WHY: Final = (
    plain("State", "state"),
    plain("Outcome", "outcome"),
    plain("Reason", "reason"),
    plain("Message", "message"),
    Column(Heading("Logs"), lambda job: logs_of(job)),
)
_WHY_IT_WAITS: Final = (
    plain("Position", "position"),
    plain("Not before", "eligible_at"),
    Column(Heading("Est. start"), lambda waiting: _start(waiting)),
    plain("Advice", "advice"),
)
_WHERE_AND_WHEN: Final = (
    plain("Cluster", "last_cluster"),
    plain("Submitted", "submitted_at"),
    plain("Started", "first_started_at"),
    plain("Ended", "ended_at"),
    plain("Deleted", "deleted_at"),
    how_long("Waited", "wait_s"),
    Column(Heading("Ran"), lambda job: span(float(str(job["run_s"]))) if job["run_s"] else ""),
    Column(Heading("Lost"), lambda job: span(float(str(job["lost_s"]))) if job["lost_s"] else ""),
    Column(Heading("Used"), lambda job: _used(job)),
)
_ASKED: Final = (
    plain("Queue", "queue"),
    plain("Priority", "priority"),
    Column(Heading("Asks for"), lambda job: asks_for(job)),
)
_WHOSE: Final = (
    plain("Kinds", "kinds"),
    plain("User", "user_name"),
    plain("UID", "uid"),
)


def as_text(description: Description, width: int | None, *, is_wide: bool = False) -> str:
    """Blocks of text, one below the other; tables have exact times in wide output."""
    attempts = as_table(description.attempts, ATTEMPTS, width, None if is_wide else description.attempts.at)
    timeline = as_table(description.timeline, [_moment(description, is_wide=is_wide), *TIMELINE], width)
    return "\n\n".join(
        [
            _block(description, width),
            *_table("Attempts", attempts, bool(description.attempts.rows)),
            *_table("Timeline", timeline, bool(description.timeline.rows)),
        ]
    )


def as_value(description: Description) -> object:
    """The same as JSON has it: the row of job_history, and under names of their own what belongs to it."""
    return value(
        {
            **description.job,
            "waiting": description.waiting,
            "holding": description.holding,
            "states": list(description.states),
            "attempt_history": list(description.attempts),
            "timeline": list(description.timeline),
        }
    )


def block(title: str, facts: Sequence[tuple[str, str]], width: int | None = None) -> str:
    """A title and the facts below it, each as a heading and its text, which wraps; one without text is left out."""
    named = [(f"{heading}:", one_line(said)) for heading, said in facts if said]
    indent = max(len(heading) for heading, _ in named)
    room = None if width is None else max(NARROWEST, width - indent - 4)
    lines = [
        f"  {heading if index == 0 else '':{indent}}  {line}"
        for heading, said in named
        for index, line in enumerate(wrapped(said, room))
    ]
    return "\n".join([one_line(title), *lines])


def asks_for(job: Row) -> str:
    """The amounts that an AppWrapper requests, in words."""
    pods = f"{text(job['pods'])} pod{'' if job['pods'] == 1 else 's'}"
    return f"{text(job['cpu'])} cpu, {text(job['memory_gib'])} GiB, {text(job['gpu'])} gpu, {pods}"


def holds(job: Row, held: Row | None) -> str:
    """The amounts of a gang that holds more than it asks for; empty for any other."""
    if held is None or all(held[name] == job[name] for name in held):
        return ""
    return f"{text(held['cpu'])} cpu, {text(held['memory_gib'])} GiB, {text(held['gpu'])} gpu"


def logs_of(job: Row) -> str:
    """The command for the logs of a failed AppWrapper; nothing for any other, and once it is deleted.

    It names the pod and the container that failed first, if the message of `job` does.
    """
    from dispatcher.core.model.gangs.pods import first_failure_in
    from dispatcher.core.status.conditions import log_command

    if job["outcome"] != "failed" or job["deleted_at"] is not None or not job["last_cluster"]:
        return ""
    name, namespace = str(job["name"]), str(job["namespace"])
    failure = first_failure_in(str(job["message"]))
    return log_command(namespace, name, failure) if failure else f"kubectl aw logs {name} -n {namespace}"


def facts_of(description: Description) -> list[tuple[str, str]]:
    """The facts about an AppWrapper beside its attempts and events, as headings and texts, which may be empty.

    Its state, the reason and what helps come first; who submitted it comes last.
    """
    job, waiting = description.job, description.waiting
    states = ", ".join(f"{row['state']} {span(float(str(row['seconds'])))}" for row in description.states)
    return [
        *_facts(_WHY, job),
        *(_facts(_WHY_IT_WAITS, waiting) if waiting else ()),
        ("Growth", _growth(description)),
        *_facts(_WHERE_AND_WHEN, job),
        ("In states", states),
        *_facts(_ASKED, job),
        ("Holds", holds(job, description.holding)),
        *_facts(_WHOSE, job),
    ]


def _block(description: Description, width: int | None) -> str:
    return block(f"{description.job['namespace']}/{description.job['name']}", facts_of(description), width)


def _growth(description: Description) -> str:
    """Why growth of the gang waits, by its last event about growth; empty if none waits."""
    from dispatcher.core.lifecycle.transitions import Cause

    if description.holding is None:
        return ""
    about_growth = {Cause.DISPATCHED, Cause.GRANTED, Cause.GROWTH_WAITS}
    told = [each for each in description.timeline if each["cause"] in about_growth]
    last = told[-1] if told else {"cause": Cause.DISPATCHED}
    if last["cause"] == Cause.DISPATCHED or not last["reason"]:
        return ""
    # The event of a grant in part has the reason why the rest waits, and the words of the grant.
    return ": ".join(
        filter(None, (text(last["reason"]), text(last["message"]) * (last["cause"] == Cause.GROWTH_WAITS)))
    )


def _moment(description: Description, *, is_wide: bool) -> Column:
    """When something happened: after the first event, or exactly."""
    times = [each["at"] for each in description.timeline]
    start = times[0] if times else None
    if is_wide or not isinstance(start, datetime):
        return plain("AT", "at")
    return Column(
        Heading("AFTER"), lambda row: row["at"] - start if isinstance(row["at"], datetime) else None
    )


def _facts(columns: Sequence[Column], row: Row) -> list[tuple[str, str]]:
    return [(column.heading.name, text(column.of(row))) for column in columns]


def _table(heading: str, shown: str, is_there: bool) -> list[str]:
    return [f"{heading}:\n{shown}"] if is_there else []


def _start(waiting: Row) -> str:
    start = waiting["estimated_start"]
    return f"unknown: {text(waiting['estimate_unknown'])}" if start is None else text(start)


def _used(job: Row) -> str:
    """What it used; nothing for an AppWrapper that held no capacity."""
    if not any(job[name] for name in ("cpu_h", "memory_gib_h", "gpu_h")):
        return ""
    return f"{text(job['cpu_h'])} cpu-h, {text(job['memory_gib_h'])} GiB-h, {text(job['gpu_h'])} gpu-h"

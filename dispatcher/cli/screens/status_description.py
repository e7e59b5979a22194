"""The description of an AppWrapper from itself: its state, what it requests, where it is, and why it waits.

Its attempts and its timeline are only in the database. JSON has the keys that the database gives, null where the
AppWrapper does not say it, and the whole status under `status`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.spec_errors import SpecError
from dispatcher.cli.screens.appwrapper_status import (
    COLUMNS,
    MORE_COLUMNS,
    OUTSIDE,
    AppWrapperStatus,
    Json,
    pending_row,
)
from dispatcher.cli.screens.describe import asks_for, block, holds
from dispatcher.cli.screens.explanation import (
    changes_of,
    estimate_of,
    holders_in,
    position_of,
    quota_of,
    rejections_in,
)
from dispatcher.cli.screens.output import UNKNOWN, text, value
from dispatcher.cli.screens.tables import Heading, age, table
from dispatcher.core.kinds.demand import charge_of
from dispatcher.core.model.clock import time_in
from dispatcher.core.model.clusters.potential import in_words
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.quantity import QuantityError, resource_amounts
from dispatcher.core.model.records.record import HOLDING, Phase
from dispatcher.core.model.resources import NOTHING, Resources, gpus
from dispatcher.core.status.conditions import MCAD_WORDS, POD_COUNTS
from dispatcher.text import mapping_of, name_of, text_of

COLUMNS_OF_JOB: Final = (
    "uid",
    "api_group",
    "namespace",
    "name",
    "kinds",
    "queue",
    "user_name",
    "user_groups",
    "priority",
    "submitted_at",
    "eligible_at",
    "first_dispatched_at",
    "first_started_at",
    "ended_at",
    "deleted_at",
    "state",
    "outcome",
    "reason",
    "message",
    "last_cluster",
    "attempts",
    "evictions",
    "requeues",
    "pods",
    "cpu",
    "memory_gib",
    "gpu",
    "wait_s",
    "queue_s",
    "startup_s",
    "run_s",
    "lost_s",
    "cpu_h",
    "memory_gib_h",
    "gpu_h",
)
"""The columns of `history.job_history`."""
ONLY_IN_DATABASE: Final = ("states", "attempt_history", "timeline")

_UNSEEN: Final = "no dispatcher has seen it yet"
_CONDITIONS: Final = (
    Heading("CONDITION"),
    Heading("STATUS", 2),
    Heading("SINCE", 1),
    Heading("REASON", wraps=True),
    Heading("MESSAGE", wraps=True),
)
_COMPONENTS: Final = (Heading("COMPONENT"), Heading("STATUS", wraps=True), Heading("SINCE", 1))
_GIB: Final = 2**30


class StatusDescription(AppWrapperStatus, frozen=True):
    """The description of an AppWrapper by its status."""

    def as_value(self) -> dict[str, Any]:
        """The AppWrapper for programs."""
        job = self._job()
        row = pending_row(self.appwrapper, self.now) if self.is_queued else {}
        waiting = {column: value(row.get(column)) for column in (*COLUMNS, *MORE_COLUMNS)}
        return {
            **{column: value(job.get(column)) for column in COLUMNS_OF_JOB},
            "waiting": waiting if self.is_queued else None,
            "holding": value(self._holding(job)),
            **dict.fromkeys(ONLY_IN_DATABASE),
            "status": self.status,
        }

    def as_text(self, width: int | None, *, is_wide: bool = False) -> str:
        """Blocks of text, one below the other; tables have exact times in wide output."""
        now = None if is_wide else self.now
        tables = (
            rejections_in(self.waiting).lines(width) if self.is_queued else (),
            holders_in(self.waiting, now).lines(width) if self.is_queued else (),
            self._components(width, now),
            self._conditions(width, now),
            self._words_of_mcad(width),
        )
        blocks = ["\n".join(each) for each in tables if each]
        return "\n\n".join([block(self.key, [*self._facts()], width), *blocks])

    def _job(self) -> dict[str, Any]:
        metadata, status, phase = self.metadata, self.status, self.phase
        why = self.failure if phase is Phase.FAILED else self.waiting
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        return {
            "uid": metadata["uid"],
            "api_group": str(self.appwrapper.get("apiVersion") or "").partition("/")[0] or None,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "queue": name_of(status.get("queue")) or None,
            "user_name": text_of(status.get("user")) or metadata["namespace"],
            "priority": status.get("systempriority"),
            "submitted_at": created,
            "state": phase and phase.value,
            "reason": text_of(why.get("reason")),
            "message": text_of(why.get("message")),
            "last_cluster": name_of(status.get("cluster")) or None,
            **_requested(_spec(self.appwrapper)),
            **({"gpu": status.get("gpus", 0)} if phase is not None and "held" not in status else {}),
        }

    def _holding(self, job: Json) -> dict[str, Any] | None:
        """The amounts that it holds; None unless it holds capacity."""
        if self.phase not in HOLDING:
            return None
        try:
            grown = resource_amounts(self.status.get("held") or {})
        except QuantityError:
            grown = NOTHING
        return _amounts(grown) if grown else {name: job.get(name) for name in _amounts(NOTHING)}

    def _facts(self) -> Iterator[tuple[str, str]]:
        """What becomes of it, why, and what helps come first; who submitted what comes last."""
        job, status = self._job(), self.status
        yield "State", text(job["state"]) or (OUTSIDE if self.waiting else _UNSEEN)
        yield "Reason", text(job["reason"])
        yield "Message", text(job["message"])
        yield from self._failed_first()
        if self.is_queued:
            yield "Position", position_of(self.waiting)
            yield "Would go", " or ".join(changes_of(self.waiting))
            yield "Est. start", estimate_of(self.waiting)
            yield "Quota", quota_of(self.waiting)
            yield "Preempting", ", ".join(map(name_of, self.waiting.get("preempting") or ()))
        yield "Cluster", text(job["last_cluster"])
        yield "Pods", ", ".join(f"{status[word]} {word.lower()}" for word in POD_COUNTS if status.get(word))
        yield "Trusts", self._trusts()
        yield "Unhealthy", self._lasting("unhealthy")
        yield "Growth", self._lasting("growth")
        yield "Submitted", text(job["submitted_at"])
        yield "Waited", age(job["submitted_at"], self.now) if self.is_queued else ""
        yield "Kept until", text(time_in(status.get("keptUntil")))
        yield "Queue", text(job["queue"])
        yield "Priority", text(job["priority"])
        yield "Asks for", asks_for(job) if job.get("pods") is not None else UNKNOWN
        yield "Holds", holds(job, self._holding(job)) if job.get("pods") is not None else ""
        yield "Kinds", text(job.get("kinds"))
        yield "User", text(job["user_name"])
        yield "UID", text(job["uid"])

    def _failed_first(self) -> Iterator[tuple[str, str]]:
        """How a pod failed first, its termination message, and the command for its log; nothing without a failure."""
        found = mapping_of(self.status.get("failure"))
        whose = [f"container {name_of(found.get('container'))} of"] if found.get("container") else []
        code = found.get("exitCode")
        words = (
            " ".join([*whose, f"pod {name_of(found.get('pod'))}"]) if found else "",
            f"exit code {code}" if isinstance(code, int) else "",
            name_of(found.get("reason")),
        )
        yield "Failed first", ", ".join(filter(None, words))
        yield "It said", text_of(found.get("message"))
        yield "Its log", text_of(found.get("logs"))

    def _trusts(self) -> str:
        """The nodes that a gang on trust waits for, in words."""
        trusted = self.status.get("trusts") or ()
        awaited = in_words(
            tuple((name_of(each.get("pool")), int(each.get("nodes") or 0)) for each in trusted)
        )
        return f"{awaited} to come" if awaited else ""

    def _lasting(self, field: str) -> str:
        """The reason and the message of a field of the status, and for how long it lasts; empty without the field."""
        found = self.status.get(field) or {}
        since = time_in(found.get("since"))
        said = [text_of(found.get("reason")), text_of(found.get("message"))]
        return ": ".join(filter(None, said)) + (f", for {age(since, self.now)}" if since else "")

    def _conditions(self, width: int | None, now: datetime | None) -> list[str]:
        rows = [
            (
                name_of(each.get("type")),
                name_of(each.get("status")),
                text(time_in(each.get("lastTransitionTime") or each.get("lastTransitionMicroTime")), now),
                text_of(each.get("reason")),
                text_of(each.get("message")),
            )
            for each in self.conditions
        ]
        return table(_CONDITIONS, rows, width).splitlines() if rows else []

    def _words_of_mcad(self, width: int | None) -> list[str]:
        """The fields of the status that only MCAD's clients need, by their names there."""
        found = [(word, self.status[word]) for word in MCAD_WORDS if self.status.get(word) not in (None, "")]
        facts = [(word, said if isinstance(said, str) else json.dumps(said)) for word, said in found]
        return block("For MCAD's clients", facts, width).splitlines() if facts else []

    def _components(self, width: int | None, now: datetime | None) -> list[str]:
        rows = []
        for each in self.status.get("componentStatus") or ():
            name = f"{name_of(each.get('kind'))}/{name_of(each.get('name'))}"
            true = [one for one in each.get("conditions") or () if one.get("status") == "True"]
            words = ", ".join(name_of(one.get("type")) for one in true)
            since = time_in(true[-1].get("lastTransitionTime")) if true else None
            rows.append((name, words, text(since, now)))
        return table(_COMPONENTS, rows, width).splitlines() if rows else []


def _spec(appwrapper: Json) -> AppWrapperSpec | None:
    try:
        return parse_spec(appwrapper.get("spec") or {}, namespace=appwrapper["metadata"]["namespace"])
    except SpecError:
        return None


def _requested(spec: AppWrapperSpec | None) -> dict[str, Any]:
    """The kinds, pods and amounts, counted as for `kubectl aw demand`; empty if they cannot be derived."""
    if spec is None:
        return {}
    kinds = ",".join(sorted({name_of(each.template.get("kind")) for each in spec.wrapped}))
    try:
        gang: Gang = charge_of(spec).gang
    except SpecError:
        return {"kinds": kinds}
    return {"kinds": kinds, "pods": gang.pods, **_amounts(gang.demand)}


def _amounts(resources: Resources) -> dict[str, Decimal]:
    """The amounts that the views of the database have, by column."""
    return {
        "cpu": Decimal(resources["cpu"]) / 1000,
        "memory_gib": Decimal(resources["memory"]) / _GIB,
        "gpu": Decimal(gpus(resources)),
    }

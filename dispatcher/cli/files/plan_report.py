"""How a plan is shown: a document of decisions for programs, and tables of decisions and queues for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.conditions import QUEUE_STOPPED
from dispatcher.cli.screens.output import as_of
from dispatcher.cli.screens.tables import folded, table
from dispatcher.core.model.quantity import in_words as amount_in_words
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.records.record import Pending, Record
from dispatcher.core.queues.accounts import TreeQuota
from dispatcher.core.queues.forest import Forest, Place
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome, QueueShare
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.advice import NO_ADVICE, Advice
from dispatcher.core.scheduling.explain.repair import RemoveGangs, in_words, listed
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.text import counted

HEADINGS: Final = ("GANG", "DECISION", "CLUSTER", "REASON")
QUEUE_HEADINGS: Final = ("QUEUE", "RESOURCE", "NOMINAL", "USED", "SHARE")
NO_GANGS: Final = "No gang is pending."

_INFINITE: Final = "infinite"
_STEP: Final = "  "
"""The indentation below a parent."""

Victim = tuple[ActiveGang, Reason]

_REASONS: Final = {
    Reason.PRIORITY_IN_QUEUE: "it goes after {preemptor} in the same queue",
    Reason.QUOTA_RECLAIMED: "its queue uses more than its own quota, which the queue of {preemptor} takes back",
    Reason.QUOTA_RECLAIMED_WHILE_BORROWING: "its queue borrows, and {preemptor} borrows with a higher priority",
    Reason.FAIR_SHARE: "its queue uses more than its fair share beside the queue of {preemptor}",
}
"""Why a victim is preempted, to be read after "because"."""


class PlanReport(Struct, frozen=True):
    """The outcomes of a cycle in order, the use of each valid queue before it, and the advice by uid, if any.

    `names` are those of gangs that are known by another uid; without them a gang is shown by its own name. `age` is
    that of the leader's snapshot, None for a plan of a file alone.
    """

    world: World
    shares: Mapping[str, QueueShare]
    outcomes: Sequence[QueueOutcome]
    advice: Mapping[str, Advice] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    age: timedelta | None = None

    def as_document(self) -> dict[str, Any]:
        """The plan as a JSON document; docs/plan.md has its fields. Without advice it has no holders and repairs."""
        return {
            "decisions": [self._decision(each) for each in self.outcomes],
            "queues": {name: _use(each) for name, each in self.shares.items()},
            **({} if self.age is None else {"ageSeconds": int(self.age.total_seconds())}),
        }

    def as_text(self, width: int | None = None) -> str:
        """The plan for people: a table of decisions, what helps the waiting gangs, and a table of the queues."""
        rows = [row for each in self.outcomes for row in self._rows(each)]
        blocks = [table(HEADINGS, rows, width) if rows else NO_GANGS]
        blocks += [block for each in self.outcomes for block in self._reasons(each)]
        blocks += queue_table(self.world, self.shares, width)
        if self.age is not None:
            blocks.append(as_of(self.age))
        return folded("\n\n".join(blocks), width)

    # --- for programs --------------------------------------------------------------------------------------

    def _decision(self, outcome: QueueOutcome) -> dict[str, Any]:
        match outcome:
            case Drained(_, gangs):
                # The file format has one word for all that leave: `preempt`, for no gang where a queue is drained.
                names = sorted(self._name(gang.record) for gang in gangs)
                return {"preempt": names, "for": "", "reasons": dict.fromkeys(names, QUEUE_STOPPED)}
            case Preempting(record, pending, cluster, victims):
                preempt: dict[str, Any] = {
                    "preempt": self._names(victims),
                    "for": self._name(record),
                    "cluster": cluster,
                }
                if surplus := self._surplus(victims):
                    preempt["surplus"] = surplus
                return {**preempt, "reasons": self._reasons_of(victims), "message": pending.message}
            case Placed(record, cluster, message, assignment):
                placed: dict[str, Any] = {"dispatch": self._name(record), "cluster": cluster}
                if trusted := assignment.trusted:
                    placed["potential"] = dict(trusted)
                if assignment.provisioning is not None:
                    placed["provisioningClass"] = assignment.provisioning.name
                return {**placed, "message": message} if message else placed
        record, pending = outcome.record, outcome.pending
        advice = self._advice_of(record)
        message = _message(pending, advice or NO_ADVICE)
        waiting: dict[str, Any] = {
            "waiting": self._name(record),
            "reason": pending.reason,
            "message": message,
        }
        if advice is None:
            return waiting
        repairs = [each.as_document() for each in advice.repairs]
        return {**waiting, "holders": list(advice.holders), "repair": repairs}

    # --- for people ----------------------------------------------------------------------------------------

    def _reasons(self, outcome: QueueOutcome) -> Iterator[str]:
        """Why a gang waits, with its victims or what would help it."""
        if isinstance(outcome, Placed | Drained):
            return
        name = self._name(outcome.record)
        if isinstance(outcome, Preempting):
            why = dict.fromkeys(
                f"  {self._who(victim)} preempted, because {_REASONS[reason].format(preemptor=name)}"
                for victim, reason in outcome.victims
            )
            yield "\n".join([f"{name} waits: {outcome.pending.message}", *why])
            return
        found = self._advice_of(outcome.record) or NO_ADVICE
        yield "\n".join([f"{name} waits: {_message(outcome.pending, found)}", *_help(found)])

    def _rows(self, outcome: QueueOutcome) -> list[tuple[str, ...]]:
        """The gangs of an outcome: the one that it is about, and its victims; or all of a drained queue."""
        match outcome:
            case Drained(_, gangs):
                return [(self._name(gang.record), "evict", gang.cluster, QUEUE_STOPPED) for gang in gangs]
            case Preempting(record, pending, cluster, victims):
                return [
                    (self._name(record), "waiting", cluster, pending.reason),
                    *self._victim_rows(victims),
                ]
            case Placed(record, cluster):
                return [(self._name(record), "dispatch", cluster, "")]
        return [(self._name(outcome.record), "waiting", "", outcome.pending.reason)]

    def _victim_rows(self, victims: Sequence[Victim]) -> list[tuple[str, ...]]:
        surplus = self._surplus(victims)
        found = dict.fromkeys(
            (self._name(gang.record), self._taken_of(gang, surplus), gang.cluster, reason)
            for gang, reason in victims
        )
        return list(found)

    def _taken_of(self, gang: ActiveGang, surplus: Mapping[str, int]) -> str:
        pods = surplus[self._name(gang.record)] if gang.is_surplus else 0
        return f"preempt {counted(pods, 'surplus pod')}" if pods else "preempt"

    # --- names ---------------------------------------------------------------------------------------------

    def _name(self, record: Record) -> str:
        return self.names.get(record.uid, record.name)

    def _who(self, victim: ActiveGang) -> str:
        name = self._name(victim.record)
        return f"surplus of {name} is" if victim.is_surplus else f"{name} is"

    def _names(self, victims: Sequence[Victim]) -> list[str]:
        return sorted(self._name(gang.record) for gang, _ in victims if not gang.is_surplus)

    def _surplus(self, victims: Sequence[Victim]) -> dict[str, int]:
        """How many surplus pods each gang gives up, by its name."""
        taken = Counter(self._name(gang.record) for gang, _ in victims if gang.is_surplus)
        return dict(sorted(taken.items()))

    def _reasons_of(self, victims: Sequence[Victim]) -> dict[str, str]:
        return dict(sorted((self._name(gang.record), reason) for gang, reason in victims))

    def _advice_of(self, record: Record) -> Advice | None:
        """The advice about a gang, with other gangs by their names; None without any."""
        found = self.advice.get(record.uid)
        if found is None or not self.names:
            return found
        repairs = tuple(
            replace(each, gangs=self._known(each.gangs)) if isinstance(each, RemoveGangs) else each
            for each in found.repairs
        )
        return replace(found, holders=self._known(found.holders), repairs=repairs)

    def _known(self, uids: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.names.get(uid, uid) for uid in uids)


def _use(share: QueueShare) -> dict[str, Any]:
    """The use of a queue; a share under DominantShare only, null if it is infinite, and fair shares under Division."""
    found: dict[str, Any] = {"used": dict(share.used)}
    if share.share is not None or share.is_infinite:
        found["share"] = None if share.is_infinite else share.share
    if share.fair is not None:
        found["fairShare"] = dict(share.fair)
    return found


def _message(pending: Pending, advice: Advice) -> str:
    """Why the gang waits and, if no repair was found, why not."""
    return f"{pending.message}; {advice.message}" if advice.message else pending.message


def _help(advice: Advice) -> Iterator[str]:
    """The lines about one gang that waits."""
    if advice.holders:
        yield f"  its capacity is held by {listed(advice.holders)}"
    for each in advice.repairs:
        yield f"  it goes {in_words(each)}"


def queue_table(world: World, shares: Mapping[str, QueueShare], width: int | None) -> list[str]:
    """A table of the declared queues, trees in the order of declaration, and lines for queues that are not valid.

    Each queue has a row for each limited resource. `SHARE` is the dominant share, or the fair share of the resource.
    Nothing if no queue is declared.
    """
    forest = world.forest
    declared = {queue.name for queue in world.queues or ()}
    rows: list[Sequence[str]] = []
    for root, tree in forest.trees.items():
        if not declared.isdisjoint(tree.names):  # `default` need not be declared to have children
            quota = TreeQuota.of(tree, forest)
            for place in _in_tree_order(forest, root):
                rows += _queue_rows(place, quota, shares[place.name])
    blocks = [table(QUEUE_HEADINGS, rows, width)] if rows else []
    invalid = [f"queue {name} is not valid: {forest.problems[name]}" for name in sorted(forest.problems)]
    return [*blocks, "\n".join(invalid)] if invalid else blocks


def _in_tree_order(forest: Forest, root: str) -> Iterator[Place]:
    """Each queue, then all queues below it."""
    names = [root]
    while names:
        place = forest.places[names.pop()]
        yield place
        names += reversed(place.children)


def _queue_rows(place: Place, quota: TreeQuota, share: QueueShare) -> Iterator[tuple[str, ...]]:
    name, total = f"{_STEP * (len(place.path) - 1)}{place.name}", quota.queues[place.name].total
    if not quota.limited:
        yield name, "", "", "", ""
    for resource in quota.limited:
        amounts = amount_in_words(resource, total[resource]), amount_in_words(resource, share.used[resource])
        yield name, resource, *amounts, _share(share, resource)


def _share(share: QueueShare, resource: str) -> str:
    if share.fair is not None:
        return amount_in_words(resource, share.fair[resource])
    if share.is_infinite:
        return _INFINITE
    return "" if share.share is None else str(share.share)

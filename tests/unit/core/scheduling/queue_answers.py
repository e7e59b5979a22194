"""The answer of a cycle over queues as a document, and its comparison with the `expect` of a scenario file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.api.conditions import QUEUE_STOPPED
from dispatcher.core.scheduling.cycle.cycle import Drained, QueueOutcome, QueueShare
from dispatcher.core.scheduling.cycle.outcomes import Placed, Preempting
from dispatcher.core.scheduling.explain.world import World

Json = dict[str, Any]


def answer_of(world: World) -> Json:
    """The decisions of a cycle in their order, and the use of the queues before it."""
    shares, outcomes = world.plan_queues()
    return {
        "decisions": [decision_of(each) for each in outcomes],
        "queues": {name: _numbers_of(each) for name, each in shares.items()},
    }


def decision_of(outcome: QueueOutcome) -> Json:
    """One outcome, with the uids of the gangs, which are their names in a scenario file."""
    match outcome:
        case Drained():
            names = sorted(gang.uid for gang in outcome.gangs)
            return {"preempt": names, "for": "", "reasons": dict.fromkeys(names, QUEUE_STOPPED)}
        case Placed():
            return {"dispatch": outcome.record.uid, "cluster": outcome.cluster}
        case Preempting():
            found: Json = {"preempt": _names(outcome), "for": outcome.record.uid, "cluster": outcome.cluster}
            surplus = Counter(gang.record.uid for gang, _ in outcome.victims if gang.is_surplus)
            if surplus:
                found["surplus"] = dict(surplus)
            return found | {"reasons": _reasons(outcome)}
        case _:
            return {"waiting": outcome.record.uid, "reason": outcome.pending.reason}


def differences(expected: Mapping[str, Any], answer: Json) -> list[str]:
    """How an answer differs from what is expected; nothing if it is right.

    Each expected decision is in the answer with these keys and values, no other gang is decided, dispatches and
    preemptions are in this order, and the queues have the listed numbers.
    """
    found = list(_wrong_numbers(expected.get("queues", {}), answer["queues"]))
    if "decisions" in expected:
        found += _wrong_decisions(expected["decisions"], answer["decisions"])
    return found


def _wrong_decisions(expected: list[Json], decided: list[Json]) -> Iterator[str]:
    for each in expected:
        if not any(_has(decision, each) for decision in decided):
            yield f"not decided: {each}"
    gangs = {_gang(each) for each in expected}
    yield from (f"decided, too: {each}" for each in decided if _gang(each) not in gangs)
    if _sequence(decided) != _sequence(expected):
        yield f"in the order {_sequence(decided)}, not {_sequence(expected)}"


def _wrong_numbers(expected: Mapping[str, Json], queues: Mapping[str, Json]) -> Iterator[str]:
    for name, numbers in expected.items():
        for key, value in numbers.items():
            known = queues.get(name, {}).get(key, _MISSING)
            if not (_has(known, value) if isinstance(value, dict) else known == value):
                yield f"{key} of {name} is {known}, not {value}"


_MISSING = "missing"


def _has(decision: object, listed: Json) -> bool:
    return isinstance(decision, dict) and listed.items() <= decision.items()


def _gang(decision: Json) -> tuple[str, ...]:
    """The gang that a decision is for; the gangs of a drained queue."""
    for key in ("dispatch", "for", "waiting"):
        if decision.get(key):
            return (decision[key],)
    return tuple(decision["preempt"])


def _sequence(decisions: list[Json]) -> list[tuple[str, ...]]:
    return [_gang(each) for each in decisions if "waiting" not in each]


def _names(outcome: Preempting) -> list[str]:
    return sorted(gang.uid for gang, _ in outcome.victims if not gang.is_surplus)


def _reasons(outcome: Preempting) -> Json:
    return {gang.record.uid: reason.value for gang, reason in outcome.victims}


def _numbers_of(share: QueueShare) -> Json:
    found: Json = {"used": dict(share.used)}
    if share.share is not None or share.is_infinite:
        found["share"] = share.share
    if share.fair is not None:
        found["fairShare"] = dict(share.fair)
    return found

"""What keeps a namespace to its own: how its declarations are charged, how urgent it may be, how much it may queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dispatcher import log
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.mutable_spec import MutableSpec
from dispatcher.core.intake.ceilings import NO_CEILING, Ceiling
from dispatcher.core.intake.deferral import Deferred
from dispatcher.core.kinds import server_fields
from dispatcher.core.kinds.demand import Charge, Rule, charge_of
from dispatcher.core.lifecycle.first_steps import Newcomer
from dispatcher.kube.appwrappers import AppWrapperView

MOST_QUEUED: Final = 5000

_log = log.get("limits")


def _nothing(_namespace: str) -> int:
    return 0


def _no_ceiling(_namespace: str) -> Ceiling:
    return NO_CEILING


def _nobody(_uid: str) -> None:
    return None


class QueueBound:
    """At most so many AppWrappers of a namespace are queued or suspended; the rest waits outside, by age.

    `count` says how many of a namespace are in the queue, `on_deferred` is told who has to wait outside. What a batch
    takes in counts at once, until `settle` says that `count` knows of it.
    """

    def __init__(
        self,
        most: int = MOST_QUEUED,
        count: Callable[[str], int] = _nothing,
        on_deferred: Callable[[str], None] = _nobody,
    ) -> None:
        self.most = most
        self._count = count
        self._on_deferred = on_deferred
        self._deferred = Deferred()
        self._called: set[str] = set()
        self._taken: Counter[str] = Counter()
        self._admitted: set[str] = set()

    def __len__(self) -> int:
        return len(self._deferred)

    def admits(self, view: AppWrapperView) -> bool:
        """True if there is room for one more; else it waits outside until `call` names it."""
        namespace, was_called = view.namespace, view.uid in self._called
        self._called.discard(view.uid)
        in_turn = was_called or not self._deferred.waits_in(namespace)
        if in_turn and self._room(namespace) > 0:
            self._taken[namespace] += 1
            self._admitted.add(view.uid)
            return True
        if not self._deferred.waits_in(namespace):
            _log.warning("namespace_queue_full", namespace=namespace, most=self.most)
        self._deferred.put(namespace, (view.created_at, int(view.resource_version)), view.uid)
        self._on_deferred(view.uid)
        return False

    def keep_turn(self, view: AppWrapperView) -> None:
        """It was admitted, but cannot be taken in yet: nobody outside comes before it when it is back."""
        if view.uid in self._admitted:
            self._admitted.discard(view.uid)
            self._taken[view.namespace] -= 1
            self._called.add(view.uid)

    def settle(self) -> None:
        """What was taken in is counted by now."""
        self._taken.clear()
        self._admitted.clear()

    def call(self) -> list[str]:
        """Those that may come in now, the oldest of each namespace; each is asked for once."""
        called: list[str] = []
        for namespace in self._deferred.namespaces():
            for _ in range(self._room(namespace)):
                uid = self._deferred.pop(namespace)
                if uid is None:
                    break
                called.append(uid)
        self._called.update(called)
        return called

    def is_deferred(self, uid: str) -> bool:
        """True of one that waits outside."""
        return uid in self._deferred

    def waits_in(self, namespace: str) -> bool:
        """True if one of that namespace waits outside."""
        return self._deferred.waits_in(namespace)

    def forget(self, uid: str) -> None:
        """It is gone; free to repeat."""
        self._deferred.discard(uid)
        self._called.discard(uid)

    def _room(self, namespace: str) -> int:
        return max(0, self.most - self._count(namespace) - self._taken[namespace])


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all namespaces; by default nothing is cut but what is declared."""

    rule: Rule = Rule.LARGER
    ceiling_of: Callable[[str], Ceiling] = _no_ceiling
    bound: QueueBound = field(default_factory=QueueBound)

    def lower(self, namespace: str, asked: MutableSpec | None) -> MutableSpec | None:
        """What counts of what an AppWrapper of that namespace asks for."""
        return None if asked is None else self.ceiling_of(namespace).lower(asked)

    def cut(self, namespace: str, asked: MutableSpec) -> str:
        """Tell what does not count of it; empty if all does."""
        return self.ceiling_of(namespace).warning(asked, namespace)

    def charge(self, spec: AppWrapperSpec) -> Charge:
        """What is charged for a gang, with all that its spec warns its author of; `DemandError` if that cannot be told.

        It goes through all of the spec and is a function of values: of a large one it may be done in a thread.
        """
        charge = charge_of(spec, self.rule)
        said = (*charge.warnings, server_fields.warning(spec))
        return replace(charge, warnings=tuple(filter(None, said)))

    def apply(self, newcomer: Newcomer, charge: Charge) -> Newcomer:
        """The newcomer as it counts, with all its author is to be warned of."""
        asked = MutableSpec(newcomer.priority, newcomer.priority_slope)
        counts = self.ceiling_of(newcomer.namespace).lower(asked)
        said = (*charge.warnings, self.cut(newcomer.namespace, asked))
        return replace(
            newcomer,
            priority=counts.priority,
            priority_slope=counts.priority_slope,
            warnings=tuple(filter(None, said)),
        )

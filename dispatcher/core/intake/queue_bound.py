"""How many AppWrappers of one namespace may be in the queue, and in which order the others enter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dispatcher.core.intake.deferral import Age, Deferred


class QueueBound:
    """Bounds how many AppWrappers of one namespace are in the queue; others are deferred, and enter by age.

    `count` is how many of a namespace are in the queue. AppWrappers that a batch takes in count at once, until `settle`
    says that `count` includes them.
    """

    def __init__(self, most: int, count: Callable[[str], int]) -> None:
        self.most = most
        self._count = count
        self._deferred = Deferred()
        self._called: set[str] = set()
        self._were_deferred: set[str] = set()
        """The uids of AppWrappers that were deferred and are not in the queue yet."""
        self._taken: Counter[str] = Counter()
        self._with_room: set[str] = set()

    def __len__(self) -> int:
        return len(self._deferred)

    def admits(self, namespace: str, age: Age, uid: str) -> bool:
        """True if there is room for the AppWrapper; else it is deferred until `call` returns it."""
        was_called = uid in self._called
        self._called.discard(uid)
        in_turn = was_called or not self._deferred.waits_in(namespace)
        if in_turn and self._room(namespace) > 0:
            self._taken[namespace] += 1
            self._with_room.add(uid)
            return True
        self._deferred.put(namespace, age, uid)
        self._were_deferred.add(uid)
        return False

    def was_deferred(self, uid: str) -> bool:
        """True of an AppWrapper that is taken in now and had to wait for room."""
        return uid in self._were_deferred

    def keep_turn(self, namespace: str, uid: str) -> None:
        """Keep the place of an AppWrapper that had room but cannot be taken in yet, before all deferred ones."""
        if uid in self._with_room:
            self._with_room.discard(uid)
            self._taken[namespace] -= 1
            self._called.add(uid)

    def settle(self) -> None:
        """Note that `count` includes everything that was taken in."""
        self._taken.clear()
        self._were_deferred -= self._with_room
        self._with_room.clear()

    def call(self) -> list[str]:
        """The uids of deferred AppWrappers for which there is room now, the oldest of each namespace; each once."""
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
        """True of a deferred AppWrapper."""
        return uid in self._deferred

    def waits_in(self, namespace: str) -> bool:
        """True if the namespace has deferred AppWrappers."""
        return self._deferred.waits_in(namespace)

    def forget(self, uid: str) -> None:
        """Drop an AppWrapper that is gone; safe to repeat."""
        self._deferred.discard(uid)
        self._called.discard(uid)
        self._were_deferred.discard(uid)

    def _room(self, namespace: str) -> int:
        return max(0, self.most - self._count(namespace) - self._taken[namespace])

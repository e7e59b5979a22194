"""The terms about pods of the queued gangs, kept ready for the next cycle at the cost of the gangs that come and go.

The terms of a gang are followed if its namespace may have that many (`core.model.gangs.term_bounds`). Else the gang
waits for gangs of its namespace that came before it: a gang whose terms are not compared with pods is placed nowhere.
Intake refuses a gang that alone has more terms than its namespace may have.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from dispatcher.core.model.gangs.gang import PodSet
from dispatcher.core.model.gangs.pod_terms import NO_TERMS, PodTerm, TermIndex
from dispatcher.core.model.gangs.term_bounds import MOST_OF_GANGS, OwnTerms, TermBounds
from dispatcher.core.scheduling.capacity.pods_there import FOLLOWS_NONE, FollowedTerms


def followed_by(pod_sets: Iterable[PodSet]) -> FollowedTerms:
    """The terms of these pod sets, from scratch; each counts as a gang."""
    terms = QueuedTerms()
    for number, each in enumerate(pod_sets):
        if each.depends_on_others:
            terms.put(str(number), (each,))
    return terms.followed


class QueuedTerms:
    """The terms of gangs, by the uid of the gang."""

    def __init__(self) -> None:
        self._gangs: dict[str, OwnTerms] = {}
        self._waiting: dict[str, OrderedDict[str, None]] = {}
        """By namespace the gangs whose terms are not followed yet, in the order in which they came."""
        self._bounds = TermBounds(MOST_OF_GANGS)
        self._selecting, self._repelling = _CountedTerms(), _CountedTerms()
        self._followed = FOLLOWS_NONE
        self._has_changed = False

    @property
    def followed(self) -> FollowedTerms:
        """The terms that are followed; the same value as long as they do not change."""
        if self._has_changed:
            self._has_changed = False
            exceeding = frozenset(self._waiting)
            found = FollowedTerms(self._selecting.index(), self._repelling.index(), exceeding)
            self._followed = found if found else FOLLOWS_NONE
        return self._followed

    def put(self, uid: str, pod_sets: Iterable[PodSet]) -> None:
        """Add the terms of a gang, or replace them."""
        terms = OwnTerms.of(pod_sets)
        if self._gangs.get(uid) == terms:
            return
        self.remove(uid)
        self._gangs[uid] = terms
        self._has_changed = True
        if terms.namespace in self._waiting or not self._take(terms):
            self._waiting.setdefault(terms.namespace, OrderedDict())[uid] = None

    def remove(self, uid: str) -> None:
        """Remove the terms of a gang; safe to repeat."""
        terms = self._gangs.pop(uid, None)
        if terms is None:
            return
        self._has_changed = True
        waiting = self._waiting.get(terms.namespace, OrderedDict[str, None]())
        if uid in waiting:
            del waiting[uid]
        else:
            self._selecting.remove(terms.selecting)
            self._repelling.remove(terms.repelling)
            self._bounds.release(terms.namespace, terms.counted)
        self._take_waiting(terms.namespace)

    def _take_waiting(self, namespace: str) -> None:
        waiting = self._waiting.get(namespace)
        while waiting and self._take(self._gangs[next(iter(waiting))]):
            waiting.popitem(last=False)
        if waiting is not None and not waiting:
            del self._waiting[namespace]

    def _take(self, terms: OwnTerms) -> bool:
        if not self._bounds.take(terms.namespace, terms.counted):
            return False
        self._selecting.add(terms.selecting)
        self._repelling.add(terms.repelling)
        return True


class _CountedTerms:
    """Terms with the number of gangs that have them."""

    def __init__(self) -> None:
        self._gangs = Counter[PodTerm]()
        self._index = NO_TERMS
        self._changed: dict[PodTerm, None] = {}

    def add(self, terms: Iterable[PodTerm]) -> None:
        for each in terms:
            self._gangs[each] += 1
            if self._gangs[each] == 1:
                self._changed[each] = None

    def remove(self, terms: Iterable[PodTerm]) -> None:
        for each in terms:
            self._gangs[each] -= 1
            if not self._gangs[each]:
                del self._gangs[each]
                self._changed[each] = None

    def index(self) -> TermIndex:
        """The index of these terms; costs what `TermIndex.changed` does."""
        came = [each for each in self._changed if each in self._gangs]
        gone = [each for each in self._changed if each not in self._gangs]
        self._index, self._changed = self._index.changed(came, gone), {}
        return self._index

"""The budget of all searches for places in one cycle: a gang that it leaves out is decided in a following cycle.

One question is bounded (`placement_bounds`), but a tenant can queue thousands of gangs that each need a search up to
its bounds. So each namespace has an allowance in a cycle: the same for each that was left out before, as far as the
budget has room for one question of each, and once more for all others together. Those that were left out first come
first. Gangs of one pod set without rules need no search for places, and those whose last decision was cheap need none
worth counting: these are always decided, unless they require so much of their nodes that comparing these takes long.

But a decision is cheap, too, while a cluster is full or takes no gang, and thousands of gangs may have become costly
since. And any gang may need a search for victims. So once a gang that seemed cheap turns out to be costly, the others
of its namespace count as unknown for the rest of the cycle. Gangs of any namespace do that may need a search for
places, once such gangs took the steps of a whole budget.

A queue that stops at a gang that waits stops at a gang that is left out, too: the gangs behind it are left out with it.
But it passes a gang that was decided in the present round of its namespace, and blocked none then: it fits no cluster
whatever runs. Otherwise a few such gangs would be decided in each cycle, and none behind them ever.

Growth: O(1) for each class of gangs that is decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.pending_reasons import codes
from dispatcher.core.model.records.record import Record
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.placement.placement_bounds import MOST_ORDERED, MOST_STEPS_IN_ALL

MOST_STEPS_OF_CYCLE: Final = 60_000
"""Steps of all searches of one cycle, some seconds. The last question of each namespace may go beyond it."""
QUESTION: Final = MOST_ORDERED + MOST_STEPS_IN_ALL
"""The most steps of one question, which a decision of unknown cost is counted with until it is made."""
STEPS_OF_SHARE: Final = 2000
"""Steps for the gangs of one namespace in one pass beside the cycle; its last question may go beyond them."""
STEPS_OF_TRIAL: Final = 5
"""Steps that one step of a search for victims counts as: it takes about a tenth of a millisecond."""
CHEAP: Final = 30
"""Steps up to which a decision is cheap, and counts nothing: some milliseconds, or three pod sets on 5,000 nodes."""
_COMPARISONS: Final = 5
"""Comparisons of a gang's requirements with all nodes in the time of a step."""
_MOST_KNOWN: Final = 20_000
_BLOCK_NONE: Final = codes(lambda each: each.blocks_none)


def steps_so_far(snapshots: Iterable[ClusterSnapshot]) -> int:
    """The steps of all searches in these clusters so far; the difference is that of what was decided meanwhile."""
    return sum(each.capacity.searched for each in snapshots)


class SearchBudget:
    """What one scheduler remembers of the costs of decisions, and of the namespaces that it left out.

    `most` are the steps of one cycle, and `question` the most steps of one question.
    """

    def __init__(self, most: int = MOST_STEPS_OF_CYCLE, question: int = QUESTION) -> None:
        self._most = most
        self._question = question
        self.has_left_out = False
        """True if the present cycle left a gang out: another one should follow soon."""
        self._costs: BoundedDict[str, int] = BoundedDict(_MOST_KNOWN)
        self._waiting: dict[str, None] = {}
        """The namespaces that were left out, the first one first."""
        self._first: frozenset[str] = frozenset()
        self._spent: dict[str, int] = {}
        self._spent_by_others = 0
        self._unexpected: set[str] = set()
        """The namespaces of gangs that the present cycle took for cheap ones, and that are not."""
        self._unexpected_in_all = 0
        self._served: set[str] = set()
        """The namespaces that the present cycle decided costly gangs of."""
        self._open: dict[str, int] = {}
        """The admitted gangs, by uid, whose decision is not settled, with the steps that they are counted with."""
        self._noted: dict[str, int] = {}
        """By uid the steps for a gang in the present cycle."""
        self._rounds: dict[str, set[str]] = {}
        """The gangs of each namespace that are not decided again before all others of it were decided."""
        self._left_new: set[str] = set()
        """The namespaces of which the present cycle left out gangs that were not decided in their round."""

    def begin(self) -> None:
        """A cycle begins."""
        # Those for which the last cycle decided nothing come first, then those that were left out first.
        waiting = sorted(self._waiting, key=lambda each: each in self._served)
        self._first = frozenset(waiting[: max(1, self._most // self._question - 1)])
        for namespace in self._first:
            del self._waiting[namespace]
        self._spent, self._spent_by_others, self.has_left_out = {}, 0, False
        self._unexpected, self._unexpected_in_all = set(), 0
        self._rounds = {name: uids for name, uids in self._rounds.items() if name in self._left_new}
        self._served, self._open, self._noted, self._left_new = set(), {}, {}, set()

    @property
    def allowance(self) -> int:
        """The steps of each namespace that comes first, and of all others together."""
        return self._most // (len(self._first) + 1)

    def admits(self, record: Record) -> bool:
        """True if the gang is to be decided in this cycle. Then `settle` must follow, or `close` without a decision."""
        cost, namespace, uid = self._cost_of(record), record.namespace, record.uid
        if cost <= CHEAP or uid in self._open:
            return True
        is_again = uid in self._rounds.get(namespace, ())
        is_first = namespace in self._first
        spent = self._spent.get(namespace, 0) if is_first else self._spent_by_others
        is_behind = (
            namespace in self._waiting and not is_first
        )  # the rest is for those that were not left out
        if is_again or is_behind or (spent and spent + cost > self.allowance):
            self.has_left_out = True
            self._waiting.setdefault(namespace)
            if not is_again:
                self._left_new.add(namespace)
            return False
        self._spend(namespace, cost)
        self._served.add(namespace)
        self._open[uid] = cost
        self._rounds.setdefault(namespace, set()).add(uid)
        return True

    def note(self, record: Record, steps: int) -> None:
        """Note steps for a gang before its decision."""
        before = self._noted.get(record.uid, 0)
        after = self._noted[record.uid] = before + steps
        more = _counted(after) - _counted(before)
        self._spend(record.namespace, more)
        if more and record.uid not in self._open and self._cost_before(record) <= CHEAP:
            self._unexpected.add(record.namespace)
            self._unexpected_in_all += more

    def is_open(self, record: Record) -> bool:
        """True if a gang is admitted, counted with steps, and not decided yet."""
        return record.uid in self._open

    def close(self, record: Record) -> None:
        """Take back that a gang is admitted: it may not be decided in this cycle. Steps that are noted count."""
        cost = self._open.pop(record.uid, None)
        if cost is not None:
            self._spend(record.namespace, -cost)
            self._rounds[record.namespace].discard(record.uid)

    def may_pass(self, record: Record) -> bool:
        """True if a strict queue may pass a gang that is not admitted: it was decided lately, and blocked no other."""
        is_decided = record.uid in self._rounds.get(record.namespace, ())
        return is_decided and record.pending is not None and record.pending.reason in _BLOCK_NONE

    def settle(self, record: Record, steps: int) -> None:
        """Note the steps of a decision."""
        uid, steps = record.uid, max(steps, _steps_to_compare(record.gang))
        if not (
            steps
            or uid in self._open
            or uid in self._noted
            or uid in self._costs
            or self.needs_search(record)
        ):
            return  # as for most gangs
        self.note(record, steps)
        self._spend(record.namespace, -self._open.pop(record.uid, 0))
        noted = self._noted[record.uid]
        if noted or record.uid in self._costs or self.needs_search(record):
            self._costs[record.uid] = noted

    def needs_search(self, record: Record) -> bool:
        """False for a gang whose places cost no steps; it may still need a search for victims."""
        return record.gang.may_need_search

    def _cost_of(self, record: Record) -> int:
        needs_search = self.needs_search(record)
        cost = self._cost_before(record)
        is_full = needs_search and self._unexpected_in_all >= self._most
        is_unknown = record.namespace in self._unexpected or is_full
        return self._question if is_unknown and cost <= CHEAP else cost

    def _cost_before(self, record: Record) -> int:
        """The steps of its last decision; those of a whole question if it may need one and was never decided."""
        known = self._costs.get(record.uid, self._question if self.needs_search(record) else 0)
        return max(known, _steps_to_compare(record.gang))

    def _spend(self, namespace: str, steps: int) -> None:
        if namespace in self._first:
            self._spent[namespace] = self._spent.get(namespace, 0) + steps
        else:
            self._spent_by_others += steps


class SearchShares:
    """The steps of one pass beside the cycle that asks about many gangs in turn: each namespace has a share of them.

    Gangs beyond it are not asked about: to such a pass they are not there, as the cycle's budget leaves them out, too.
    Otherwise the gangs of one tenant could keep all others from being decided. Gangs that need no search always are.
    """

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()
        self._spent_by_all = 0

    def admits(self, record: Record) -> bool:
        """True if a gang is to be asked about."""
        if not (record.gang.may_need_search or _steps_to_compare(record.gang)):
            return True
        return self._spent[record.namespace] < STEPS_OF_SHARE and self._spent_by_all < MOST_STEPS_OF_CYCLE

    @contextmanager
    def counting(self, record: Record, snapshot: ClusterSnapshot) -> Iterator[None]:
        """Count the steps of the questions about a gang in one cluster, which are asked within the context."""
        before = steps_so_far([snapshot])
        yield
        self.spend(record, steps_so_far([snapshot]) - before)

    def spend(self, record: Record, steps: int) -> None:
        """Count steps for a gang."""
        steps = max(steps, _steps_to_compare(record.gang))
        self._spent[record.namespace] += steps
        self._spent_by_all += steps


def _steps_to_compare(gang: Gang) -> int:
    """The steps of comparing nodes with what its pods require of them; 0 for few conditions, as of most gangs.

    They count at each decision, also where the answer is kept: it is kept for some thousand requirements.
    """
    steps = sum(requirements.comparisons for _, requirements in gang.constraints) // _COMPARISONS
    return _counted(steps)


def _counted(steps: int) -> int:
    return steps if steps > CHEAP else 0

"""Sharing by priority: owners go before borrowers, then priority and age; a gang that borrows gives way to an owner.

It is Kueue's classic preemption, with MCAD's quota trees as a special case. The search walks up from the leaf of the
gang. At each queue above, the gangs below it whose queues use more than their own quota are candidates. They come first
if the gang is entitled there, because it fits the quota of its own side.

Source: https://kueue.sigs.k8s.io/docs/concepts/preemption/#classic-preemption
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple

from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.records.preemption import Reason
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account, Asked, common_length
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.search import Enough, Found, Search


class Levels:
    """The levels of gangs in one tree, as long as its use does not change.

    Gangs that ask for the same have the same answer from each queue on, which is kept.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._heights: dict[tuple[str, Asked], int] = {}
        """Where what is left of a demand at a queue fits: the queues above the queue that it fits."""

    def of(self, leaf: str, demand: Resources) -> int:
        """How far above its leaf a gang finds enough unused quota: 0 in the leaf, the root's level if nowhere."""
        path = self._account.quota.paths[leaf]
        left, above, walked = self._account.quota.asked(demand), 0, list[tuple[str, Asked]]()
        for number, name in enumerate(path):
            known = self._heights.get((name, left))
            if known is not None:
                above = known
                break
            walked.append((name, left))
            if self._account.left(name, left):
                above = len(path) - 1 - number
                break
            left = _beyond_kept(self._account, name, left)
        self._heights.update(dict.fromkeys(walked, above))
        return len(path) - 1 - above


def search(search: Search) -> Steps[Found | None]:
    """Remove candidates until it is enough, all surplus before the first gang; if it never is, put all back."""
    sources = _sources(search)
    while_borrowing = search.place.while_borrowing
    used, own = search.account.used[search.leaf], search.account.quota.queues[search.leaf].own
    is_spent = any(used[name] >= own[name] for name in search.contested if name in own)
    if not sources or (while_borrowing is None and is_spent):
        ways = [True]
    elif while_borrowing is None and not any(each.is_ahead for each in sources):
        ways = [False, True]
    else:
        ways = [True, False]
    for way in ways:
        found = yield from _try(search, _listed(search, sources, is_borrowing=way), is_borrowing=way)
        if found is not None:
            return Found(found)
    return None


class _Source(NamedTuple):
    """The candidates of another queue; `between` are the queues from it up to below the common ancestor."""

    gangs: list[ActiveGang]
    between: tuple[str, ...]
    is_ahead: bool


class _Listed(NamedTuple):
    """A candidate of another queue, with the fields of its source."""

    gang: ActiveGang
    between: tuple[str, ...]
    is_ahead: bool
    reason: Reason


def _sources(search: Search) -> list[_Source]:
    """The queues with candidates where none on the way is within its own quota; the nearest ancestor first."""
    account, paths, path = search.account, search.account.quota.paths, search.place.path
    by_ancestor: dict[str, list[str]] = {}
    is_blocked = dict.fromkeys(path, False)
    for leaf in search.others:
        common = common_length(path, paths[leaf])
        if common < len(path) and not _is_blocked(search, leaf, is_blocked):
            by_ancestor.setdefault(path[-common], []).append(leaf)
    found = []
    left = account.quota.asked(search.demand)
    is_entitled = account.left(path[0], left)
    for walked, ancestor in pairwise(path):
        left = _beyond_kept(account, walked, left)
        for leaf in by_ancestor.get(ancestor, ()):
            between = paths[leaf][: -common_length(path, paths[leaf])]
            found.append(_Source(search.others[leaf], between, is_entitled))
        is_entitled = is_entitled or account.left(ancestor, left)
    return found


def _is_blocked(search: Search, leaf: str, known: dict[str, bool]) -> bool:
    """True if a leaf, or a queue above it and below the gang's own path, is within its own quota.

    `known` are such answers, for the gang's path and the queues that were asked about; each queue is looked at once.
    """
    walked = list[str]()
    for name in search.account.quota.paths[leaf]:
        if name in known:
            break
        walked.append(name)
        if search.account.is_within(name, search.contested):
            known[name] = True
            break
    known.update(dict.fromkeys(walked, known[name]))
    return known[leaf]


def _listed(search: Search, sources: Iterable[_Source], *, is_borrowing: bool) -> list[_Listed]:
    """The candidates of other queues for one of the two ways, in the order in which they are tried."""
    found = [
        _Listed(gang, source.between, source.is_ahead, reason)
        for source in sources
        if source.is_ahead or not is_borrowing or search.place.while_borrowing is not None
        for gang in source.gangs
        if (reason := _reason(search, gang, source.is_ahead)) is not Reason.QUOTA_RECLAIMED
        or source.is_ahead
        or not is_borrowing
    ]
    found.sort(key=lambda each: (not each.gang.is_surplus, not each.is_ahead, search.victim_order(each.gang)))
    return found


def _reason(search: Search, gang: ActiveGang, is_ahead: bool) -> Reason:  # of the candidate
    allowed = search.place.while_borrowing
    if is_ahead or allowed is None or gang.record.priority >= search.priority:
        return Reason.QUOTA_RECLAIMED
    if allowed.max_priority is not None and gang.record.priority > allowed.max_priority:
        return Reason.QUOTA_RECLAIMED
    return Reason.QUOTA_RECLAIMED_WHILE_BORROWING


def _try(search: Search, others: list[_Listed], *, is_borrowing: bool) -> Steps[Enough | None]:
    def is_enough() -> bool:
        return search.is_enough() and (
            is_borrowing or not search.account.would_borrow(search.leaf, search.demand)
        )

    if not search.may_be_enough(chain((each.gang for each in others), search.own)):
        return None
    removed: list[ActiveGang] = []
    within = set[str]()
    for gang, reason in _allowed(search, others, within):
        search.remove(gang, reason)
        removed.append(gang)
        within.update(_queues_within(search, gang))
        if is_enough():
            return is_enough
        yield
    search.restore(removed)
    return None


def _allowed(search: Search, others: list[_Listed], within: set[str]) -> Iterator[tuple[ActiveGang, Reason]]:
    """The candidates in order, all surplus before the first gang.

    One of another queue is not allowed once a queue on its way is `within` its own quota, which grows meanwhile.
    """
    for is_surplus in (True, False) if search.has_surplus else (False,):
        for each in others:
            if each.gang.is_surplus is is_surplus and within.isdisjoint(each.between):
                yield each.gang, each.reason
        for gang in search.own:
            if gang.is_surplus is is_surplus:
                yield gang, Reason.PRIORITY_IN_QUEUE


def _queues_within(search: Search, removed: ActiveGang) -> Iterator[str]:
    """The queues, from the leaf of a removed gang to below the gang's own path, that are within their own quota."""
    path, paths = search.place.path, search.account.quota.paths
    for leaf in removed.leaves:
        if leaf in paths:
            for name in paths[leaf][: -common_length(path, paths[leaf])]:
                if search.account.is_within(name, search.contested):
                    yield name


def _beyond_kept(account: Account, queue: str, amounts: Asked) -> Asked:
    """What is left of a demand once a queue has given what it keeps for itself and does not use."""
    if not any(account.quota.queues[queue].kept.values()):
        return amounts
    return tuple((name, amount - account.unused_kept(queue, name)) for name, amount in amounts)

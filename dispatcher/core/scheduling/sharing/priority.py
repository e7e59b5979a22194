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

from dispatcher.core.model.preemption import Reason
from dispatcher.core.model.resources import Resources
from dispatcher.core.queues.accounts import Account
from dispatcher.core.scheduling.sharing.gangs import ActiveGang
from dispatcher.core.scheduling.sharing.search import Enough, Search


def level(account: Account, leaf: str, demand: Resources) -> int:
    """How far above its leaf a gang finds enough unused quota: 0 in the leaf, the root's level if nowhere."""
    path = account.quota.paths[leaf]
    left = dict(account.quota.asked(demand))
    for number, name in enumerate(path):
        if account.left(name, left):
            return number
        left = _beyond_kept(account, name, left)
    return len(path) - 1


def search(search: Search) -> Enough | None:
    """Remove candidates until it is enough, and return that condition; if it never is, put all back and return None."""
    sources = list(_sources(search))
    while_borrowing = search.place.while_borrowing
    used, own = search.account.used[search.leaf], search.account.quota.queues[search.leaf].own
    is_spent = any(used[name] >= own[name] for name in search.contested if name in own)
    if not sources or (while_borrowing is None and is_spent):
        ways = [True]
    elif while_borrowing is None and not any(each.is_ahead for each in sources):
        ways = [False, True]
    else:
        ways = [True, False]
    found = (_try(search, _listed(search, sources, is_borrowing=way), is_borrowing=way) for way in ways)
    return next(filter(None, found), None)


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


def _sources(search: Search) -> Iterator[_Source]:
    """The queues with candidates where none on the way is within its own quota; the nearest ancestor first."""
    account, paths = search.account, search.account.quota.paths
    path = search.place.path
    left = dict(account.quota.asked(search.demand))
    is_entitled = account.left(path[0], left)
    for walked, ancestor in pairwise(path):
        left = _beyond_kept(account, walked, left)
        for leaf, gangs in search.others.items():
            if ancestor not in paths[leaf] or walked in paths[leaf]:
                continue
            between = paths[leaf][: paths[leaf].index(ancestor)]
            if not any(account.is_within(name, search.contested) for name in between):
                yield _Source(gangs, between, is_entitled)
        is_entitled = is_entitled or account.left(ancestor, left)


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


def _try(search: Search, others: list[_Listed], *, is_borrowing: bool) -> Enough | None:
    def is_enough() -> bool:
        return search.is_enough() and (
            is_borrowing or not search.account.would_borrow(search.leaf, search.demand)
        )

    if not search.may_be_enough(chain((each.gang for each in others), search.own)):
        return None
    removed: list[ActiveGang] = []
    for gang, reason in _allowed(search, others):
        search.remove(gang, reason)
        removed.append(gang)
        if is_enough():
            return is_enough
    search.restore(removed)
    return None


def _allowed(search: Search, others: list[_Listed]) -> Iterator[tuple[ActiveGang, Reason]]:
    """The candidates in order, all surplus before the first gang.

    Whether one of another queue is allowed depends on those that were removed before.
    """
    for is_surplus in (True, False) if search.has_surplus else (False,):
        for each in others:
            if each.gang.is_surplus is is_surplus and not any(
                search.account.is_within(name, search.contested) for name in each.between
            ):
                yield each.gang, each.reason
        for gang in search.own:
            if gang.is_surplus is is_surplus:
                yield gang, Reason.PRIORITY_IN_QUEUE


def _beyond_kept(account: Account, queue: str, amounts: dict[str, int]) -> dict[str, int]:
    """What is left of a demand once a queue has given what it keeps for itself and does not use."""
    return {name: amount - account.unused_kept(queue, name) for name, amount in amounts.items()}

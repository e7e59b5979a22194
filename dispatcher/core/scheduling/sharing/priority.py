"""Sharing by priority: owners go before borrowers, then priority and age; a gang that borrows gives way to an owner.

It is Kueue's classic preemption, with MCAD's quota trees as a special case. The search walks up from the leaf of the
gang. At each queue above, the gangs below it whose queues use more than their own quota are candidates. They come first
if the gang is entitled there, because it fits the quota of its own side.

Source: https://kueue.sigs.k8s.io/docs/concepts/preemption/#classic-preemption
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
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
    listed = list(_listed(search))
    ahead = [each for each in listed if each.is_ahead]
    others = [*ahead, *(each for each in listed if not each.is_ahead)]
    while_borrowing = search.place.while_borrowing
    used, own = search.account.used[search.leaf], search.account.quota.queues[search.leaf].own
    is_spent = any(used[name] >= own[name] for name in search.contested if name in own)
    if not others or (while_borrowing is None and is_spent):
        ways = [True]
    elif while_borrowing is None and not ahead:
        ways = [False, True]
    else:
        ways = [True, False]
    found = (_try(search, others, is_borrowing=way) for way in ways)
    return next(filter(None, found), None)


class _Listed(NamedTuple):
    """A candidate of another queue; `between` are the queues from its leaf up to below the common ancestor."""

    gang: ActiveGang
    between: tuple[str, ...]
    is_ahead: bool
    reason: Reason


def _listed(search: Search) -> Iterator[_Listed]:
    """The candidates of other queues, those below each ancestor in the order of victims; the nearest ancestor first."""
    account, paths = search.account, search.account.quota.paths
    path = search.place.path
    left = dict(account.quota.asked(search.demand))
    is_entitled = account.left(path[0], left)
    found = []
    for walked, ancestor in pairwise(path):
        left = _beyond_kept(account, walked, left)
        for leaf, gangs in search.others.items():
            if ancestor not in paths[leaf] or walked in paths[leaf]:
                continue
            between = paths[leaf][: paths[leaf].index(ancestor)]
            if any(account.is_within(name, search.contested) for name in between):
                continue
            found += [
                _Listed(gang, between, is_entitled, _reason(search, gang, is_entitled)) for gang in gangs
            ]
        is_entitled = is_entitled or account.left(ancestor, left)
    yield from sorted(found, key=lambda each: search.victim_order(each.gang))


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

    removed: list[ActiveGang] = []
    for gang, reason in _allowed(search, others, is_borrowing):
        search.remove(gang, reason)
        removed.append(gang)
        if is_enough():
            return is_enough
    search.restore(removed)
    return None


def _allowed(
    search: Search,
    others: list[_Listed],
    is_borrowing: bool,  # of the two ways
) -> Iterator[tuple[ActiveGang, Reason]]:
    """The candidates in order; whether one of another queue is allowed depends on those that were removed before."""
    for each in others:
        if is_borrowing and not each.is_ahead and each.reason is Reason.QUOTA_RECLAIMED:
            continue
        if not any(search.account.is_within(name, search.contested) for name in each.between):
            yield each.gang, each.reason
    for gang in search.own:
        yield gang, Reason.PRIORITY_IN_QUEUE


def _beyond_kept(account: Account, queue: str, amounts: dict[str, int]) -> dict[str, int]:
    """What is left of a demand once a queue has given what it keeps for itself and does not use."""
    return {name: amount - account.unused_kept(queue, name) for name, amount in amounts.items()}

"""Taking in AppWrappers that were never seen before, in batches, in the order in which they were created.

Each is read once: what can be dispatched is queued, what never can is rejected with the reason, and what runs
already though the database does not know it (a fresh database, an MCAD replaced) is adopted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from dispatcher import errors, log
from dispatcher.api.appwrapper import AppWrapperSpec, WrappedObject
from dispatcher.api.conditions import ConditionType, State
from dispatcher.api.mistakes import SpecError
from dispatcher.api.names import CLUSTER_PREFERENCE, CLUSTER_SELECTOR, HUB_CLUSTER
from dispatcher.api.selector import selector_of
from dispatcher.api.submitter import UNKNOWN, Submitter
from dispatcher.controller.author_check import AuthorCheck
from dispatcher.controller.cluster import Cluster
from dispatcher.controller.committer import Committer
from dispatcher.controller.hub import Hub
from dispatcher.controller.limits import Limits
from dispatcher.controller.roster import Roster
from dispatcher.controller.specs import Specs, owner_of_newcomer
from dispatcher.core import beginnings
from dispatcher.core.authorization import check_namespace
from dispatcher.core.beginnings import Kept, Newcomer
from dispatcher.core.choice import ANYWHERE, Where
from dispatcher.core.demand import charge_of
from dispatcher.core.gang import Gang
from dispatcher.core.record import Change, Record
from dispatcher.kube.appwrappers import AppWrapperView

LARGEST_BATCH = 200

_log = log.get("admission")


class Admission:
    """Newcomers by uid; `on_admitted` is told who was taken in, `on_failed` who is to come again.

    `is_complete` says whether every cluster there is can be asked what it has, `believes_stamps` that nobody but a
    policy of the API server can have written who submitted an AppWrapper. One that was deleted is taken in, too, if a
    member has something of it. In `denied_namespaces` nothing is dispatched. `authors`, if there are, say whether an
    author may create what is wrapped.
    """

    def __init__(
        self,
        hub: Hub,
        roster: Roster,
        committer: Committer,
        clusters: Mapping[str, Cluster],
        specs: Specs,
        hub_id: str,
        on_admitted: Callable[[Record], None],
        on_failed: Callable[[str], object],
        now: Callable[[], datetime],
        is_complete: Callable[[], bool] = lambda: True,
        *,
        believes_stamps: bool = False,
        denied_namespaces: frozenset[str] = frozenset(),
        authors: AuthorCheck | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._hub = hub
        self._roster = roster
        self._committer = committer
        self._clusters = clusters
        self._specs = specs
        self._hub_id = hub_id
        self._on_admitted = on_admitted
        self._on_failed = on_failed
        self._now = now
        self._is_complete = is_complete
        self._believes_stamps = believes_stamps
        self._denied_namespaces = denied_namespaces
        self._authors = authors
        self._limits = limits or Limits()
        self._uids: set[str] = set()
        self._failed: set[str] = set()
        self._unsure: set[str] = set()
        self._wake = asyncio.Event()

    def add(self, uid: str) -> None:
        """Have a newcomer taken in with the next batch, unless it has to wait outside the queue."""
        if not self._limits.bound.is_deferred(uid):
            self._uids.add(uid)
            self._wake.set()

    def recall(self, namespace: str) -> None:
        """There is room for one more of a namespace: have the oldest taken in that waits outside."""
        if self._limits.bound.waits_in(namespace):
            self._wake.set()

    def is_unsure(self, uid: str) -> bool:
        """True if an AppWrapper is on its way out, and a member that may have something of it could not be asked."""
        return uid in self._unsure

    async def run(self) -> None:
        """Take in batch after batch until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.admit_all()

    async def admit_all(self) -> None:
        """Take in every newcomer known now, as far as there is room for it."""
        bound = self._limits.bound
        self._uids.update(bound.call())
        while self._uids:
            views = sorted(filter(None, map(self._hub.view, self._uids)), key=_creation_order)
            self._uids.clear()
            for start in range(0, len(views), LARGEST_BATCH):
                await self._admit(views[start : start + LARGEST_BATCH])
                bound.settle()
            self._uids.update(bound.call())

    async def _admit(self, views: list[AppWrapperView]) -> None:
        wanted = [
            view
            for view in views
            if view.is_ours and self._roster.get(view.uid) is None and (not view.deleting or view.is_held)
        ]
        self._failed.clear()
        changes = [change for view in wanted if (change := await self._read_safely(view))]
        for record in await self._committer.commit_all(changes):
            self._on_admitted(record)
        self._note_leaving({view.uid for view in wanted if view.deleting})

    def _note_leaving(self, uids: set[str]) -> None:
        """Those of which it is known now where they have something, or that they have nothing, may go."""
        for uid in self._unsure & uids - self._failed:
            self._on_failed(uid)
        self._unsure = self._unsure - uids | self._failed & uids

    async def _read_safely(self, view: AppWrapperView) -> Change | None:
        """Read one newcomer; one that cannot be read now comes back, and holds up no other."""
        try:
            return await (self._read_leaving(view) if view.deleting else self._read(view))
        except errors.StoreError:
            raise
        except errors.ClusterError as error:
            _log.warning(
                "admission_failed", appwrapper=f"{view.namespace}/{view.name}", uid=view.uid, error=str(error)
            )
        except Exception:  # noqa: BLE001  # the loop's edge: one AppWrapper must not end the others
            _log.exception("admission_failed", appwrapper=f"{view.namespace}/{view.name}", uid=view.uid)
        self._failed.add(view.uid)
        self._on_failed(view.uid)
        return None

    async def _read(self, view: AppWrapperView) -> Change | None:
        """Read one newcomer; None of one that comes again: its author's rights are asked about, or there is no room."""
        bound, may_be_somewhere = self._limits.bound, self._may_be_somewhere(view)
        if not (may_be_somewhere or bound.admits(view)):
            return None
        try:
            spec, newcomer, gang = self._parse(view)
            ended = _recall(view, newcomer, gang, self._now())
            if ended is not None:
                return ended
            if not self._may_be_dispatched(view, newcomer, spec):
                return None
        except SpecError as error:
            message = f"{view.namespace}/{view.name} creation failure: {error}"
            return beginnings.reject(_newcomer(view, self._submitter(view)), message, self._now())
        running = await self._find_running(view, spec)
        if running is not None:
            cluster, attempt = running
            return beginnings.adopt(newcomer, gang, cluster, attempt, self._now())
        if may_be_somewhere and not bound.admits(view):
            return None
        return beginnings.submit(newcomer, gang, self._now())

    def _may_be_somewhere(self, view: AppWrapperView) -> bool:
        """True if it looks as if it had run: what does, or did, takes no place in the queue."""
        if view.is_held or view.status.get("canrun") or told_end(view) is not None:
            return True
        return any(cluster.pod_counts(view.uid).live for cluster in self._clusters.values())

    async def _read_leaving(self, view: AppWrapperView) -> Change | None:
        """Take in one that was deleted only to remove what a member has of it; None if none has anything."""
        try:
            spec, newcomer, gang = self._parse(view)
        except SpecError:
            return None  # nothing was ever made of it
        running = await self._find_running(view, spec)
        return beginnings.adopt(newcomer, gang, *running, self._now()) if running else None

    def _parse(self, view: AppWrapperView) -> tuple[AppWrapperSpec, Newcomer, Gang]:
        spec = self._specs.parse(view.spec, view.spec_hash, view.namespace)
        charge, where = charge_of(spec, self._limits.rule), _where(view, spec)
        newcomer = _newcomer(view, self._submitter(view), spec, where)
        return spec, self._limits.apply(newcomer, spec, charge), charge.gang

    def _may_be_dispatched(self, view: AppWrapperView, newcomer: Newcomer, spec: AppWrapperSpec) -> bool:
        """False while that is not known; `SpecError` if it may not.

        Asked also about one that seems to run: anybody can make an object that looks like one of ours, and what is
        missing of an AppWrapper that is adopted would be created.
        """
        check_namespace(view.namespace, self._denied_namespaces)
        if self._authors is None:
            return True
        return self._authors.may_wrap(view.uid, newcomer.submitter, view.namespace, spec)

    def _submitter(self, view: AppWrapperView) -> Submitter:
        return view.submitter if self._believes_stamps else UNKNOWN

    async def _find_running(self, view: AppWrapperView, spec: AppWrapperSpec) -> tuple[str, int] | None:
        """The cluster that has objects of an AppWrapper new to the database, and the latest attempt that made any."""
        are_all_asked = self._is_complete()
        found: list[tuple[int, str]] = []
        for cluster in tuple(self._clusters.values()):  # one may come or go while another is asked
            seems_to_run = view.is_held or view.status.get("canrun") or cluster.pod_counts(view.uid).live
            if not seems_to_run:
                continue
            for wrapped in spec.wrapped:
                attempt = await self._attempt_in(cluster, wrapped, view)
                if attempt is not None:
                    found.append((attempt, cluster.name))
        attempt, name = max(found, default=(0, ""))
        # What its status names is where its latest attempt is; else that may be where nobody can be asked.
        is_certain = bool(attempt) and name == view.status.get("cluster")
        if view.is_held and not is_certain and not (are_all_asked and self._is_complete()):
            raise errors.Unavailable("a member cluster may have objects of it, and cannot be asked now")
        return (name, attempt) if attempt else None

    async def _attempt_in(self, cluster: Cluster, wrapped: WrappedObject, view: AppWrapperView) -> int | None:
        try:
            return await cluster.wrapped.attempt_of(wrapped, owner_of_newcomer(view, self._hub_id))
        except errors.Forbidden:
            if cluster.is_member:
                raise
            return (
                None  # a hub that takes no gangs itself gives no right to look there, and none was made there
            )


def _where(view: AppWrapperView, spec: AppWrapperSpec) -> Where:
    """What it requires of a cluster; SpecError if one of its selectors is none."""
    return Where(
        selector=selector_of(view.wishes, CLUSTER_SELECTOR),
        prefers=selector_of(view.wishes, CLUSTER_PREFERENCE),
        namespace=view.namespace,
        kinds=frozenset((wrapped.api_version, wrapped.kind) for wrapped in spec.wrapped),
    )


def _newcomer(
    view: AppWrapperView, submitter: Submitter, spec: AppWrapperSpec | None = None, where: Where = ANYWHERE
) -> Newcomer:
    return Newcomer(
        uid=view.uid,
        group=view.group,
        namespace=view.namespace,
        name=view.name,
        created_at=view.created_at,
        spec=view.spec,
        spec_hash=view.spec_hash,
        priority=spec.priority if spec else 0,
        priority_slope=spec.priority_slope if spec else 0.0,
        suspended=view.asked.suspend if view.asked else False,
        expected_seconds=_expected_seconds(spec),
        where=where,
        submitter=submitter,
    )


def _expected_seconds(spec: AppWrapperSpec | None) -> int:
    expected = spec.scheduling.dispatch_duration.expected if spec else None
    return int(expected.total_seconds()) if expected else 0


class ToldEnd(NamedTuple):
    """That an AppWrapper has ended, as its status says: `kept_until` is how long something of it is kept, if it is."""

    state: State
    reason: str
    message: str
    kept_until: datetime | None


def told_end(view: AppWrapperView) -> ToldEnd | None:
    """The end that the status of an AppWrapper tells of; None if it tells of none, or contradicts itself."""
    conditions = view.status.get("conditions") or ()
    said = {one.get("type"): one for one in conditions if one.get("status") == "True"}
    for state, type_ in _ENDS:
        if view.status.get("state") == state and type_ in said:
            reason, message = said[type_].get("reason") or "", said[type_].get("message") or ""
            return ToldEnd(state, reason, message, _kept_until(view))
    return None


_ENDS: Final = ((State.COMPLETED, ConditionType.COMPLETED), (State.FAILED, ConditionType.FAILED))


def _recall(view: AppWrapperView, newcomer: Newcomer, gang: Gang, now: datetime) -> Change | None:
    """What its status says has ended stays ended, though a new database over old AppWrappers does not know it."""
    told = told_end(view)
    if told is None:
        return None
    kept = Kept(HUB_CLUSTER, told.kept_until) if told.kept_until else None
    if told.state is State.COMPLETED:
        return beginnings.recall_completed(newcomer, gang, now, kept)
    return beginnings.recall_failed(newcomer, gang, told.reason, told.message, now, kept)


def _kept_until(view: AppWrapperView) -> datetime | None:
    """Until when its status says that something of it is kept, if it says so in a way that can be read."""
    try:
        until = datetime.fromisoformat(str(view.status.get("keptUntil")))
    except ValueError:
        return None
    return until if until.tzinfo else None


def _creation_order(view: AppWrapperView) -> tuple[datetime, int]:
    """Creation times have whole seconds; within one, the API server's own order decides."""
    return view.created_at, int(view.resource_version)

"""Intake: takes in AppWrappers without a record, in batches, in the order of their creation.

Intake reads each new AppWrapper once. It queues an AppWrapper that can be dispatched, rejects one that never can, with
the reason, and adopts one that already runs (under a fresh database, or after MCAD was replaced).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import datetime
from typing import Final, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api.annotations import UNKNOWN
from dispatcher.api.appwrapper import AppWrapperSpec
from dispatcher.api.conditions import approvals_in
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.validation import check_no_secret_values, has_secret_values, refusal
from dispatcher.controller.intake.attempt_context import AttemptContext
from dispatcher.controller.intake.attempt_search import Adoption, FoundAttempts
from dispatcher.controller.intake.author_check import AuthorCheck
from dispatcher.controller.intake.limits import Limits
from dispatcher.controller.intake.specs import owner_of_new
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.committer import Committer
from dispatcher.core.intake.authorization import check_namespace
from dispatcher.core.intake.proposal import limit_seconds, requirements_of
from dispatcher.core.intake.status_end import end_in_status, recall
from dispatcher.core.kinds.manifest import reference
from dispatcher.core.kinds.pods.pod_defaults import ClusterDefaults, charge_in_clusters, runtime_classes
from dispatcher.core.lifecycle import first_changes
from dispatcher.core.lifecycle.first_changes import Submission
from dispatcher.core.model.gangs.gang import Gang
from dispatcher.core.model.records.record import Change, Record
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.kube.objects.appwrappers import AppWrapperView
from dispatcher.kube.time_slices import TimeSlice, run_in_thread_if_large

LARGEST_BATCH = 200
AT_ONCE: Final = 8
"""How many new AppWrappers' objects intake reads from the hub at the same time."""
SEARCH_PAUSE_SECONDS: Final = 1.0
"""The shortest pause between two searches; each search lists the anchors of every member."""
FOUND_AT_ONCE: Final = 32
"""New AppWrappers that are committed together after a search; the spec of each is in memory until then."""
LARGEST_BATCH_BYTES: Final = 2**22
"""The most bytes of specs in memory before a commit, whatever their number."""
FIRST_GENERATION: Final = 1
"""The `metadata.generation` of an AppWrapper whose spec nobody has changed: the API server counts its changes."""

_log = log.get("intake")


class IntakeRules(Struct, frozen=True):
    """The rules by which intake checks a new AppWrapper.

    `authors`, if there are, say whether an author may create what is wrapped. `believes_stamps` says that only a policy
    of the API server can have written who submitted an AppWrapper. Nothing is dispatched in `denied_namespaces`.
    `takes_secrets` says that the database may store the values of wrapped Secrets. `pod_defaults` reads what API
    servers add to pods with these RuntimeClasses, in the clusters and the namespace of the requirements.
    """

    limits: Limits
    authors: AuthorCheck | None
    believes_stamps: bool
    denied_namespaces: frozenset[str]
    takes_secrets: bool
    pod_defaults: Callable[[ClusterRequirements, frozenset[str]], Awaitable[ClusterDefaults]]


class Intake:
    """New AppWrappers by uid: reads, validates, and queues or rejects each.

    `on_taken_in` is called with each record that is committed, `on_failed` with the uid of each AppWrapper that must be
    added again later. `is_complete` is true if every cluster is known for certain and can be searched; only an
    AppWrapper with our finalizer waits for that. A deleted AppWrapper is taken in too if a member has objects of it.

    The clusters are searched for a new AppWrapper that may run already; other AppWrappers do not wait for that search.
    Anybody can write our finalizer: it is a reason to search, and proves nothing.
    """

    def __init__(
        self,
        context: AttemptContext,
        cache: Cache,
        committer: Committer,
        on_taken_in: Callable[[Record], None],
        on_failed: Callable[[str], object],
        is_complete: Callable[[], bool],
        rules: IntakeRules,
    ) -> None:
        self._informer = context.informer
        self._cache = cache
        self._committer = committer
        self._specs = context.specs
        self._hub_id = context.hub_id
        self._on_taken_in = on_taken_in
        self._on_failed = on_failed
        self._now = context.now
        self._adoption = Adoption(context, is_complete)
        self._believes_stamps = rules.believes_stamps
        self._denied_namespaces = rules.denied_namespaces
        self._authors = rules.authors
        self._limits = rules.limits
        self._takes_secrets = rules.takes_secrets
        self._pod_defaults = rules.pod_defaults
        self._uids: set[str] = set()
        self._large: dict[str, None] = {}
        """New AppWrappers with large specs, in order."""
        self._failed: set[str] = set()
        self._unsure: set[str] = set()
        self._awaited: set[str] = set()
        self._searched: dict[str, AppWrapperView] = {}
        self._wake = asyncio.Event()
        self._wake_search = asyncio.Event()

    def add(self, uid: str) -> None:
        """Have a new AppWrapper taken in with the next batch, unless the bound of its namespace defers it."""
        if uid in self._searched:
            self._awaited.add(uid)
        elif not self._limits.bound.is_deferred(uid):
            self._uids.add(uid)
            self._wake.set()

    def recall(self, namespace: str) -> None:
        """Have the oldest deferred AppWrapper of a namespace taken in: there is room for one more."""
        if self._limits.bound.waits_in(namespace):
            self._wake.set()

    def is_unsure(self, uid: str) -> bool:
        """True while a member that may have objects of an AppWrapper has not answered."""
        return uid in self._unsure

    async def run(self) -> None:
        """Take in batch after batch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_searches(), name="intake-searches")
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._safely(self._take_in_known, self._uids.union(self._large))

    async def _safely(self, step: Callable[[], Awaitable[None]], concerned: Iterable[str]) -> None:
        uids = set(concerned)
        try:
            await step()
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: these new AppWrappers are added again later
            log.internal_error("intake", error)
            for uid in uids:
                self._on_failed(uid)

    async def take_in_all(self) -> None:
        """Take in every AppWrapper added so far for which there is room, after searching the clusters where needed."""
        await self._take_in_known()
        await self._search()

    async def _run_searches(self) -> None:
        while True:
            await self._wake_search.wait()
            self._wake_search.clear()
            await self._safely(self._search, self._searched)
            await asyncio.sleep(SEARCH_PAUSE_SECONDS)

    async def _take_in_known(self) -> None:
        """Take in the new AppWrappers that cannot have objects yet; note the others for a search.

        The creation time alone gives the position in the queue. So intake may read a large AppWrapper after younger
        small ones, and a small one waits for at most one large one.
        """
        bound = self._limits.bound
        self._uids.update(bound.call())
        while self._uids or self._large:
            small = self._small_ones()
            for start in range(0, len(small), LARGEST_BATCH):
                await self._take_in(small[start : start + LARGEST_BATCH])
                bound.settle()
            await self._take_in(self._large_ones())
            bound.settle()
            self._uids.update(bound.call())

    def _small_ones(self) -> list[AppWrapperView]:
        """The new AppWrappers with small specs, in the order of their creation; the others are noted for later."""
        views = sorted(filter(self._is_wanted, map(self._informer.view, self._uids)), key=_creation_order)
        self._uids.clear()
        small = []
        for view in views:
            if self._adoption.may_run(view):
                self._note_for_search(view)
            elif view.uid not in self._searched:
                if self._informer.takes_long(view):
                    self._large[view.uid] = None
                else:
                    small.append(view)
        return small

    def _large_ones(self) -> Iterator[AppWrapperView]:
        """The new AppWrappers with large specs: at least one, and no more once a small new AppWrapper arrives."""
        taken = 0
        while self._large and taken < LARGEST_BATCH and not (taken and self._uids):
            uid = next(iter(self._large))
            del self._large[uid]
            view = self._informer.view(uid)
            if self._is_wanted(view):
                if self._adoption.may_run(view):
                    self._note_for_search(view)
                else:
                    taken += 1
                    yield view

    def _is_wanted(self, view: AppWrapperView | None) -> TypeGuard[AppWrapperView]:
        if view is None or not view.is_ours or self._cache.get(view.uid) is not None:
            return False
        return view.has_finalizer or not view.deleting

    async def _take_in(self, views: Iterable[AppWrapperView]) -> None:
        changes: list[Change] = []
        time_slice = TimeSlice()
        for view in views:
            change = await self._read_safely(view)
            if change is None:
                self._limits.bound.keep_turn(view.namespace, view.uid)
            changes += [change] if change else []
            if sum(len(each.spec or b"") for each in changes) >= LARGEST_BATCH_BYTES:
                await self._commit(changes)
                changes = []
            await time_slice.pause_if_long()
        await self._commit(changes)

    async def _commit(self, changes: list[Change]) -> None:
        taken_in = await self._committer.commit_all(changes)
        for record in [*taken_in, *await self._fail_unstorable(changes)]:
            self._on_taken_in(record)

    async def _fail_unstorable(self, changes: list[Change]) -> list[Record]:
        """Fail new AppWrappers that the database cannot store: otherwise they would vanish without a status."""
        left = [change.after for change in changes if self._cache.get(change.after.uid) is None]
        return await self._committer.commit_all(
            [first_changes.fail_unstorable(each, self._now()) for each in left]
        )

    # --- those that may run already ---------------------------------------------------------------------------

    def _note_for_search(self, view: AppWrapperView) -> None:
        self._searched[view.uid] = view
        if view.uid in self._unsure:
            self._awaited.add(view.uid)
        if view.has_finalizer:
            self._unsure.add(view.uid)
        self._wake_search.set()

    async def _search(self) -> None:
        """Run one round: search the clusters for the noted new AppWrappers, and take them in."""
        if not self._searched:
            return
        views = [view for uid in self._searched if self._is_wanted(view := self._informer.view(uid))]
        gone = self._searched.keys() - {view.uid for view in views}
        try:
            found_attempts = await self._adoption.search(views)
            limit = asyncio.Semaphore(AT_ONCE)
            views.sort(key=_creation_order)
            for start in range(0, len(views), FOUND_AT_ONCE):
                part = views[start : start + FOUND_AT_ONCE]
                found = await asyncio.gather(
                    *(self._find_safely(view, found_attempts, limit) for view in part)
                )
                await self._commit([each for each in found if each is not None])
                self._limits.bound.settle()
        finally:
            for uid in (*gone, *(view.uid for view in views)):
                self._searched.pop(uid, None)
        self._note_found(views, gone)

    def _note_found(self, views: list[AppWrapperView], gone: set[str]) -> None:
        """Have each deleted AppWrapper reconciled once a search has found its objects, or that it has none."""
        for view in views:
            if view.uid in self._unsure and view.uid not in self._failed:
                self._unsure.discard(view.uid)
                if view.uid in self._awaited:
                    self._on_failed(view.uid)
        self._awaited -= gone.union(view.uid for view in views)
        self._unsure = {uid for uid in self._unsure - gone if self._informer.view(uid)}
        self._failed.clear()

    async def _find_safely(
        self, view: AppWrapperView, found_attempts: FoundAttempts, limit: asyncio.Semaphore
    ) -> Change | None:
        """The change of one new AppWrapper; None if its search fails: it is added again later and delays no other."""
        try:
            async with limit:
                return await self._find(view, found_attempts)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: one AppWrapper must not end the others
            self._failed.add(view.uid)
            self._note_failure(view, error)
        return None

    async def _find(self, view: AppWrapperView, found_attempts: FoundAttempts) -> Change | None:
        """The change that takes in a new AppWrapper, in the cluster that has its objects if one does.

        A deleted AppWrapper is taken in only if a member has objects of it, so that they are removed. None if intake
        reads the AppWrapper again later: its author's rights are being reviewed, or the queue has no room.
        """
        try:
            spec, submission, gang = await self._parse(view)
            if not view.deleting and not self._may_be_dispatched(view, submission, spec):
                self._failed.add(view.uid)
                return None
        except SpecError as error:
            return None if view.deleting else self._reject(view, error)  # it never had objects
        running = await self._adoption.find(view, spec, found_attempts)
        if running is not None:
            request = await self._adoption.request_of(view, spec, submission.queues, gang, running)
            return first_changes.adopt(
                submission, gang, running.cluster, running.attempt, self._now(), request
            )
        if view.deleting or not self._limits.admits(view):
            return None
        return self._submit(view, spec, submission, gang)

    # --- reading one ------------------------------------------------------------------------------------------

    async def _read_safely(self, view: AppWrapperView) -> Change | None:
        """The change of one AppWrapper; None if it cannot be read now: it is added again later and delays no other."""
        try:
            return await self._read(view)
        except errors.StoreError:
            raise
        except Exception as error:  # noqa: BLE001  # the loop's edge: one AppWrapper must not end the others
            self._note_failure(view, error)
        return None

    def _note_failure(self, view: AppWrapperView, error: Exception) -> None:
        """Have a new AppWrapper added again later, and log why: a cluster that did not answer, or an internal error."""
        about = {"appwrapper": f"{view.namespace}/{view.name}", "uid": view.uid}
        if isinstance(error, errors.ClusterError):
            _log.warning("intake_failed", error=str(error), **about)
        else:
            log.count_internal_error("intake")
            _log.error("intake_failed", exc_info=error, **about)
        self._on_failed(view.uid)

    async def _read(self, view: AppWrapperView) -> Change | None:
        """The change of one AppWrapper; None if it comes again: its author is being reviewed, or the queue is full."""
        if end_in_status(view.status) is None and not self._limits.admits(view):
            return None
        try:
            spec, submission, gang = await self._parse(view)
            ended = self._recall(view, spec, submission, gang)
            if ended is not None:
                return ended
            if not self._may_be_dispatched(view, submission, spec):
                return None
        except SpecError as error:
            return self._reject(view, error)
        return self._submit(view, spec, submission, gang)

    def _recall(
        self, view: AppWrapperView, spec: AppWrapperSpec, submission: Submission, gang: Gang
    ) -> Change | None:
        """The change that keeps an ended AppWrapper ended; None if it has not ended. Stores no values of Secrets."""
        end = end_in_status(view.status)
        if end is None:
            return None
        ended = recall(end, submission, gang, self._now())
        if self._takes_secrets or not has_secret_values(spec):
            return ended
        owner = owner_of_new(view, self._hub_id)
        return first_changes.without_spec(ended, [reference(wrapped, owner) for wrapped in spec.wrapped])

    def _submit(
        self, view: AppWrapperView, spec: AppWrapperSpec, submission: Submission, gang: Gang
    ) -> Change:
        """The change that queues a new AppWrapper, or rejects it, without its spec, if that has values of Secrets."""
        try:
            if not self._takes_secrets:
                check_no_secret_values(spec)
        except SpecError as error:
            return replace(first_changes.reject(submission, _failure(view, error), self._now()), spec=None)
        try:
            approvals_in(view.approvals)
        except SpecError as error:
            return first_changes.reject(submission, _failure(view, error), self._now())
        submitted = replace(
            submission,
            awaits=self._limits.awaited(view, submission.queues),
            awaits_its_own=self._limits.awaits_its_own(view, submission.queues),
            is_edited=view.generation > FIRST_GENERATION,
            was_deferred=self._limits.bound.was_deferred(view.uid),
        )
        return first_changes.submit(submitted, gang, self._now())

    def _reject(self, view: AppWrapperView, error: SpecError) -> Change:
        submission = self._submission(view)
        return first_changes.reject(submission, _failure(view, error), self._now())

    async def _parse(self, seen: AppWrapperView) -> tuple[AppWrapperSpec, Submission, Gang]:
        if seen.excess is not None:
            raise refusal(seen.excess)
        view = await self._informer.with_spec(seen)
        if view is None:
            raise errors.Unavailable("it has gone, and its deletion is on the way to us")
        if view.excess is not None:
            raise refusal(view.excess)
        spec = await self._specs.parse(view.spec, view.spec_hash, view.namespace)
        requirements = requirements_of(view.cluster_annotations, view.namespace, spec)
        defaults = await self._read_defaults(view, spec, requirements)
        charge = await run_in_thread_if_large(
            len(view.spec), charge_in_clusters, spec, defaults, self._limits.charge
        )
        submission = self._submission(view, spec, requirements)
        return spec, self._limits.apply(view, submission, charge), charge.gang

    async def _read_defaults(
        self, view: AppWrapperView, spec: AppWrapperSpec, requirements: ClusterRequirements
    ) -> ClusterDefaults:
        """The defaults that the API server of its cluster will add to the pods of an AppWrapper."""
        # Few templates name a RuntimeClass, and a search of all of them takes long.
        classes = runtime_classes(spec) if b"runtimeClassName" in view.spec else frozenset[str]()
        return await self._pod_defaults(requirements, classes)

    def _may_be_dispatched(self, view: AppWrapperView, submission: Submission, spec: AppWrapperSpec) -> bool:
        """True if the author may create the wrapped objects, False while that is not known; raises `SpecError` if not.

        An AppWrapper that seems to run is checked too: anybody can create an object that looks like one of ours, and
        adoption creates the missing objects.
        """
        check_namespace(view.namespace, self._denied_namespaces)
        if self._authors is None:
            return True
        return self._authors.may_wrap(view.uid, submission.submitter, view.namespace, spec)

    def _submission(
        self,
        view: AppWrapperView,
        spec: AppWrapperSpec | None = None,
        requirements: ClusterRequirements = ANYWHERE,
    ) -> Submission:
        return Submission(
            uid=view.uid,
            group=view.group,
            namespace=view.namespace,
            name=view.name,
            created_at=view.created_at,
            spec=view.spec,
            spec_hash=view.spec_hash,
            queues=self._limits.labels.queues_of(view),
            priority=spec.priority if spec else 0,
            priority_slope=spec.priority_slope if spec else 0.0,
            suspended=view.mutable_spec.suspend if view.mutable_spec else False,
            expected_seconds=self._limits.expected_seconds(view, spec) if spec else 0,
            limit_seconds=limit_seconds(spec) if spec else 0,
            requirements=requirements,
            pods_never_preempt=spec is not None and self._pods_never_preempt(view, spec),
            submitter=view.submitter if self._believes_stamps else UNKNOWN,
            notifications=str(self._limits.notifications(view)),
        )

    def _pods_never_preempt(self, view: AppWrapperView, spec: AppWrapperSpec) -> bool:
        # Most templates say nothing about preemption, and a search of all of them takes long.
        is_said = any(name in view.spec for name in (b"preemptionPolicy", b"priorityClassName"))
        return is_said and self._limits.pods_never_preempt(spec)


def _failure(view: AppWrapperView, error: SpecError) -> str:
    return f"{view.namespace}/{view.name} creation failure: {error}"


def _creation_order(view: AppWrapperView) -> tuple[datetime, int]:
    """The sort key of the creation order: creation times have whole seconds, then the resource version decides."""
    version = view.resource_version
    return view.created_at, int(version) if _VERSION.fullmatch(version) else 0


_VERSION: Final = re.compile("[0-9]{1,20}")

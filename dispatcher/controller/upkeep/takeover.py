"""The work of a new leader on all AppWrappers: in slices, because the lease must be renewed meanwhile.

`FirstPolicies` reads the lifecycle policies of the gangs that were active at a takeover, beside the first scheduling
cycles. A reconcile of an active gang needs its policy, and so its spec. A thousand policies take half a second, in
which a new leader can already dispatch other gangs. Reconciles that read their specs one by one would take many times
as long. So each of these gangs is reconciled once its policy was read, many in one query, and all other AppWrappers at
once.

`ConcernedAppWrappers` are those that a changed declaration concerns: they are reconciled, and all others are left
alone. Only AppWrappers that are not dispatched depend on namespaces, priority classes and queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.specs import AT_ONCE, Specs
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.garbage import no_collections
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.core.intake.labels import ChangedClasses, class_name
from dispatcher.core.model.incremental import in_parts
from dispatcher.core.model.records.record import ACTIVE
from dispatcher.core.queues.declared_queues import DeclaredQueues
from dispatcher.store.state.queue import QueueStore


async def load(cache: Cache, store: QueueStore, slices: Slices) -> None:
    """Load the database's records into the cache; nothing else may change the cache meanwhile."""
    with no_collections():
        await slices.for_each(await store.load_live(), cache.put)


class FirstPolicies:
    """Reads the policies of the gangs that are active at `begin`; `look` adds one, by uid, to the work queue."""

    def __init__(
        self, cache: Cache, informer: AppWrapperInformer, specs: Specs, look: Callable[[str], None]
    ) -> None:
        self._cache = cache
        self._informer = informer
        self._specs = specs
        self._look = look
        self._unread: dict[str, None] = {}

    def begin(self) -> None:
        """Note the uids of active gangs. The AppWrappers of some were deleted: these gangs are left out."""
        active = (each.uid for each in self._cache.records() if each.phase in ACTIVE)
        self._unread = {uid: None for uid in active if self._informer.view(uid) is not None}

    def is_unread(self, uid: str) -> bool:
        """True of a noted gang until its policy was read; then it is added to the work queue."""
        return uid in self._unread

    async def read(self) -> None:
        """Read the policies of all noted gangs. Raises `StoreError`."""
        for uids in in_parts(list(self._unread), AT_ONCE):
            views = {uid: self._informer.view(uid) for uid in uids}
            records = [record for record in map(self._cache.get, uids) if record is not None]
            await self._specs.prepare({uid: view.tolerance for uid, view in views.items() if view}, records)
            for uid in uids:
                self._unread.pop(uid, None)
                self._look(uid)


class ConcernedAppWrappers:
    """Has the undispatched AppWrappers that a change concerns reconciled, each by `look` with its uid."""

    def __init__(self, cache: Cache, informer: AppWrapperInformer, look: Callable[[str], None]) -> None:
        self._cache = cache
        self._informer = informer
        self._look = look
        self._last = DeclaredQueues()

    def namespace_changed(self, namespace: str) -> None:
        """The ceilings or the queue of a namespace have changed."""
        for uid in self._cache.undispatched(namespace):
            self._look(uid)

    async def classes_changed(self, changed: ChangedClasses) -> None:
        """Priority classes were added, changed or removed: AppWrappers that name one are concerned."""

        def look(uid: str) -> None:
            view = self._informer.view(uid)
            if view is not None and changed.concern(class_name(view.labels)):
                self._look(uid)

        await Slices(time.monotonic).for_each(self._cache.all_undispatched(), look)

    async def queues_changed(self, declared: DeclaredQueues) -> None:
        """A queue was declared, changed or removed.

        Each undispatched AppWrapper has a queue in every tree of MCAD's, so another tree concerns all of them. So do
        approvals that queues name: few queues name any. Another name concerns those whose label for Kueue is that name.
        """
        before, self._last = self._last, declared
        if (names := before.names ^ declared.names) and before.trees == declared.trees:

            def look(uid: str) -> None:
                view = self._informer.view(uid)
                if view is not None and view.labels.get(KUEUE_QUEUE_LABEL) in names:
                    self._look(uid)

            await Slices(time.monotonic).for_each(self._cache.all_undispatched(), look)
        if (before.trees, before.forest.approvals) != (declared.trees, declared.forest.approvals):
            await Slices(time.monotonic).for_each(self._cache.all_undispatched(), self._look)

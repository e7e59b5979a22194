"""Which AppWrappers a changed declaration concerns: they are reconciled, and all others are left alone.

Only AppWrappers that are not dispatched depend on namespaces, priority classes and queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dispatcher.api.names import KUEUE_QUEUE_LABEL
from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.controller.scheduling.slices import Slices
from dispatcher.controller.upkeep.takeover import for_each
from dispatcher.core.intake.priority_classes import ChangedClasses, class_name
from dispatcher.core.queues.declared_queues import DeclaredQueues


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

        await for_each(self._cache.all_undispatched(), look, Slices(time.monotonic))

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

            await for_each(self._cache.all_undispatched(), look, Slices(time.monotonic))
        if (before.trees, before.forest.approvals) != (declared.trees, declared.forest.approvals):
            await for_each(self._cache.all_undispatched(), self._look, Slices(time.monotonic))

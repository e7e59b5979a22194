"""The lifecycle policies of the gangs that were active at a takeover, read beside the first scheduling cycles.

A reconcile of an active gang needs its policy, and so its spec. A thousand policies take half a second, in which a new
leader can already dispatch other gangs. Reconciles that read their specs one by one would take many times as long. So
each of these gangs is reconciled once its policy was read, many in one query, and all other AppWrappers at once.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.controller.intake.appwrapper_informer import AppWrapperInformer
from dispatcher.controller.intake.specs import AT_ONCE, Specs
from dispatcher.controller.scheduling.cache import Cache
from dispatcher.core.model.incremental import in_parts
from dispatcher.core.model.record import ACTIVE


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

"""From a pod to the AppWrapper it belongs to: a claim by label, confirmed by the chain of owners.

A pod's label says which AppWrapper it claims to be of. The claim holds if following controller references
upwards (pod → ReplicaSet → Deployment → AppWrapper) reaches that uid. Objects we created are known at once;
for those in between the API server is asked, once per object.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dispatcher import errors, log
from dispatcher.api.names import APPWRAPPER_KIND, PLURALS
from dispatcher.core.manifest import controller_of
from dispatcher.core.record import ObjectRef
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery

LONGEST_CHAIN: Final = 8
MOST_KNOWN: Final = 200_000
NOBODY: Final = ""
"""The root of a chain that leads to no AppWrapper."""

_log = log.get("owners")


class Owners:
    """Remembers, for each object that controls pods, which root controls it in the end."""

    def __init__(
        self, client: ClusterClient, discovery: Discovery, on_resolved: Callable[[str], None]
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._on_resolved = on_resolved
        self._roots: OrderedDict[str, str] = OrderedDict()
        self._asked: set[str] = set()
        self._questions: asyncio.Queue[ObjectRef] = asyncio.Queue()

    def learn(self, uid: str, root: str) -> None:
        """Note that the object `uid` belongs to the AppWrapper `root`, because we created it."""
        self._roots[uid] = root
        while len(self._roots) > MOST_KNOWN:
            self._roots.popitem(last=False)

    def confirm(
        self, claimed_by: str | None, controller: ObjectRef | None, names_appwrapper: bool = False
    ) -> str | None:
        """The AppWrapper's uid if the claim is confirmed; None if it is not, or not yet (it is being asked).

        A pod without a claim is of the AppWrapper its owners lead to, as with gangs that were dispatched before
        our labels were. Who it is is asked only for one that `names_appwrapper`: the others are mostly nobody's.
        """
        if controller is None:
            return None
        if controller.uid == claimed_by:
            return claimed_by
        root = controller.uid if _is_appwrapper(controller) else self._roots.get(controller.uid)
        if root is None and (claimed_by or names_appwrapper):
            self._ask(controller)
        if claimed_by is None:
            return root or None
        return claimed_by if root == claimed_by else None

    def is_asked(self, uid: str) -> bool:
        """True while nobody knows to whom the object `uid` belongs, and the API server is being asked."""
        return uid in self._asked and uid not in self._roots

    def _ask(self, controller: ObjectRef) -> None:
        if controller.uid not in self._asked:
            self._asked.add(controller.uid)
            self._questions.put_nowait(controller)

    async def run(self) -> None:
        """Answer questions until cancelled; `on_resolved` is called with the uid of each object understood."""
        while True:
            ref = await self._questions.get()
            try:
                root = await self._climb(ref)
            except errors.ClusterError as error:
                _log.warning("owner_unknown", kind=ref.kind, name=ref.name, error=str(error))
                await asyncio.sleep(1)
                self._questions.put_nowait(ref)
                continue
            self._asked.discard(ref.uid)
            self.learn(ref.uid, root)
            self._on_resolved(ref.uid)

    async def _climb(self, ref: ObjectRef) -> str:
        """The uid of the AppWrapper at the upper end of the chain; `NOBODY` if there is none."""
        for _ in range(LONGEST_CHAIN):
            known = self._roots.get(ref.uid)
            if known is not None:
                return known
            above = await self._controller_of(ref)
            if above is None:
                return NOBODY
            if _is_appwrapper(above):
                return above.uid  # whatever made the AppWrapper itself is not asked about
            ref = above
        return NOBODY

    async def _controller_of(self, ref: ObjectRef) -> ObjectRef | None:
        try:
            kind = await self._discovery.find(ref.api_version, ref.kind)
            found = await self._client.get(kind.path(ref.namespace, ref.name))
        except (errors.NotFound, errors.Forbidden):
            return None  # the chain ends where nothing, or nothing we may read, is above
        controller = controller_of(found["metadata"])
        if found["metadata"]["uid"] != ref.uid or controller is None:
            return None
        return ObjectRef(
            item=-1,
            api_version=controller["apiVersion"],
            kind=controller["kind"],
            namespace=ref.namespace,
            name=controller["name"],
            uid=controller["uid"],
        )


def _is_appwrapper(ref: ObjectRef) -> bool:
    return ref.kind == APPWRAPPER_KIND and ref.api_version.partition("/")[0] in PLURALS

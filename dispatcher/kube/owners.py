"""From a pod to the AppWrapper it belongs to: a claim by label, confirmed by the chain of owners.

A pod's label says which AppWrapper it claims to be of. The claim holds if following controller references
upwards (pod → ReplicaSet → Deployment → AppWrapper) reaches that uid, in the AppWrapper's own namespace. Objects
we created are known at once; for those in between the API server is asked, once per object, and again later if it
does not answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dispatcher import errors, log
from dispatcher.core.manifest import appwrapper_of, controller_of
from dispatcher.core.record import ObjectRef
from dispatcher.kube.client import ClusterClient
from dispatcher.kube.discovery import Discovery

LONGEST_CHAIN: Final = 8
MOST_KNOWN: Final = 200_000
NOBODY: Final = ""
"""The root of a chain that leads to no AppWrapper."""

WORKERS: Final = 4
"""So that a server that takes its time for one kind holds up no other."""

LONGEST_PAUSE: Final = 60.0

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
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._asked: set[str] = set()
        self._failures: dict[str, int] = {}
        self._questions: asyncio.Queue[ObjectRef] = asyncio.Queue()

    def learn(self, uid: str, root: str, namespace: str = "") -> None:
        """Note that the object `uid` belongs to the AppWrapper `root`, because we created it, in that namespace."""
        _note(self._roots, uid, root)
        if namespace:
            _note(self._homes, root, namespace)

    def confirm(
        self, claimed_by: str | None, controller: ObjectRef | None, names_appwrapper: bool = False
    ) -> str | None:
        """The AppWrapper's uid if the claim is confirmed; None if it is not, or not yet (it is being asked).

        A pod without a claim is of the AppWrapper its owners lead to, as with gangs that were dispatched before
        our labels were. Who it is is asked only for one that `names_appwrapper`: the others are mostly nobody's.
        One in another namespace than the AppWrapper is nobody's: whoever made it wrote the reference by hand.
        """
        if controller is None:
            return None
        is_root = controller.uid == claimed_by
        root = claimed_by if is_root else _meant_by(controller) or self._roots.get(controller.uid)
        if root and self._homes.get(root, controller.namespace) != controller.namespace:
            return None
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
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"owners-{number}")

    async def _work(self) -> None:
        while True:
            ref = await self._questions.get()
            try:
                root = await self._climb(ref)
            except errors.ClusterError as error:
                self._ask_later(ref, error)
                continue
            self._asked.discard(ref.uid)
            self._failures.pop(ref.uid, None)
            self.learn(ref.uid, root)
            self._on_resolved(ref.uid)

    def _ask_later(self, ref: ObjectRef, error: errors.ClusterError) -> None:
        """After a pause that doubles: nobody waits for it, and the others are asked meanwhile."""
        failures = self._failures.get(ref.uid, 0)
        self._failures[ref.uid] = failures + 1
        pause = min(LONGEST_PAUSE, 2.0 ** min(failures, 10))
        _log.warning("owner_unknown", kind=ref.kind, name=ref.name, error=str(error), pause=pause)
        asyncio.get_running_loop().call_later(pause, self._questions.put_nowait, ref)

    async def _climb(self, ref: ObjectRef) -> str:
        """The uid of the AppWrapper at the upper end of the chain; `NOBODY` if there is none."""
        for _ in range(LONGEST_CHAIN):
            known = self._roots.get(ref.uid)
            if known is not None:
                return known
            above = await self._controller_of(ref)
            if above is None:
                return NOBODY
            appwrapper = _meant_by(above)
            if appwrapper is not None:
                return appwrapper  # whatever made the AppWrapper itself is not asked about
            ref = above
        return NOBODY

    async def _controller_of(self, ref: ObjectRef) -> ObjectRef | None:
        try:
            kind = await self._discovery.find(ref.api_version, ref.kind)
            path = kind.path(ref.namespace, ref.name)
            found = await self._client.insist(lambda: self._client.get(path))
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


def _note(known: OrderedDict[str, str], uid: str, value: str) -> None:
    known[uid] = value
    while len(known) > MOST_KNOWN:
        known.popitem(last=False)


def _meant_by(ref: ObjectRef) -> str | None:
    reference = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": ref.uid}
    return appwrapper_of(reference)

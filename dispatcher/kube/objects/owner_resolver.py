"""Resolves a pod to its AppWrapper: the pod's label is a claim, which the chain of owners confirms.

The claim holds if the controller references (pod → ReplicaSet → Deployment → AppWrapper) lead to the uid in the label,
in the AppWrapper's own namespace. Objects that the dispatcher created are known at once. For objects in between the API
server is asked once per object, and again later if it does not answer. On the hub a chain ends at an AppWrapper, in a
member cluster at an anchor (`anchor_root`).

Nothing checks the contents of an owner reference. So an answer counts only if the object has the uid of the reference,
and a chain that leads to no AppWrapper is remembered for that very reference. An unknown AppWrapper has no namespace
and no pods.

No such answer is final: the API server may have refused a read that a role allows later, and an object without a
controller may be adopted. So it is asked about again, in pauses that grow to `LONGEST_AGAIN_SECONDS`, while the object
has pods. Meanwhile its pods belong to no AppWrapper. A look at all that are remembered costs their number, once in
`SWEEP_SECONDS`, and asks about `MOST_AGAIN` of them at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.core.kinds.manifest import appwrapper_of, controller_of
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.api_calls import one_object
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import JSON, METADATA, ClusterClient, Json
from dispatcher.kube.discovery import Discovery

LONGEST_CHAIN: Final = 8
MOST_ROOTS: Final = 200_000
MOST_ROOTLESS: Final = 20_000
"""References remembered as leading to no AppWrapper; any user can write more of them."""
NOBODY: Final = ""
"""The root of a chain that leads to no AppWrapper."""

WORKERS: Final = 4
"""Concurrent requests, so that a server that is slow for one kind delays no other kind."""

LONGEST_PAUSE: Final = 60.0

AGAIN_SECONDS: Final = 60.0
"""First pause before a reference that led to no AppWrapper is resolved again; each further one is twice as long."""
LONGEST_AGAIN_SECONDS: Final = 600.0
SWEEP_SECONDS: Final = 30.0
"""Pause between two looks at the references that are due."""
MOST_AGAIN: Final = 150
"""References that one look has resolved again: five a second, however many of them users write."""

_ACCEPT: Final = f"{METADATA},{JSON}"
"""Only the metadata is needed, and the whole object may be too large to be read; but not every server can omit the
rest. Kubernetes' garbage collector asks in the same way. Source:
https://github.com/kubernetes/client-go/blob/master/metadata/metadata.go"""

_log = log.get("owner_resolver")


class HintReads:
    """The reads for one answer that is only a hint: at most `most`, and none of a chain that led nowhere before."""

    def __init__(self, most: int) -> None:
        self.rootless: set[ObjectRef] = set()
        """The objects of chains that led to no AppWrapper."""
        self._left = most

    @property
    def is_spent(self) -> bool:
        """True once no read is left."""
        return not self._left

    def take(self) -> None:
        """Count a read; raises `Unavailable` if none is left."""
        if self.is_spent:
            raise errors.Unavailable("no more objects are read for an answer that is only a hint")
        self._left -= 1


class _Rootless(Struct, frozen=True):
    """A reference led to no AppWrapper, `answers` times in a row; `due` is when it is resolved again."""

    answers: int
    due: float


def _always(_uid: str) -> bool:
    """The default for resolvers without watched pods."""
    return True


class OwnerResolver:
    """Remembers the root of the chain for each object that controls pods.

    `namespace_of` gives an AppWrapper's namespace by uid. `anchor_root` gives the AppWrapper of an anchor by the
    ConfigMap's metadata; with it, as in a member cluster, a reference to an AppWrapper does not count. `has_pods` is
    true of the uid of a controller with pods that are not confirmed.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_resolved: Callable[[str], None],
        namespace_of: Callable[[str], str | None],
        anchor_root: Callable[[Json], str | None] | None = None,
        *,
        has_pods: Callable[[str], bool] = _always,
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._on_resolved = on_resolved
        self._namespace_of = namespace_of
        self._anchor_root = anchor_root
        self._roots: BoundedDict[str, str] = BoundedDict(MOST_ROOTS)
        self._has_pods = has_pods
        self._rootless: BoundedDict[ObjectRef, _Rootless] = BoundedDict(MOST_ROOTLESS)
        self._asked: set[ObjectRef] = set()
        self._failures: dict[ObjectRef, int] = {}
        self._questions: asyncio.Queue[ObjectRef] = asyncio.Queue()

    def learn(self, uid: str, root: str) -> None:
        """Remember that the object `uid`, which the dispatcher created, belongs to the AppWrapper `root`."""
        self._roots[uid] = root

    def confirm(
        self, claimed_by: str | None, controller: ObjectRef | None, names_appwrapper: bool = False
    ) -> str | None:
        """The AppWrapper's uid if the claim is confirmed; None if it is refuted, or still being resolved.

        A pod without a claim belongs to the AppWrapper that its owners lead to, as in gangs that MCAD dispatched. Its
        owners are resolved only if it `names_appwrapper`, since most such pods belong to no AppWrapper. A pod in
        another namespace than the AppWrapper does not belong to it: its reference was written by hand.
        """
        if controller is None:
            return None
        root = self._root_of(controller)
        if root is None:
            if claimed_by is None:
                may_be_of_one = names_appwrapper
            else:
                may_be_of_one = self.is_in_namespace(claimed_by, controller.namespace)
            if may_be_of_one:
                self._ask(controller)
            return None
        if claimed_by not in (None, root) or not self.is_in_namespace(root, controller.namespace):
            return None
        return root

    def named_by(self, claimed_by: str | None, controller: ObjectRef | None) -> str | None:
        """The uid of the AppWrapper to which the pod would belong if its claim were confirmed; None without one."""
        if controller is None:
            return None
        return claimed_by or self._root_of(controller) or None

    def is_in_namespace(self, appwrapper: str, namespace: str) -> bool:
        """True if the AppWrapper is known, and in that namespace."""
        return self._namespace_of(appwrapper) == namespace

    def is_being_resolved(self, controller: ObjectRef) -> bool:
        """True while the root of that object is unknown and being resolved, and no answer said that it has none."""
        is_open = controller.uid not in self._roots and controller not in self._rootless
        return is_open and controller in self._asked

    def _root_of(self, controller: ObjectRef) -> str | None:
        """The AppWrapper to which an object belongs, `NOBODY`, or None if that is unknown."""
        root = self._appwrapper_named_by(controller) or self._roots.get(controller.uid)
        return NOBODY if root is None and controller in self._rootless else root

    def _ask(self, controller: ObjectRef) -> None:
        if controller not in self._asked:
            self._asked.add(controller)
            self._questions.put_nowait(controller)

    async def root_of(self, ref: ObjectRef, reads: HintReads) -> str:
        """The uid of the AppWrapper that the chain of controllers of an object leads to; `NOBODY` if to none.

        Costs one of `reads` for each object of the chain that is not known, as a hint. Raises `ClusterError`.
        """
        chain: list[ObjectRef] = []

        async def find(each: ObjectRef) -> Json:
            chain.append(each)
            return await self._find_as_hint(each, reads)

        root = await self._climb(ref, find)
        if root == NOBODY and len(chain) < LONGEST_CHAIN:  # the rest of a longer chain was not read
            reads.rootless.update(chain)
        return root

    async def run(self) -> None:
        """Resolve until cancelled; `on_resolved` gets the uid of each resolved object."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                tasks.create_task(self._work(), name=f"owners-{number}")
            tasks.create_task(self._sweep(), name="owners-again")

    async def _work(self) -> None:
        while True:
            ref = await self._questions.get()
            try:
                self._settle(ref, await self._climb(ref, self._find))
            except errors.ClusterError as error:
                self._ask_later(ref, str(error))
            except errors.StoreError:
                raise
            except Exception as error:  # noqa: BLE001  # the loop's edge: one pod must not end the others' questions
                log.internal_error(
                    "owner_resolver", error, kind=ref.kind, namespace=ref.namespace, name=ref.name
                )
                self._ask_later(ref, f"internal error: {type(error).__name__}")

    async def _sweep(self) -> None:
        """Have the references resolved again that are due, the ones that were answered first before the others."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            due = [ref for ref, each in self._rootless.items() if each.due <= now and ref not in self._asked]
            wanted = []
            for ref in due:
                if self._has_pods(ref.uid):
                    wanted.append(ref)
                else:
                    del self._rootless[ref]
            for ref in wanted[:MOST_AGAIN]:
                self._ask(ref)

    def _settle(self, ref: ObjectRef, root: str) -> None:
        self._forget_question(ref)
        known = self._rootless.pop(ref, None)
        if root:
            self.learn(ref.uid, root)
        else:
            answers = known.answers + 1 if known else 1
            pause = min(LONGEST_AGAIN_SECONDS, AGAIN_SECONDS * 2.0 ** min(answers - 1, 10))
            self._rootless[ref] = _Rootless(answers, asyncio.get_running_loop().time() + pause)
        if root or known is None:
            self._on_resolved(ref.uid)

    def _forget_question(self, ref: ObjectRef) -> None:
        self._asked.discard(ref)
        self._failures.pop(ref, None)

    def _ask_later(self, ref: ObjectRef, error: str) -> None:
        """Ask again after a pause that doubles, while there are pods; other objects are resolved meanwhile."""
        if not self._has_pods(ref.uid):
            self._forget_question(ref)
            return
        failures = self._failures.get(ref, 0)
        self._failures[ref] = failures + 1
        self._asked.add(ref)
        pause = min(LONGEST_PAUSE, 2.0 ** min(failures, 10))
        _log.warning("owner_unknown", kind=ref.kind, name=ref.name, error=error, pause=pause)
        asyncio.get_running_loop().call_later(pause, self._questions.put_nowait, ref)

    async def _climb(self, ref: ObjectRef, find: Callable[[ObjectRef], Awaitable[Json]]) -> str:
        """The uid of the AppWrapper at the end of the chain; `NOBODY` if there is none."""
        for _ in range(LONGEST_CHAIN):
            root = self._roots.get(ref.uid)
            if root is not None:
                return root
            try:
                found = await find(ref)
            except (errors.NotFound, errors.Forbidden):
                return NOBODY  # for now the chain ends where nothing, or nothing we may read, is above
            if found["metadata"]["uid"] != ref.uid:
                return NOBODY
            if self._anchor_root and (ref.api_version, ref.kind) == ("v1", "ConfigMap"):
                return self._anchor_root(found["metadata"]) or NOBODY
            above = controller_ref(found["metadata"], ref.namespace)
            if above is None:
                return NOBODY
            appwrapper = self._appwrapper_named_by(above)
            if appwrapper is not None:
                return appwrapper  # the owner of the AppWrapper itself does not matter
            ref = above
        return NOBODY

    async def _find(self, ref: ObjectRef) -> Json:
        """The object, in another served version of its group if its own is not served."""
        kind = await self._discovery.find_stored(ref.api_version, ref.kind)
        path = kind.path(ref.namespace, ref.name)
        try:
            found = await self._client.retry_forbidden(lambda: self._client.get(path, accept=_ACCEPT))
        except errors.NotFound as error:
            if not error.reason:
                self._discovery.forget(kind)  # another version may be served by the next question
            raise
        return one_object(found, path)

    async def _find_as_hint(self, ref: ObjectRef, reads: HintReads) -> Json:
        """The object, only in the version of the reference, and without another try if that is forbidden."""
        if ref in reads.rootless:
            raise errors.NotFound(f"{ref.title} led to no AppWrapper a moment ago")
        kind = self._discovery.known(ref.api_version, ref.kind)
        if kind is None:
            reads.take()
            kind = await self._discovery.loaded(ref.api_version, ref.kind)
        if kind is None:
            raise self._discovery.not_served(ref.api_version, ref.kind)
        path = kind.path(ref.namespace, ref.name)
        reads.take()
        return one_object(await self._client.get(path, accept=_ACCEPT, purpose=Purpose.HINT), path)

    def _appwrapper_named_by(self, ref: ObjectRef) -> str | None:
        """The uid of the AppWrapper that a reference names directly, else None."""
        if self._anchor_root is not None or ref.kind == "ConfigMap":
            return None
        reference = {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "uid": ref.uid}
        return appwrapper_of(reference)


def controller_ref(metadata: Mapping[str, Any], namespace: str) -> ObjectRef | None:
    """The object that controls another in that namespace; None without one, or if the reference is unreadable."""
    match controller_of(metadata):
        case {"apiVersion": str(api_version), "kind": str(kind), "name": str(name), "uid": str(uid)}:
            return ObjectRef(-1, api_version, kind, namespace, name, uid)
    return None

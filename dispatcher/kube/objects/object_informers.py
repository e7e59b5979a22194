"""Watches the wrapped objects of a cluster: one informer for each wrapped kind, begun when the kind is first wanted.

An informer sees the objects with our uid label in all namespaces. Of each it keeps the AppWrapper, the state (its end
and its conditions), the edition, the pods that its spec asks for, and of a RayCluster the pods that Ray wants to be
deleted. Pods that a controller made have the label too, and are not kept. For kinds that make no pods (a Secret, a
Service) only metadata is requested, so their contents never come here.

The answers come from memory and prove nothing: a state may be a moment old, and an absence is a suspicion. A forbidden
or unserved kind has no answers and does not disturb other kinds. An object that was deleted before a watch saw it
causes no event: an AppWrapper that expects objects is woken if a complete list lacks one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from msgspec import Struct

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.core.kinds import object_status
from dispatcher.core.kinds.asked import NOT_KNOWN, Asked, asked_by, named_to_delete
from dispatcher.core.kinds.built_in import KnownKind
from dispatcher.core.kinds.drift import is_compared
from dispatcher.core.kinds.manifest import controller_of
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery, Kind
from dispatcher.kube.reflector import Extent, Reflector
from dispatcher.text import name_of

MOST_UNKNOWN_KINDS: Final = 30
"""Unknown kinds watched at once. Each watch keeps a connection, and a cluster's pool has 100.

Known kinds are always watched, so an author who wraps many unknown kinds cannot stop the watch of Jobs. Fewer than 50
are built in, in at most two watches each, and at most 20 are declared.
"""

IDLE_SECONDS: Final = 60.0
"""Seconds after which the watch of a kind that no AppWrapper expects may be ended for another kind."""

_log = log.get("object_informers")


class Edition(Struct, frozen=True):
    """A version of the written part of an object; a change of that part makes another one.

    `generation` is the API server's count from 1. For a kind without one, `version` is the resource version, which also
    changes with parts that nobody wrote.
    """

    generation: int
    version: str = ""


PodName = tuple[str, str]
"""The namespace and the name of a pod."""


def _ignored(_uid: str, _pods: frozenset[PodName]) -> None:
    """Does nothing."""


class _WrappedObject(Struct, frozen=True):
    appwrapper: str
    state: ObjectState
    edition: Edition | None
    unwanted: frozenset[PodName] = frozenset()
    asked: Asked = NOT_KNOWN


class _Kind(Struct, frozen=True):
    api_version: str
    kind: str
    contents: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.group}".lower().rstrip(".")

    def has(self, ref: ObjectRef) -> bool:
        return (ref.api_version, ref.kind) == (self.api_version, self.kind)


class ObjectInformers:
    """The informers of wrapped objects in one cluster; `on_change` gets the uid of the AppWrapper concerned.

    `on_unwanted` gets the uid of a RayCluster and the pods that Ray wants to be deleted now, after each change.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_change: Callable[[str], None],
        kinds: Kinds = BUILT_IN,
        on_unwanted: Callable[[str, frozenset[PodName]], None] = _ignored,
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._on_change = on_change
        self._on_unwanted = on_unwanted
        self._kinds = kinds
        self._watches: dict[_Kind, Reflector[_WrappedObject]] = {}
        self._too_many: set[_Kind] = set()
        self._expected: dict[str, tuple[ObjectRef, ...]] = {}
        self._ended: dict[str, ObjectState] = {}
        self._users: Counter[tuple[str, str]] = Counter()
        self._begun: asyncio.Queue[_Kind] = asyncio.Queue()
        self._tasks: dict[_Kind, asyncio.Task[None]] = {}
        self._wanted_at: dict[_Kind, float] = {}
        self._unserved: set[_Kind] = set()
        """The watched kinds that a ready API server does not serve in any version of their group."""

    def want(self, api_version: str, kind: str, *, contents: bool = False) -> None:
        """Watch a kind from now on, while `run` runs; safe to repeat.

        `contents` requests whole objects even if metadata would do, because an AppWrapper needs a condition of one; a
        second watch serves it beside the first. Want only kinds of existing objects. Of kinds that are not in the
        registry `MOST_UNKNOWN_KINDS` are watched. The others are watched once an unknown kind is no longer expected by
        any AppWrapper.
        """
        wanted = _Kind(api_version, kind, contents or _needs_contents(self._row(api_version, kind)))
        if wanted in self._watches or wanted in self._too_many:
            return
        if not self._is_known(wanted) and not self._has_room():
            self._too_many.add(wanted)
            _log.warning("too_many_kinds", kind=kind, api_version=api_version, watched=MOST_UNKNOWN_KINDS)
            return
        self._watches[wanted] = self._watch(wanted)
        self._wanted_at[wanted] = _now()
        self._begun.put_nowait(wanted)

    def expect(self, appwrapper: str, refs: tuple[ObjectRef, ...]) -> None:
        """Wake the AppWrapper after each complete list that lacks one of these objects; an empty tuple ends it.

        The objects replace those expected before. The end of an expected object is remembered after its deletion: a Job
        may be removed as soon as it is complete.
        """
        for gone in {ref.uid for ref in self._expected.get(appwrapper, ())} - {ref.uid for ref in refs}:
            self._ended.pop(gone, None)
        before = _kinds_of(self._expected.get(appwrapper, ()))
        if refs:
            self._expected[appwrapper] = refs
        else:
            self._expected.pop(appwrapper, None)
        self._count_users(before, _kinds_of(refs))

    def state(self, ref: ObjectRef) -> ObjectState | None:
        """The state of the object of that uid; None if it is unknown."""
        watch = self._best(ref)
        kept = watch.items.get(ref.uid) if watch else None
        return kept.state if kept else self._ended.get(ref.uid)

    def edition(self, ref: ObjectRef) -> Edition | None:
        """The edition of the object of that uid that a watch has shown; None if it is unknown."""
        watch = self._best(ref)
        kept = watch.items.get(ref.uid) if watch else None
        return kept.edition if kept else None

    def asked(self, ref: ObjectRef) -> Asked | None:
        """What the spec of the object of that uid asks for; None while no watch shows the object."""
        watch = self._best(ref)
        kept = watch.items.get(ref.uid) if watch else None
        return kept.asked if kept else None

    def is_absent(self, ref: ObjectRef) -> bool:
        """True if a complete list of its kind lacks the object of that uid; to be confirmed at the API server.

        An object that was created a moment ago may be absent, and an object without our uid label always is.
        """
        watch = self._best(ref)
        return bool(ref.uid) and watch is not None and watch.synced.is_set() and ref.uid not in watch.items

    def is_unserved(self, ref: ObjectRef) -> bool:
        """True while the cluster does not serve the kind of an object, by the last answer to its watch."""
        return bool(ref.uid) and any(each.has(ref) for each in self._unserved)

    @property
    def reconnects(self) -> dict[str, int]:
        """The number of interruptions of each watch."""
        counted: Counter[str] = Counter()
        for kind, watch in self._watches.items():
            counted[kind.name] += watch.reconnects
        return dict(counted)

    @property
    def watches(self) -> Collection[Reflector[Any]]:
        """The watches that were begun."""
        return self._watches.values()

    async def run(self) -> None:
        """Run the wanted watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                kind = await self._begun.get()
                watch = self._watches.get(kind)
                if watch is not None and kind not in self._tasks:
                    self._tasks[kind] = tasks.create_task(watch.run(), name=f"watch-{watch.name}")

    def _row(self, api_version: str, kind: str) -> KnownKind:
        return self._kinds.row(api_version.rpartition("/")[0], kind)

    def _is_known(self, kind: _Kind) -> bool:
        return self._row(kind.api_version, kind.kind).pods is not None

    def _has_room(self) -> bool:
        """True if one more unknown kind may be watched; ends the watch of an idle kind for it."""
        watched = [each for each in self._watches if not self._is_known(each)]
        if len(watched) < MOST_UNKNOWN_KINDS:
            return True
        idle = next(filter(self._is_idle, watched), None)
        if idle is not None:
            self._give_back(idle)
        return idle is not None

    def _is_idle(self, kind: _Kind) -> bool:
        """True if no AppWrapper expects objects of the kind, or is about to."""
        is_used = (kind.api_version, kind.kind) in self._users
        return not is_used and _now() - self._wanted_at[kind] > IDLE_SECONDS

    def _count_users(self, before: set[tuple[str, str]], after: set[tuple[str, str]]) -> None:
        self._users.update(after - before)
        self._users.subtract(before - after)
        for used in before - after:
            if not self._users[used]:
                del self._users[used]
                for contents in (True, False):
                    self._give_back(_Kind(*used, contents))
        if before - after:
            self._want_the_rest()

    def _give_back(self, kind: _Kind) -> None:
        """End the watch of an unknown kind; its objects have no state from now on."""
        self._too_many.discard(kind)
        if kind in self._watches and not self._is_known(kind):
            del self._watches[kind]
            del self._wanted_at[kind]
            self._unserved.discard(kind)
            task = self._tasks.pop(kind, None)
            if task is not None:
                task.cancel()

    def _want_the_rest(self) -> None:
        """Watch kinds that found no room, as far as there is room now."""
        for kind in sorted(self._too_many, key=lambda each: (each.name, each.contents)):
            if sum(not self._is_known(each) for each in self._watches) == MOST_UNKNOWN_KINDS:
                return
            self._too_many.discard(kind)
            if (kind.api_version, kind.kind) in self._users:
                self.want(kind.api_version, kind.kind, contents=kind.contents)

    def _best(self, ref: ObjectRef) -> Reflector[_WrappedObject] | None:
        """The watch of an object's contents if there is one, else the watch of its metadata."""
        whole = self._watches.get(_Kind(ref.api_version, ref.kind, contents=True))
        return whole or self._watches.get(_Kind(ref.api_version, ref.kind, contents=False))

    def _watch(self, kind: _Kind) -> Reflector[_WrappedObject]:
        located: list[Kind] = []

        async def locate() -> str:
            try:
                located[:] = [await self._discovery.find_stored(kind.api_version, kind.kind)]
            except errors.NotFound:
                self._note_served(kind, is_served=False)
                raise
            self._note_served(kind, is_served=True)
            return located[0].everywhere()

        def forget() -> None:
            # Another version of its group may serve the objects, and the scheduler must know that the kind is gone.
            for each in located:
                self._discovery.forget(each)

        row = self._row(kind.api_version, kind.kind)

        def decode(raw: Json) -> _WrappedObject | None:
            return _wrapped_object(row, raw)

        def listed() -> None:
            self._listed(kind)

        extent = Extent(names.UID_LABEL, contents=kind.contents)
        return Reflector(
            kind.name,
            self._client,
            locate,
            decode,
            self._changed,
            extent=extent,
            on_listed=listed,
            on_not_served=forget,
        )

    def _changed(self, uid: str, old: _WrappedObject | None, new: _WrappedObject | None) -> None:
        """Wake the AppWrapper if a kept part changed; a heartbeat in a status, for example, wakes none."""
        if old and not new and old.state.end is not End.OPEN and old.appwrapper in self._expected:
            self._ended[uid] = old.state
        unwanted = new.unwanted if new else frozenset[PodName]()
        if unwanted != (old.unwanted if old else frozenset[PodName]()):
            self._on_unwanted(uid, unwanted)
        if old != new:
            for appwrapper in {kept.appwrapper for kept in (old, new) if kept}:
                self._on_change(appwrapper)

    def _note_served(self, kind: _Kind, *, is_served: bool) -> None:
        """Note whether a kind is served, and wake the AppWrappers that expect objects of it once that has changed."""
        if (kind in self._unserved) is not is_served:
            return
        (self._unserved.discard if is_served else self._unserved.add)(kind)
        for appwrapper, refs in self._expected.items():
            if any(map(kind.has, refs)):
                self._on_change(appwrapper)

    def _listed(self, kind: _Kind) -> None:
        for appwrapper, refs in self._expected.items():
            if any(kind.has(ref) and self.is_absent(ref) for ref in refs):
                self._on_change(appwrapper)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _kinds_of(refs: tuple[ObjectRef, ...]) -> set[tuple[str, str]]:
    return {(ref.api_version, ref.kind) for ref in refs}


def _needs_contents(row: KnownKind) -> bool:
    """False for kinds that make no pods and report no end: nothing in their objects is read."""
    return row.may_make_pods or row.status is not None


def _wrapped_object(row: KnownKind, raw: Json) -> _WrappedObject | None:
    metadata = raw["metadata"]
    controller = controller_of(metadata)
    is_wrapped = names.ITEM_ANNOTATION in (metadata.get("annotations") or {})
    if not is_wrapped and (controller is None or controller.get("kind") != names.APPWRAPPER_KIND):
        return None
    state = object_status.read(row.status, raw)
    namespace = name_of(metadata.get("namespace"))
    unwanted = frozenset((namespace, name) for name in named_to_delete(row.group, row.kind, raw))
    return _WrappedObject(
        metadata["labels"][names.UID_LABEL], state, _edition(row, metadata), unwanted, asked_by(row, raw)
    )


def _edition(row: KnownKind, metadata: Json) -> Edition | None:
    """None for kinds that are never compared, or that make pods and have no generation: their status changes often."""
    generation = metadata.get("generation")
    if not is_compared(row.group, row.kind):
        return None
    if isinstance(generation, int) and generation:
        return Edition(generation)
    if row.may_make_pods:
        return None
    return Edition(0, str(metadata["resourceVersion"]))

"""What wrapped objects say of themselves: one watch for each kind that is wrapped, begun when it is first wanted.

The model: a watch sees the objects that bear our uid label, in all namespaces, and keeps of each how it ended,
its conditions, whose it is, and its edition: which state of what is written in it this is. Pods that a controller
made bear the label, too, and are not kept. Of kinds that make no pods (a Secret, a Service) nothing but the metadata
is asked for, so that no content of theirs ever comes here.

It answers from memory, so it never proves anything: a state may be a moment old, and an absence is a suspicion.
A kind that is forbidden or not served is known to nobody here, and disturbs no other kind. What went before a
watch could see it makes no event: an AppWrapper that expects objects is told when a complete list lacks one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from dispatcher import log
from dispatcher.api import names
from dispatcher.core.kinds.drift import is_compared
from dispatcher.core.kinds.manifest import controller_of
from dispatcher.core.kinds.object_status import End, ObjectState
from dispatcher.core.kinds.registry import KINDS, ends, state_of
from dispatcher.core.model.record import ObjectRef
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Extent, Reflector

MOST_UNKNOWN_KINDS: Final = 30
"""Each watch holds a connection for good, and the pool has 100 for all that is done in a cluster.

The kinds we know are watched whatever else is wrapped: who wraps many odd kinds must not keep Jobs from being seen.
They are fewer than 50, in two watches at most.
"""

IDLE_SECONDS: Final = 60.0
"""After that a watch that was wanted for an object under creation, and is of no use, makes room for another."""

_log = log.get("object_informers")


@dataclass(frozen=True, slots=True)
class Edition:
    """A state of what was written in an object; whoever changes that makes another one.

    The API server counts them as its `generation`, from 1. Of the kinds that have none `version` is the resource
    version, which also changes with what nobody wrote.
    """

    generation: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    appwrapper: str
    state: ObjectState
    edition: Edition | None


@dataclass(frozen=True, slots=True)
class _Kind:
    api_version: str
    kind: str
    contents: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.group}".lower().rstrip(".")

    @property
    def is_known(self) -> bool:
        return (self.group, self.kind) in KINDS or ends(self.group, self.kind)

    def has(self, ref: ObjectRef) -> bool:
        return (ref.api_version, ref.kind) == (self.api_version, self.kind)


class ObjectInformers:
    """The watches of wrapped objects in one cluster; `on_change` is told the uid of the AppWrapper concerned."""

    def __init__(self, client: ClusterClient, discovery: Discovery, on_change: Callable[[str], None]) -> None:
        self._client = client
        self._discovery = discovery
        self._on_change = on_change
        self._watches: dict[_Kind, Reflector[_Kept]] = {}
        self._too_many: set[_Kind] = set()
        self._expected: dict[str, tuple[ObjectRef, ...]] = {}
        self._ended: dict[str, ObjectState] = {}
        self._users: Counter[tuple[str, str]] = Counter()
        self._begun: asyncio.Queue[_Kind] = asyncio.Queue()
        self._tasks: dict[_Kind, asyncio.Task[None]] = {}
        self._wanted_at: dict[_Kind, float] = {}

    def want(self, api_version: str, kind: str, *, contents: bool = False) -> None:
        """Have a kind watched from now on, if `run` is running; free to repeat.

        `contents` asks for whole objects of a kind of which the metadata would do: somebody waits for a
        condition of one. A second watch serves it, and the first goes on. Want kinds of which there is an object:
        of those that are in no table of ours `MOST_UNKNOWN_KINDS` are watched, and nothing is known of the others
        until a watch is given back, because no AppWrapper expects objects of its kind any more.
        """
        wanted = _Kind(api_version, kind, contents or _may_make_pods(api_version, kind))
        if wanted in self._watches or wanted in self._too_many:
            return
        if not wanted.is_known and not self._has_room():
            self._too_many.add(wanted)
            _log.warning("too_many_kinds", kind=kind, api_version=api_version, watched=MOST_UNKNOWN_KINDS)
            return
        self._watches[wanted] = self._watch(wanted)
        self._wanted_at[wanted] = _now()
        self._begun.put_nowait(wanted)

    def expect(self, appwrapper: str, refs: tuple[ObjectRef, ...]) -> None:
        """Tell of the AppWrapper after each complete list that lacks one of these objects; none ends it.

        They take the place of those that were expected before. How they ended is remembered when they are gone: a
        Job that is cleaned up the moment it is done was done all the same.
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
        """What the object of that uid says of itself; None if that is not known."""
        watch = self._best(ref)
        kept = watch.items.get(ref.uid) if watch else None
        return kept.state if kept else self._ended.get(ref.uid)

    def edition(self, ref: ObjectRef) -> Edition | None:
        """Which edition of the object of that uid a watch has shown; None if none has, or if it cannot be told."""
        watch = self._best(ref)
        kept = watch.items.get(ref.uid) if watch else None
        return kept.edition if kept else None

    def is_absent(self, ref: ObjectRef) -> bool:
        """True if a complete list of its kind lacks the object of that uid: to be confirmed by asking.

        One that was created a moment ago may be absent, and one that bears no uid label always is.
        """
        watch = self._best(ref)
        return bool(ref.uid) and watch is not None and watch.synced.is_set() and ref.uid not in watch.items

    @property
    def reconnects(self) -> dict[str, int]:
        """How often each watch broke."""
        counted: Counter[str] = Counter()
        for kind, watch in self._watches.items():
            counted[kind.name] += watch.reconnects
        return dict(counted)

    @property
    def watches(self) -> Collection[Reflector[Any]]:
        """Those that were begun."""
        return self._watches.values()

    async def run(self) -> None:
        """Watch what is wanted, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                kind = await self._begun.get()
                watch = self._watches.get(kind)
                if watch is not None and kind not in self._tasks:
                    self._tasks[kind] = tasks.create_task(watch.run(), name=f"watch-{watch.name}")

    def _has_room(self) -> bool:
        """True if one more unknown kind may be watched; a kind that no AppWrapper expects makes room."""
        watched = [each for each in self._watches if not each.is_known]
        if len(watched) < MOST_UNKNOWN_KINDS:
            return True
        idle = next(filter(self._is_idle, watched), None)
        if idle is not None:
            self._give_back(idle)
        return idle is not None

    def _is_idle(self, kind: _Kind) -> bool:
        """True if no AppWrapper expects objects of a kind, nor is about to."""
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
        """End the watch of an unknown kind; nothing is known of its objects from now on."""
        self._too_many.discard(kind)
        if kind in self._watches and not kind.is_known:
            del self._watches[kind]
            del self._wanted_at[kind]
            task = self._tasks.pop(kind, None)
            if task is not None:
                task.cancel()

    def _want_the_rest(self) -> None:
        """Watch kinds there was no room for, as far as there is now."""
        for kind in sorted(self._too_many, key=lambda each: (each.name, each.contents)):
            if sum(not each.is_known for each in self._watches) == MOST_UNKNOWN_KINDS:
                return
            self._too_many.discard(kind)
            if (kind.api_version, kind.kind) in self._users:
                self.want(kind.api_version, kind.kind, contents=kind.contents)

    def _best(self, ref: ObjectRef) -> Reflector[_Kept] | None:
        """The watch that knows most of an object: of its contents, if there is one."""
        whole = self._watches.get(_Kind(ref.api_version, ref.kind, contents=True))
        return whole or self._watches.get(_Kind(ref.api_version, ref.kind, contents=False))

    def _watch(self, kind: _Kind) -> Reflector[_Kept]:
        async def locate() -> str:
            return (await self._discovery.find(kind.api_version, kind.kind)).everywhere()

        def decode(raw: Json) -> _Kept | None:
            return _kept(kind, raw)

        def listed() -> None:
            self._listed(kind)

        extent = Extent(names.UID_LABEL, contents=kind.contents)
        return Reflector(
            kind.name, self._client, locate, decode, self._changed, extent=extent, on_listed=listed
        )

    def _changed(self, uid: str, old: _Kept | None, new: _Kept | None) -> None:
        """A change of nothing that is kept, such as a heartbeat in a status, wakes nobody."""
        if old and not new and old.state.end is not End.OPEN and old.appwrapper in self._expected:
            self._ended[uid] = old.state
        if old != new:
            for appwrapper in {kept.appwrapper for kept in (old, new) if kept}:
                self._on_change(appwrapper)

    def _listed(self, kind: _Kind) -> None:
        for appwrapper, refs in self._expected.items():
            if any(kind.has(ref) and self.is_absent(ref) for ref in refs):
                self._on_change(appwrapper)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _kinds_of(refs: tuple[ObjectRef, ...]) -> set[tuple[str, str]]:
    return {(ref.api_version, ref.kind) for ref in refs}


def _may_make_pods(api_version: str, kind: str) -> bool:
    """False of kinds that are known to make no pods: there is nothing to be learnt from their contents."""
    known = KINDS.get((api_version.rpartition("/")[0], kind))
    return known is None or bool(known.rules)


def _kept(kind: _Kind, raw: Json) -> _Kept | None:
    metadata = raw["metadata"]
    controller = controller_of(metadata)
    is_wrapped = names.ITEM_ANNOTATION in (metadata.get("annotations") or {})
    if not is_wrapped and (controller is None or controller.get("kind") != names.APPWRAPPER_KIND):
        return None
    return _Kept(
        metadata["labels"][names.UID_LABEL], state_of(kind.group, kind.kind, raw), _edition(kind, metadata)
    )


def _edition(kind: _Kind, metadata: Json) -> Edition | None:
    """None of what is never compared, or makes pods and has no generation: its status may change all the time."""
    generation = metadata.get("generation")
    if not is_compared(kind.group, kind.kind):
        return None
    if isinstance(generation, int) and generation:
        return Edition(generation)
    if _may_make_pods(kind.api_version, kind.kind):
        return None
    return Edition(0, str(metadata["resourceVersion"]))

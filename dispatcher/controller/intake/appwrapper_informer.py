"""The informer of AppWrappers on the hub: both groups by uid, and the writes to their status and finalizer.

`NewSpecs` has the specs of new AppWrappers, within a bound on memory; specs beyond it are read again when intake
reaches them. Fifty thousand new AppWrappers at once come only with a new database, which is rare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors
from dispatcher.api import names
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.names import HUB_CLUSTER, LEGACY_GROUP, WORKLOAD_GROUP
from dispatcher.controller.members.first_lists import FirstLists
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.record import Record
from dispatcher.kube import bounds
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.objects import appwrappers
from dispatcher.kube.objects.appwrappers import NO_ANNOTATIONS, AppWrappers, AppWrapperView, decode
from dispatcher.kube.reflector import Reading, Reflector
from dispatcher.kube.time_slices import LARGEST_INLINE

MOST_REMEMBERED: Final = 20_000
"""How many deleted AppWrappers' annotations stay in memory. `forget` drops them, but nothing calls it for an AppWrapper
that was never taken in."""


POD_SECURITY: Final = "pod-security.kubernetes.io/"
"""Prefix of a namespace's Pod Security labels."""


class _Group(Struct, frozen=True):
    api: AppWrappers
    reflector: Reflector[AppWrapperView]


class AppWrapperInformer:
    """Lists and watches AppWrappers; calls `on_change` with the uid of each that was changed or deleted.

    The echo of an own status write is no change: each AppWrapper has several, and a look for each would find nothing.

    `is_known` is true of an AppWrapper with a record: its spec is in the database, and is not kept here.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_change: Callable[[str], None],
        is_known: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._is_known = is_known
        self._new_specs = NewSpecs()
        self._groups = {
            group: self._watch(client, discovery, group) for group in (WORKLOAD_GROUP, LEGACY_GROUP)
        }
        self._gone: BoundedDict[str, FaultTolerance] = BoundedDict(MOST_REMEMBERED)
        self._reported: dict[str, bytes] = {}
        self._unwritten: dict[str, int] = {}
        """How often the write of a status has failed since it succeeded, by uid."""

    @property
    def reflectors(self) -> tuple[Reflector[AppWrapperView], ...]:
        """The watches, for readiness and metrics."""
        return tuple(group.reflector for group in self._groups.values())

    @property
    def reconnects(self) -> dict[tuple[str, ...], int]:
        """How often each watch was reconnected, by cluster and watch."""
        return {(HUB_CLUSTER, each.name): each.reconnects for each in self.reflectors}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, group in self._groups.items():
                tasks.create_task(group.reflector.run(), name=f"appwrappers-{name}")

    async def wait_until_listed(self) -> None:
        """Return once each group was listed, or the API server said that it has no such kind."""
        for group in self._groups.values():
            await group.reflector.answered.wait()

    @property
    def first_lists(self) -> FirstLists:
        """The watches of AppWrappers."""
        return [(each, each.answered) for each in self.reflectors]

    def views(self) -> list[AppWrapperView]:
        """All AppWrappers, in no order."""
        return [view for group in self._groups.values() for view in group.reflector.items.values()]

    def view(self, uid: str) -> AppWrapperView | None:
        """The AppWrapper of that uid as last watched; None if there is none."""
        for group in self._groups.values():
            found = group.reflector.items.get(uid)
            if found is not None:
                return found
        return None

    def is_slow(self, uid: str) -> bool:
        """True if a status write may take seconds: of an AppWrapper that is too large, or after one that failed."""
        view = self.view(uid)
        return uid in self._unwritten or (view is not None and view.excess is not None)

    def is_large(self, uid: str) -> bool:
        """True if a status write may take the API server some tenths of a second, because it is large."""
        view = self.view(uid)
        return view is not None and not view.is_quick

    def note_unwritten(self, uid: str) -> int:
        """Note that a status could not be written; return how often that was so since the last one that was written."""
        failures = self._unwritten.get(uid, 0) + 1
        if self.view(uid) is not None:  # else its deletion, which would forget this, has come already
            self._unwritten[uid] = failures
        return failures

    def takes_long(self, view: AppWrapperView) -> bool:
        """True if the spec of a new AppWrapper is large, or has to be read from the API server."""
        spec = view.spec or self._new_specs.get(view.uid)
        return view.excess is None and (spec is None or len(spec) > LARGEST_INLINE)

    async def with_spec(self, view: AppWrapperView) -> AppWrapperView | None:
        """A new AppWrapper with its spec, read from the API server if it is not in memory; None if it was deleted."""
        spec = view.spec or self._new_specs.get(view.uid)
        if spec is not None or view.excess is not None:
            return replace(view, spec=spec or b"")
        try:
            found = decode(await self._groups[view.group].api.read(view.namespace, view.name))
        except errors.NotFound as error:
            if error.reason:
                return None
            raise errors.Unavailable(f"{view.group} is not served: {error}") from error
        return found if found.uid == view.uid else None

    def tolerance(self, uid: str) -> FaultTolerance:
        """The fault tolerance in the annotations of an AppWrapper; those of a deleted one until `forget`."""
        view = self.view(uid)
        return view.tolerance if view else self._gone.get(uid, NO_ANNOTATIONS)

    def forget(self, uid: str) -> None:
        """Drop the annotations of a deleted AppWrapper."""
        self._gone.pop(uid, None)

    def can_tell(self, group: str) -> bool:
        """True once the group was listed completely, so that an AppWrapper without a view does not exist."""
        return group in self._groups and self._groups[group].reflector.synced.is_set()

    @property
    def can_tell_all(self) -> bool:
        """True once every group was listed, or is known not to be served."""
        return all(each.reflector.answered.is_set() for each in self._groups.values())

    async def copied_labels(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace to create in a member: open to gangs, with the Pod Security of the hub's namespace.

        Raises `ClusterError` if the hub's namespace cannot be read: without its labels a namespace would allow more.
        Source: https://kubernetes.io/docs/concepts/security/pod-security-admission/#pod-security-admission-labels-for-namespaces
        """
        found = await self._client.get(f"/api/v1/namespaces/{namespace}")
        labels = found["metadata"].get("labels") or {}
        copied = {key: value for key, value in labels.items() if key.startswith(POD_SECURITY)}
        return {**copied, names.DISPATCH_LABEL: names.DISPATCH_ENABLED}

    async def exists(self, record: Record) -> bool:
        """Ask the API server whether the AppWrapper still exists."""
        return await self._groups[record.group].api.exists(record.namespace, record.name, record.uid)

    async def add_finalizer(self, view: AppWrapperView) -> bool:
        """Add our finalizer, before a member cluster gets objects of the AppWrapper; False if it is being deleted."""
        return await self._groups[view.group].api.add_finalizer(view)

    async def remove_finalizer(self, view: AppWrapperView) -> None:
        """Remove our finalizer, once no member cluster has objects of the AppWrapper."""
        await self._groups[view.group].api.remove_finalizer(view)

    async def write_status(self, view: AppWrapperView, status_json: bytes, only_at: str | None = None) -> str:
        """Replace the status of an AppWrapper, at this resource version if one is given; return its new one."""
        if (
            self.view(view.uid) is not None
        ):  # else its deletion, which would forget the status, has come already
            self._reported[view.uid] = status_json  # before the write: its event may come before its answer
        version = await self._groups[view.group].api.write_status(view, status_json, only_at)
        self._unwritten.pop(view.uid, None)
        return version

    def _watch(self, client: ClusterClient, discovery: Discovery, group: str) -> _Group:
        api = AppWrappers(client, discovery, group)

        async def read_alone(listed: Json) -> Json:
            return await api.read(listed["metadata"]["namespace"], listed["metadata"]["name"])

        reflector = Reflector(
            f"appwrappers.{group}",
            client,
            api.collection,
            self._decode,
            self._changed,
            reading=Reading(appwrappers.parse, read_alone),
        )
        return _Group(api, reflector)

    def _decode(self, raw: Json) -> AppWrapperView:
        """The view of an AppWrapper without its spec: all specs together would be large.

        A status that was written here is kept once, not beside the equal one that the API server shows: some KiB each.
        """
        is_new = not self._is_known(raw["metadata"]["uid"])
        view = decode(raw, with_spec=is_new)
        if is_new and view.is_ours:
            self._new_specs.put(view.uid, view.spec)
        else:
            self._new_specs.drop(view.uid)
        reported = self._reported.get(view.uid)
        if reported is None or not bounds.is_same(reported, view.status_json):
            reported = view.status_json
        return replace(view, spec=b"", status_json=reported)

    def _changed(self, uid: str, old: AppWrapperView | None, new: AppWrapperView | None) -> None:
        if new is None:
            self._new_specs.drop(uid)
            self._reported.pop(uid, None)
            self._unwritten.pop(uid, None)
        if new is not None:
            self.forget(uid)
        elif old is not None and old.tolerance != NO_ANNOTATIONS:
            self._gone[uid] = old.tolerance
        if not self._is_echo(old, new):
            self._on_change(uid)

    def _is_echo(self, old: AppWrapperView | None, new: AppWrapperView | None) -> bool:
        """True if an event only shows the status that was written last."""
        if old is None or new is None or self._reported.get(new.uid) is not new.status_json:
            return False
        return replace(old, status_json=new.status_json, resource_version=new.resource_version) == new


MOST_BYTES: Final = 2**25
"""32 MiB: the specs of some five thousand AppWrappers, or of a hundred of the largest."""


class NewSpecs:
    """Specs by uid, at most `most` bytes; the oldest stay, because intake reads them first."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = most
        self._specs: dict[str, bytes] = {}

    def put(self, uid: str, spec: bytes) -> None:
        """Store a spec, in place of an earlier one, if there is room."""
        self.drop(uid)
        if spec and len(spec) <= self._left:
            self._specs[uid] = spec
            self._left -= len(spec)

    def get(self, uid: str) -> bytes | None:
        """The spec; None if there was no room for it."""
        return self._specs.get(uid)

    def drop(self, uid: str) -> None:
        """Drop the spec of an AppWrapper; safe to repeat."""
        self._left += len(self._specs.pop(uid, b""))

"""The hub's AppWrappers: watched in both groups, by uid, and the way back to their status."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from dispatcher import errors
from dispatcher.api import names
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.names import HUB_CLUSTER, LEGACY_GROUP, WORKLOAD_GROUP
from dispatcher.controller.intake.new_specs import NewSpecs
from dispatcher.core.model.record import Record
from dispatcher.kube import envelope
from dispatcher.kube.appwrappers import NO_ANNOTATIONS, AppWrappers, AppWrapperView, decode
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.discovery import Discovery
from dispatcher.kube.reflector import Reflector
from dispatcher.kube.time_slices import LARGEST_INLINE

MOST_REMEMBERED: Final = 20_000
"""Of so many AppWrappers that are gone it is known what their annotations said. Who is done with one says so, but of
one that was never taken in nobody will."""


POD_SECURITY: Final = "pod-security.kubernetes.io/"
"""Prefix of the labels that say what pods in a namespace may do."""


@dataclass(frozen=True, slots=True)
class _Group:
    api: AppWrappers
    reflector: Reflector[AppWrapperView]


class AppWrapperInformer:
    """Where users write AppWrappers. `on_change` is told the uid of each that changed or went.

    Of those that `is_known` says yes to nobody will ask for the spec: the database has it.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        on_change: Callable[[str], None],
        is_known: Callable[[str], bool] = lambda _uid: False,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._is_known = is_known
        self._new_specs = NewSpecs()
        self._groups = {
            group: self._watch(client, discovery, group) for group in (WORKLOAD_GROUP, LEGACY_GROUP)
        }
        self._gone: OrderedDict[str, FaultTolerance] = OrderedDict()

    @property
    def reflectors(self) -> tuple[Reflector[AppWrapperView], ...]:
        """Its watches, for readiness and metrics."""
        return tuple(group.reflector for group in self._groups.values())

    @property
    def reconnects(self) -> dict[tuple[str, ...], int]:
        """How often each watch broke, by cluster and watch."""
        return {(HUB_CLUSTER, each.name): each.reconnects for each in self.reflectors}

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, group in self._groups.items():
                tasks.create_task(group.reflector.run(), name=f"appwrappers-{name}")

    async def wait_until_known(self) -> None:
        """Return once each group was listed, or the API server said that it has no such kind."""
        for group in self._groups.values():
            await group.reflector.answered.wait()

    @property
    def missing(self) -> list[str]:
        """The watches of AppWrappers that have no first answer yet, each with its last error."""
        return [each.reason for each in self.reflectors if not each.answered.is_set()]

    @property
    def pages(self) -> int:
        """The pages that were read of first lists so far."""
        return sum(each.most_pages for each in self.reflectors)

    def views(self) -> list[AppWrapperView]:
        """Every AppWrapper there is, in no order."""
        return [view for group in self._groups.values() for view in group.reflector.items.values()]

    def view(self, uid: str) -> AppWrapperView | None:
        """The AppWrapper of that uid as last seen."""
        for group in self._groups.values():
            found = group.reflector.items.get(uid)
            if found is not None:
                return found
        return None

    def takes_long(self, view: AppWrapperView) -> bool:
        """True if a newcomer has a large spec, or one that has to be asked for."""
        spec = view.spec or self._new_specs.get(view.uid)
        return view.excess is None and (spec is None or len(spec) > LARGEST_INLINE)

    async def with_spec(self, view: AppWrapperView) -> AppWrapperView | None:
        """A newcomer with its spec, which is read again if memory has let it go; None if it has gone meanwhile."""
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
        """What the annotations of an AppWrapper say; or said, if it went while we watched, until it is forgotten."""
        view = self.view(uid)
        return view.tolerance if view else self._gone.get(uid, NO_ANNOTATIONS)

    def forget(self, uid: str) -> None:
        """Nobody will ask any more about an AppWrapper that is gone."""
        self._gone.pop(uid, None)

    def can_tell(self, group: str) -> bool:
        """True once a complete list of the group was seen, so that what is absent was really absent."""
        return group in self._groups and self._groups[group].reflector.synced.is_set()

    @property
    def can_tell_all(self) -> bool:
        """True once every group was listed, or is known not to be served."""
        return all(each.reflector.answered.is_set() for each in self._groups.values())

    async def copied_labels(self, namespace: str) -> dict[str, str]:
        """The labels of a namespace that is made in a member: open to gangs, with the Pod Security of the hub's own.

        Raises if the hub's namespace cannot be read: one made without its Pod Security labels would allow more.
        Source: https://kubernetes.io/docs/concepts/security/pod-security-admission/#pod-security-admission-labels-for-namespaces
        """
        found = await self._client.get(f"/api/v1/namespaces/{namespace}")
        labels = found["metadata"].get("labels") or {}
        copied = {key: value for key, value in labels.items() if key.startswith(POD_SECURITY)}
        return {**copied, names.DISPATCH_LABEL: names.DISPATCH_ENABLED}

    async def exists(self, record: Record) -> bool:
        """Ask the API server itself whether the AppWrapper is still there."""
        return await self._groups[record.group].api.exists(record.namespace, record.name, record.uid)

    async def add_finalizer(self, view: AppWrapperView) -> bool:
        """Add our finalizer, before a member cluster gets objects of the AppWrapper; False if it is being deleted."""
        return await self._groups[view.group].api.add_finalizer(view)

    async def remove_finalizer(self, view: AppWrapperView) -> None:
        """Remove our finalizer, once no member cluster has objects of the AppWrapper."""
        await self._groups[view.group].api.remove_finalizer(view)

    async def write_status(self, view: AppWrapperView, status: dict[str, Any]) -> str:
        """Replace its status; the resource version that made."""
        return await self._groups[view.group].api.write_status(view, status)

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
            loads=envelope.loads,
            read_alone=read_alone,
        )
        return _Group(api, reflector)

    def _decode(self, raw: Json) -> AppWrapperView:
        """Without its spec: of all AppWrappers together they would be large."""
        is_new = not self._is_known(raw["metadata"]["uid"])
        view = decode(raw, with_spec=is_new)
        if is_new and view.is_ours:
            self._new_specs.put(view.uid, view.spec)
        else:
            self._new_specs.drop(view.uid)
        return replace(view, spec=b"")

    def _changed(self, uid: str, old: AppWrapperView | None, new: AppWrapperView | None) -> None:
        if new is None:
            self._new_specs.drop(uid)
        if new is not None:
            self.forget(uid)
        elif old is not None and old.tolerance != NO_ANNOTATIONS:
            self._gone[uid] = old.tolerance
            while len(self._gone) > MOST_REMEMBERED:
                self._gone.popitem(last=False)
        self._on_change(uid)

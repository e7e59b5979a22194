"""Creates and deletes wrapped objects in one cluster: idempotent, and never a foreign object.

Each call returns its outcome as a value. After a create without an answer, and where the name is taken, the existing
object is read: its owner decides what follows. A delete always has a uid precondition. An object of ours without our
labels, because MCAD made it or because it lost them, gets them, so that the watches see it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from dispatcher import errors, log
from dispatcher.api import names
from dispatcher.api.appwrapper import WrappedObject
from dispatcher.core.kinds.asked import NOT_KNOWN, Asked, asked_by
from dispatcher.core.kinds.drift import Differences, differences, edited, is_compared
from dispatcher.core.kinds.manifest import (
    ObjectOwnership,
    Owner,
    adoption,
    attempt_number,
    build,
    controller_of,
    is_of_later_attempt,
    owned_by,
    ownership_of,
    reference,
    seal_in,
)
from dispatcher.core.kinds.object_status import FoundRequest, ObjectState
from dispatcher.core.kinds.provisioning_request import API_VERSION as REQUEST_API_VERSION
from dispatcher.core.kinds.provisioning_request import KIND as REQUEST_KIND
from dispatcher.core.kinds.provisioning_request import REQUEST_ITEM, read_request, request_name
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.kinds.template_fields import fields_alone
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.records.record import ObjectRef
from dispatcher.kube.api_calls import one_object
from dispatcher.kube.client import MERGE_PATCH, METADATA_LIST, ClusterClient, Json
from dispatcher.kube.discovery import Discovery, Kind
from dispatcher.kube.objects.create_rights import CreateRights
from dispatcher.kube.objects.events import list_events, newest_words
from dispatcher.kube.paging import pages


class Mark(NamedTuple):
    """The AppWrapper that owns an object, the attempt that made it, its namespace and its seal.

    Only the seal proves the attempt (`core.model.seals`): anybody can write the others.
    """

    appwrapper: str
    attempt: int
    namespace: str = ""
    seal: str = ""


class Created(Struct, frozen=True):
    """The object exists and belongs to this attempt; `ref` has its uid, `warnings` are the API server's."""

    ref: ObjectRef
    warnings: tuple[str, ...] = ()


class InTheWay(Struct, frozen=True):
    """An earlier object of ours has the name and is being deleted; try again soon."""

    message: str


class Postponed(Struct, frozen=True):
    """The object cannot be created now (by a quota, or without a right of the dispatcher); try again later."""

    message: str


class RefusedForGood(Struct, frozen=True):
    """The object can never be created as it is; the message is the API server's own."""

    message: str


class NotServed(Struct, frozen=True):
    """The cluster does not serve the kind now; create the object once it does."""

    message: str


class NameTaken(Struct, frozen=True):
    """A foreign object in this cluster has the name; the message names it.

    `left_by` is set if the object names an attempt of this hub as its maker; `going` is the message to use if that
    attempt is over.
    """

    message: str
    left_by: Mark | None = None
    going: str = ""


Creation = Created | InTheWay | Postponed | NotServed | NameTaken | RefusedForGood

_QUOTA: Final = "exceeded quota"
_TERMINATING: Final = "custom resource definition is terminating"
"""Answered with 405 to a creation while the definition of the kind is being removed. Source:
https://github.com/kubernetes/apiextensions-apiserver/blob/master/pkg/apiserver/customresource_handler.go"""
_DRY_RUN: Final = {"fieldValidation": "Warn", "dryRun": "All"}
_UNKNOWN_FIELD: Final = "unknown field "
"""Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#field-validation"""
MOST_REMEMBERED: Final = 50_000
"""Objects whose state at creation is remembered; for others a missing field never counts as drift."""

_log = log.get("object_client")


class _Made(Struct, frozen=True):
    """The version of an object at its creation, and how it differed from the request."""

    version: str
    differences: Differences


class ObjectClient:
    """Creates, reads and deletes the wrapped objects of one cluster.

    `field_validation` is how the API server treats fields that it does not know: `Strict`, `Warn` or `Ignore`.
    """

    def __init__(
        self,
        client: ClusterClient,
        discovery: Discovery,
        kinds: Kinds = BUILT_IN,
        field_validation: str = "Warn",
    ) -> None:
        self._client = client
        self._discovery = discovery
        self._kinds = kinds
        self._query = {"fieldValidation": field_validation}
        self._made: BoundedDict[str, _Made] = BoundedDict(MOST_REMEMBERED)
        self.rights = CreateRights(client)

    async def create(self, wrapped: WrappedObject, owner: Owner) -> Creation:
        """Create one wrapped object; safe to repeat. Raises `Unavailable` without a clear answer about the object."""
        warnings: list[str] = []
        try:
            return await self._create(await self._kind(wrapped), wrapped, owner, warnings)
        except errors.Throttled:
            raise  # an answer: nothing was done, and a pause is all that is asked for
        except errors.Unavailable:
            # Without an answer the object may or may not exist: only a clear "no" permits another try.
            settled = await self._settle(wrapped, owner)
            if settled is None:
                raise
            if isinstance(settled, Created):
                return replace(settled, warnings=await self._warnings_about(wrapped, owner))
            return settled
        except errors.Conflict:
            # The name is or was taken, or a quota was updated at the same time.
            settled = await self._settle(wrapped, owner)
            if isinstance(settled, Created):
                # The API server decodes the object before it looks at the name, so it warns each time.
                return replace(settled, warnings=tuple(warnings))
            return settled or InTheWay(f"{reference(wrapped, owner).title} is not there yet; trying again")
        except errors.Unauthorized:
            raise  # our credentials are at fault, not the object
        except errors.Forbidden as error:
            passes = _is_used_up(error) or await self._lacks_right_to(wrapped, owner.namespace)
            return Postponed(str(error)) if passes else RefusedForGood(str(error))
        except errors.NotFound as error:
            # With a reason, the namespace is missing; without one, the kind.
            return RefusedForGood(str(error)) if error.reason else NotServed(str(error))
        except errors.Refused as error:
            return RefusedForGood(str(error))

    async def unknown_fields(self, wrapped: WrappedObject, namespace: str) -> tuple[str, ...]:
        """The warnings about unknown fields of an object that is not created yet, from a dry run of its creation.

        The dry run has the fields of the object and none of its values: the cluster may never run it. A refusal has
        these warnings, too. It says nothing else here. Raises `NotFound` if the kind is not served, `Forbidden` if the
        refusal may have come before the fields were read, and `Unavailable` without an answer.
        """
        warnings: list[str] = []
        path = (await self._kind(wrapped)).path(namespace)
        fields = await asyncio.to_thread(fields_alone, wrapped.template, namespace)
        try:
            await self._client.create(path, fields, query=_DRY_RUN, warnings=warnings)
        except (errors.Unauthorized, errors.Forbidden):
            if not warnings:
                raise
        except errors.Refused:
            pass
        return tuple(each for each in warnings if each.startswith(_UNKNOWN_FIELD))

    async def remove(self, ref: ObjectRef, owner: Owner) -> bool:
        """Delete one object if it is the AppWrapper's; True once it is gone. Safe to repeat.

        An object of a later attempt, which a restored database does not know, counts as gone.
        """
        kind, found = await self._look_for_ours(ref, owner.uid)
        if found is None or is_of_later_attempt(found["metadata"], owner):
            return True
        metadata = found["metadata"]
        if "deletionTimestamp" not in metadata:
            try:
                await self._client.delete(kind.path(ref.namespace, ref.name), metadata["uid"])
            except (errors.NotFound, errors.Conflict):
                return False  # changed under our hands: the next look tells
        return False

    async def is_gone(self, ref: ObjectRef, owner_uid: str) -> bool:
        """True if the API server has no such object, or one that is not the AppWrapper's."""
        _, found = await self._look_for_ours(ref, owner_uid)
        return found is None

    async def reclaim(self, wrapped: WrappedObject, ref: ObjectRef, owner: Owner) -> ObjectState | None:
        """The state of an object that no watch shows; None if the AppWrapper has no such object.

        An object that lost our labels gets them again, so that the watches see it.
        """
        kind, found = await self._look_for_ours(ref, owner.uid)
        if found is None:
            return None
        await self._adopt(kind, found, wrapped, owner)
        return self._kinds.state_of(wrapped.group, wrapped.kind, found)

    async def asked(self, ref: ObjectRef, owner_uid: str) -> Asked | None:
        """What the spec of an object asks for, as the API server has it; None if nobody can read the object now.

        An object that is gone withholds nothing: with its kind, its objects are removed.
        """
        try:
            _, found = await self._look_for_ours(ref, owner_uid)
        except errors.ClusterError:
            return None
        if found is None:
            return NOT_KNOWN
        return asked_by(self._kinds.row(ref.api_version.rpartition("/")[0], ref.kind), found)

    def version_made(self, uid: str) -> str | None:
        """The resource version of an object at its creation; None if it is not remembered."""
        made = self._made.get(uid)
        return made.version if made else None

    async def edits(self, wrapped: WrappedObject, ref: ObjectRef, owner: Owner) -> tuple[str, ...]:
        """The paths of the fields that somebody changed since the creation; empty if the object is gone or deleted."""
        _, found = await self._look(ref)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return ()
        made = self._made.get(ref.uid)
        return edited(build(wrapped, owner), found, made.differences if made else None)

    async def mark_of(self, wrapped: WrappedObject, owner: Owner) -> Mark | None:
        """The mark of the object of that item; None if the AppWrapper has no such object.

        An object without a number, such as MCAD's, counts as of attempt 1.
        """
        _, found = await self._look(reference(wrapped, owner), retries_forbidden=True)
        if found is None or owned_by(found["metadata"]) != owner.uid:
            return None
        return _mark_in(owner.uid, found["metadata"])

    async def request_of(self, owner: Owner) -> FoundRequest | None:
        """The ProvisioningRequest of the owner's attempt; None if it has none, or if reading any is forbidden.

        Without the right to read requests, the dispatcher cannot have made one.
        """
        name = request_name(owner.name, owner.attempt)
        ref = ObjectRef(REQUEST_ITEM, REQUEST_API_VERSION, REQUEST_KIND, owner.namespace, name)
        _, found = await self._look_for_ours(ref, owner.uid, retries_forbidden=True)
        return None if found is None else read_request(found)

    async def marks(self, api_version: str, kind: str) -> AsyncIterator[Mark]:
        """The mark of every object of a kind that an AppWrapper owns: a complete list, or an error.

        Yields nothing for a kind that is not served. Raises `Forbidden` only if the API server is ready and refuses the
        list again: searches take that for an answer.
        """
        try:
            path = (await self._discovery.find_stored(api_version, kind)).everywhere()
        except errors.NotFound:
            return
        query = {"labelSelector": names.UID_LABEL}
        async for page in pages(self._client, path, query, accept=METADATA_LIST, retries_forbidden=True):
            for raw in page.items:
                metadata = raw["metadata"]
                appwrapper = (metadata.get("labels") or {}).get(names.UID_LABEL)
                if appwrapper and owned_by(metadata) == appwrapper:
                    yield _mark_in(appwrapper, metadata)

    async def newest_warning(self, ref: ObjectRef) -> str:
        """The newest warning about an object as "Reason: message", in one line; empty if none can be read."""
        if not ref.uid:
            return ""
        selector = f"involvedObject.uid={ref.uid},type=Warning"
        try:
            found = await list_events(self._client, ref.namespace, selector)
        except errors.ClusterError:
            return ""  # the message is only a hint; callers go on without it
        return newest_words(found)

    async def _create(self, kind: Kind, wrapped: WrappedObject, owner: Owner, warnings: list[str]) -> Created:
        path, built = kind.path(owner.namespace), build(wrapped, owner)
        try:
            answer = await self._client.retry_forbidden(
                lambda: self._client.create(path, built, query=self._query, warnings=warnings),
                unless=_is_used_up,
            )
            made = one_object(answer, path)
        except errors.NotFound as error:
            if error.reason:
                raise
            self._discovery.forget(kind)
            await self._discovery.find(kind.api_version, kind.kind)
            raise errors.Unavailable(f"{kind.kind} is not served now: {error}") from error
        except errors.Invalid as error:
            if _TERMINATING not in str(error):
                raise
            self._discovery.forget(kind)
            raise errors.NotFound(f"{kind.kind} of {kind.api_version} is not served now: {error}") from error
        if is_compared(wrapped.group, wrapped.kind):
            self._remember(built, made)
        return Created(_with_uid(reference(wrapped, owner), made), tuple(warnings))

    async def _warnings_about(self, wrapped: WrappedObject, owner: Owner) -> tuple[str, ...]:
        """The warnings about an object whose creation had no answer: a dry run of the creation has them again.

        Empty if the API server fails again: a warning must not delay a gang that is created.
        """
        warnings: list[str] = []
        query = {**self._query, "dryRun": "All"}
        with contextlib.suppress(errors.Refused, errors.Unavailable):
            path = (await self._kind(wrapped)).path(owner.namespace)
            await self._client.create(path, build(wrapped, owner), query=query, warnings=warnings)
        return tuple(warnings)

    def _remember(self, built: Json, made: Json) -> None:
        """Remember the state at creation: changes by webhooks and fields unknown to the API server are no drift."""
        metadata = made["metadata"]
        self._made[metadata["uid"]] = _Made(str(metadata.get("resourceVersion")), differences(built, made))

    async def _settle(self, wrapped: WrappedObject, owner: Owner) -> Creation | None:
        """Read the object that has the name, and act by its owner; None if there is none."""
        ref = reference(wrapped, owner)
        kind, found = await self._look(ref)
        if found is None:
            return None
        if "deletionTimestamp" in found["metadata"]:
            return InTheWay(f"{ref.title} is still being deleted")
        match ownership_of(found, owner):
            case ObjectOwnership.THIS_ATTEMPT:
                await self._adopt(kind, found, wrapped, owner)
                return Created(_with_uid(ref, found))
            case ObjectOwnership.EARLIER_ATTEMPT:
                await self._client.delete(kind.path(ref.namespace, ref.name), found["metadata"]["uid"])
                return InTheWay(f"{ref.title} of an earlier attempt is being deleted")
            case ObjectOwnership.LATER_ATTEMPT:
                return InTheWay(f"{ref.title} of a later attempt exists: was the database restored?")
            case ObjectOwnership.ANOTHER_APPWRAPPER:
                if not await self._owner_stays(found):
                    return InTheWay(f"{ref.title} of a deleted AppWrapper is going")
                return _collision(ref, _left_by(found, owner))
            case ObjectOwnership.FOREIGN:
                return _collision(ref)

    async def _adopt(self, kind: Kind, found: Json, wrapped: WrappedObject, owner: Owner) -> None:
        """Add our labels to an object of ours that lacks them, so that the watches see it."""
        patch = adoption(found, wrapped, owner)
        if patch is None:
            return
        ref = reference(wrapped, owner)
        try:
            await self._client.patch(kind.path(ref.namespace, ref.name), patch, MERGE_PATCH)
        except (errors.Refused, errors.Unavailable) as error:
            _log.warning("not_marked", object=ref.title, error=str(error))

    async def _owner_stays(self, found: Json) -> bool:
        """False if the AppWrapper that owns the object is gone or being deleted."""
        controller = controller_of(found["metadata"]) or {}
        owner = ObjectRef(
            item=-1,
            api_version=str(controller.get("apiVersion")),
            kind=str(controller.get("kind")),
            namespace=found["metadata"]["namespace"],
            name=str(controller.get("name")),
            uid=str(controller.get("uid")),
        )
        _, existing = await self._look(owner)
        return existing is not None and "deletionTimestamp" not in existing["metadata"]

    async def _look_for_ours(
        self, ref: ObjectRef, owner_uid: str, *, retries_forbidden: bool = False
    ) -> tuple[Kind, Json | None]:
        """The object of that name if it is the AppWrapper's, else None."""
        try:
            kind, found = await self._look(ref, retries_forbidden=retries_forbidden)
        except errors.Forbidden:
            if ref.uid:
                raise
            # Reading is forbidden and no creation was seen: this is the object whose creation was forbidden.
            return Kind(ref.api_version, ref.kind, "", namespaced=True), None
        return kind, found if found is not None and owned_by(found["metadata"]) == owner_uid else None

    async def _look(self, ref: ObjectRef, *, retries_forbidden: bool = False) -> tuple[Kind, Json | None]:
        """The object of that name as the API server has it now, else None.

        If it `retries_forbidden`, a refusal counts once the API server is ready: searches take one for an answer.
        """
        try:
            kind = await self._discovery.find_stored(ref.api_version, ref.kind)
        except errors.NotFound:
            return Kind(ref.api_version, ref.kind, "", namespaced=True), None
        try:
            path = kind.path(ref.namespace, ref.name)
            getting = self._client.retry_forbidden if retries_forbidden else _once
            found = one_object(await getting(lambda: self._client.get(path)), path)
        except errors.NotFound as error:
            if not error.reason:
                self._discovery.forget(kind)
                raise errors.Unavailable(f"{ref.title}: its kind is not served now") from error
            return kind, None
        if ref.uid and found["metadata"]["uid"] != ref.uid:
            return kind, None
        return kind, found

    async def _lacks_right_to(self, wrapped: WrappedObject, namespace: str) -> bool:
        """True if the dispatcher may create no object of the kind there, whatever it is like."""
        kind = self._discovery.known(wrapped.api_version, wrapped.kind)
        return kind is not None and await self.rights.is_denied(kind, namespace)

    async def _kind(self, wrapped: WrappedObject) -> Kind:
        """The kind to create; raises `NotFound` without a reason if it is not served, or its definition is removed."""
        kind = await self._discovery.find(wrapped.api_version, wrapped.kind)
        if kind.is_going:
            self._discovery.forget(kind)  # the definition may be another one by the next attempt
            raise errors.NotFound(
                f"{kind.kind} of {kind.api_version} is not served: its definition is being removed"
            )
        if not kind.namespaced:
            raise errors.Invalid(
                f"{wrapped.kind} is cluster-scoped: an AppWrapper creates objects in its namespace only"
            )
        if not kind.kept:
            raise errors.Invalid(f"{wrapped.kind} cannot be wrapped: the API server keeps no such objects")
        return kind


async def _once(call: Callable[[], Awaitable[Json]]) -> Json:
    return await call()


def _mark_in(appwrapper: str, metadata: Json) -> Mark:
    """The mark of an object that an AppWrapper owns; its attempt is 1 if it has no number."""
    namespace = str(metadata.get("namespace"))
    return Mark(appwrapper, attempt_number(metadata) or 1, namespace, seal_in(metadata))


def _is_used_up(error: errors.Forbidden) -> bool:
    """True if a quota refuses the object, which no role changes."""
    return _QUOTA in str(error)


def _collision(ref: ObjectRef, left_by: Mark | None = None) -> NameTaken:
    message = f"{ref.title} exists already and is not this AppWrapper's; delete it or choose another name"
    going = f"{ref.title} of an attempt that is over is to be removed" if left_by else ""
    return NameTaken(message, left_by, going)


def _left_by(found: Json, owner: Owner) -> Mark | None:
    """The attempt of this hub whose anchor owns the object; None without an anchor, or for an anchor of another hub."""
    metadata = found["metadata"]
    controller, appwrapper = controller_of(metadata) or {}, owned_by(metadata)
    hub_id = (metadata.get("annotations") or {}).get(names.HUB_ANNOTATION)
    if appwrapper is None or controller.get("kind") != "ConfigMap" or hub_id != owner.hub_id:
        return None
    return Mark(appwrapper, int(str(controller["name"]).rpartition("-")[2]))


def _with_uid(ref: ObjectRef, found: Json) -> ObjectRef:
    return ObjectRef(ref.item, ref.api_version, ref.kind, ref.namespace, ref.name, found["metadata"]["uid"])

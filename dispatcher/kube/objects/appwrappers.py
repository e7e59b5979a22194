"""Reads AppWrappers on the hub, and writes their status and our finalizer; a spec that is too large is not parsed.

An API server writes the fields of an AppWrapper in the order of their names: `metadata`, `spec`, `status`. So the text
from `,"spec":` to `,"status":` is cut out, and the rest is parsed. The cut is never wrong unnoticed. Quotes within
strings are escaped, so the text `,"status":` is never part of a string. If it belongs to an object inside the spec, the
rest has closing brackets too many and is no JSON; then the next place is tried. Before `,"spec":` there are only fields
that the API server has ordered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import orjson
from msgspec import Struct, field

from dispatcher import errors
from dispatcher.api.annotations import KEYS, UNKNOWN, FaultTolerance, Submitter, fault_tolerance, submitter_of
from dispatcher.api.appwrapper import spec_hash
from dispatcher.api.mutable_spec import MutableSpec, mutable_spec
from dispatcher.api.names import (
    APPROVALS,
    APPWRAPPER_KIND,
    APPWRAPPER_VERSION,
    CLUSTER_PREFERENCE,
    CLUSTER_SELECTOR,
    FINALIZER,
    NOTIFY,
    OUR_MANAGERS,
)
from dispatcher.api.notifications import LONGEST_TEXT
from dispatcher.api.validation import SpecSize, count_containers
from dispatcher.core.intake.labels import kept_labels
from dispatcher.core.kinds.provisioning_request import parameters_in
from dispatcher.kube import bounds
from dispatcher.kube.api_calls import Json, one_object
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import MERGE_PATCH, METADATA, ClusterClient
from dispatcher.kube.discovery import Discovery, Kind
from dispatcher.text import mapping_of, texts_of

NO_ANNOTATIONS: Final = FaultTolerance()
LONGEST_QUICK_METADATA: Final = 2**15
"""Bytes of metadata up to which a write is quick; with a thousand labels of 270 bytes each it takes seconds."""
LARGE_WRITE_SECONDS: Final = 30.0
"""The timeout of a status whose AppWrapper is too large to be read: the API server parses all of it several times."""


class AppWrapperView(Struct, frozen=True):
    """The parts of an AppWrapper that are kept; `status_json` is the status that the API server last showed.

    `spec` is JSON, too; it is empty where it is not needed any more, and where `excess` gives the size of a spec that
    is too large. `is_quick` is false of an AppWrapper of which each write takes the API server long. `mutable_spec` is
    the part of the spec that may change, `tolerance` comes from the annotations.
    """

    uid: str
    group: str
    namespace: str
    name: str
    created_at: datetime
    resource_version: str
    generation: int
    deleting: bool
    spec: bytes
    status_json: bytes
    mutable_spec: MutableSpec | None = None
    tolerance: FaultTolerance = NO_ANNOTATIONS
    has_components: bool = False
    is_ours: bool = True
    cluster_annotations: Mapping[str, str] = field(default_factory=dict)
    """The annotations that select and prefer clusters, as written."""
    has_finalizer: bool = False
    """True if the AppWrapper has our finalizer: a member cluster has, or may have, objects of it."""
    submitter: Submitter = UNKNOWN
    """The submitter that the annotations name; without the submitters' policy any user can write them."""
    excess: SpecSize | None = None
    is_quick: bool = True
    approvals: str = ""
    """The annotation that names approvals, as written."""
    notify: str | None = None
    """The annotation that chooses notifications, as written; None without one."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The labels that may name a queue or a priority class."""
    provisioning_parameters: Mapping[str, str] = field(default_factory=dict)
    """The parameters of ProvisioningRequests that the annotations give."""

    @property
    def status(self) -> Json:
        """The status, read anew at each call: as JSON it takes a third of the memory, and it is seldom looked at."""
        read: Json = bounds.loads_unbounded(self.status_json)
        return read

    @property
    def spec_hash(self) -> str:
        """The hash of `spec`, under which the store has it."""
        return spec_hash(self.spec)


def decode(raw: Json, *, with_spec: bool = True) -> AppWrapperView:
    """The view of one AppWrapper of either group; without its spec, unless `with_spec`, or if the spec is too large."""
    metadata, read = raw["metadata"], raw.get("spec")
    annotations = texts_of(metadata.get("annotations"))
    generation, finalizers = metadata.get("generation"), metadata.get("finalizers")
    unread = read if isinstance(read, Unread) else None
    spec = mapping_of(read)
    written = b"" if unread else bounds.dumps(spec)
    size = unread.size if unread else SpecSize.of(written)
    return AppWrapperView(
        uid=metadata["uid"],
        group=raw["apiVersion"].partition("/")[0],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        resource_version=metadata["resourceVersion"],
        generation=generation if isinstance(generation, int) else 0,
        deleting="deletionTimestamp" in metadata,
        spec=written if with_spec and size.is_acceptable else b"",
        status_json=encode_status(mapping_of(raw.get("status"))),
        mutable_spec=None if unread else mutable_spec(spec, annotations),
        tolerance=_tolerance(annotations),
        has_components=unread.has_components if unread else bool(spec.get("components")),
        is_ours=unread.is_ours if unread else _is_ours(spec.get("managedBy")),
        cluster_annotations={key: annotations[key] for key in _CLUSTER_ANNOTATIONS if key in annotations},
        has_finalizer=isinstance(finalizers, list) and FINALIZER in finalizers,
        submitter=submitter_of(annotations),
        approvals=annotations.get(APPROVALS, ""),
        notify=annotations[NOTIFY][: LONGEST_TEXT + 1] if NOTIFY in annotations else None,
        excess=None if size.is_acceptable else size,
        is_quick=size.is_quick and len(bounds.dumps(metadata)) <= LONGEST_QUICK_METADATA,
        labels=kept_labels(mapping_of(metadata.get("labels"))),
        provisioning_parameters=parameters_in(annotations),
    )


def encode_status(status: Mapping[str, Any]) -> bytes:
    """The JSON of a status; mostly the same for equal ones, whatever the order of their fields."""
    return bounds.dumps(status, in_order=True)


_CLUSTER_ANNOTATIONS: Final = (CLUSTER_SELECTOR, CLUSTER_PREFERENCE)


def _is_ours(managed_by: object) -> bool:
    return (managed_by is None or isinstance(managed_by, str)) and managed_by in OUR_MANAGERS


def _tolerance(annotations: Mapping[str, str]) -> FaultTolerance:
    return _shared(fault_tolerance(annotations)) if annotations.keys() & set(KEYS) else NO_ANNOTATIONS


@lru_cache(maxsize=1024)
def _shared(tolerance: FaultTolerance) -> FaultTolerance:
    """The value that was given first of equal ones: mostly a few say the same for all AppWrappers of a team."""
    return tolerance


class AppWrappers:
    """The AppWrappers of one API group on the hub."""

    def __init__(self, client: ClusterClient, discovery: Discovery, group: str) -> None:
        self.group = group
        self._client = client
        self._discovery = discovery

    async def collection(self) -> str:
        """The path of the AppWrappers in all namespaces; raises `NotFound` while the group's CRD is not installed.

        Discovery gives the plural, because MCAD's own CRD of the old group has another plural than ours.
        """
        return (await self._kind()).everywhere()

    async def exists(self, namespace: str, name: str, uid: str) -> bool:
        """True if the API server has the AppWrapper; raises without a clear answer."""
        try:
            path = (await self._kind()).path(namespace, name)
            found = one_object(await self._client.get(path, accept=METADATA), path)
        except errors.NotFound as error:
            if error.reason:
                return False
            raise errors.Unavailable(f"{self.group} is not served: {error}") from error
        return bool(found["metadata"]["uid"] == uid)

    async def read(self, namespace: str, name: str) -> Json:
        """The AppWrapper as it is now, parsed by `parse`; raises `NotFound` if it is gone."""
        path = (await self._kind()).path(namespace, name)
        # It completes a list of AppWrappers, so it has the bytes of lists.
        return await self._client.get(path, loads=parse, purpose=Purpose.CLUSTER)

    async def write_status(self, view: AppWrapperView, status_json: bytes, only_at: str | None = None) -> str:
        """Replace the status of this uid, never of a successor of the same name; return the new resource version.

        The first operation of the JSON patch tests the uid; `Invalid` is raised if the test fails. With `only_at`, the
        resource version that the AppWrapper must still have, `Conflict` is raised if it has another one. Only such a
        write may outlast the leader's lease, and only that of an AppWrapper that is too large does.
        """
        patch: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": view.uid},
            {"op": "add", "path": "/status", "value": orjson.Fragment(status_json)},
        ]
        if only_at is not None:
            patch.append({"op": "add", "path": "/metadata/resourceVersion", "value": only_at})
        path = (await self._kind()).path(view.namespace, view.name)
        seconds = LARGE_WRITE_SECONDS if view.excess and only_at is not None else None
        written = await self._client.patch(f"{path}/status", patch, accept=METADATA, timeout=seconds)
        return str(written["metadata"]["resourceVersion"])

    async def add_finalizer(self, view: AppWrapperView) -> bool:
        """Add our finalizer beside others; False if the AppWrapper is being deleted or gone."""
        return view.has_finalizer or await self._change_finalizers(
            view, lambda present: [*present, FINALIZER]
        )

    async def remove_finalizer(self, view: AppWrapperView) -> None:
        """Remove our finalizer, once no member cluster has objects of the AppWrapper; safe to repeat."""
        await self._change_finalizers(view, lambda present: [each for each in present if each != FINALIZER])

    async def _change_finalizers(
        self, view: AppWrapperView, change: Callable[[list[str]], list[str]]
    ) -> bool:
        """Change the finalizers of this uid; False if the AppWrapper is being deleted or gone.

        Raises `Conflict` if another client changes the AppWrapper between the read and the patch.
        """
        path = (await self._kind()).path(view.namespace, view.name)
        try:
            metadata = one_object(await self._client.get(path, accept=METADATA), path)["metadata"]
        except errors.NotFound as error:
            if error.reason:
                return False  # gone, with all its finalizers
            raise errors.Unavailable(f"{self.group} is not served: {error}") from error
        if metadata["uid"] != view.uid:
            return False
        present = metadata.get("finalizers") or []
        changed = list(dict.fromkeys(change(present)))
        if changed != present and (FINALIZER in present or "deletionTimestamp" not in metadata):
            body = {"uid": view.uid, "resourceVersion": metadata["resourceVersion"], "finalizers": changed}
            await self._client.patch(path, {"metadata": body}, MERGE_PATCH, accept=METADATA)
        return "deletionTimestamp" not in metadata

    async def _kind(self) -> Kind:
        return await self._discovery.find(f"{self.group}/{APPWRAPPER_VERSION}", APPWRAPPER_KIND)


LARGEST_STATUS: Final = 2**18
"""Bytes of a status that are read; the dispatcher writes much smaller ones."""

_SPEC: Final = b',"spec":{'
_STATUS: Final = b',"status":{'
_NO_SPEC: Final = b',"spec":null'
_ESCAPED: Final = (b"\\u003c", b"\\u003e", b"\\u0026")
"""Go's escapes of `<`, `>` and `&`, which are one byte each."""
_TRIES: Final = 4
"""Places tried as the begin of the status; a status or a spec may contain that text itself."""
_MANAGER: Final = re.compile(rb'"managedBy":"([^"\\]*)"')


class Unread(Struct, frozen=True):
    """Stands for a spec that was not parsed; `is_ours` is false if a component names another manager."""

    size: SpecSize
    has_components: bool
    is_ours: bool


def parse(raw: bytes) -> Json:
    """Parse an AppWrapper, or a line of a watch of AppWrappers; `spec` is an `Unread` if it is too large.

    Raises `orjson.JSONDecodeError` for invalid JSON, and `TooLarge` past the bounds of any answer.
    """
    start = raw.find(_SPEC)
    if start < 0 or _size_of_part(raw, start, len(raw)).is_acceptable:
        return _parsed_object(bounds.loads(raw))
    begin = start + len(_SPEC) - 1
    for end in _ends(raw, start):
        try:
            read = _parsed_object(orjson.loads(b"".join((raw[:start], _NO_SPEC, raw[end:]))))
        except orjson.JSONDecodeError:
            continue
        if "metadata" not in read.get("object", read):
            continue  # in another order
        size = _size_of_part(raw, begin, end)
        spec = bounds.loads(raw[begin:end]) if size.is_acceptable else _unread(raw[begin:end], size)
        read.get("object", read)["spec"] = spec
        return read
    return _parsed_object(bounds.loads(raw))


def _ends(raw: bytes, start: int) -> Iterator[int]:
    """The places where the spec may end, the most likely first; the last two leave out the status."""
    status = raw.rfind(_STATUS, start)
    for _ in range(_TRIES):
        if status < 0 or len(raw) - status > LARGEST_STATUS:
            break
        yield status
        status = raw.rfind(_STATUS, start, status)
    whole = raw.rstrip()
    for closing in (b"}}", b"}"):
        if whole.endswith(closing):
            yield len(whole) - len(closing)


def _size_of_part(raw: bytes, begin: int, end: int) -> SpecSize:
    """The size of a part, without parsing it."""
    longer = sum(raw.count(each, begin, end) for each in _ESCAPED) * 5
    return SpecSize(end - begin - longer, count_containers(raw, begin, end))


def _unread(spec: bytes, size: SpecSize) -> Unread:
    managers = {each.decode(errors="replace") for each in _MANAGER.findall(spec)}
    return Unread(
        size=size,
        has_components=spec.startswith(b'{"components":[{'),
        is_ours=managers <= {each for each in OUR_MANAGERS if each is not None},
    )


def _parsed_object(read: Any) -> Json:  # noqa: ANN401  # any JSON
    if not isinstance(read, dict):
        raise orjson.JSONDecodeError("is no object", "", 0)
    return read

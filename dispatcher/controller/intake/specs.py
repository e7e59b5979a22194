"""The specs of AppWrappers as submitted, parsed, and the lifecycle policies that follow from them.

The dispatcher creates what was submitted, whatever happens to the AppWrapper later. Every event of a gang needs its
policy: policies are small, and stay in memory longer than specs. A spec stays parsed while it is likely to be created
at once, and longer as JSON, which takes a tenth.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, Generic, NamedTuple, TypeVar

import orjson

from dispatcher import log
from dispatcher.api.annotations import FaultTolerance
from dispatcher.api.appwrapper import AppWrapperSpec, parse_spec
from dispatcher.api.names import APPWRAPPER_VERSION
from dispatcher.core.kinds.manifest import NodeHint, Owner
from dispatcher.core.kinds.provisioning_request import pod_annotations
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.core.lifecycle.policy import KEPT, KUEUE_WAIT, LifecyclePolicy, policy_of
from dispatcher.core.model.bounded_dict import BoundedDict
from dispatcher.core.model.clusters.potential import is_potential
from dispatcher.core.model.gangs.gang import Assignment, Gang
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.seals import Seals
from dispatcher.kube.objects.appwrappers import AppWrapperView
from dispatcher.kube.time_slices import TimeSlice, run_in_thread_if_large
from dispatcher.store.state.queue import QueueStore

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_PARSED: Final = 2**19
"""Bytes of specs, as JSON, that stay parsed. Parsed they take ten times as much, at worst thirty. That is some hundred
usual specs, or two of the largest."""

MOST_KEPT: Final = 2**23
"""Bytes of specs that stay in memory between intake and creation: a thousand usual ones, or 32 of the largest. Others
are read from the database again."""

MOST_TERMS: Final = 50_000
AT_ONCE: Final = 16
"""Specs in one query: 4 MiB at most."""


class _Parsed(NamedTuple):
    spec: AppWrapperSpec
    length: int


class _Newest(Generic[Key, Value]):
    """The values that were kept last, of at most `most` bytes in all."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: Key, value: Value, length: int) -> None:
        """Keep a value of `length` bytes, unless one is kept by that key: another task was faster."""
        if key in self._values:
            return
        self._values[key] = value, length
        self._left -= length
        while self._left < 0:
            self._left += self._values.popitem(last=False)[1][1]


class Specs:
    """Specs by content; a spec that is no longer in memory is read from the database.

    `kept` is how long objects of an ended AppWrapper are kept, `kueue_wait` how long a gang may wait for Kueue.
    """

    def __init__(
        self,
        store: QueueStore,
        kept: timedelta = KEPT,
        kinds: Kinds = BUILT_IN,
        kueue_wait: timedelta = KUEUE_WAIT,
    ) -> None:
        self._store = store
        self._kept = kept
        self._kinds = kinds
        self._kueue_wait = kueue_wait
        self._parsed: _Newest[tuple[str, str], _Parsed] = _Newest(MOST_PARSED)
        self._raw: _Newest[str, bytes] = _Newest(MOST_KEPT)
        self._terms: BoundedDict[tuple[str, FaultTolerance], LifecyclePolicy] = BoundedDict(MOST_TERMS)

    async def parse(self, spec: bytes, spec_hash: str, namespace: str) -> AppWrapperSpec:
        """The parsed spec; raises `SpecError` for one that can never be dispatched."""
        known = self._parsed.get((spec_hash, namespace))
        if known is not None:
            return known.spec
        parsed = await run_in_thread_if_large(len(spec), _parse, spec, namespace)
        self._raw.keep(spec_hash, spec, len(spec))
        self._parsed.keep((spec_hash, namespace), _Parsed(parsed, len(spec)), len(spec))
        return parsed

    async def of(self, record: Record) -> AppWrapperSpec:
        """The spec an AppWrapper was submitted with."""
        return (await self._of(record)).spec

    async def _of(self, record: Record) -> _Parsed:
        known = self._parsed.get((record.spec_hash, record.namespace))
        if known is not None:
            return known
        raw = self._raw.get(record.spec_hash)
        if raw is None:
            raw = (await self._store.load_specs([record.spec_hash]))[record.spec_hash]
        return _Parsed(await self.parse(raw, record.spec_hash, record.namespace), len(raw))

    async def prepare(self, wanted: Mapping[str, FaultTolerance], records: Iterable[Record]) -> None:
        """Read the lifecycle policies of at most `AT_ONCE` gangs in one query.

        `wanted` has the annotations of each AppWrapper by uid; the others are left out.
        """
        due = [record for record in records if record.uid in wanted]
        loaded = await self._store.load_specs({record.spec_hash for record in due})
        time_slice = TimeSlice()
        for record in due:
            if record.spec_hash in loaded:
                await self._prepare(record, loaded[record.spec_hash], wanted[record.uid])
            await time_slice.pause_if_long()

    async def _prepare(self, record: Record, spec: bytes, tolerance: FaultTolerance) -> None:
        """Read one policy; a spec that cannot be read fails at its reconcile, and keeps no process from leading."""
        try:
            await self.parse(spec, record.spec_hash, record.namespace)
            await self.policy_of(record, tolerance)
        except Exception as error:  # noqa: BLE001  # one AppWrapper must not end the others
            log.internal_error("specs", error, appwrapper=record.uid)

    async def policy_of(self, record: Record, tolerance: FaultTolerance) -> LifecyclePolicy:
        """The lifecycle policy of an AppWrapper."""
        key = record.spec_hash, tolerance
        known = self._terms.get(key)
        if known is None:
            parsed = await self._of(record)
            known = self._terms[key] = await run_in_thread_if_large(
                parsed.length, policy_of, parsed.spec, tolerance, self._kept, self._kinds, self._kueue_wait
            )
        return known


def _parse(spec: bytes, namespace: str) -> AppWrapperSpec:
    return parse_spec(orjson.loads(spec), namespace=namespace)


def owner_of(record: Record, hub_id: str, seals: Seals) -> Owner:
    """The owner of the objects of the record's current attempt."""
    return Owner(
        uid=record.uid,
        group=record.group,
        version=APPWRAPPER_VERSION,
        namespace=record.namespace,
        name=record.name,
        attempt=record.attempts,
        hub_id=hub_id,
        hints=hints_of(record.gang, record.attempt.assignment) if record.attempt is not None else (),
        pod_annotations=pod_annotations(record),
        seals=seals,
    )


def hints_of(gang: Gang, assignment: Assignment) -> tuple[NodeHint, ...]:
    """The nodes of an assignment on which the pods of a gang have places, for each template."""
    return tuple(
        NodeHint(pod_set.item, pod_set.path, tuple(node for node, _ in each if not is_potential(node)))
        for pod_set, each in zip(gang.pod_sets, assignment.places, strict=False)
    )


def owner_of_new(view: AppWrapperView, hub_id: str) -> Owner:
    """The owner that objects of an AppWrapper without a record would have."""
    return Owner(view.uid, view.group, APPWRAPPER_VERSION, view.namespace, view.name, 1, hub_id)

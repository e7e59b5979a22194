"""Changes pods of a gang, and no other pods: removes the dispatcher's scheduling gate, deletes surplus pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from dispatcher import errors, log
from dispatcher.api.names import GROWTH_GATE
from dispatcher.core.model.gangs.growth import GatedPod, PodRef
from dispatcher.kube import paths
from dispatcher.kube.api_calls import STRATEGIC_MERGE_PATCH
from dispatcher.kube.client import METADATA, ClusterClient, Json

AT_ONCE: Final = 8
"""Pods of one gang that are changed at the same time."""

_Each = TypeVar("_Each")

_log = log.get("pod_changes")


class GrowthGates:
    """The gates in one cluster. A removal may be repeated: without the gate it changes nothing.

    `on_removed` gets the uid of each pod whose gate is gone, before the watch shows it.
    """

    def __init__(self, client: ClusterClient, on_removed: Callable[[str], None]) -> None:
        self._client = client
        self._on_removed = on_removed

    async def remove_from(self, pods: Sequence[GatedPod]) -> None:
        """Remove the gate from pods, some at a time; raises the first `ClusterError` once all were tried.

        A pod that is gone or was replaced is left out: the watch will show it.
        """
        await _for_all(pods, self._try_to_remove)

    async def _try_to_remove(self, pod: GatedPod) -> None:
        try:
            await self._client.retry_forbidden(lambda: self._remove(pod))
        except (errors.NotFound, errors.Conflict, errors.Invalid) as error:
            _log.info("not_admitted", pod=f"{pod.namespace}/{pod.name}", error=str(error))
        else:
            self._on_removed(pod.uid)

    async def _remove(self, pod: GatedPod) -> Json:
        """Remove the gate by its name: the API server leaves the other gates, in whatever order they are.

        The uid makes the API server refuse the patch of another pod with the name.
        Source: https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/ and
        https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
        """
        gates = [{"$patch": "delete", "name": GROWTH_GATE}]
        patch = {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates}}
        path = paths.item("v1", "pods", pod.namespace, pod.name)
        return await self._client.patch(path, patch, STRATEGIC_MERGE_PATCH, accept=METADATA)


class SurplusPods:
    """The surplus pods in one cluster. A deletion may be repeated: a pod that is being deleted stays as it is."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def delete(self, pods: Sequence[PodRef]) -> None:
        """Delete pods with their own grace, some at a time; raises the first `ClusterError` once all were tried.

        A pod that is gone or was replaced is left out: the watch will show it.
        """
        await _for_all(pods, self._try_to_delete)

    async def _try_to_delete(self, pod: PodRef) -> None:
        try:
            await self._client.retry_forbidden(lambda: self._delete(pod))
        except (errors.NotFound, errors.Conflict) as error:
            _log.info("not_deleted", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    async def _delete(self, pod: PodRef) -> Json:
        return await self._client.delete(paths.item("v1", "pods", pod.namespace, pod.name), pod.uid)


async def _for_all(several: Sequence[_Each], call: Callable[[_Each], Awaitable[None]]) -> None:
    """Make the call for each, `AT_ONCE` at a time; raises the first `ClusterError` once all were tried."""
    failed: list[errors.ClusterError] = []
    for first in range(0, len(several), AT_ONCE):
        outcomes = await asyncio.gather(*(_error_of(call(each)) for each in several[first : first + AT_ONCE]))
        failed += filter(None, outcomes)
    if failed:
        raise failed[0]


async def _error_of(call: Awaitable[None]) -> errors.ClusterError | None:
    try:
        await call
    except errors.ClusterError as error:
        return error
    return None

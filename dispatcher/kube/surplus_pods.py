"""Deletes surplus pods that a gang gives up, and no other pods with their names."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher import errors, log
from dispatcher.core.model.growth import PodRef
from dispatcher.kube import paths
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.some_at_a_time import for_all

_log = log.get("surplus_pods")


class SurplusPods:
    """The surplus pods in one cluster. A deletion may be repeated: a pod that is being deleted stays as it is."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def delete(self, pods: Sequence[PodRef]) -> None:
        """Delete pods with their own grace, some at a time; raises the first `ClusterError` once all were tried.

        A pod that is gone or was replaced is left out: the watch will show it.
        """
        await for_all(pods, self._try_to_delete)

    async def _try_to_delete(self, pod: PodRef) -> None:
        try:
            await self._client.retry_forbidden(lambda: self._delete(pod))
        except (errors.NotFound, errors.Conflict) as error:
            _log.info("not_deleted", pod=f"{pod.namespace}/{pod.name}", error=str(error))

    async def _delete(self, pod: PodRef) -> Json:
        return await self._client.delete(paths.item("v1", "pods", pod.namespace, pod.name), pod.uid)

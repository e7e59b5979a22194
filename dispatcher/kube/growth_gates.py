"""Removes the dispatcher's scheduling gate from pods, and no gate of anybody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher import errors, log
from dispatcher.api.names import GROWTH_GATE
from dispatcher.core.model.growth import GatedPod
from dispatcher.kube import paths
from dispatcher.kube.api_calls import STRATEGIC_MERGE_PATCH
from dispatcher.kube.client import METADATA, ClusterClient, Json
from dispatcher.kube.some_at_a_time import for_all

_log = log.get("growth_gates")


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
        await for_all(pods, self._try_to_remove)

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

"""Reads how the pods of an AppWrapper failed, once it is about to end: words for people, by which nothing is decided.

A label is a claim, so a pod counts only if its controllers lead to the AppWrapper. Pods that an operator makes without
the dispatcher's labels, such as the submitter of a RayJob, are found by their controllers alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher import errors
from dispatcher.api.names import UID_LABEL
from dispatcher.core.kinds.pod_failure import by_turn
from dispatcher.core.model.pods import PodFailure
from dispatcher.kube import paths
from dispatcher.kube.bounds import Purpose
from dispatcher.kube.client import ClusterClient, Json
from dispatcher.kube.objects.owner_resolver import OwnerResolver, controller_ref
from dispatcher.text import mapping_of, mappings_of

MOST_PODS: Final = 200
"""Pods that are read at a time."""

MOST_RESOLVED: Final = 10
"""Controllers of pods whose owners are resolved for one answer."""

_FAILED: Final = {"fieldSelector": "status.phase=Failed"}


class PodFailureReader:
    """The failures of pods in one cluster."""

    def __init__(self, client: ClusterClient, owners: OwnerResolver) -> None:
        self._client = client
        self._owners = owners

    async def first(self, namespace: str, appwrapper: str) -> PodFailure | None:
        """The first failure among the pods of an AppWrapper (by uid); None if there is none, or it cannot be read.

        First its failed pods are read, then failed pods without its label, then its pods whose containers restarted.
        """
        of_it = {"labelSelector": f"{UID_LABEL}={appwrapper}"}
        of_nobody = {"labelSelector": f"!{UID_LABEL}"}
        try:
            for query in ({**of_it, **_FAILED}, {**of_nobody, **_FAILED}, of_it):
                found = await self._first_of(await self._listed(namespace, query), namespace, appwrapper)
                if found is not None:
                    return found
        except errors.ClusterError:
            pass  # the words are only a hint: the gang ends without them
        return None

    async def _listed(self, namespace: str, query: Mapping[str, str]) -> list[Json]:
        path = paths.collection("v1", "pods", namespace)
        page = await self._client.get(path, {**query, "limit": str(MOST_PODS)}, purpose=Purpose.HINT)
        return list(mappings_of(page.get("items")))

    async def _first_of(self, pods: Sequence[Json], namespace: str, appwrapper: str) -> PodFailure | None:
        roots: dict[str, bool] = {}
        for failure, raw in by_turn(pods):
            controller = controller_ref(mapping_of(raw.get("metadata")), namespace)
            if controller is None:
                continue
            if controller.uid not in roots:
                if len(roots) == MOST_RESOLVED:
                    continue
                known = self._owners.confirm(None, controller)
                roots[controller.uid] = (known or await self._owners.root_of(controller)) == appwrapper
            if roots[controller.uid]:
                return failure
        return None

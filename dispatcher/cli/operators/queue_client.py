"""The hub as the commands of `dispatcher queues` see it: DispatchQueues and their status, and MCAD's QuotaSubtrees.

The API server has both the declarations and the statuses that the leader writes, so one list shows what counts now;
the database has only samples of queues. A queue is changed only under the uid that was looked at.
"""

from __future__ import annotations

from typing import Final

from dispatcher import errors
from dispatcher.api.names import QUEUES_PATH
from dispatcher.cli.operators.hub_client import known_kind, merge
from dispatcher.core.queues.quota_subtrees import API_VERSIONS
from dispatcher.kube import paths
from dispatcher.kube.api_calls import ApiCalls, Json

CRD_FILE: Final = "crds/dispatcher.codeflare.dev_dispatchqueues.yaml"
WITHOUT_QUEUES: Final = "all AppWrappers are in the queue default, which has no limits"


class QueueClient:
    """Reads DispatchQueues and stops them."""

    def __init__(self, client: ApiCalls) -> None:
        self._client = client

    async def queues(self) -> Json:
        """The list of all DispatchQueues, as the API server gives it."""
        with known_kind("DispatchQueues", CRD_FILE, WITHOUT_QUEUES):
            return await self._client.get(QUEUES_PATH)

    async def quota_subtrees(self) -> list[Json] | None:
        """The QuotaSubtrees of all namespaces, each with its apiVersion; None if they may not be listed.

        A version that the hub does not serve has none.
        """
        found: list[Json] = []
        for version in API_VERSIONS:
            try:
                listed = await self._client.get(paths.collection(version, "quotasubtrees"))
            except errors.NotFound:
                continue
            except errors.Forbidden:
                return None
            found += ({**each, "apiVersion": version} for each in listed.get("items") or ())
        return found

    async def set_stop_policy(self, found: Json, policy: str | None) -> Json:
        """Set the stop policy of a queue that was found, or remove it; the queue as it is then."""
        metadata = found["metadata"]
        patch = {"metadata": {"uid": metadata["uid"]}, "spec": {"stopPolicy": policy}}
        try:
            return await merge(self._client, f"{QUEUES_PATH}/{paths.segment(metadata['name'])}", patch)
        except errors.NotFound as error:
            raise errors.CommandFailed(
                f"the DispatchQueue {metadata['name']} was deleted meanwhile"
            ) from error

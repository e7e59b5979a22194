"""One read of a cluster's additions to pods: the LimitRanges of a namespace, and a RuntimeClass.

Commands use it with a client of their own, so this module imports none.
"""

from __future__ import annotations

from dispatcher import errors
from dispatcher.core.kinds.pod_defaults import default_requests, overhead
from dispatcher.kube import paths
from dispatcher.kube.api_calls import ApiCalls


async def read_default_requests(client: ApiCalls, namespace: str) -> dict[str, object]:
    """The default requests of containers in a namespace. Raises `ClusterError`, of which `Refused` is final."""
    match await client.get(paths.collection("v1", "limitranges", namespace)):
        case {"items": list(items)}:
            return default_requests(items)
    return {}


async def read_overhead(client: ApiCalls, name: str) -> dict[str, object]:
    """The overhead of a RuntimeClass, empty if there is none. Raises `ClusterError`, of which `Refused` is final."""
    try:
        return overhead(await client.get(paths.item("node.k8s.io/v1", "runtimeclasses", "", name)))
    except errors.NotFound:
        return {}  # the API server refuses the pods until the RuntimeClass is there

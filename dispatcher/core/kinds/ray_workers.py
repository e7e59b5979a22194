"""Workers that Ray's autoscaler wants to be removed: it names them in the RayCluster, and KubeRay deletes their pods.

Ray names workers that were idle for some time. So a named worker loses the least if it is to give way.

Source: https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/configuring-autoscaling.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from dispatcher.core.model.record import ObjectRef
from dispatcher.text import mapping_of, mappings_of

MOST_NAMED: Final = 1000
"""The names that are read of one RayCluster; the others count as not named."""

NO_WORKERS: Final = frozenset[str]()


def named_to_delete(group: str, kind: str, raw: Mapping[str, Any]) -> frozenset[str]:
    """The names of the pods that an object names to be deleted, for any JSON; empty for other kinds than RayCluster."""
    if (group, kind) != ("ray.io", "RayCluster"):
        return NO_WORKERS
    return frozenset(islice(_names(raw), MOST_NAMED))


def owns_rayclusters(ref: ObjectRef) -> bool:
    """True for an object of which KubeRay makes RayClusters."""
    return ref.api_version.startswith("ray.io/") and ref.kind in {"RayJob", "RayService"}


def _names(raw: Mapping[str, Any]) -> Iterator[str]:
    for group in mappings_of(mapping_of(raw.get("spec")).get("workerGroupSpecs")):
        named = mapping_of(group.get("scaleStrategy")).get("workersToDelete")
        yield from (each for each in named if isinstance(each, str)) if isinstance(named, list) else ()

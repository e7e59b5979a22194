"""The pods of a gang, head first, and their logs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dispatcher.api.names import HUB_CLUSTER, MCAD_NAME_LABEL, NAME_LABEL, UID_LABEL
from dispatcher.core.kinds.built_in import HEADS
from dispatcher.kube import paths
from dispatcher.kube.user_client import UserClient

Json = dict[str, Any]

_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


def find_pods(client: UserClient, appwrapper: Json) -> list[Json]:
    """The pods of an AppWrapper, also finished ones: the head first, then by name."""
    metadata = appwrapper["metadata"]
    collection = paths.collection("v1", "pods", metadata["namespace"])
    found: list[Json] = []
    for selector in (f"{UID_LABEL}={metadata['uid']}", *_by_name(metadata["name"])):
        found = list(client.items(collection, {"labelSelector": selector}))
        if found:
            break
    return sorted(found, key=lambda pod: (not _is_head(pod), pod["metadata"]["name"]))


def commands_for(appwrapper: Json, cluster: str, pods: Sequence[Json]) -> list[str]:
    """The kubectl command for the log of each pod; without known pods, one for all by their label."""
    metadata = appwrapper["metadata"]
    there = [] if cluster == HUB_CLUSTER else ["--context", cluster]
    begin = ["kubectl", *there, "logs", "-n", metadata["namespace"]]
    if not pods:
        return [shlex.join([*begin, "-l", f"{UID_LABEL}={metadata['uid']}", "--prefix", "--all-containers"])]
    return [shlex.join([*begin, pod["metadata"]["name"], "-c", _container(pod)]) for pod in pods]


def log_of(client: UserClient, pod: Json, *, follow: bool) -> Iterator[str]:
    """The lines of a pod's log, with their line breaks."""
    metadata = pod["metadata"]
    path = f"{paths.item('v1', 'pods', metadata['namespace'], metadata['name'])}/log"
    query = {"container": _container(pod), **({"follow": "true"} if follow else {})}
    for line in client.lines(path, query, None):
        yield line.decode(errors="replace")


def _by_name(name: str) -> list[str]:
    return [f"{label}={name}" for label in (NAME_LABEL, MCAD_NAME_LABEL)]


def _is_head(pod: Json) -> bool:
    return not HEADS.isdisjoint((pod["metadata"].get("labels") or {}).items())


def _container(pod: Json) -> str:
    """The container that kubectl would choose."""
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    containers = pod["spec"]["containers"]
    return str(chosen or containers[0]["name"])

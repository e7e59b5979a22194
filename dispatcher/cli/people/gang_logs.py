"""The pods of a gang, head first, and their logs.

A label is a claim: anybody who may create pods in the namespace can write it. So a pod counts only if its controllers
lead to the AppWrapper, or in a member to an anchor of it, and of two heads the older one comes first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from dispatcher import errors
from dispatcher.api.names import HUB_CLUSTER, MCAD_NAME_LABEL, NAME_LABEL, UID_LABEL
from dispatcher.core.kinds.built_in import HEADS
from dispatcher.core.kinds.manifest import appwrapper_of, controller_of
from dispatcher.core.model.clock import time_in
from dispatcher.kube import paths
from dispatcher.kube.user_client import UserClient
from dispatcher.text import counted

Json = dict[str, Any]

_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


MOST_OWNERS: Final = 5
"""The longest chain of controllers above a pod that is followed; a RayService has four."""

MOST_CONTROLLERS: Final = 50
"""Controllers of pods without the label that are asked for the AppWrapper above them."""

MOST_NAMED: Final = 10
"""Pods that an error lists."""

CLOCKS_APART: Final = timedelta(minutes=10)
"""The largest difference between the clocks of a member and of the hub that hides no pod."""


def find_pods(client: UserClient, appwrapper: Json) -> list[Json]:
    """The pods of an AppWrapper, also finished ones: the submitter of a RayJob, the head, the oldest, then by name.

    An operator may make pods without the labels of the AppWrapper, as KubeRay does for the submitter of a RayJob. These
    are found by their controllers. Raises `CommandFailed` if pods claim the AppWrapper and the controllers of none lead
    to it.
    """
    metadata = appwrapper["metadata"]
    collection = paths.collection("v1", "pods", metadata["namespace"])
    found: list[Json] = []
    for selector in (f"{UID_LABEL}={metadata['uid']}", *_by_name(metadata["name"])):
        found = list(client.items(collection, {"labelSelector": selector}))
        if found:
            break
    owners = _Owners(client, metadata)
    owned = [pod for pod in found if owners.lead_to_appwrapper(pod)]
    known = {pod["metadata"]["name"] for pod in found}
    owned += (
        pod
        for pod in client.items(collection, {"labelSelector": f"!{UID_LABEL}"})
        if pod["metadata"]["name"] not in known and _may_be_of(pod, metadata) and owners.may_lead(pod)
    )
    if found and not owned:
        raise errors.CommandFailed(
            f"{counted(len(found), 'pod')} with the label of {metadata['namespace']}/{metadata['name']}, and none is "
            "controlled by an object of it that you may read: kubectl logs shows their logs"
        )
    return sorted(owned, key=lambda pod: (not owners.submits(pod), *_head_first(pod)))


def _may_be_of(pod: Json, appwrapper: Json) -> bool:
    """False for a pod that is older than the AppWrapper: of most pods of a namespace the owners are not read."""
    made, submitted = (time_in(each.get("creationTimestamp")) for each in (pod["metadata"], appwrapper))
    return made is None or submitted is None or made >= submitted - CLOCKS_APART


class _Owners:
    """The controllers of pods of one namespace, each read once."""

    def __init__(self, client: UserClient, appwrapper: Json) -> None:
        self._client = client
        self._namespace = appwrapper["namespace"]
        self._uid = appwrapper["uid"]
        self._found: dict[str, Json | None] = {}
        self._plurals: dict[str, dict[str, str]] = {}
        self._asked_for: dict[str, bool] = {}

    def lead_to_appwrapper(self, pod: Json) -> bool:
        """True if the chain of controllers ends at the AppWrapper, or at an anchor of an attempt of it."""
        metadata: Json | None = pod["metadata"]
        for _ in range(MOST_OWNERS):
            reference = controller_of(metadata) if metadata else None
            if reference is None:
                return False
            if reference.get("uid") == self._uid:
                return True
            metadata = self._read(reference)
            if metadata and appwrapper_of(reference) == self._uid:
                return True
        return False

    def may_lead(self, pod: Json) -> bool:
        """The same for a pod without the label; false once the controllers of too many such pods were read."""
        reference = controller_of(pod["metadata"])
        if reference is None:
            return False
        uid = str(reference.get("uid"))
        if uid not in self._asked_for:
            if len(self._asked_for) == MOST_CONTROLLERS:
                return False
            self._asked_for[uid] = self.lead_to_appwrapper(pod)
        return self._asked_for[uid]

    def submits(self, pod: Json) -> bool:
        """True for the pod that submits a RayJob to its cluster, and prints what the job prints."""
        job = controller_of(pod["metadata"])
        if job is None or job.get("kind") != "Job":
            return False
        above = controller_of(self._found.get(str(job.get("uid"))) or {})
        return above is not None and above.get("kind") == "RayJob"

    def _read(self, reference: Mapping[str, Any]) -> Json | None:
        """The metadata of the very object that is referred to; None if it is not there, or out of reach."""
        uid = str(reference.get("uid"))
        if uid not in self._found:
            self._found[uid] = self._asked(reference, uid)
        return self._found[uid]

    def _asked(self, reference: Mapping[str, Any], uid: str) -> Json | None:
        version, kind, name = (str(reference.get(key)) for key in ("apiVersion", "kind", "name"))
        try:
            plural = self._plural(version, kind)
            metadata: Json = self._client.get(paths.item(version, plural, self._namespace, name))["metadata"]
        except (errors.NotFound, errors.Forbidden, errors.ImpossibleName):
            return None
        return metadata if metadata.get("uid") == uid else None

    def _plural(self, version: str, kind: str) -> str:
        """The name of the kind in paths; empty, which is none, if the cluster does not serve it."""
        if version not in self._plurals:
            listed = self._client.get(paths.root(version))["resources"]
            self._plurals[version] = {
                each["kind"]: each["name"] for each in listed if "/" not in each["name"]
            }
        return self._plurals[version].get(kind, "")


def commands_for(
    appwrapper: Json, cluster: str, pods: Sequence[Json], *, container: str = "", previous: bool = False
) -> list[str]:
    """The kubectl command for the log of each pod; without known pods, one for all by their label."""
    metadata = appwrapper["metadata"]
    there = [] if cluster == HUB_CLUSTER else ["--context", cluster]
    begin = ["kubectl", *there, "logs", "-n", metadata["namespace"], *["--previous"] * previous]
    if not pods:
        return [shlex.join([*begin, "-l", f"{UID_LABEL}={metadata['uid']}", "--prefix", "--all-containers"])]
    return [shlex.join([*begin, pod["metadata"]["name"], "-c", container_of(pod, container)]) for pod in pods]


def log_of(
    client: UserClient, pod: Json, *, follow: bool, container: str = "", previous: bool = False
) -> Iterator[str]:
    """The lines of the log of a pod's container, with their line breaks; `previous` is that of its run before."""
    metadata = pod["metadata"]
    path = f"{paths.item('v1', 'pods', metadata['namespace'], metadata['name'])}/log"
    flags = {"follow": follow, "previous": previous}
    query = {
        "container": container_of(pod, container),
        **{flag: "true" for flag, given in flags.items() if given},
    }
    for line in client.lines(path, query, None):
        yield line.decode(errors="replace")


def _by_name(name: str) -> list[str]:
    return [f"{label}={name}" for label in (NAME_LABEL, MCAD_NAME_LABEL)]


def _is_head(pod: Json) -> bool:
    return not HEADS.isdisjoint((pod["metadata"].get("labels") or {}).items())


def _head_first(pod: Json) -> tuple[bool, str, str]:
    metadata = pod["metadata"]
    return not _is_head(pod), str(metadata.get("creationTimestamp")), metadata["name"]


def container_of(pod: Json, wanted: str = "") -> str:
    """The wanted container, else the one that kubectl would choose: the annotation counts only if the pod has it.

    Raises `CommandFailed` if the pod does not have the wanted one.
    """
    containers = [each["name"] for each in pod["spec"]["containers"]]
    inits = [each["name"] for each in pod["spec"].get("initContainers") or ()]
    there = (*containers, *inits)
    if wanted and wanted not in there:
        raise errors.CommandFailed(
            f"pod {pod['metadata']['name']} has no container {wanted}; it has {', '.join(there)}"
        )
    chosen = wanted or (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    return str(chosen if chosen in there else containers[0])


def pod_named(pods: Sequence[Json], name: str, of: str) -> Json:
    """The pod of that name. Raises `CommandFailed` if there is none."""
    for pod in pods:
        if pod["metadata"]["name"] == name:
            return pod
    others = ", ".join(pod["metadata"]["name"] for pod in pods[:MOST_NAMED])
    more = ", …" if len(pods) > MOST_NAMED else ""
    raise errors.CommandFailed(f"{of} has no pod {name} now; its pods are {others}{more}")

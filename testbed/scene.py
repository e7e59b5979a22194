"""The visible state of a small cluster at one moment: values in, a table's cells out, no I/O.

A scene is made from lists of the API server and from the queue in the database. It does not ask the dispatcher which
objects it created, but looks for every object with an AppWrapper's name, so it also finds objects that should not
exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Self

GPU: Final = "nvidia.com/gpu"
GONE: Final = "deleted"
UNSEEN: Final = "-"
FINISHED: Final = ("Succeeded", "Failed")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lists:
    """The objects that were read, one list for each kind."""

    appwrappers: Sequence[Json] = ()
    nodes: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    rayclusters: Sequence[Json] = ()
    services: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One AppWrapper; `exists` names every object of it."""

    name: str
    position: int | None
    state: str
    reason: str
    pods: str
    exists: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """All AppWrappers so far, and the GPUs that they compete for."""

    rows: tuple[Row, ...]
    free_gpus: int
    gpus: int

    @classmethod
    def of(cls, names: Sequence[str], lists: Lists, positions: Mapping[str, int | None]) -> Self:
        """The scene of the AppWrappers with these names."""
        gpus = sum(gpus_of_node(each) for each in lists.nodes)
        held = sum(gpus_of_pod(each) for each in lists.pods)
        rows = tuple(row_of(each, lists, positions.get(each)) for each in names)
        return cls(rows, gpus - held, gpus)

    def row(self, name: str) -> Row:
        """The row of one AppWrapper; raises `StopIteration` if it does not exist yet."""
        return next(each for each in self.rows if each.name == name)


def row_of(name: str, lists: Lists, position: int | None) -> Row:
    """The row of one AppWrapper."""
    found = next((each for each in lists.appwrappers if name_of(each) == name), None)
    status = {} if found is None else found.get("status", {})
    uid = name if found is None else found["metadata"]["uid"]
    return Row(
        name=name,
        position=position,
        state=GONE if found is None else status.get("lifecyclePhase", UNSEEN),
        reason="" if found is None else reason_of(status),
        pods=pods_of([each for each in lists.pods if name in names_of(each)]),
        exists=exists_of({name, uid}, lists),
    )


def reason_of(status: Json) -> str:
    """Why it waits, else the reason of its present condition."""
    waiting = status.get("waiting", {}).get("message")
    reasons = {each["type"]: each.get("reason", "") for each in status.get("conditions", ())}
    return str(waiting or reasons.get(status.get("queuejobstate"), ""))


def pods_of(pods: Sequence[Json]) -> str:
    """The counts of pods by state: `2 running`."""
    counts = Counter(doing(each) for each in pods)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"


def doing(pod: Json) -> str:
    """The state of a pod, in one word."""
    if "deletionTimestamp" in pod["metadata"]:
        return "ending"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()


def exists_of(names: Set[str], lists: Lists) -> tuple[str, ...]:
    """The objects in the cluster with one of these names."""
    kinds = {"RayCluster": lists.rayclusters, "Pod": lists.pods, "Service": lists.services}
    return tuple(
        f"{kind} {name_of(each)}"
        for kind, objects in kinds.items()
        for each in objects
        if names & names_of(each)
    )


def names_of(thing: Json) -> Set[str]:
    """The names that lead to an object's owner: its own name and the values of its labels."""
    return {name_of(thing), *thing["metadata"].get("labels", {}).values()}


def name_of(thing: Json) -> str:
    """The name of an object."""
    return str(thing["metadata"]["name"])


def gpus_of_node(node: Json) -> int:
    """The number of GPUs of a node."""
    return int(node["status"]["allocatable"].get(GPU, 0))


def gpus_of_pod(pod: Json) -> int:
    """The number of GPUs that a pod on a node holds, until it has finished or is gone."""
    if not pod["spec"].get("nodeName") or pod["status"]["phase"] in FINISHED:
        return 0
    return sum(
        int(each.get("resources", {}).get("requests", {}).get(GPU, 0)) for each in pod["spec"]["containers"]
    )

"""The expected end of the hub demo: the history, and the objects of each cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from rich.table import Table

from dispatcher.api.names import ANCHOR_PREFIX, ATTEMPT_LABEL
from dispatcher.core.lifecycle.transitions import Cause
from testbed.gangs import Gang
from testbed.kuberay_operator import CLUSTER_LABEL
from testbed.scene import Json, doing, name_of

NAMESPACE: Final = "default"
OF_KUBERNETES: Final = "kubernetes"
"""The one service that every cluster has."""


@dataclass(frozen=True, slots=True)
class Past:
    """The clusters to which a gang was dispatched, and those where all its pods ran, each in order."""

    dispatched: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, events: Iterable[tuple[str, str, str]]) -> Self:
        """The past from the history: names, causes and clusters, in order."""
        mine = [(cause, cluster) for each, cause, cluster in events if each == name]
        dispatched, ran = (
            tuple(cluster for cause, cluster in mine if cause == wanted)
            for wanted in (Cause.DISPATCHED, Cause.PODS_RUNNING)
        )
        return cls(dispatched, ran)


@dataclass(frozen=True, slots=True)
class Found:
    """All objects of one cluster that the demo may have left there, one list for each kind."""

    appwrappers: Sequence[Json] = ()
    configmaps: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    rayclusters: Sequence[Json] = ()
    services: Sequence[Json] = ()


def wrong_pasts(gangs: Iterable[Gang], pasts: Mapping[str, Past]) -> list[str]:
    """The gangs that were not dispatched, or did not run, where they had to."""
    return [
        f"{gang.name} had to be dispatched to {gang.route} and to run there, but: {pasts[gang.name]}"
        for gang in gangs
        if pasts[gang.name] != Past(gang.route, gang.route)
    ]


def wrong_objects(wanted: Mapping[str, Counter[str]], found: Mapping[str, Counter[str]]) -> list[str]:
    """The missing and the unexpected objects, cluster by cluster."""
    return [
        f"{cluster}: {word} {count} of {thing}"
        for cluster in sorted(wanted)
        for word, differing in (
            ("missing", wanted[cluster] - found[cluster]),
            ("too many", found[cluster] - wanted[cluster]),
        )
        for thing, count in sorted(differing.items())
    ]


def wanted_objects(gangs: Iterable[Gang], clusters: Iterable[str], hub: str) -> dict[str, Counter[str]]:
    """The expected counts of a cluster's objects, if each gang runs where its route ends, in its last attempt."""
    wanted: dict[str, Counter[str]] = {cluster: Counter() for cluster in (hub, *clusters)}
    for gang in gangs:
        attempt = len(gang.route)
        wanted[hub][f"AppWrapper {gang.name}"] += 1
        wanted[gang.route[-1]] += Counter(
            {
                f"anchor of {NAMESPACE}/{gang.name}, attempt {attempt}": 1,
                f"RayCluster {gang.name}, attempt {attempt}": 1,
                f"Service of {gang.name}": 1,
                f"running Pod of {gang.name}, attempt {attempt}": gang.pods,
            }
        )
    return wanted


def found_objects(found: Found) -> Counter[str]:
    """The actual counts of a cluster's objects, with the same names."""
    anchors = (each for each in found.configmaps if name_of(each).startswith(ANCHOR_PREFIX))
    services = (each for each in found.services if name_of(each) != OF_KUBERNETES)
    return Counter(
        [
            *(f"AppWrapper {name_of(each)}" for each in found.appwrappers),
            *(f"anchor of {appwrapper_of(each)}, attempt {attempt_of(each)}" for each in anchors),
            *(f"RayCluster {name_of(each)}, attempt {attempt_of(each)}" for each in found.rayclusters),
            *(f"Service of {raycluster_of(each)}" for each in services),
            *(
                f"{doing(each)} Pod of {raycluster_of(each)}, attempt {attempt_of(each)}"
                for each in found.pods
            ),
        ]
    )


def appwrapper_of(anchor: Json) -> str:
    """The name of the AppWrapper of an anchor."""
    return str(anchor.get("data", {}).get("appwrapper", name_of(anchor)))


def raycluster_of(thing: Json) -> str:
    """The name of the RayCluster of a pod or service."""
    return label_of(thing, CLUSTER_LABEL)


def attempt_of(thing: Json) -> str:
    """The number of the attempt that created an object."""
    return label_of(thing, ATTEMPT_LABEL)


def label_of(thing: Json, label: str) -> str:
    """The value of a label, or the object's own name without it, so that the object is reported."""
    return str(thing["metadata"].get("labels", {}).get(label, name_of(thing)))


def summary_of(gangs: Iterable[Gang], pasts: Mapping[str, Past], clusters: Mapping[str, str]) -> Table:
    """The table of the gangs' results; `clusters` is where each runs now."""
    table = Table("gang", "GPUs", "ran on", "dispatches", "runs now on")
    for gang in gangs:
        past = pasts[gang.name]
        ran, now = ", then ".join(past.ran), clusters.get(gang.name) or "-"
        table.add_row(gang.name, str(gang.pods), ran, str(len(past.dispatched)), now)
    return table

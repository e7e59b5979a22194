"""The blog's Ray gang with other names and sizes, and the ten gangs of `make demo-hub`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from dispatcher.api.names import CLUSTER_SELECTOR
from testbed.stack import ROOT

EXAMPLE: Final = ROOT / "examples" / "aw-raycluster-glue.yaml"


@dataclass(frozen=True, slots=True)
class Gang:
    """A Ray head and its workers: `pods` pods in all, each with one GPU.

    `route` are the clusters to which the demo has to dispatch it, in order.
    """

    name: str
    pods: int
    route: tuple[str, ...]
    selector: str = ""


PINNED: Final = Gang("tune-h100", 2, ("west", "west"), selector="gpu=h100")
MOVED: Final = (Gang("train-1", 3, ("west", "east")), Gang("train-2", 3, ("west", "east")))
DONE: Final = Gang("tune-1", 2, ("east",))
STAYING: Final = (
    Gang("train-3", 3, ("east",)),
    DONE,
    Gang("tune-2", 2, ("east",)),
    Gang("tune-3", 2, ("east",)),
    Gang("tune-4", 2, ("east",)),
    Gang("eval", 1, ("east",)),
)
LARGE: Final = Gang("pretrain", 6, ("west",))
GANGS: Final = (PINNED, *MOVED, *STAYING, LARGE)


def write(path: Path, gangs: Sequence[Gang]) -> None:
    """Writes the AppWrappers of these gangs into one file, for kubectl."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump_all([appwrapper_of(each) for each in gangs], sort_keys=False))


def appwrapper_of(gang: Gang) -> dict[str, Any]:
    """The AppWrapper of a gang."""
    wrapped = ray_gang(gang.name, gang.pods)
    if gang.selector:
        wrapped["metadata"]["annotations"] = {CLUSTER_SELECTOR: gang.selector}
    return wrapped


def ray_gang(name: str, pods: int) -> dict[str, Any]:
    """The AppWrapper of a Ray head and its workers, `pods` pods in all, each with one GPU."""
    wrapped: dict[str, Any] = copy.deepcopy(yaml.safe_load(EXAMPLE.read_text()))
    wrapped["metadata"]["name"] = name
    [item] = wrapped["spec"]["resources"]["GenericItems"]
    [demand] = item["custompodresources"]
    demand["replicas"] = pods
    ray = item["generictemplate"]
    ray["metadata"] = {"name": name}
    [workers] = ray["spec"]["workerGroupSpecs"]
    workers |= dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), pods - 1)
    return wrapped

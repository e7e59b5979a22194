"""Runs of simulations from documents, and what happens in them."""

from __future__ import annotations

from typing import Any

from dispatcher.core.simulation.measures import Measured
from dispatcher.core.simulation.run_file import read_run
from dispatcher.core.simulation.simulation import Simulation

GPU = "nvidia.com/gpu"


def cluster(name: str = "east", nodes: int = 1, gpus: int = 8) -> dict[str, Any]:
    """A cluster of equal nodes."""
    return {"name": name, "nodes": [{"name": "node", "count": nodes, "allocatable": {GPU: gpus}}]}


def gang(name: str, arrival: float, duration: float | None, gpus: int = 8, **more: object) -> dict[str, Any]:
    """A gang of a list with one pod; it never ends without a duration."""
    found = {"name": name, "arrival": arrival, "pods": [{"requests": {GPU: gpus}}], **more}
    return found if duration is None else {**found, "duration": duration}


def document(*gangs: dict[str, Any], policy: dict[str, Any] | None = None, **keys: object) -> dict[str, Any]:
    """A file with a list of gangs; one cluster with a node of 8 GPUs, if the keys have no others."""
    return {
        "clusters": [cluster()],
        "trace": {"format": "list", "gangs": list(gangs)},
        "policy": policy or {},
        **keys,
    }


def simulation_of(document: dict[str, Any]) -> Simulation:
    """The simulation of a file with a list."""
    run = read_run(document, "run")
    return run.simulation(run.jobs())


def run(document: dict[str, Any]) -> Measured:
    """What a file with a list comes to."""
    simulation = simulation_of(document)
    while simulation.advance():
        pass
    return simulation.measured()

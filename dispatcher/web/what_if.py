"""What would happen to a gang of equal pods if it were submitted now, as `kubectl aw would` says it of a file.

The defaults that a cluster adds to pods are not counted, and nothing is asked of the hub.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dispatcher.api.names import DEFAULT_NAMESPACE, QUEUE_LABEL
from dispatcher.api.spec_errors import SpecError
from dispatcher.api.syntax import LABEL, LONGEST_LABEL, is_subdomain
from dispatcher.cli.command_line import NotWritten
from dispatcher.core.intake.proposal import propose
from dispatcher.core.model.records.record import Record
from dispatcher.core.model.resources import is_gpu
from dispatcher.core.scheduling.explain.world import World
from dispatcher.store.snapshot.snapshot_reader import Snapshot

Json = dict[str, Any]

NAME: Final = "what-if"
_LABEL: Final = re.compile(f"(?=.{{1,{LONGEST_LABEL}}}$){LABEL}")
USUAL_GPU: Final = "nvidia.com/gpu"
"""The resource of GPUs where no node has any."""
BOUNDS: Final = {
    "pods": (1, 10_000),
    "gpus": (0, 1_024),
    "cpu": (0, 4_096),
    "memory": (0, 65_536),
    "priority": (-(2**31), 2**31 - 1),
}
"""The least and the most of each number; memory is in GiB, and all amounts are those of one pod."""


class Question(Struct, frozen=True):
    """A gang as an address writes it: text of numbers, and the names of a queue and a namespace, empty for none."""

    pods: str = "1"
    gpus: str = "1"
    cpu: str = "1"
    memory: str = "1"
    priority: str = "0"
    queue: str = ""
    namespace: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Question:
        """From the parameters of an address; others are left out, and empty ones are the defaults."""
        return cls(
            **{name: written for name in cls.__struct_fields__ if (written := query.get(name, "").strip())}
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of its address."""
        return {name: written for name in self.__struct_fields__ if (written := getattr(self, name))}

    def number(self, name: str) -> int:
        """One of its numbers. Raises `NotWritten`."""
        least, most = BOUNDS[name]
        written = getattr(self, name)
        digits = written.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= len(str(most))):
            raise NotWritten(f"{name} is {written!r}, which is no whole number")
        if not least <= int(written) <= most:
            raise NotWritten(f"{name} is {written}: from {least} to {most}")
        return int(written)

    def appwrapper(self, gpu: str) -> Json:
        """The AppWrapper, which wraps a Job; `gpu` is the resource of its GPUs. Raises `NotWritten`."""
        pods = self.number("pods")
        amounts = {
            gpu: str(self.number("gpus")),
            "cpu": str(self.number("cpu")),
            "memory": f"{self.number('memory')}Gi",
        }
        asked = {name: amount for name, amount in amounts.items() if amount.strip("0Gi")}
        container = {"name": NAME, "image": NAME, "resources": {"requests": asked, "limits": asked}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": NAME},
            "spec": {"parallelism": pods, "completions": pods, "template": template},
        }
        namespace = self.namespace or DEFAULT_NAMESPACE
        if not _LABEL.fullmatch(namespace):
            raise NotWritten(f"namespace is {namespace!r}, which is no name of a namespace")
        if self.queue and not is_subdomain(self.queue):
            raise NotWritten(f"queue is {self.queue!r}, which is no name of a queue")
        labels = {QUEUE_LABEL: self.queue} if self.queue else {}
        return {
            "apiVersion": "workload.codeflare.dev/v1beta1",
            "kind": "AppWrapper",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
            "spec": {
                "priority": self.number("priority"),
                "resources": {"GenericItems": [{"generictemplate": job}]},
            },
        }


def submitted(snapshot: Snapshot, question: Question) -> tuple[World, Record]:
    """The world with the gang in the queue, and its record. Raises `NotWritten` for what intake would reject."""
    try:
        proposal = propose(
            question.appwrapper(gpu_of(snapshot.world)), DEFAULT_NAMESPACE, snapshot.rules, snapshot.world.now
        )
    except SpecError as error:
        raise NotWritten(str(error)) from error
    return snapshot.world.with_pending([proposal.record]), proposal.record


def gpu_of(world: World) -> str:
    """The resource of GPUs that most nodes have."""
    names = Counter(
        name
        for cluster in world.clusters
        for node in cluster.nodes
        for name in node.allocatable
        if is_gpu(name)
    )
    return max(names, key=lambda name: (names[name], name), default=USUAL_GPU)

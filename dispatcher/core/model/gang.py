"""A gang: its pod sets and their total demand, as comparable values."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.model.resources import NOTHING, Resources


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; `effect` is NoSchedule, NoExecute or PreferNoSchedule."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; empty strings mean any key (with Exists) or any effect, as in Kubernetes."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """True if a pod with this toleration may be placed on a node with `taint`."""
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        if self.key != taint.key:
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class PodSet:
    """`count` equal pods; `requests` is per pod."""

    count: int
    requests: Resources
    tolerations: tuple[Toleration, ...] = ()

    def tolerates(self, taints: tuple[Taint, ...]) -> bool:
        """True if these pods tolerate every scheduling taint of `taints`."""
        return all(
            taint.effect == "PreferNoSchedule" or any(t.covers(taint) for t in self.tolerations)
            for taint in taints
        )


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods that must fit at once.

    `demand` is the total that the capacity check uses: see `core.kinds.demand`. `pods` is the number of pods that must
    run for the gang to be Running. `pod_sets` come from the templates where these can be read.
    """

    demand: Resources = NOTHING
    pods: int = 0
    pod_sets: tuple[PodSet, ...] = ()

    def tolerates(self, taints: tuple[Taint, ...]) -> bool:
        """True if every pod set tolerates `taints`; a gang without pod sets tolerates none."""
        if not self.pod_sets:
            return not any(taint.effect != "PreferNoSchedule" for taint in taints)
        return all(pod_set.tolerates(taints) for pod_set in self.pod_sets)

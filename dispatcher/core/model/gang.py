"""A gang: its pod sets and their total demand, as comparable values."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatcher.core.model.nodes import ANY_NODE, NodeRequirements, Taint, Toleration
from dispatcher.core.model.resources import NOTHING, Resources


@dataclass(frozen=True, slots=True)
class PodSet:
    """`count` equal pods; `requests` is per pod.

    `nodes` is what the pods require of a node's labels. `apart` are labels of nodes: no two pods of the set may be on
    nodes with the same value of one of them (required pod anti-affinity among themselves). `together` are labels of
    nodes that must have one value for all pods of the set (required pod affinity among themselves). `path` is where
    the template is inside the wrapped object, for messages.
    """

    count: int
    requests: Resources
    tolerations: tuple[Toleration, ...] = ()
    nodes: NodeRequirements = ANY_NODE
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    path: str = field(default="", compare=False)

    def tolerates(self, taints: tuple[Taint, ...]) -> bool:
        """True if these pods tolerate every scheduling taint of `taints`."""
        return all(
            not taint.keeps_away or any(each.covers(taint) for each in self.tolerations) for taint in taints
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
            return not any(taint.keeps_away for taint in taints)
        return all(pod_set.tolerates(taints) for pod_set in self.pod_sets)

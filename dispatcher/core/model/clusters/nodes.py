"""Nodes and the requirements of pods on nodes: taints and tolerations, labels and node affinity, as in Kubernetes.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/ and
https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from dispatcher.core.model.resources import PODS, Resources

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label whose value differs on every node."""

UNLIMITED_PODS: Final = 2**31 - 1
"""The pod limit of a node that lists none."""


class Taint(Struct, frozen=True):
    """A node's taint; `effect` is NoSchedule, NoExecute or PreferNoSchedule."""

    key: str
    value: str
    effect: str

    @property
    def keeps_away(self) -> bool:
        """True if a pod without a toleration may not be placed on the node."""
        return self.effect != "PreferNoSchedule"

    def __str__(self) -> str:
        """The taint as `kubectl taint` takes it, without the effect."""
        return f"{self.key}={self.value}" if self.value else self.key


class Toleration(Struct, frozen=True, omit_defaults=True):
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


class LabelOperator(StrEnum):
    """The operators of affinities in JSON, on labels of nodes and of pods; GT and LT are only for nodes.

    Source: https://pkg.go.dev/k8s.io/api/core/v1#NodeSelectorOperator
    """

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class LabelRequirement(Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """A condition on one label; `values` are the operands, one whole number for GT and LT."""

    key: str
    operator: LabelOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels satisfy the condition; a label that is absent satisfies NOT_IN."""
        value = labels.get(self.key)
        match self.operator:
            case LabelOperator.IN:
                return value is not None and value in self.values
            case LabelOperator.NOT_IN:
                return value is None or value not in self.values
            case LabelOperator.EXISTS:
                return value is not None
            case LabelOperator.DOES_NOT_EXIST:
                return value is None
            case LabelOperator.GT | LabelOperator.LT:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        number, bound = whole_number(value or ""), whole_number(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator is LabelOperator.GT else number < bound

    def __str__(self) -> str:
        """The condition in words."""
        values = ", ".join(self.values)
        match self.operator:
            case LabelOperator.IN if len(self.values) == 1:
                return f"{self.key}={values}"
            case LabelOperator.IN:
                return f"{self.key} in ({values})"
            case LabelOperator.NOT_IN:
                return f"{self.key} not in ({values})"
            case LabelOperator.EXISTS:
                return self.key
            case LabelOperator.DOES_NOT_EXIST:
                return f"no {self.key}"
            case LabelOperator.GT:
                return f"{self.key} > {values}"
            case LabelOperator.LT:
                return f"{self.key} < {values}"


def whole_number(text: str) -> int | None:
    """The number that Kubernetes reads from a label or an operand of GT and LT; None if the text is no such number.

    Python's `int` also takes `1_0`, white space, other digits and more than 64 bits, and Go's `ParseInt` does not.
    Source: https://github.com/kubernetes/apimachinery/blob/master/pkg/labels/selector.go (`Requirement.Matches`)
    """
    if not _WHOLE_NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number in _INT64 else None


_WHOLE_NUMBER: Final = re.compile("[+-]?[0-9]{1,63}")
_INT64: Final = range(-(2**63), 2**63)


class NodeTerm(Struct, frozen=True, omit_defaults=True):
    """A term of a required node affinity: all conditions on labels and on the name must hold.

    A term without any condition matches no node. The conditions in `names` are about the node's name; their key says
    `metadata.name`.
    """

    labels: tuple[LabelRequirement, ...] = ()
    names: tuple[LabelRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """True if a node with this name and these labels satisfies every condition."""
        if not self.labels and not self.names:
            return False
        by_labels = all(each.matches(labels) for each in self.labels)
        return by_labels and all(each.matches({each.key: name}) for each in self.names)

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.labels, *self.names)))


class WhyBeside(StrEnum):
    """Why pods that are there keep others off nodes, in words that follow a number of nodes."""

    REPELS = "by its anti-affinity to other pods"
    IS_REPELLED = "by the anti-affinity of other pods"
    ATTRACTS = "without the other pods that its affinity requires"
    EXCEEDS = "until its namespace has fewer terms about other pods in the queue"


class Beside(Struct, frozen=True):
    """A condition on the domain of a node by a label, because of pods that are there.

    See `core.scheduling.capacity.pods_there`.

    The value of the label must not be one of `domains`, and may be absent; for ATTRACTS it must be one of them. EXCEEDS
    allows no node.
    """

    topology: str
    domains: frozenset[str]
    why: WhyBeside

    def allows(self, value: str | None) -> bool:
        """True if the condition allows nodes with this value of the label; None where it is absent."""
        if self.why is WhyBeside.EXCEEDS:
            return False
        return (value in self.domains) is (self.why is WhyBeside.ATTRACTS)


_VALUES: Final = 32
"""Values that are compared in the time of a condition."""


class NodeRequirements(Struct, frozen=True, omit_defaults=True):
    """Requirements of pods on the labels of a node: all of `selector`, and one of `terms` if there are any.

    `beside` are conditions of one moment, by the pods that are there; a template has none.
    """

    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] = ()
    beside: tuple[Beside, ...] = ()

    @property
    def comparisons(self) -> int:
        """The work of comparing a node with the selector and the terms: 1 for each condition or some tens of values."""
        conditions = sum(
            1 + len(each.values) // _VALUES for term in self.terms for each in (*term.labels, *term.names)
        )
        return len(self.selector) + len(self.terms) + conditions

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """True if pods with these requirements may be placed on a node with this name and these labels."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if not all(each.allows(labels.get(each.topology)) for each in self.beside):
            return False
        return not self.terms or any(term.matches(name, labels) for term in self.terms)

    def __str__(self) -> str:
        """The requirements in words; empty if there are none."""
        selector = ", ".join(f"{key}={value}" for key, value in self.selector)
        return "; ".join(filter(None, (selector, " or ".join(map(str, self.terms)))))


ANY_NODE: Final = NodeRequirements()


class Node(Struct, frozen=True, omit_defaults=True):
    """The capacity of a node; `usable` means Ready and not cordoned, `ready` only Ready.

    `most_pods` is the number of pods that the node lists, also 0; None if it lists none. `left_out` are the names of
    resources and labels, and the taints, that the node has beyond the bounds of a decoder and that do not count.
    """

    name: str
    allocatable: Resources
    usable: bool = True
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    most_pods: int | None = None
    left_out: int = 0

    def __hash__(self) -> int:
        # Without the labels, which are a dictionary.
        return hash((self.name, self.allocatable, self.usable, self.taints, self.ready, self.most_pods))

    @property
    def pod_limit(self) -> int:
        """The number of pods that the node takes, whatever they request."""
        by_amount = self.allocatable[PODS] or UNLIMITED_PODS
        return by_amount if self.most_pods is None else self.most_pods

    @property
    def shape(self) -> Node:
        """An empty, usable node with this size, labels and taints, and without a name of its own."""
        labels = {key: value for key, value in sorted(self.labels.items()) if key != HOSTNAME}
        # A node that takes no pods does not list them among its amounts, which have no zeros.
        most_pods = 0 if self.pod_limit == 0 else None
        return Node("", self.allocatable, taints=self.taints, labels=labels, most_pods=most_pods)

    @property
    def scheduling_taints(self) -> tuple[Taint, ...]:
        """The taints that keep pods away, sorted, so that equal nodes share a pool."""
        if not self.taints:
            return ()
        keeping_away = {taint for taint in self.taints if taint.keeps_away}
        return tuple(sorted(keeping_away, key=lambda taint: (taint.key, taint.value, taint.effect)))

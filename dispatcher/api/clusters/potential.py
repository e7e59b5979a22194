"""Pools of nodes that the autoscaler of a cluster grows for pending pods, as operators declare them.

They are fields of a MemberCluster, or the setting of the hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

from dispatcher.api.document import LONGEST_NAME, MOST_RESOURCES, Entry, read_setting
from dispatcher.api.spec_errors import quoted
from dispatcher.api.syntax import LABEL, LONGEST_LABEL, is_qualified_name

MOST_POOLS: Final = 16
"""Pools of one cluster."""
MOST_LABELS: Final = 64
"""Labels of a pool, and its taints."""
BIND_WITHIN: Final = timedelta(seconds=900)
"""Fifteen minutes: clouds bring a node with accelerators in some minutes, or not at all."""
BIND_WITHIN_SECONDS: Final = (10, 86_400)
"""The least and the most that may be declared."""
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NO_LABEL: Final = "is not the name of a label such as node.example.com/pool"
_NAME: Final = re.compile(LABEL)


class OnPotential(StrEnum):
    """The decision about a gang that fits only with potential nodes."""

    DISPATCH = "Dispatch"
    """It is dispatched, so that its pending pods make the autoscaler add the nodes."""
    WAIT = "Wait"
    """It waits until somebody adds the nodes."""


class NodePool(Struct, frozen=True):
    """A pool that grows to at most `most` nodes with these amounts, labels and taints (key, value and effect)."""

    name: str
    allocatable: Mapping[str, int | str]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str, str], ...]
    most: int


class PotentialNodes(Struct, frozen=True):
    """The pools of a cluster. Pods of a gang on trust must have nodes `bind_within` after its creation."""

    pools: tuple[NodePool, ...] = ()
    on_potential: OnPotential = OnPotential.DISPATCH
    bind_within: timedelta = BIND_WITHIN


NO_POTENTIAL: Final = PotentialNodes()


def read_potential(entry: Entry, pools: str) -> PotentialNodes:
    """The declaration among the fields of an object, the pools in the field `pools`. Raises `SpecError`."""
    least, most = BIND_WITHIN_SECONDS
    seconds = entry.child("bindWithinSeconds").integer(int(BIND_WITHIN.total_seconds()), least, most)
    return PotentialNodes(
        tuple(map(_pool, entry.child(pools).unique_elements(set(), MOST_POOLS))),
        OnPotential(entry.child("onPotential").one_of(list(OnPotential), OnPotential.DISPATCH)),
        timedelta(seconds=seconds),
    )


def parse_potential(text: str) -> PotentialNodes:
    """The declaration in a setting as JSON; no pools for an empty text. Raises `ValueError` with the field."""
    if not text:
        return PotentialNodes()
    setting = read_setting(text)
    setting.child("pools").required("Write [] for none")
    return read_potential(setting, "pools")


def _pool(entry: Entry) -> NodePool:
    name, node = entry.child("name"), entry.child("node").required().object()
    if len(name.name()) > LONGEST_LABEL or not _NAME.fullmatch(name.name()):
        name.fail(
            f"must have at most {LONGEST_LABEL} lower case letters, digits and '-', not {quoted(name.value)}"
        )
    allocatable = node.child("allocatable").quantities(MOST_RESOURCES)
    if not allocatable:
        node.child("allocatable").fail("at least one resource is required")
    return NodePool(
        name.name(),
        allocatable,
        _labels(node.child("labels")),
        tuple(map(_taint, node.child("taints").elements(MOST_LABELS))),
        entry.child("max").required().integer(1, least=1),
    )


def _labels(entry: Entry) -> dict[str, str]:
    labels = entry.texts(MOST_LABELS, LONGEST_LABEL)
    if not labels:
        entry.fail("at least one label is required: it says which nodes are of the pool")
    for each in labels:
        if not is_qualified_name(each):
            entry.child(each).fail(_NO_LABEL, "Correct the name")
    return labels


def _taint(entry: Entry) -> tuple[str, str, str]:
    key = entry.object().child("key")
    if not is_qualified_name(key.required().any_text(LONGEST_NAME)):
        key.fail(f"{_NO_LABEL}: {quoted(key.value)}")
    return key.value, entry.child("value").any_text(LONGEST_LABEL), entry.child("effect").one_of(EFFECTS)

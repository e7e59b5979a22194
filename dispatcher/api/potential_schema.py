"""Reads the declaration of pools that grow for pending pods: fields of a MemberCluster, or the setting of the hub."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from dispatcher.api.potential import (
    BIND_WITHIN,
    MOST_LABELS,
    MOST_POOLS,
    NodePool,
    OnPotential,
    PotentialNodes,
)
from dispatcher.api.schema import INT32_MAX, ResourceList, Written, read_setting
from dispatcher.api.syntax import LONGEST_LABEL, is_qualified_name


def _check_label(value: str) -> str:
    if not is_qualified_name(value):
        raise PydanticCustomError("label_name", "is not the name of a label such as node.example.com/pool")
    return value


Label = Annotated[str, Field(max_length=316), AfterValidator(_check_label)]
Value = Annotated[str, Field(max_length=LONGEST_LABEL)]


class WrittenTaint(Written):
    """``potential[].node.taints[]``."""

    key: Annotated[str, Field(min_length=1, max_length=316), AfterValidator(_check_label)]
    value: str = Field("", max_length=LONGEST_LABEL)
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class WrittenNodeShape(Written):
    """``potential[].node``."""

    allocatable: ResourceList = Field(min_length=1, max_length=64)
    labels: dict[Label, Value] = Field(min_length=1, max_length=MOST_LABELS)
    taints: list[WrittenTaint] = Field([], max_length=MOST_LABELS)


class WrittenPool(Written):
    """``potential[]``."""

    name: str = Field(min_length=1, max_length=LONGEST_LABEL, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    node: WrittenNodeShape
    most: int = Field(alias="max", ge=1, le=INT32_MAX)


def _check_unique(pools: list[WrittenPool]) -> list[WrittenPool]:
    names = [each.name for each in pools]
    if len(set(names)) < len(names):
        raise PydanticCustomError("unique", "must have unique names")
    return pools


Pools = Annotated[list[WrittenPool], Field(max_length=MOST_POOLS), AfterValidator(_check_unique)]
BindWithin = Annotated[int, Field(ge=10, le=86_400)]
BIND_WITHIN_SECONDS: Final = int(BIND_WITHIN.total_seconds())


class WrittenSetting(Written):
    """The setting `DISPATCHER_POTENTIAL`."""

    pools: Pools
    on_potential: OnPotential = Field(OnPotential.DISPATCH, alias="onPotential", strict=False)
    bind_within: BindWithin = Field(BIND_WITHIN_SECONDS, alias="bindWithinSeconds")


def potential_nodes(
    pools: Sequence[WrittenPool], on_potential: OnPotential, bind_within: int
) -> PotentialNodes:
    """The declaration that these fields describe."""
    return PotentialNodes(tuple(map(_pool, pools)), on_potential, timedelta(seconds=bind_within))


def parse_potential(text: str) -> PotentialNodes:
    """The declaration in a setting as JSON; no pools for an empty text. Raises `ValueError` with the field."""
    if not text:
        return PotentialNodes()
    written = read_setting(WrittenSetting, text)
    return potential_nodes(written.pools, written.on_potential, written.bind_within)


def _pool(written: WrittenPool) -> NodePool:
    node = written.node
    taints = tuple((each.key, each.value, each.effect) for each in node.taints)
    return NodePool(written.name, node.allocatable, node.labels, taints, written.most)

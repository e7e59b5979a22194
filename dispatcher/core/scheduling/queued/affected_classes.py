"""The classes of gangs whose refusal by a cluster may differ after a change of the cluster, by a test for all at once.

A refusal names the scarcest resource. Neither that nor the refusal itself differs for a gang if both hold:

- By the sums over the nodes that its pods may use, the gang lacks what it lacked before, and the same resource is the
  scarcest; or it lacked nothing and still lacks nothing.
- If it lacked nothing by sums, each node whose free amounts changed lacks some resource for each of its pods, before
  and now, and has the same resources for them as before. Such a node takes none of the pods, and is counted as before
  for each resource.

The message of a refusal has amounts, which may differ. The test is exact for pods without rules about each other; it
counts any other gang, and every gang after any other change of a cluster, as affected. Requests are in arrays, so a
changed node costs some nanoseconds for each class.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Final, Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dispatcher.core.model.gangs.gang import Constraint, Gang
from dispatcher.core.model.incremental import Steps
from dispatcher.core.model.resources import PODS, Resources
from dispatcher.core.scheduling.capacity.capacity_snapshot import CapacitySnapshot
from dispatcher.core.scheduling.capacity.node_snapshot import ChangedNode
from dispatcher.core.scheduling.fit.cluster_filters import ClusterSnapshot
from dispatcher.core.scheduling.placement.node_traits import Amounts, Mask

MOST_CHANGED_NODES: Final = 64
"""Changed nodes of one cluster; after more, the gangs are compared one by one."""
MOST_CONSTRAINTS: Final = 64
"""Different constraints on nodes; beyond, the gangs are compared one by one."""
MOST_COLUMNS: Final = 256
"""Resources that the classes name. Each takes a number of every class; a class that names more counts as affected."""
LARGEST: Final = 2**53
"""The largest amount in the arrays: products of the shares in millionths stay below 2^63."""
LARGEST_DEBT: Final = 2**42

_Nodes = frozenset[Constraint]
ClassT = TypeVar("ClassT", bound=Hashable)


class _Group(Struct):
    """The classes whose pods may use the same nodes; `gang` is one of them."""

    gang: Gang
    number: int
    size: int = 0


class _Rows(Struct, frozen=True):
    """The rows of one class: of its demand, and of each pod set."""

    demand: int
    pod_sets: tuple[int, ...]
    nodes: _Nodes


class AffectedClasses(Generic[ClassT]):
    """The requests of the classes of a queue, as arrays."""

    def __init__(self) -> None:
        self._rows: dict[ClassT, _Rows] = {}
        self._classes: dict[int, ClassT] = {}
        """By the row of their demand."""
        self._demands = _Table()
        self._requests = _Table()
        self._groups: dict[_Nodes, _Group] = {}
        self._numbers = 0

    def add(self, class_: ClassT, gang: Gang) -> None:
        """Add a class of gangs like this one; safe to repeat."""
        if class_ in self._rows or not _is_exact(gang):
            return
        names = {name for each in (gang.demand, *(each.requests for each in gang.pod_sets)) for name in each}
        if not (self._demands.has_columns_for(names) and self._requests.has_columns_for(names)):
            return
        nodes = gang.constraints
        group = self._groups.get(nodes)
        if group is None:
            self._numbers += 1
            group = self._groups[nodes] = _Group(gang, self._numbers)
        group.size += 1
        demand = self._demands.add(gang.demand, group.number)
        pod_sets = tuple(self._requests.add(each.requests, demand) for each in gang.pod_sets)
        self._rows[class_] = _Rows(demand, pod_sets, nodes)
        self._classes[demand] = class_

    def remove(self, class_: ClassT) -> None:
        """Remove a class; safe to repeat."""
        rows = self._rows.pop(class_, None)
        if rows is None:
            return
        del self._classes[rows.demand]
        self._demands.remove(rows.demand)
        for each in rows.pod_sets:
            self._requests.remove(each)
        group = self._groups[rows.nodes]
        group.size -= 1
        if not group.size:
            del self._groups[rows.nodes]

    def knows(self, class_: ClassT) -> bool:
        """True if `of` says whether the class is affected; the others always count as affected."""
        return class_ in self._rows

    def of(self, before: ClusterSnapshot | None, now: ClusterSnapshot) -> Steps[set[ClassT] | None]:
        """The classes that are affected by the change of a cluster; None for all of them."""
        changed = None if before is None else _changed_nodes(before, now)
        if before is None or changed is None or len(self._groups) > MOST_CONSTRAINTS:
            return None
        yield
        lacking = np.full(self._demands.size, _NOT_KNOWN)
        affected = np.zeros(self._demands.size, np.bool_)
        for group in list(self._groups.values()):
            rows = np.flatnonzero(self._demands.tags == group.number)
            old, new = before.capacity.free_for(group.gang), now.capacity.free_for(group.gang)
            if not (_is_small(old) and _is_small(new)):
                return None
            lacking[rows] = self._scarcest(rows, old)
            affected[rows] = lacking[rows] != self._scarcest(rows, new)
            yield
        fits_by_sums = lacking == _NOTHING
        touched = np.zeros(self._requests.size, np.bool_)
        for node in changed:
            touched |= self._differs(node)
            yield
        demands = self._requests.tags[touched]
        demands = demands[demands >= 0]
        affected[demands[fits_by_sums[demands]]] = True
        return {self._classes[row] for row in np.flatnonzero(affected).tolist() if row in self._classes}

    def _scarcest(self, rows: Amounts, available: Resources) -> Amounts:
        """For each demand the column of the resource that `Shortfall.scarcest` names, or `_NOTHING`."""
        found = np.full(rows.size, _NOTHING)
        largest = np.full(rows.size, -1)
        for name in sorted(self._demands.columns):
            column, row = self._demands.columns[name]
            demand, free = column[rows], available[name]
            share = _millionths(np.maximum(demand - free, 0), np.maximum(demand, 1))
            is_scarcer = (demand > max(0, free)) & (share > largest)
            found[is_scarcer] = row
            largest[is_scarcer] = share[is_scarcer]
        return found

    def _differs(self, node: ChangedNode) -> Mask:
        """For each pod set, whether the node may count in another way for its pods."""
        crosses = np.zeros(self._requests.size, np.bool_)
        takes = np.ones(self._requests.size, np.bool_)
        for name, (requests, _) in self._requests.columns.items():
            if name == PODS:
                continue  # places for pods are counted apart; a node without resources has none for them
            asks = requests > 0
            had, has = requests <= node.before.get(name, 0), requests <= node.now.get(name, 0)
            crosses |= asks & (had != has)
            takes &= ~asks | has
        return crosses | takes


_NOTHING: Final = -1
"""The gang lacks nothing by sums."""
_NOT_KNOWN: Final = -2


class _Table:
    """Amounts by resource, with one row for each user of the table; free rows are used again."""

    def __init__(self) -> None:
        self.columns: dict[str, tuple[Amounts, int]] = {}
        """For each resource its amounts, and its number, which no other has had."""
        self.tags: Amounts = np.full(0, -1)
        """A number for each row; -1 for a free one."""
        self._free: list[int] = []
        self._names: dict[int, Resources] = {}
        """The amounts of each row that is in use."""
        self._rows_of = Counter[str]()
        self._numbers = itertools.count()

    def has_columns_for(self, names: Collection[str]) -> bool:
        """True if a row with these resources needs no more columns than are allowed."""
        return len(self.columns) + sum(name not in self.columns for name in names) <= MOST_COLUMNS

    @property
    def size(self) -> int:
        """The number of rows, free ones included."""
        return int(self.tags.size)

    def add(self, amounts: Resources, tag: int) -> int:
        """A row with these amounts."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        self.tags[row] = tag
        self._names[row] = amounts
        for name, amount in amounts.items():
            if name not in self.columns:
                self.columns[name] = np.zeros(self.size, np.int64), next(self._numbers)
            self._rows_of[name] += 1
            self.columns[name][0][row] = amount
        return row

    def remove(self, row: int) -> None:
        """Free a row, and the columns that no row needs any more."""
        for name in self._names.pop(row):
            self.columns[name][0][row] = 0
            self._rows_of[name] -= 1
            if not self._rows_of[name]:
                del self._rows_of[name], self.columns[name]
        self.tags[row] = -1
        self._free.append(row)

    def _grow(self) -> None:
        before = self.size
        size = max(_FIRST_ROWS, 2 * before)
        self.tags = np.concatenate([self.tags, np.full(size - before, -1)])
        for name, (column, number) in self.columns.items():
            self.columns[name] = np.concatenate([column, np.zeros(size - before, np.int64)]), number
        self._free.extend(range(size - 1, before - 1, -1))


_FIRST_ROWS: Final = 64


def _is_exact(gang: Gang) -> bool:
    """True if sums and nodes decide about the gang as the test assumes, in every cluster."""
    if not gang.pod_sets or gang.smaller or not _are_small(gang.demand):
        return False
    for each in gang.pod_sets:
        if each.has_rules or each.has_terms or each.claims or not _are_small(each.requests):
            return False
    return True


def _are_small(requests: Resources) -> bool:
    if not requests:
        return True
    amounts = requests.values()
    return min(amounts) >= 0 and max(amounts) <= LARGEST


def _is_small(available: Mapping[str, int]) -> bool:
    return all(-LARGEST_DEBT <= amount <= LARGEST for amount in available.values())


def _millionths(part: Amounts, whole: Amounts) -> Amounts:
    """`part * 10**6 // whole`, exactly, in two steps of thousandths that do not overflow."""
    units, rest = np.divmod(part, whole)
    thousandths, rest = np.divmod(rest * 1000, whole)
    found: Amounts = units * 10**6 + thousandths * 1000 + rest * 1000 // whole
    return found


def _changed_nodes(before: ClusterSnapshot, now: ClusterSnapshot) -> list[ChangedNode] | None:
    """The nodes with other free amounts, if the snapshots differ by nothing else that matters to a gang; else None."""
    if replace(before, capacity=now.capacity) != now:
        return None
    old, new = before.capacity, now.capacity
    if old.nodes is None or new.nodes is None or not _is_alike(old, new):
        return None
    return new.nodes.changes_since(old.nodes, MOST_CHANGED_NODES)


def _is_alike(old: CapacitySnapshot, new: CapacitySnapshot) -> bool:
    """True if at most the free amounts of nodes differ, and these decide alone."""
    if old.pools or new.pools:  # potential nodes count beside the others
        return False
    return old.provisioning == new.provisioning and old.cluster == new.cluster

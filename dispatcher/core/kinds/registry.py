"""The registry of kinds that can be wrapped: the built-in rows, and the rows of declared kinds.

A row is found by API group and kind, in any version. An object of a kind without a row is created unchanged; its author
declares its demand, and names the conditions that complete it. The registry is a value, made once at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from dispatcher.core.kinds import object_status
from dispatcher.core.kinds.built_in import OWN_ROWS, ROWS, KnownKind
from dispatcher.core.kinds.declaration import KindDeclaration
from dispatcher.core.kinds.object_status import ObjectState
from dispatcher.core.kinds.pod_rules import Kind
from dispatcher.core.kinds.podless import PODLESS


class Kinds(Struct, frozen=True, dict=True):
    """The known kinds: the built-in ones and the `declared` ones, which are others."""

    declared: tuple[KindDeclaration, ...] = ()

    def row(self, group: str, kind: str) -> KnownKind:
        """The row of a kind; for an unknown kind, a row that says nothing."""
        return self._rows.get((group, kind)) or KnownKind(group, kind, pods=None)

    def makes_no_pods(self, group: str, kind: str) -> bool:
        """True if objects of the kind are known to make no pods; false for an unknown kind, which may make some."""
        row = self._rows.get((group, kind))
        return (group, kind) in PODLESS if row is None else not row.may_make_pods

    def state_of(self, group: str, kind: str, raw: Mapping[str, Any]) -> ObjectState:
        """The state that an object of this kind reports, for any JSON."""
        return object_status.read(self.row(group, kind).status, raw)

    @cached_property
    def derivable(self) -> Mapping[tuple[str, str], Kind]:
        """How a kind makes pods, by (API group, kind), for every kind whose templates say so."""
        return {name: row.pods for name, row in self._rows.items() if row.pods is not None}

    @cached_property
    def _rows(self) -> Mapping[tuple[str, str], KnownKind]:
        rows = (*ROWS, *OWN_ROWS, *(each.row() for each in self.declared))
        return {(row.group, row.kind): row for row in rows}


BUILT_IN: Final = Kinds()
"""The registry without declared kinds."""

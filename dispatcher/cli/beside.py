"""Objects of a file that make no pods and are no AppWrappers, such as a ConfigMap that the pods of a gang mount.

Commands about AppWrappers list them and do nothing with them. Objects of unknown kinds are not among them, because they
may make pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dispatcher.core.kinds.breakdown import makes_no_pods
from dispatcher.core.kinds.registry import BUILT_IN, Kinds
from dispatcher.text import name_of


class Beside(Struct, frozen=True):
    """One such object; the name of an object with a `generateName` ends with `*`."""

    kind: str
    name: str

    def __str__(self) -> str:
        """The object in words."""
        return f"{self.kind}/{self.name}"

    def as_value(self) -> dict[str, Any]:
        """The object as a JSON document."""
        return {"kind": self.kind, "name": self.name, "makesPods": False}


def beside(raw: Mapping[str, Any], kinds: Kinds = BUILT_IN) -> Beside | None:
    """The object if it makes no pods and is no AppWrapper, else None."""
    if not makes_no_pods(raw, kinds):
        return None
    metadata = raw.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return Beside(
        name_of(raw["kind"]), name_of(named.get("name")) or f"{name_of(named.get('generateName'))}*"
    )

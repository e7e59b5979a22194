"""The defaults of pods in several clusters, and the charge of a gang with them.

Intake reads the defaults from the clusters, `would` from the leader's snapshot. Both join them, and derive the charge,
with the functions of this module, so that both count a gang in the same way. Commands that read a snapshot import it
without the parser of AppWrappers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, PodDefaults, largest, with_defaults

if TYPE_CHECKING:
    from dispatcher.api.appwrapper import AppWrapperSpec
    from dispatcher.core.kinds.demand import Charge

MOST_SMALLER: Final = 8
"""Different defaults of clusters for which a demand is derived; in clusters with others the largest counts."""
MOST_CLASSES: Final = 16
"""RuntimeClasses of one AppWrapper that count; more than any cluster has."""
MOST_NAMESPACES: Final = 5000
"""Namespaces with default requests that the survey of one cluster holds."""
MOST_SURVEYED_CLASSES: Final = 500
"""RuntimeClasses with an overhead that the survey of one cluster holds; of more than these it holds none."""

Quantities = Mapping[str, object]


class ChargeRule(StrEnum):
    """How a declaration is charged where the demand can be derived from the template."""

    LARGER = "larger"
    """The larger of declared and derived, of each resource; a kind without pods is charged nothing."""
    TRUSTED = "trusted"
    """The declared demand, whatever the template says, as in MCAD."""


class ClusterDefaults(Struct, frozen=True):
    """The defaults of pods in the clusters that a gang may go to.

    `largest` has the largest of each resource. `own` are the defaults of each cluster by name, where they are known.
    """

    largest: PodDefaults = NO_DEFAULTS
    own: Mapping[str, PodDefaults] = field(default_factory=dict)

    @classmethod
    def of(cls, own: Mapping[str, PodDefaults], another: PodDefaults | None = None) -> ClusterDefaults:
        """The defaults of these clusters; `another` counts among the largest, for clusters that are not known."""
        return cls(largest([*own.values(), *([] if another is None else [another])]), own)

    def __bool__(self) -> bool:
        return bool(self.largest)

    def smaller(self) -> list[tuple[PodDefaults, list[str]]]:
        """The different defaults that are not the largest, each with its clusters; at most `MOST_SMALLER`."""
        found: list[tuple[PodDefaults, list[str]]] = []
        for name in sorted(self.own):
            defaults = self.own[name]
            names = next((names for known, names in found if known == defaults), None)
            if names is not None:
                names.append(name)
            elif defaults != self.largest and len(found) < MOST_SMALLER:
                found.append((defaults, [name]))
        return found


class DefaultsSurvey(Struct, frozen=True):
    """All defaults of one connected cluster: default requests by namespace, and overheads by RuntimeClass.

    None stands for those that the cluster does not show. Namespaces and classes without defaults are left out. With
    `has_more`, default requests of further namespaces exist; at most `MOST_NAMESPACES` are held.
    """

    requests: Mapping[str, Quantities] | None = None
    overheads: Mapping[str, Quantities] | None = None
    has_more: bool = False

    def read(self, namespace: str, classes: Iterable[str]) -> PodDefaults | None:
        """The defaults of pods with these RuntimeClasses in a namespace; None if they are not known."""
        if self.requests is None or (self.has_more and namespace not in self.requests):
            return None
        names = sorted(classes)
        if names and self.overheads is None:
            return None
        known = self.overheads or {}
        return PodDefaults(
            self.requests.get(namespace, {}), {name: known[name] for name in names if name in known}
        )


def charge_in_clusters(
    spec: AppWrapperSpec, defaults: ClusterDefaults, charge: Callable[[AppWrapperSpec], Charge]
) -> Charge:
    """The charge with the largest defaults; its gang has its demand in clusters with smaller ones, too.

    `charge` derives the charge of a spec. Raises the `SpecError` that it raises for the spec without defaults.
    """
    try:
        found = charge(with_defaults(spec, defaults.largest))
        gangs = [(charge(with_defaults(spec, each)).gang, names) for each, names in defaults.smaller()]
    except SpecError:
        # Defaults of a cluster make no AppWrapper invalid: without them only its own errors are raised.
        return charge(spec)
    smaller = {name: gang for gang, names in gangs for name in names}
    return replace(found, gang=found.gang.with_smaller(smaller)) if smaller else found

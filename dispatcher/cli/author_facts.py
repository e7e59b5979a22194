"""Facts about an AppWrapper before its submission: rights of its author, and the defaults of its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, PodDefaults


class HubFacts(Struct, frozen=True):
    """Facts of the hub about one AppWrapper.

    `denied` has a sentence for each right that its author lacks, `unknown` one for each fact that the hub did not give.
    `defaults` are the defaults of its pods on the hub, None with the sentences `unread`.
    """

    denied: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    defaults: PodDefaults | None = NO_DEFAULTS
    unread: tuple[str, ...] = ()


class AuthorFacts(Struct, frozen=True):
    """Facts about one AppWrapper as they are shown.

    `denied` has a sentence for each right that its author lacks; None if the hub was not asked. `defaults` are the
    largest defaults of pods that change its demand, `smaller` those of clusters, by name, where its demand is smaller.
    """

    denied: tuple[str, ...] | None = None
    defaults: PodDefaults = NO_DEFAULTS
    smaller: Mapping[str, PodDefaults] = field(default_factory=dict)

    def as_value(self) -> dict[str, Any]:
        """The facts as fields of a JSON document; docs/explain.md has them."""
        return {
            **({} if self.denied is None else {"denied": list(self.denied)}),
            "podDefaults": {
                **_value_of(self.defaults),
                "clusters": {name: _value_of(each) for name, each in self.smaller.items()},
            },
        }

    def lines(self) -> Iterator[str]:
        """The facts for people."""
        for each in self.denied or ():
            yield f"  {each}: where the rights of authors are checked, the AppWrapper is refused"
        if self.defaults.requests:
            yield f"  with the LimitRange of its namespace, containers request {_amounts(self.defaults.requests)}"
        for name, of_class in self.defaults.overheads.items():
            yield f"  with RuntimeClass {name}, each pod requests {_amounts(of_class)} more"
        for cluster, defaults in self.smaller.items():
            yield f"  in cluster {cluster}, {' and '.join(_differences(defaults, self.defaults))}"


def _differences(defaults: PodDefaults, largest: PodDefaults) -> Iterator[str]:
    if defaults.requests != largest.requests:
        yield f"containers request {_amounts(defaults.requests)}"
    for name in largest.overheads:
        of_class = defaults.overheads.get(name, {})
        if of_class != largest.overheads[name]:
            yield f"RuntimeClass {name} adds {_amounts(of_class)}"


def _value_of(defaults: PodDefaults) -> dict[str, Any]:
    return {
        "requests": {name: str(each) for name, each in defaults.requests.items()},
        "overheads": {
            runtime_class: {name: str(each) for name, each in of_class.items()}
            for runtime_class, of_class in defaults.overheads.items()
        },
    }


def _amounts(quantities: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {each}" for name, each in sorted(quantities.items())) or "nothing"

"""Facts of the hub about an AppWrapper before its submission: rights of its author, and defaults of its pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.core.kinds.pod_defaults import NO_DEFAULTS, PodDefaults


@dataclass(frozen=True, slots=True)
class AuthorFacts:
    """Facts of the hub about one AppWrapper.

    `denied` has a sentence for each right that its author lacks, `unknown` one for each fact that the hub did not give.
    `defaults` are the defaults of pods that change its demand.
    """

    denied: tuple[str, ...] = ()
    defaults: PodDefaults = NO_DEFAULTS
    unknown: tuple[str, ...] = ()

    def as_value(self) -> dict[str, Any]:
        """The facts as fields of a JSON document; docs/explain.md has them."""
        return {
            "denied": list(self.denied),
            "podDefaults": {
                "requests": {name: str(each) for name, each in self.defaults.requests.items()},
                "overheads": {
                    runtime_class: {name: str(each) for name, each in of_class.items()}
                    for runtime_class, of_class in self.defaults.overheads.items()
                },
            },
        }

    def lines(self) -> Iterator[str]:
        """The facts for people."""
        for each in self.denied:
            yield f"  {each}: where the rights of authors are checked, the AppWrapper is refused"
        if self.defaults.requests:
            yield f"  with the LimitRange of its namespace, containers request {_amounts(self.defaults.requests)}"
        for name, of_class in self.defaults.overheads.items():
            yield f"  with RuntimeClass {name}, each pod requests {_amounts(of_class)} more"


def _amounts(quantities: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {each}" for name, each in sorted(quantities.items()))

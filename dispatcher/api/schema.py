"""The fields of an AppWrapper's spec, in both spellings, as in the CRD's schema; a test keeps the two equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher.api.spec_errors import joined
from dispatcher.api.syntax import most_similar

NO_FIELDS: Final[Mapping[str, Any]] = {}
"""The fields below a plain value, and below an object whose keys the author chooses: the schema knows none there."""

FIELDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("priority", "priorityslope", "suspend", "managedBy", "service", "selector"), NO_FIELDS),
    "resources": {
        "Items": NO_FIELDS,
        "GenericItems": {
            **dict.fromkeys(("generictemplate", "completionstatus", "replicas", "minavailable"), NO_FIELDS),
            **dict.fromkeys(("allocated", "priority", "priorityslope"), NO_FIELDS),
            "custompodresources": dict.fromkeys(("replicas", "requests", "limits"), NO_FIELDS),
        },
    },
    "schedulingSpec": {
        **dict.fromkeys(("minAvailable", "nodeSelector", "forceDeletionTimeInSeconds"), NO_FIELDS),
        "requeuing": dict.fromkeys(
            (
                "timeInSeconds",
                "initialTimeInSeconds",
                "maxTimeInSeconds",
                "growthType",
                "numRequeuings",
                "maxNumRequeuings",
                "pauseTimeInSeconds",
                "forcefulDeletionAfterSeconds",
            ),
            NO_FIELDS,
        ),
        "dispatchDuration": dict.fromkeys(("expected", "limit", "overrun"), NO_FIELDS),
    },
    "components": {
        **dict.fromkeys(("template", "podSetInfos", "annotations"), NO_FIELDS),
        "podSets": dict.fromkeys(("path", "replicas", "annotations"), NO_FIELDS),
    },
}
"""Each field with the fields below it, which are those of the elements if it is a list."""


def unknown_fields(raw_spec: object) -> list[str]:
    """Sentences about the fields of a spec that no schema has; an API server drops them, or refuses them."""
    return list(_unknown_in(raw_spec, FIELDS, "spec"))


def _unknown_in(value: object, known: Mapping[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for key, entry in value.items():
        at = joined(path, key)
        if key not in known:
            similar = most_similar(str(key), list(known))
            meant = f"; did you mean {similar}?" if similar else ""
            yield f'unknown field "{at}"{meant}'
        elif known[key]:
            entries = (
                [(f"{at}[{index}]", each) for index, each in enumerate(entry)]
                if isinstance(entry, list)
                else [(at, entry)]
            )
            for place, each in entries:
                yield from _unknown_in(each, known[key], place)

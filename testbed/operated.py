"""What an operator does about one object, as values: the objects that it should have, and its status.

`testbed.pod_crews` and `testbed.train_jobs` decide for each kind; `testbed.operators` watches and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

Json = dict[str, Any]

RUN_FOR: Final = "testbed.dispatcher.codeflare.dev/run-for"


@dataclass(frozen=True, slots=True)
class Wish:
    """The objects that an object should have and those it should not have any more, and the fields of its status.

    A wanted object that exists stays as it is.
    """

    wanted: Sequence[Json] = ()
    unwanted: Sequence[Json] = ()
    status: Mapping[str, Any] = field(default_factory=dict)


Decide = Callable[[Json, Sequence[Json], str], Wish]
"""What an object needs, from the object, everything below it, and the time as Kubernetes writes it."""


@dataclass(frozen=True, slots=True)
class Operated:
    """A kind whose operator has a stand-in; `version` has the group: `kubeflow.org/v1`."""

    version: str
    kind: str
    decide: Decide

    @property
    def plural(self) -> str:
        """The name of the kind in paths."""
        return f"{self.kind.lower()}s"


class Phase(StrEnum):
    """How far an object is."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


ENDED: Final = (Phase.SUCCEEDED, Phase.FAILED)


def phase_of(pod: Json | None) -> Phase:
    """The phase of a pod; Pending while it does not exist."""
    return Phase(((pod or {}).get("status") or {}).get("phase") or Phase.PENDING)


def phase_of_all(phases: Sequence[Phase], decisive: Sequence[Phase]) -> Phase:
    """Failed with the first that failed, else Succeeded with all decisive ones, else Running once all have started."""
    if Phase.FAILED in phases:
        return Phase.FAILED
    if all(each == Phase.SUCCEEDED for each in decisive):
        return Phase.SUCCEEDED
    return Phase.PENDING if Phase.PENDING in phases else Phase.RUNNING


def has_condition(status: Mapping[str, Any], condition_type: str) -> bool:
    """True if a status has this condition, and it is True."""
    conditions = status.get("conditions") or ()
    return any(each["type"] == condition_type and each["status"] == "True" for each in conditions)


def conditions_of(old: Mapping[str, Any], facts: Mapping[str, bool], kind: str, now: str) -> list[Json]:
    """The updated conditions; one that was never true is absent."""
    before = {each["type"]: each for each in old.get("conditions") or ()}
    return [
        _condition(before.get(name), name, holds, kind, now)
        for name, holds in facts.items()
        if holds or name in before
    ]


def _condition(before: Json | None, name: str, holds: bool, kind: str, now: str) -> Json:
    status = "True" if holds else "False"
    if before and before["status"] == status:
        return before
    return {
        "type": name,
        "status": status,
        "reason": f"{kind}{name}",
        "message": f"{kind} is {'' if holds else 'no longer '}{name.lower()}",
        "lastTransitionTime": now,
    }


def child(owner: Json, version: str, kind: str, name: str, content: Json) -> Json:
    """An object that the owner controls; labels and annotations may be in `content["metadata"]`."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        **(content.get("metadata") or {}),
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "ownerReferences": [reference],
    }
    return {**content, "apiVersion": version, "kind": kind, "metadata": metadata}


def labelled(template: Json, labels: Mapping[str, str]) -> Json:
    """The same pod template with more labels."""
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def living(template: Json, owner: Json) -> Json:
    """The same pod template, whose pods run as long as an annotation of their owner says, unless they say it."""
    given = (owner["metadata"].get("annotations") or {}).get(RUN_FOR)
    if given is None:
        return template
    metadata = template.get("metadata") or {}
    annotations = {RUN_FOR: given, **(metadata.get("annotations") or {})}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def find(below: Sequence[Json], kind: str, name: str) -> Json | None:
    """The object of this kind and name."""
    return next((each for each in below if (each["kind"], each["metadata"]["name"]) == (kind, name)), None)


def live_pods(below: Sequence[Json]) -> list[Json]:
    """The pods that still run, or would."""
    return [each for each in below if each["kind"] == "Pod" and phase_of(each) not in ENDED]

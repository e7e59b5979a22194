"""What a tenant with `create` on AppWrappers and pods in one namespace may try, drawn at random: acts as values.

The dispatcher's own checks, the API server's and the policies' all may refuse an act. None of them may cost another
tenant anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from dispatcher.api.names import CLUSTER_SELECTOR, FINALIZER, UID_LABEL, USER_ANNOTATION
from tests.drawn import drawn
from tests.mutations import mutated

Json = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

APPWRAPPER: Final = "AppWrapper"
POD: Final = "Pod"
VICTIMS_UID: Final = "uid-of-a-victim"
"""Stands for the uid of another tenant's AppWrapper until the act is carried out."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing to do: create `body`, an object of `kind`; then merge each of `patches` into it."""

    kind: str
    body: Json
    patches: tuple[Json, ...] = ()


ODD_WORDS: Final = (
    "?",
    "v1?",
    "a/b",
    "..",
    ".",
    "%2e%2e",
    "a#b",
    "x" * 300,
    "\0",
    "a\0b",
    "é",
    " ",
    "pods?watch=1",
)
ODD_NUMBERS: Final = (0, -1, 1, 10**6, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 1e12, -1e13, 1e300)
ODD_QUANTITIES: Final = ("1", "0", "-1", "64", "1e30", "9223372036854775807", "1e-9", "100Ei", "10m")
MOST_NESTED_BYTES: Final = 1_200_000
UNKNOWN_KINDS: Final = 256

_CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "taken"}}
_METADATA = {"finalizers": ["example.com/never"], "deletionTimestamp": "2020-01-01T00:00:00Z"}


def _pod_spec(requests: Json) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    return {"containers": [container], "restartPolicy": "Never"}


def _job(requests: Json, parallelism: int = 1, **metadata: Any) -> Json:  # noqa: ANN401
    template = {"metadata": metadata, "spec": _pod_spec(requests)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "taken", **metadata},
        "spec": {"parallelism": parallelism, "completions": parallelism, "template": template},
    }


def _wrap(*items: Json, metadata: Json | None = None, **spec: Any) -> Json:  # noqa: ANN401
    return {
        "apiVersion": "workload.codeflare.dev/v1beta1",
        "kind": APPWRAPPER,
        "metadata": metadata or {},
        "spec": {**spec, "resources": {"GenericItems": list(items)}},
    }


@st.composite
def greedy(draw: Draw) -> Act:
    """Demand that is not there, declared or derived, on kinds with and without pods."""
    amounts = {
        draw(st.sampled_from(["cpu", "nvidia.com/gpu", "memory"])): draw(st.sampled_from(ODD_QUANTITIES))
    }
    declared = [{"replicas": draw(st.sampled_from([1, 7, 10**6])), "requests": amounts}]
    template = draw(
        st.sampled_from(
            [
                _CONFIG_MAP,
                _job(amounts, parallelism=draw(st.sampled_from([1, 3, 1000])), **_METADATA),
                {"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "greedy"}},
            ]
        )
    )
    item = {"generictemplate": template, "custompodresources": draw(st.sampled_from([declared, []]))}
    return Act(APPWRAPPER, _wrap(item))


@st.composite
def pushy(draw: Draw) -> Act:
    """Priorities and slopes beyond reason, changed again and again."""
    numbers = st.integers(-(2**31), 2**31 - 1)
    slope = draw(st.sampled_from(ODD_NUMBERS))
    body = _wrap({"generictemplate": _job({"cpu": "64"})}, priority=draw(numbers), priorityslope=slope)
    return Act(
        APPWRAPPER, body, tuple({"spec": {"priority": draw(numbers)}} for _ in range(draw(st.integers(0, 8))))
    )


def nested(count: int) -> Act:
    """A spec that is small on the wire and large in memory."""
    return Act(APPWRAPPER, _wrap({"generictemplate": {**_CONFIG_MAP, "a": [[]] * count}}))


def unknown_kinds(count: int) -> Act:
    """Objects of so many kinds that nobody serves."""
    kinds = [
        {
            "apiVersion": f"group{number}.example.com/v1",
            "kind": f"Kind{number}",
            "metadata": {"name": "unknown"},
        }
        for number in range(count)
    ]
    return Act(APPWRAPPER, _wrap(*({"generictemplate": each, "custompodresources": []} for each in kinds)))


@st.composite
def bulky(draw: Draw) -> Act:
    """Much to read, or much to look up."""
    if draw(st.booleans()):
        return nested(draw(st.integers(1_000, MOST_NESTED_BYTES // 3)))
    return unknown_kinds(draw(st.sampled_from([1, UNKNOWN_KINDS])))


@st.composite
def forged(draw: Draw) -> Act:
    """An AppWrapper with metadata that only the dispatcher writes, or with an object of another namespace."""
    metadata = draw(
        st.sampled_from(
            [
                {"finalizers": [FINALIZER]},
                {"annotations": {USER_ANNOTATION: "root"}},
                {"annotations": {CLUSTER_SELECTOR: "a in (" + "b," * 1000 + "b)"}},
                {"labels": {UID_LABEL: VICTIMS_UID}},
            ]
        )
    )
    elsewhere = draw(st.sampled_from([{}, {"namespace": "kube-system"}, {"namespace": "default"}]))
    template = {**_CONFIG_MAP, "metadata": {"name": "forged", **elsewhere}}
    return Act(APPWRAPPER, _wrap({"generictemplate": template}, metadata=metadata))


def claimant(api_version: str, kind: str, name: str, uid: str, requests: Json, *finalizers: str) -> Act:
    """A pod that claims to be of the victim, controlled by an object that its author made up."""
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
    metadata = {
        "labels": {UID_LABEL: VICTIMS_UID},
        "ownerReferences": [owner],
        "finalizers": list(finalizers),
    }
    return Act(POD, {"apiVersion": "v1", "kind": POD, "metadata": metadata, "spec": _pod_spec(requests)})


@st.composite
def impostor(draw: Draw) -> Act:
    """A claimant with odd words in its owner reference."""
    api_version = draw(st.sampled_from(["apps/v1", "v1", "batch/v1", *ODD_WORDS]))
    kind = draw(st.sampled_from(["ReplicaSet", "ConfigMap", "Job", "Pod", *ODD_WORDS]))
    name, uid = draw(st.sampled_from(ODD_WORDS)), draw(st.sampled_from([VICTIMS_UID, "made-up", *ODD_WORDS]))
    finalizers = draw(st.sampled_from([(), ("example.com/never",)]))
    return claimant(api_version, kind, name, uid, {"cpu": draw(st.sampled_from(["0", "1m"]))}, *finalizers)


def known() -> list[Act]:
    """The attacks that have worked once."""
    return [
        claimant("apps/v1", "ReplicaSet", "?", "made-up", {}, "example.com/never"),
        claimant("v1?", "Pod", "name", "made-up", {}, "example.com/never"),
        claimant("v1", "ConfigMap", "\0", "made-up", {}, "example.com/never"),
        nested(MOST_NESTED_BYTES // 3),
        *(unknown_kinds(UNKNOWN_KINDS) for _ in range(10)),
        Act(APPWRAPPER, _wrap({"generictemplate": _CONFIG_MAP}, metadata={"finalizers": [FINALIZER]})),
        Act(APPWRAPPER, _wrap({"generictemplate": _job({"cpu": "64"})}, priority=1, priorityslope=1e13)),
        Act(
            APPWRAPPER,
            _wrap(
                {
                    "generictemplate": _CONFIG_MAP,
                    "custompodresources": [{"replicas": 1000, "requests": {"nvidia.com/gpu": 1}}],
                }
            ),
        ),
        Act(
            APPWRAPPER,
            _wrap({"generictemplate": _job({"nvidia.com/gpu": "1"}, 1000), "custompodresources": []}),
        ),
    ]


def torn() -> st.SearchStrategy[Act]:
    """A plain AppWrapper with a few mistakes in it."""
    return st.builds(lambda document: Act(APPWRAPPER, document), mutated())


def acts(count: int) -> list[Act]:
    """The known attacks, then the same `count` draws in every run; each is on an object with a name of its own."""
    found: list[Act] = []

    def add(act: Act) -> None:
        body: Json = json.loads(json.dumps(act.body))  # nothing in it is shared
        body["metadata"]["name"] = f"act-{len(found)}"
        found.append(Act(act.kind, body, act.patches))

    for each in known():
        add(each)
    for each in drawn(st.one_of(greedy(), pushy(), bulky(), forged(), impostor(), torn()), count):
        add(each)
    return found


def against(act: Act, victim: str) -> Act:
    """The same act against a victim that exists, by its uid."""
    body: Json = json.loads(json.dumps(act.body).replace(VICTIMS_UID, victim))
    return Act(act.kind, body, act.patches)

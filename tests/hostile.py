"""What a tenant who may write AppWrappers and pods in one namespace may try, drawn at random: acts as values.

The dispatcher's own checks, the API server's and the policies' all may refuse an act. None of them may cost another
tenant anything.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st

from dispatcher.api.names import (
    ATTEMPT_LABEL,
    CLUSTER_SELECTOR,
    FINALIZER,
    GROWTH_ANNOTATION,
    GROWTH_GATE,
    ITEM_LABEL,
    KAI_QUEUE_LABEL,
    KUEUE_QUEUE_LABEL,
    MCAD_NAME_LABEL,
    NAME_LABEL,
    QUEUE_LABEL,
    RESOURCE_NAME_LABEL,
    UID_LABEL,
    USER_ANNOTATION,
)
from tests.drawn import drawn
from tests.mutations import mutated

Json = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

APPWRAPPER: Final = "AppWrapper"
POD: Final = "Pod"
VICTIMS_UID: Final = "uid-of-a-victim"
"""Stands for the uid of another tenant's AppWrapper until the act is carried out."""
OWN_UID: Final = "uid-of-its-own"
"""Stands, in what follows an object of an act, for the uid of that object."""
VICTIMS_QUEUE: Final = "of-the-victim"
"""The queue of the other tenant, on a hub that has queues."""


@dataclass(frozen=True, slots=True)
class Act:
    """Objects of one kind to create, several at once; each is then changed by merging every patch into it, in order.

    Bodies may share what is in them: sixty of a megabyte each then take one megabyte.
    """

    bodies: tuple[Json, ...]
    patches: tuple[Json, ...] = ()
    is_deleted: bool = False
    """Each object is deleted once it has its patches."""
    then: tuple[Json, ...] = ()
    """Pods that are created at once after each object, before its patches."""

    @property
    def kind(self) -> str:
        """The kind of all of them."""
        return str(self.bodies[0]["kind"])


CLAIM: Final[Json] = {UID_LABEL: VICTIMS_UID}
"""The label by which a pod claims to be of the victim."""
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
LARGEST_BURST: Final = 12
TOUCHES: Final = 20
"""Patches of an object, one after the other."""
BRACKETS: Final = 2**17 + 1
"""Within strings, counted as lists and objects, they once made an object too large to be read."""
MOST_ANNOTATED_BYTES: Final = 2**18
"""What the API server takes of annotations, keys included."""
MANY_LABELS: Final = 1_000
"""With `BRACKETS` they make metadata of more than 393,216 bytes."""
OUR_LABELS: Final = (UID_LABEL, ATTEMPT_LABEL, ITEM_LABEL, MCAD_NAME_LABEL, NAME_LABEL, RESOURCE_NAME_LABEL)

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
    return Act((_wrap(item),))


@st.composite
def pushy(draw: Draw) -> Act:
    """Priorities and slopes beyond reason, changed again and again."""
    numbers = st.integers(-(2**31), 2**31 - 1)
    slope = draw(st.sampled_from(ODD_NUMBERS))
    body = _wrap({"generictemplate": _job({"cpu": "64"})}, priority=draw(numbers), priorityslope=slope)
    patches = tuple({"spec": {"priority": draw(numbers)}} for _ in range(draw(st.integers(0, 8))))
    return Act((body,), patches)


def nested(count: int) -> Act:
    """A spec that is small on the wire and large in memory."""
    return Act((_wrap({"generictemplate": {**_CONFIG_MAP, "a": [[]] * count}}),))


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
    return Act((_wrap(*({"generictemplate": each, "custompodresources": []} for each in kinds)),))


def invented_versions(count: int, series: int = 0) -> Json:
    """An AppWrapper of objects of known kinds, in so many versions that nobody serves; no two series share one."""
    template = {"template": {"spec": _pod_spec({})}}
    known_kinds = (
        ("ray.io", "RayCluster", {"headGroupSpec": template}),
        ("batch", "Job", template),
        ("apps", "Deployment", template),
        ("kubeflow.org", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": template}}),
    )
    wrapped = []
    for number in range(count):
        group, kind, spec = known_kinds[number % len(known_kinds)]
        version = f"{group}/v{series}x{number + 1}"
        metadata = {"name": f"invented-{number}"}
        wrapped.append({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    return _wrap(*({"generictemplate": each} for each in wrapped))


def plain(kind: str, **metadata: Any) -> Json:  # noqa: ANN401
    """An object of the kind that is nothing special but for its metadata."""
    if kind == APPWRAPPER:
        item = {"generictemplate": _CONFIG_MAP, "custompodresources": []}
        return _wrap(item, metadata=metadata, suspend=True)
    return {"apiVersion": "v1", "kind": POD, "metadata": metadata, "spec": _pod_spec({})}


def stuffed(kind: str, labels: Json, brackets: int = BRACKETS) -> Json:
    """An object with so many brackets in one annotation, a string."""
    return plain(kind, labels=labels, annotations={"example.com/stuffed": "[" * brackets})


def many_labels(count: int = MANY_LABELS) -> Json:
    """Labels of some 270 bytes each."""
    domain = f"{'p' * 63}.{'p' * 63}.example.com"
    return {f"{domain}/{'k' * 59}{number:04}": "v" * 63 for number in range(count)}


def touches(*changes: Json) -> tuple[Json, ...]:
    """Patches in turn, again and again, each with something in it that is new."""
    turns = itertools.islice(itertools.cycle(changes), TOUCHES)
    return tuple(_touched(change, str(number)) for number, change in enumerate(turns))


def _touched(patch: Json, value: str) -> Json:
    metadata = patch.get("metadata", {})
    annotations = {**metadata.get("annotations", {}), "example.com/touch": value}
    return {**patch, "metadata": {**metadata, "annotations": annotations}}


@st.composite
def bulky(draw: Draw) -> Act:
    """Much to read, or much to look up."""
    match draw(st.sampled_from(["nested", "unknown kinds", "invented versions"])):
        case "nested":
            return nested(draw(st.integers(1_000, MOST_NESTED_BYTES // 3)))
        case "unknown kinds":
            return unknown_kinds(draw(st.sampled_from([1, UNKNOWN_KINDS])))
        case _:
            series = draw(st.integers(1_000, 10**6))
            return Act((invented_versions(draw(st.sampled_from([1, UNKNOWN_KINDS])), series),))


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
    return Act((_wrap({"generictemplate": template}, metadata=metadata),))


def claimant(api_version: str, kind: str, name: str, uid: str, labels: Json, *finalizers: str) -> Act:
    """A pod controlled by an object that its author made up."""
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return Act((plain(POD, labels=labels, ownerReferences=[owner], finalizers=list(finalizers)),))


@st.composite
def impostor(draw: Draw) -> Act:
    """A claimant with odd words in its owner reference, mostly to be of the victim."""
    api_version = draw(st.sampled_from(["apps/v1", "v1", "batch/v1", *ODD_WORDS]))
    kind = draw(st.sampled_from(["ReplicaSet", "ConfigMap", "Job", "Pod", *ODD_WORDS]))
    name, uid = draw(st.sampled_from(ODD_WORDS)), draw(st.sampled_from([VICTIMS_UID, "made-up", *ODD_WORDS]))
    finalizers = draw(st.sampled_from([(), ("example.com/never",)]))
    labels = draw(st.one_of(st.just(CLAIM), st.just(CLAIM), _labels()))
    return claimant(api_version, kind, name, uid, labels, *finalizers)


def _labels() -> st.SearchStrategy[Json]:
    word = st.from_regex(r"[a-z]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
    keys = st.one_of(st.sampled_from(OUR_LABELS), word, word.map("example.com/{}".format))
    values = st.one_of(st.just(VICTIMS_UID), word, st.just(""))
    odd = st.dictionaries(st.one_of(keys, st.sampled_from(ODD_WORDS)), st.sampled_from(ODD_WORDS), max_size=4)
    possible = st.dictionaries(keys, values, max_size=4)
    return st.one_of(possible, possible, odd)


def _patches(kind: str) -> st.SearchStrategy[Json]:
    labels = _labels().map(lambda each: {"metadata": {"labels": each}})
    lengths = st.one_of(st.integers(0, 100), st.integers(0, MOST_ANNOTATED_BYTES))
    notes = lengths.map(lambda each: {"metadata": {"annotations": {"example.com/note": "{" * each}}})
    names = st.sampled_from(["example.com/never", FINALIZER, "foregroundDeletion", "?"])
    finalizers = st.lists(names, max_size=3, unique=True).map(lambda each: {"metadata": {"finalizers": each}})
    if kind == POD:
        seconds = st.integers(1, 10**6).map(lambda each: {"spec": {"activeDeadlineSeconds": each}})
        return st.one_of(labels, notes, finalizers, seconds)
    fields: tuple[st.SearchStrategy[Json], ...] = (
        st.integers(-(2**31), 2**31 - 1).map(lambda each: {"spec": {"priority": each}}),
        st.booleans().map(lambda each: {"spec": {"suspend": each}}),
    )
    return st.one_of(labels, notes, finalizers, *fields)


@st.composite
def restless(draw: Draw) -> Act:
    """An object, plain or stuffed, that is changed again and again."""
    kind = draw(st.sampled_from([POD, APPWRAPPER]))
    labels = draw(st.one_of(_labels(), st.just(many_labels())))
    brackets = draw(st.sampled_from([0, BRACKETS, MOST_ANNOTATED_BYTES - 100]))
    changes = draw(_patches(kind)), draw(_patches(kind)), draw(_patches(kind))
    return Act((stuffed(kind, labels, brackets),), touches(*changes), draw(st.booleans()))


def marked_pod(
    labels: Json, annotations: Json, requests: Json, *gates: str, node: str = "", uid: str = OWN_UID
) -> Json:
    """A pod that an AppWrapper controls, with marks of the dispatcher that its author wrote."""
    spec = _pod_spec(requests) | ({"nodeName": node} if node else {})
    if gates:
        spec["schedulingGates"] = [{"name": each} for each in gates]
    owner = {"apiVersion": "workload.codeflare.dev/v1beta1", "kind": APPWRAPPER, "name": "own", "uid": uid}
    metadata = {
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [{**owner, "controller": True}],
    }
    return {"apiVersion": "v1", "kind": POD, "metadata": metadata, "spec": spec}


def growth_forged(node: str = "", *gates: str, growth: str = "0 0.x") -> Act:
    """A running AppWrapper, and a pod beneath it that claims to be growth of thousands of GPUs."""
    pod = marked_pod(
        {UID_LABEL: OWN_UID}, {GROWTH_ANNOTATION: growth}, {"nvidia.com/gpu": "4000"}, *gates, node=node
    )
    return Act((plain(APPWRAPPER) | {"spec": _wrap({"generictemplate": _CONFIG_MAP})["spec"]},), then=(pod,))


def taken_in_late(count: int, filler: int = 60_000) -> Act:
    """Large AppWrappers that keep intake busy, each with a pod under its uid before it is taken in."""
    template = {**_CONFIG_MAP, "data": {"filler": "x" * filler}}
    body = _wrap({"generictemplate": template}, {"generictemplate": _job({"cpu": "64"})}, suspend=True)
    pod = marked_pod({UID_LABEL: OWN_UID, ATTEMPT_LABEL: "1"}, {}, {"cpu": "10m"})
    return Act((body,) * count, ({"spec": {"suspend": False}},), then=(pod,))


def many_sets(count: int) -> Act:
    """A gang of so many Jobs of different sizes, which all but one name the same node."""
    jobs = []
    for number in range(count):
        job = _job({"cpu": f"{520 + number}m"}, name=f"set-{number}")
        if number:
            job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-0"}
        jobs.append(job)
    return Act((_wrap(*({"generictemplate": each} for each in jobs)),))


@st.composite
def counterfeit(draw: Draw) -> Act:
    """Pods under an AppWrapper of the tenant or of the victim, with any mark that the dispatcher makes."""
    growth = draw(
        st.sampled_from(["0 0.x", "1 0.spec.template", "999999999 0.x 999999999", "x", "-1 0.x 0", ""])
    )
    gates = draw(st.sampled_from([(), (GROWTH_GATE,), (GROWTH_GATE, "example.com/other")]))
    requests = draw(
        st.sampled_from([{}, {"cpu": "1e6"}, {"nvidia.com/gpu": "4000"}, {"example.com/odd": "1"}])
    )
    labels = draw(st.one_of(st.just({UID_LABEL: OWN_UID, ATTEMPT_LABEL: "1"}), st.just(CLAIM), _labels()))
    uid, node = draw(st.sampled_from([OWN_UID, VICTIMS_UID])), draw(st.sampled_from(["", "ghost", "node-0"]))
    pod = marked_pod(labels, {GROWTH_ANNOTATION: growth}, requests, *gates, node=node, uid=uid)
    suspended = draw(st.booleans())
    patches = ({"spec": {"suspend": False}},) if suspended else ()
    return Act(
        (_wrap({"generictemplate": _CONFIG_MAP}, suspend=suspended),),
        patches,
        then=(pod,) * draw(st.integers(1, 4)),
    )


@st.composite
def poacher(draw: Draw) -> Act:
    """Labels of the queues and classes of others, on AppWrappers that leave and enter the queue."""
    key = draw(st.sampled_from([QUEUE_LABEL, KUEUE_QUEUE_LABEL, KAI_QUEUE_LABEL]))
    queues = st.sampled_from([VICTIMS_QUEUE, "default", "none", "", "x" * 63])
    body = _wrap(
        {"generictemplate": _job({"cpu": "64"})}, metadata={"labels": {key: draw(queues)}}, priority=2**31 - 1
    )
    moves = tuple({"metadata": {"labels": {key: draw(queues)}}} for _ in range(draw(st.integers(0, 4))))
    turns = tuple({"spec": {"suspend": bool(number % 2)}} for number in range(draw(st.integers(0, 6))))
    return Act((body,) * draw(st.sampled_from([1, LARGEST_BURST])), moves + turns)


def _crowded() -> st.SearchStrategy[Act]:
    return st.one_of(
        st.integers(2, 200).map(many_sets), st.integers(1, 8).map(taken_in_late), counterfeit(), poacher()
    )


@st.composite
def swarm(draw: Draw) -> Act:
    """Many of one object at once, some of them deleted as soon as they are made."""
    pods = st.one_of(impostor(), restless())
    appwrappers = st.one_of(greedy(), pushy(), bulky(), forged(), restless(), torn())
    act: Act = draw(pods if draw(st.booleans()) else appwrappers)
    number = draw(st.integers(2, LARGEST_BURST))
    return Act(act.bodies * number, act.patches[:1], draw(st.booleans()))


def known() -> list[Act]:
    """The attacks that have worked once."""
    tags: tuple[Json, ...] = ({}, many_labels(), CLAIM)
    return [
        claimant("apps/v1", "ReplicaSet", "?", "made-up", CLAIM, "example.com/never"),
        claimant("v1?", "Pod", "name", "made-up", CLAIM, "example.com/never"),
        claimant("v1", "ConfigMap", "\0", "made-up", CLAIM, "example.com/never"),
        nested(MOST_NESTED_BYTES // 3),
        Act(unknown_kinds(UNKNOWN_KINDS).bodies * 10),
        Act((_wrap({"generictemplate": _CONFIG_MAP}, metadata={"finalizers": [FINALIZER]}),)),
        Act((_wrap({"generictemplate": _job({"cpu": "64"})}, priority=1, priorityslope=1e13),)),
        Act((_wrap({"generictemplate": _CONFIG_MAP, "custompodresources": [_thousand_gpus()]}),)),
        Act((_wrap({"generictemplate": _job({"nvidia.com/gpu": "1"}, 1000), "custompodresources": []}),)),
        *(Act((stuffed(kind, labels),)) for kind in (POD, APPWRAPPER) for labels in tags),
        *(Act((stuffed(kind, many_labels()),), touches({}), is_deleted=True) for kind in (POD, APPWRAPPER)),
        Act((stuffed(POD, many_labels() | CLAIM),), touches({})),
        Act(nested(90_000).bodies * 60),
        Act(tuple(invented_versions(UNKNOWN_KINDS, series) for series in range(10))),
        growth_forged(),
        growth_forged("ghost"),
        growth_forged("", GROWTH_GATE),
        taken_in_late(30),
        many_sets(61),
    ]


def _thousand_gpus() -> Json:
    return {"replicas": 1000, "requests": {"nvidia.com/gpu": 1}}


def torn() -> st.SearchStrategy[Act]:
    """A plain AppWrapper with a few mistakes in it."""
    return mutated().map(lambda document: Act((document,)))


def acts(count: int) -> list[Act]:
    """The known attacks, then the same `count` draws in every run; every object has a name of its own."""
    strategies = (greedy(), pushy(), bulky(), forged(), impostor(), torn(), restless(), swarm(), _crowded())
    return _all_named([*known(), *drawn(st.one_of(*strategies), count)])


def crowded(count: int) -> list[Act]:
    """The same `count` draws in every run of the acts that aim at the growth, the intake and the queues."""
    return _all_named(drawn(_crowded(), count))


def _all_named(found: list[Act]) -> list[Act]:
    return [
        replace(
            act,
            bodies=tuple(_named(body, f"act-{number}-{each}") for each, body in enumerate(act.bodies)),
            then=tuple(_named(body, f"then-{number}-{each}") for each, body in enumerate(act.then)),
        )
        for number, act in enumerate(found)
    ]


def _named(body: Json, name: str) -> Json:
    return {**body, "metadata": {**body["metadata"], "name": name}}


def against(act: Act, victim: str) -> Act:
    """The same act against a victim that exists, by its uid."""

    def aimed(value: Json) -> Json:
        replaced: Json = json.loads(json.dumps(value).replace(VICTIMS_UID, victim))
        return replaced

    bodies = tuple({**body, "metadata": aimed(body["metadata"])} for body in act.bodies)
    return replace(
        act, bodies=bodies, patches=tuple(map(aimed, act.patches)), then=tuple(map(aimed, act.then))
    )


def after(body: Json, then: Json, uid: str) -> Json:
    """A pod that follows an object, which the API server has given this uid; named after both."""
    aimed: Json = json.loads(json.dumps(then).replace(OWN_UID, uid))
    return _named(aimed, f"{body['metadata']['name']}-{then['metadata']['name']}")

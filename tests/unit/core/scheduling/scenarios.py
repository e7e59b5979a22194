"""Small scenario documents for property tests, and the repairs of an answer applied to a document by hand."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.quantity import amount
from dispatcher.core.scheduling.explain.scenario import parse_scenario

Json = dict[str, Any]

_TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
_TOLERATION = {"key": "team", "operator": "Exists"}

_AMOUNTS = st.fixed_dictionaries(
    {"cpu": st.integers(1, 4)}, optional={"nvidia.com/gpu": st.integers(1, 2), "memory": st.just("1.5Gi")}
)
_REQUESTS = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["500m", 1, 2, 3])}, optional={"nvidia.com/gpu": st.just(1)}
)
_LABELS = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
_NODES = st.lists(
    st.fixed_dictionaries(
        {
            "allocatable": st.tuples(_AMOUNTS, st.sampled_from([{}, {}, {"pods": 2}])).map(
                lambda both: both[0] | both[1]
            )
        },
        optional={"labels": _LABELS, "taints": st.just([_TAINT]), "count": st.integers(1, 3)},
    ),
    max_size=3,
)
_PODS = st.lists(
    st.fixed_dictionaries(
        {"requests": _REQUESTS},
        optional={"count": st.integers(1, 3), "nodeSelector": _LABELS, "tolerations": st.just([_TOLERATION])},
    ),
    min_size=1,
    max_size=2,
)
_RUNNING = st.fixed_dictionaries(
    {"pods": _PODS}, optional={"demand": st.just({"cpu": 3}), "ran": st.integers(0, 900)}
)
_PENDING = st.fixed_dictionaries(
    {"age": st.integers(0, 900)},
    optional={
        "pods": _PODS,
        "demand": st.fixed_dictionaries({"cpu": st.integers(1, 6)}, optional={"memory": st.just("1Gi")}),
        "priority": st.integers(-1, 1),
        "clusterSelector": st.sampled_from(["region=eu", "!region"]),
        "blocked": st.sampled_from([5, 700]),
    },
).map(lambda gang: gang if "pods" in gang or "demand" in gang else {**gang, "demand": {"cpu": 2}})


@st.composite
def documents(draw: st.DrawFn) -> Json:
    """One or two clusters with a few nodes, running gangs whose pods have nodes, and a queue."""
    names = draw(st.sampled_from([["hub"], ["east"], ["east", "west"]]))
    clusters = [_cluster(draw, name) for name in names]
    document: Json = {"clusters": clusters, "running": [], "pending": []}
    for index, gang in enumerate(draw(st.lists(_RUNNING, max_size=5))):
        running = {"name": f"r{index}", "cluster": draw(st.sampled_from(names)), **gang}
        _name_nodes(draw, document, running)
        if _is_right(document | {"running": [*document["running"], running]}):
            document["running"].append(running)
    for index, gang in enumerate(draw(st.lists(_PENDING, min_size=1, max_size=5))):
        document["pending"].append({"name": f"p{index}", **gang})
    return document


_QUOTAS = st.fixed_dictionaries(
    {"cpu": st.integers(0, 8)}, optional={"nvidia.com/gpu": st.integers(0, 3)}
).flatmap(
    lambda nominal: st.fixed_dictionaries(
        {
            name: st.fixed_dictionaries(
                {"nominalQuota": st.just(amount)},
                optional={"borrowingLimit": st.integers(0, 4), "lendingLimit": st.integers(0, 4)},
            )
            for name, amount in nominal.items()
        }
    )
)
_PREEMPTION = st.fixed_dictionaries(
    {
        "withinQueue": st.sampled_from(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
        "reclaim": st.sampled_from(["Never", "LowerPriority", "Any"]),
    }
)
_QUEUES = st.fixed_dictionaries(
    {},
    optional={
        "resources": _QUOTAS,
        "weight": st.sampled_from(["0", "1", "2.5"]),
        "priority": st.integers(0, 1),
        "queueingStrategy": st.just("StrictFIFO"),
        "preemption": _PREEMPTION,
        "preemptibleBelow": st.just(1),
    },
)
_DEMANDS = st.fixed_dictionaries({"cpu": st.integers(1, 4)}, optional={"nvidia.com/gpu": st.just(1)})
_LEAVES = st.sampled_from(["a", "b", "c"])


@st.composite
def documents_with_queues(draw: st.DrawFn) -> Json:
    """One or two clusters with room for most gangs, and a tree of queues that are short of quota more often."""
    names = draw(st.sampled_from([["hub"], ["east", "west"]]))
    nodes = [{"name": "n", "count": 3, "allocatable": {"cpu": 6, "nvidia.com/gpu": 2}}]
    queues: list[Json] = [{"name": "root"}, {"name": "inner", "parent": "root"}]
    queues += [
        {"name": name, "parent": parent} for name, parent in (("a", "root"), ("b", "inner"), ("c", "inner"))
    ]
    for queue in queues:
        queue.update(draw(_QUEUES))
    queues[0]["sharing"] = draw(st.sampled_from(["Priority", "DominantShare", "Division"]))
    document: Json = {
        "clusters": [{"name": name, "nodes": nodes} for name in names],
        "queues": queues,
        "running": [],
    }
    for index, demand in enumerate(draw(st.lists(_DEMANDS, max_size=6))):
        gang = {
            "name": f"r{index}",
            "queue": draw(_LEAVES),
            "cluster": draw(st.sampled_from(names)),
            "ran": index,
        }
        gang |= {
            "demand": demand,
            "priority": draw(st.integers(0, 1)),
            "ending": draw(st.integers(0, 5)) == 5,
        }
        if _is_right(document | {"running": [*document["running"], gang]}):
            document["running"].append(gang)
    document["pending"] = [
        {
            "name": f"p{index}",
            "queue": draw(_LEAVES),
            "demand": demand,
            "priority": draw(st.integers(0, 1)),
            "age": draw(st.integers(0, 3)),
            **draw(st.sampled_from([{}, {}, {"preempting": True}, {"preemptions": 5}, {"blocked": 700}])),
        }
        for index, demand in enumerate(draw(st.lists(_DEMANDS, min_size=1, max_size=5)))
    ]
    return document


def _cluster(draw: st.DrawFn, name: str) -> Json:
    nodes = [{"name": f"n{index}", **each} for index, each in enumerate(draw(_NODES))]
    extras = st.fixed_dictionaries(
        {},
        optional={
            "labels": st.just({"region": "eu"}),
            "reserve": st.just({"cpu": 1}),
            "closed": st.sampled_from(["ClusterCordoned"]),
        },
    )
    return {"name": name, "nodes": nodes, **(draw(extras) if draw(st.booleans()) else {})}


def _name_nodes(draw: st.DrawFn, document: Json, gang: Json) -> None:
    """Names the nodes of the pods of some gangs, also of nodes that are too small."""
    cluster = next(each for each in document["clusters"] if each["name"] == gang["cluster"])
    names = [name for node in cluster["nodes"] for name in _names_of(node)]
    for pods in gang["pods"]:
        if names and draw(st.integers(0, 2)) == 0:
            count = pods.get("count", 1)
            pods["nodes"] = draw(st.lists(st.sampled_from(names), min_size=count, max_size=count))


def _names_of(node: Json) -> list[str]:
    if "count" not in node:
        return [node["name"]]
    return [f"{node['name']}-{number}" for number in range(node["count"])]


def _is_right(document: Json) -> bool:
    try:
        parse_scenario(document)
    except SpecError:
        return False
    return True


def repaired(document: Json, repair: Json, name: str = "more") -> Json:
    """The document after a repair of its answer; added nodes are named `name`."""
    changed = copy.deepcopy(document)
    match repair:
        case {"add_nodes": {"cluster": cluster, **nodes}}:
            _cluster_of(changed, cluster)["nodes"].append({"name": name, **nodes})
        case {"remove": gangs}:
            assert {each["name"] for each in changed["running"]} >= set(gangs)
            changed["running"] = [each for each in changed["running"] if each["name"] not in gangs]
        case {"untaint": {"cluster": cluster, "nodes": names}}:
            _untaint(_cluster_of(changed, cluster), names)
        case {"add_quotas": parts}:
            for each in parts:
                changed = repaired(changed, {"add_quota": each})
        case {"add_quota": {"queue": queue, "resource": resource, "amount": more}}:
            quota = next(each for each in changed["queues"] if each["name"] == queue)["resources"][resource]
            raised = amount(resource, quota["nominalQuota"]) + amount(resource, more)
            quota["nominalQuota"] = written(resource, raised)
        case _:
            raise AssertionError(f"no repair: {repair}")
    return changed


def written(resource: str, units: int) -> str:
    """An amount in base units as a quantity."""
    return f"{units}m" if resource == "cpu" else str(units)


def _cluster_of(document: Json, name: str) -> Json:
    found: Json = next(each for each in document["clusters"] if each["name"] == name)
    return found


def _untaint(cluster: Json, names: list[str]) -> None:
    nodes = []
    for node in cluster["nodes"]:
        for name in _names_of(node):
            alone = {key: value for key, value in node.items() if key != "count"} | {"name": name}
            nodes.append(alone | {"taints": []} if name in names else alone)
    cluster["nodes"] = nodes


def with_one_less(repair: Json) -> Iterator[Json]:
    """The repair with one node, gang, name or base unit less, in every way in which something is left of it."""
    match repair:
        case {"add_nodes": {"count": count, **nodes}}:
            if count > 1:
                yield {"add_nodes": {**nodes, "count": count - 1}}
        case {"add_quota": {"resource": resource, "amount": more, **queue}}:
            units = amount(resource, more)
            if units > 1:
                yield {"add_quota": {**queue, "resource": resource, "amount": written(resource, units - 1)}}
        case {"add_quotas": parts}:
            for index, each in enumerate(parts):
                before, after = parts[:index], parts[index + 1 :]
                fewer = [less["add_quota"] for less in with_one_less({"add_quota": each})]
                yield {"add_quotas": [*before, *fewer, *after]}
        case {"remove": names}:
            yield from ({"remove": fewer} for fewer in _each_left_out(names))
        case {"untaint": {"cluster": cluster, "nodes": names}}:
            yield from ({"untaint": {"cluster": cluster, "nodes": fewer}} for fewer in _each_left_out(names))


def _each_left_out(names: list[str]) -> Iterator[list[str]]:
    for index in range(len(names)):
        fewer = [*names[:index], *names[index + 1 :]]
        if fewer:
            yield fewer

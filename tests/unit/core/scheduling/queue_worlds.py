"""Random scenario documents with trees of queues, running, leaving and pending gangs, on small clusters.

Every running gang names its nodes. Amounts are small integers, so that quotas and nodes are often just enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

Json = dict[str, Any]

GPU = "nvidia.com/gpu"
RESOURCES = (GPU, "memory")
SHARINGS = ("Priority", "DominantShare", "Division")


def random_document(
    chance: Random, *, sharing: str | None = None, arrivals: int = 5, in_two_trees: float = 0
) -> Json:
    """One or two trees of queues and one or two clusters.

    A gang is in one queue, or, of so many `in_two_trees`, in one of each of two trees.
    """
    first = random_tree(chance, "t", sharing)
    second = random_tree(chance, "u") if in_two_trees or chance.random() < 0.2 else []
    queues = [*first, *second]
    leaves: list[str | list[str]] = list(leaves_of(queues))

    def draw_gang(name: str) -> Json:
        if in_two_trees and chance.random() < in_two_trees:
            both = [chance.choice(leaves_of(tree)) for tree in (first, second)]
            return _gang(chance, name, [both])
        return _gang(chance, name, leaves)

    document: Json = {
        "clusters": [_cluster(chance, name) for name in chance.choice([["hub"], ["east"], ["east", "west"]])],
        "queues": queues,
        "running": [],
        "pending": [],
    }
    free = free_amounts(document)
    for number in range(chance.randint(0, 14)):
        gang = draw_gang(f"r{number}")
        gang["cluster"] = chance.choice(document["clusters"])["name"]
        gang["ran"] = chance.choice([5, 60, 600, 3600])
        gang["age"] = gang["ran"] + chance.randint(0, 3)
        if chance.random() < 0.12:
            gang["ending"] = True
        if bind(gang, free[gang["cluster"]]):
            document["running"].append(gang)
    for number in range(chance.randint(1, arrivals)):
        gang = draw_gang(f"p{number}") | {"age": chance.randint(0, 50)}
        if chance.random() < 0.25:
            gang["blocked"] = chance.choice([5, 700])
        if chance.random() < 0.1:
            gang["preempting"] = True
        if chance.random() < 0.2:
            gang["preemptions"] = chance.randint(1, 6)
        document["pending"].append(gang)
    return document


def random_tree(chance: Random, name: str, sharing: str | None = None) -> list[Json]:
    """The queues of one tree; inner queues may name a total of their own."""
    found: list[Json] = []
    for number in range(chance.randint(1, 6)):
        queue: Json = {"name": f"{name}{number}", "resources": {}}
        if number:
            queue["parent"] = f"{name}{chance.randrange(number) if chance.random() < 0.5 else 0}"
        else:
            queue["sharing"] = sharing or chance.choice(SHARINGS)
        found.append(queue)
    for queue in found:
        is_leaf = all(each.get("parent") != queue["name"] for each in found)
        _declare(chance, queue, found[0]["sharing"], is_leaf=is_leaf)
    return found


def _declare(chance: Random, queue: Json, sharing: str, *, is_leaf: bool) -> None:
    for resource, most in ((GPU, 8), ("memory", 12)):
        if chance.random() < (0.9 if is_leaf else 0.2) * (1 if resource == GPU else 0.35):
            nominal = chance.choice([0, *range(1, most + 1)]) if is_leaf else chance.randint(most, 3 * most)
            quota = queue["resources"][resource] = {"nominalQuota": nominal}
            if chance.random() < 0.25:
                quota["borrowingLimit"] = chance.randint(0, 4)
            if chance.random() < 0.25:
                quota["lendingLimit"] = chance.randint(0, 4)
    if chance.random() < 0.3:
        queue["weight"] = chance.choice([0, 2, "1.5"])
    if chance.random() < 0.2:
        queue["priority"] = chance.randint(-1, 2)
    if chance.random() < 0.2:
        queue["preemptibleBelow"] = chance.randint(1, 3)
    if chance.random() < 0.15:
        queue["minRuntimeSeconds"] = 100
    if chance.random() < 0.1:
        queue["queueingStrategy"] = "StrictFIFO"
    if chance.random() < 0.02:
        queue["stopPolicy"] = chance.choice(["Hold", "HoldAndDrain"])
    if is_leaf and chance.random() < 0.85:
        reclaim = chance.choice(["Never", "LowerPriority", "Any", "Any"])
        queue["preemption"] = {
            "withinQueue": chance.choice(["Never", "LowerPriority", "LowerOrNewerEqualPriority"]),
            "reclaim": reclaim,
        }
        if sharing == "Priority" and reclaim != "Never" and chance.random() < 0.3:
            queue["preemption"]["whileBorrowing"] = chance.choice([{}, {"maxPriority": 1}])


def leaves_of(queues: list[Json]) -> list[str]:
    parents = {each.get("parent") for each in queues}
    return [each["name"] for each in queues if each["name"] not in parents]


def _cluster(chance: Random, name: str) -> Json:
    nodes: list[Json] = [
        {
            "name": f"n{number}",
            "count": chance.randint(1, 3),
            "allocatable": {GPU: chance.randint(1, 8), "memory": chance.randint(4, 16)},
            **({"labels": {"zone": "a"}} if chance.random() < 0.3 else {}),
        }
        for number in range(chance.randint(1, 2))
    ]
    return {"name": name, "nodes": nodes}


def queues_of(gang: Json) -> list[str]:
    """The leaves of a gang, one of each of its trees."""
    found: str | list[str] = gang["queue"]
    return [found] if isinstance(found, str) else found


def _gang(chance: Random, name: str, leaves: Sequence[str | list[str]]) -> Json:
    pods: list[Json] = []
    for _ in range(chance.choice([1, 1, 1, 2])):
        requests = {GPU: chance.choice([0, 1, 1, 2, 3]), "memory": chance.choice([0, 1, 2, 4])}
        requests = {resource: amount for resource, amount in requests.items() if amount} or {GPU: 1}
        pods.append({"count": chance.choice([1, 1, 1, 2, 3]), "requests": requests})
        if chance.random() < 0.1:
            pods[-1]["nodeSelector"] = {"zone": "a"}
    return {"name": name, "queue": chance.choice(leaves), "priority": chance.randint(0, 3), "pods": pods}


# --- clusters, by plain arithmetic -------------------------------------------------------------------------------

Free = dict[str, dict[str, int]]
"""Free amounts of each node of a cluster."""


def nodes_of(cluster: Json) -> dict[str, Json]:
    """The nodes of a cluster by name."""
    return {f"{each['name']}-{number}": each for each in cluster["nodes"] for number in range(each["count"])}


def free_amounts(document: Json) -> dict[str, Free]:
    """The amounts of each node of each cluster, as if it were empty."""
    return {
        cluster["name"]: {name: dict(node["allocatable"]) for name, node in nodes_of(cluster).items()}
        for cluster in document["clusters"]
    }


def demand_of(gang: Json) -> dict[str, int]:
    """The amounts of all pods of a gang."""
    return {
        resource: sum(pods["count"] * pods["requests"].get(resource, 0) for pods in gang["pods"])
        for resource in RESOURCES
    }


def bind(gang: Json, free: Free) -> bool:
    """Name a node with enough for each pod of a gang and take it; False, and nothing is taken, if there is none."""
    before = {name: dict(amounts) for name, amounts in free.items()}
    for pods in gang["pods"]:
        pods.pop("nodeSelector", None)
        pods["nodes"] = []
        for _ in range(pods["count"]):
            node = next((name for name in free if _fits(pods["requests"], free[name])), None)
            if node is None:
                free.update(before)
                return False
            take(pods["requests"], free[node])
            pods["nodes"].append(node)
    return True


def add_surplus(document: Json, chance: Random) -> None:
    """Give some running gangs surplus pods of one GPU each, on nodes that have room for them."""
    free = free_amounts(document)
    for gang in document["running"]:
        take_bound(gang, free[gang["cluster"]])
    for gang in document["running"]:
        more = {"pods": [{"count": chance.randint(1, 3), "requests": {GPU: 1}}]}
        if chance.random() < 0.6 and bind(more, free[gang["cluster"]]):
            gang["surplus"] = more["pods"]


def _fits(requests: dict[str, int], free: dict[str, int]) -> bool:
    return all(amount <= free.get(resource, 0) for resource, amount in requests.items())


def take(requests: dict[str, int], free: dict[str, int], sign: int = 1) -> None:
    for resource, amount in requests.items():
        free[resource] = free.get(resource, 0) - sign * amount


def take_bound(gang: Json, free: Free, sign: int = 1) -> None:
    """Take the pods of a gang that names its nodes, or give them back with the sign -1."""
    for pods in gang["pods"]:
        for node in pods["nodes"]:
            take(pods["requests"], free[node], sign)


def have_places(gangs: list[Json], cluster: Json, free: Free) -> bool:
    """True if all pods of these gangs have nodes at the same time; by trying all."""
    labels = {name: node.get("labels", {}) for name, node in nodes_of(cluster).items()}
    pods = [
        (pods["requests"], pods.get("nodeSelector", {}))
        for gang in gangs
        for pods in gang["pods"]
        for _ in range(pods["count"])
    ]
    pods.sort(key=lambda each: (-sum(each[0].values()), sorted(each[0].items()), len(each[1])))
    return _all_placed(pods, labels, {name: dict(amounts) for name, amounts in free.items()}, set())


def _all_placed(
    pods: list[tuple[dict[str, int], dict[str, str]]],
    labels: dict[str, Json],
    free: Free,
    failed: set[object],
) -> bool:
    if not pods:
        return True
    state = len(pods), tuple(tuple(sorted(amounts.items())) for amounts in free.values())
    if state in failed:
        return False
    (requests, selector), *rest = pods
    for name, amounts in free.items():
        if selector.items() <= labels[name].items() and _fits(requests, amounts):
            take(requests, amounts)
            if _all_placed(rest, labels, free, failed):
                return True
            take(requests, amounts, -1)
    failed.add(state)
    return False

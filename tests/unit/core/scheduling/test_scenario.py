"""Scenario documents: what they mean, and the place and problem that a wrong one is refused with."""

from __future__ import annotations

import copy
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.clusters.potential import OnPotential
from dispatcher.api.selector import parse_selector
from dispatcher.api.spec_errors import SpecError
from dispatcher.core.model.clusters.nodes import Node, NodeRequirements, Taint, Toleration
from dispatcher.core.model.clusters.potential import PotentialPool, Trust
from dispatcher.core.model.gangs.gang import Gang, PodSet
from dispatcher.core.model.quantity import resource_amounts
from dispatcher.core.model.records.record import Phase, Record
from dispatcher.core.model.records.requirements import ClusterRequirements
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.core.queues.queue import Queue, Quota, Sharing
from dispatcher.core.scheduling.cycle.outcomes import SOME_TIME, Impossible, Waiting
from dispatcher.core.scheduling.explain.scenario import MOST_QUEUES, parse_scenario, write_amounts
from dispatcher.core.scheduling.explain.world import World
from dispatcher.core.scheduling.explain.world_facts import Cluster, RunningGang, RunningPods
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.scheduling.sharing.gangs import ActiveGang

Json = dict[str, Any]

EVERYTHING = """
source: a test
x-note: ignored
namespaces: {team-a: {tier: gold}}
clusters:
- name: east
  labels: {gpu: a100}
  reserve: {cpu: 4}
  potential:
  - {name: l4, node: {allocatable: {cpu: 8}, labels: {pool: l4}, taints: [{key: gpu, effect: NoSchedule}]}, max: 10}
  onPotential: Wait
  nodes:
  - {name: node, count: 2, allocatable: {cpu: 8, nvidia.com/gpu: 1}, labels: {zone: a}}
  - {name: other, allocatable: {memory: 1.5Gi}, taints: [{key: team, value: a, effect: NoSchedule}], x-rack: 4}
- {name: west, closed: ClusterCordoned, nodes: []}
queues:
- {name: org, sharing: DominantShare}
- {name: a, parent: org, resources: {cpu: {nominalQuota: 6}}, recentUsage: {team-a: 5000}}
- {name: tree, resources: {cpu: {nominalQuota: 1500m, borrowingLimit: 0}}}
running:
- {name: r, queue: [a, tree], cluster: east, ran: 3600, ending: true, priority: 2, demand: {cpu: 3},
   pods: [{count: 2, requests: {cpu: 1}, nodes: [node-1, node-1]}, {requests: {cpu: 500m}}]}
- {name: bare, cluster: east, demand: {cpu: 2, pods: 4}}
pending:
- {name: p, queue: [a, nobody], namespace: team-a, priority: -3, prioritySlope: 0.5, age: 60, blocked: 1.5,
   preempting: true, preemptions: 2, clusterSelector: gpu=a100, demand: {cpu: 2},
   pods: [{count: 2, requests: {cpu: 0.5}, nodeSelector: {zone: a}, tolerations: [{key: team, operator: Exists}]}]}
- {name: q, demand: {cpu: 1}}
expect: {decisions: []}
"""


def test_every_field_of_a_document_is_read() -> None:
    one, half = Resources({"cpu": 1000}), Resources({"cpu": 500})
    node = Resources({"cpu": 8000, "nvidia.com/gpu": 1})
    bare = PodSet(1, Resources({"cpu": 2000}))
    pods = PodSet(
        2,
        half,
        (Toleration("team", "Exists"),),
        NodeRequirements((("zone", "a"),)),
    )
    held = Gang(Resources({"cpu": 3000}), 3, (PodSet(2, one), PodSet(1, half)))
    both = Gang(Resources({"cpu": 2000, "pods": 4}), 1, (bare,))
    assert parse_scenario(yaml.safe_load(EVERYTHING)) == World(
        clusters=(
            Cluster(
                "east",
                (
                    Node("node-0", node, labels={"zone": "a"}),
                    Node("node-1", node, labels={"zone": "a"}),
                    Node(
                        "other", Resources({"memory": 3 * 2**29}), taints=(Taint("team", "a", "NoSchedule"),)
                    ),
                ),
                {"gpu": "a100"},
                reserve=Resources({"cpu": 4000}),
                pools=(
                    PotentialPool(
                        "l4",
                        Node(
                            "",
                            Resources({"cpu": 8000}),
                            taints=(Taint("gpu", "", "NoSchedule"),),
                            labels={"pool": "l4"},
                        ),
                        10,
                    ),
                ),
                trust=Trust(OnPotential.WAIT),
            ),
            Cluster("west", closed=Closed("ClusterCordoned", "it is closed: ClusterCordoned")),
        ),
        running=(
            RunningGang(
                "r",
                "east",
                Resources({"cpu": 3000}),
                (RunningPods(PodSet(2, one), ("node-1", "node-1")), RunningPods(PodSet(1, half))),
                active=ActiveGang(
                    record("r", Phase.RUNNING, held, priority=2, queue="a", more_queues=("tree",)),
                    "east",
                    SOME_TIME - timedelta(seconds=3600),
                    is_leaving=True,
                ),
            ),
            RunningGang(
                "bare",
                "east",
                both.demand,
                (RunningPods(bare),),
                active=ActiveGang(record("bare", Phase.RUNNING, both), "east", SOME_TIME),
            ),
        ),
        pending=(
            Record(
                uid="p",
                group="",
                namespace="team-a",
                name="p",
                created_at=SOME_TIME - timedelta(seconds=60),
                phase=Phase.QUEUED,
                phase_since=SOME_TIME - timedelta(seconds=60),
                enqueue_seq=1,
                priority=-3,
                priority_slope=0.5,
                gang=Gang(Resources({"cpu": 2000}), 2, (pods,)),
                requirements=ClusterRequirements(parse_selector("gpu=a100", ""), namespace="team-a"),
                blocked_since=SOME_TIME - timedelta(seconds=1.5),
                queue="a",
                more_queues=("nobody",),
                is_preempting=True,
                preempted_at=(SOME_TIME, SOME_TIME),
            ),
            record("q", Phase.QUEUED, Gang(one, 1, (PodSet(1, one),)), enqueue_seq=2),
        ),
        queues=(
            Queue("org", sharing=Sharing.DOMINANT_SHARE),
            Queue("a", "org", {"cpu": Quota(6000)}),
            Queue("tree", resources={"cpu": Quota(1500, borrowing_limit=0)}),
        ),
        namespaces={"team-a": {"tier": "gold"}},
        usage={("a", "team-a"): Fraction(5000)},
    )


def record(name: str, phase: Phase, gang: Gang, **fields: Any) -> Record:  # noqa: ANN401
    """A gang that a document describes by its name and this."""
    return Record(
        uid=name,
        group="",
        namespace="default",
        name=name,
        created_at=SOME_TIME,
        phase=phase,
        phase_since=SOME_TIME,
        gang=gang,
        requirements=ClusterRequirements(namespace="default"),
        **{"enqueue_seq": 0, **fields},
    )


def test_circles_and_missing_parents_are_no_errors_and_their_gangs_wait() -> None:
    queues = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}, {"name": "c", "parent": "none"}]
    gangs = [gang(name=each, queue=each) for each in "abc"]
    runs = [gang(name="r", queue="a", cluster="hub")]
    world = parse_scenario(document(queues=queues, running=runs, pending=gangs))
    outcomes = world.plan()
    assert [each.pending.reason for each in outcomes if isinstance(each, Impossible)] == ["QueueNotFound"] * 3
    assert world.forest.problems == {"a": "Circle", "b": "Circle", "c": "ParentNotFound"}


def test_a_gang_in_a_queue_that_is_not_declared_waits() -> None:
    (outcome,) = parse_scenario(document(pending=[gang(queue="a")])).plan()
    assert isinstance(outcome, Impossible)
    assert outcome.pending.message == "there is no queue a"


def test_capacity_that_is_being_released_is_waited_for_without_queues_as_well() -> None:
    runs = [gang(name="r", cluster="hub", demand={"cpu": 4}, ending=True)]
    waits = {"name": "p", "pods": [{"count": 2, "requests": {"cpu": 4}}]}
    (outcome,) = parse_scenario(document(running=runs, pending=[waits])).plan()
    assert isinstance(outcome, Waiting)
    assert outcome.pending.reason == "AwaitingRelease"


def test_without_a_demand_the_sum_of_the_pods_is_charged() -> None:
    pods = [{"count": 3, "requests": {"cpu": 1}}, {"requests": {"memory": "1Gi"}}]
    world = parse_scenario(document(pending=[{"name": "p", "pods": pods}]))
    assert world.pending[0].gang.demand == Resources({"cpu": 3000, "memory": 2**30})
    assert world.pending[0].gang.pods == 4


def test_a_node_for_no_pods_takes_none() -> None:
    nodes = [
        {"name": "none", "allocatable": {"cpu": 4, "pods": 0}},
        {"name": "one", "allocatable": {"cpu": 4, "pods": 1}},
    ]
    clusters = [{"name": "hub", "nodes": nodes}]
    running = [{"name": "r", "cluster": "hub", "demand": {"cpu": 1}}]
    world = parse_scenario(document(clusters=clusters, running=running))
    assert [each.most_pods for each in world.clusters[0].nodes] == [0, 1]
    assert [pod.node for pod in world.bound_pods()["hub"]] == ["one"]


def document(**changes: object) -> Json:
    nodes = [{"name": "n", "count": 2, "allocatable": {"cpu": 4}}]
    return {"clusters": [{"name": "hub", "nodes": nodes}], **changes}


def gang(**fields: object) -> Json:
    return {"name": "p", "demand": {"cpu": 1}, **fields}


def running(**fields: object) -> Json:
    return document(running=[gang(cluster="hub", **fields)])


def pods(**fields: object) -> Json:
    return document(pending=[gang(pods=[{"requests": {"cpu": 1}, **fields}])])


def node(**fields: object) -> Json:
    return document(clusters=[{"name": "hub", "nodes": [{"name": "n", "allocatable": {}, **fields}]}])


def queue(**fields: object) -> Json:
    return document(queues=[{"name": "a", **fields}])


def pools(*written: Json) -> Json:
    return document(clusters=[{"name": "hub", "nodes": [], "potential": list(written)}])


def nodes(*amounts: Json, count: int = 1) -> Json:
    written = [{"name": f"n{at}", "count": count, "allocatable": each} for at, each in enumerate(amounts)]
    return document(clusters=[{"name": "hub", "nodes": written}])


TAINT: Json = {"key": "team", "effect": "NoSchedule"}
POOL: Json = {"name": "l4", "node": {"allocatable": {"cpu": 1}, "labels": {"pool": "l4"}}, "max": 2}
TWO_LEAVES: Json = {"queues": [{"name": "org"}, *({"name": each, "parent": "org"} for each in "ab")]}
KNOWN = "name, queue, namespace, priority, prioritySlope, age, blocked, preempting, preemptions"


@pytest.mark.parametrize(
    ("wrong", "place", "problem"),
    [
        ([], "document", "must be an object, not a list"),
        (None, "document", "must be an object, not null"),
        (document(cluster=[]), "cluster", "is unknown here; known are source, namespaces, clusters, queues"),
        (document(**{"a b": 1}), '["a b"]', "is unknown here"),
        ({1: 2}, "document", "has the key 1, which is no text"),
        ({}, "clusters", "at least one cluster is required"),
        (document(clusters={}), "clusters", "must be a list, not an object"),
        (document(clusters=[{"name": "hub"}] * 2), "clusters[1].name", '"hub" names another one, too'),
        (document(clusters=[{"nodes": []}]), "clusters[0].name", "is required"),
        (document(clusters=["hub"]), "clusters[0]", 'must be an object, not "hub"'),
        (
            document(clusters=[{"name": "hub", "closed": ""}]),
            "clusters[0].closed",
            "must be a reason such as",
        ),
        (document(queues=["a"]), "queues[0]", 'must be an object, not "a"'),
        (
            queue(quota=1),
            "queues[0].quota",
            "is unknown here; known are name, recentUsage, parent, resources",
        ),
        (queue(parent="a"), "queues[0].parent", "a queue cannot be its own parent"),
        (
            queue(resources={"cpu": {"nominalQuota": -1}}),
            "queues[0].resources.cpu.nominalQuota",
            "-1 is negative",
        ),
        (queue(resources={"cpu": {}}), "queues[0].resources.cpu.nominalQuota", "is required"),
        (
            queue(resources={"cpu": {"nominalQuota": 1, "limit": 1}}),
            "queues[0].resources.cpu.limit",
            "is unknown here; known are nominalQuota, borrowingLimit, lendingLimit",
        ),
        (queue(weight="-1"), "queues[0].weight", 'must be a decimal number of at least 0, not "-1"'),
        (queue(sharing="Fair"), "queues[0].sharing", "must be one of Priority, DominantShare, Division"),
        (queue(recentUsage={"a": -1}), "queues[0].recentUsage.a", "must be a number of at least 0, not -1"),
        (document(queues=[{"name": "a"}] * 2), "queues[1].name", '"a" names another one, too'),
        (document(namespaces={"a": {"b": 1}}), "namespaces.a.b", "must be a text, not 1"),
        (node(count=-1), "clusters[0].nodes[0].count", "must be a whole number from 0 to 100000, not -1"),
        (node(allocatable=4), "clusters[0].nodes[0].allocatable", "must be an object, not 4"),
        (node(taints=[{"key": "a"}]), "clusters[0].nodes[0].taints[0].effect", "must be one of NoSchedule"),
        (node(effect="x"), "clusters[0].nodes[0].effect", "is unknown here"),
        (
            document(clusters=[{"name": "hub", "nodes": [{"name": "n-0"}, {"name": "n", "count": 1}]}]),
            "clusters[0].nodes[1].name",
            'another node is named "n-0"',
        ),
        (document(pending=[gang(), gang()]), "pending[1].name", '"p" names another one, too'),
        (
            document(running=[gang(cluster="hub")], pending=[gang()]),
            "pending[0].name",
            '"p" names another one, too',
        ),
        (document(pending=[gang(name="")]), "pending[0].name", "must have 1 to 253 characters"),
        (document(pending=[gang(name="a\nb")]), "pending[0].name", 'must be a text, not "a\\nb"'),
        (document(pending=[gang(name=7)]), "pending[0].name", "must be a text, not 7"),
        (
            document(pending=[gang(cluster="hub")]),
            "pending[0].cluster",
            f"is unknown here; known are {KNOWN}",
        ),
        (document(pending=[{"name": "p"}]), "pending[0]", "demand or pods is required"),
        (
            document(pending=[gang(demand={"cpu": -1})]),
            "pending[0].demand.cpu",
            "-1 is negative; allowed are",
        ),
        (
            document(pending=[gang(demand={"cpu": "1 Gi"})]),
            "pending[0].demand.cpu",
            "'1 Gi' is not a quantity",
        ),
        (
            document(pending=[gang(demand={"a.com/b": "x"})]),
            'pending[0].demand["a.com/b"]',
            "'x' is not a quantity",
        ),
        (
            document(pending=[gang(demand={"c/p/u": 1})]),
            'pending[0].demand["c/p/u"]',
            "'c/p/u' is not a resource",
        ),
        (document(pending=[gang(queue=7)]), "pending[0].queue", "must be a text, not 7"),
        (document(pending=[gang(queue=[])]), "pending[0].queue", "must name one or more different queues"),
        (
            document(pending=[gang(queue=["a", "a"])]),
            "pending[0].queue",
            "must name one or more different queues",
        ),
        (
            document(**TWO_LEAVES, pending=[gang(queue=["a", "default", "b"])]),
            "pending[0].queue",
            "must name at most one queue of each tree",
        ),
        (document(pending=[gang(preemptions=-1)]), "pending[0].preemptions", "must be a whole number from 0"),
        (document(pending=[gang(age=-1)]), "pending[0].age", "must be seconds from 0 to 10000000000, not -1"),
        (document(pending=[gang(age=True)]), "pending[0].age", "must be a number, not true"),
        (document(pending=[gang(blocked="1h")]), "pending[0].blocked", 'must be a number, not "1h"'),
        (
            document(pending=[gang(prioritySlope=float("nan"))]),
            "pending[0].prioritySlope",
            "must be a finite number",
        ),
        (
            document(pending=[gang(priority=0.5)]),
            "pending[0].priority",
            "must be a whole number from -2147483647",
        ),
        (document(pending=[gang(preempting=1)]), "pending[0].preempting", "must be true or false, not 1"),
        (
            document(pending=[gang(clusterSelector="a in b")]),
            "pending[0].clusterSelector",
            "is no label selector: at character 6, expected",
        ),
        (pods(nodes=["n-0"]), "pending[0].pods[0].nodes", "is unknown here; known are count, requests"),
        (pods(count=-1), "pending[0].pods[0].count", "must be a whole number from 0 to 2147483647, not -1"),
        (
            pods(requests={"pods": 1}),
            "pending[0].pods[0].requests.pods",
            "cannot be requested: each pod counts",
        ),
        (
            pods(nodeSelector={"a": None, "b": 1}),
            "pending[0].pods[0].nodeSelector.b",
            "must be a text, not 1",
        ),
        (
            pods(tolerations=[{"operator": "Equal"}]),
            "pending[0].pods[0].tolerations[0].operator",
            "must be Exists if there is no key",
        ),
        (
            pods(tolerations=[{"key": "a", "operator": "In"}]),
            "pending[0].pods[0].tolerations[0].operator",
            'must be one of Equal, Exists, not "In"',
        ),
        (document(running=[gang()]), "running[0].cluster", "is required"),
        (document(running=[gang(cluster="west")]), "running[0].cluster", 'there is no cluster "west"'),
        (running(queue="a"), "running[0].queue", 'there is no queue "a"'),
        (running(queue=["default", "a"]), "running[0].queue", 'there is no queue "a"'),
        (running(ran=-1), "running[0].ran", "must be seconds from 0"),
        (running(ending="yes"), "running[0].ending", 'must be true or false, not "yes"'),
        (running(pods=[{"nodes": ["n"]}]), "running[0].pods[0].nodes[0]", 'cluster hub has no node "n"'),
        (
            running(pods=[{"requests": {"cpu": 5}, "nodes": ["n-1"]}]),
            "running[0].pods[0].nodes[0]",
            "node n-1 is too small for a pod of this size, even if it was empty",
        ),
        (
            running(pods=[{"nodes": []}]),
            "running[0].pods[0].nodes",
            "must name one node for each pod: 1, not 0",
        ),
        (running(pods=[{"count": 200_000}]), "running", "there are more than 100000 pods"),
        (running(demand={"cpu": 5}), "running[0].demand", "no node of cluster hub takes a pod of this size"),
        (
            running(pods=[{"requests": {"cpu": 3}}, {"count": 2, "requests": {"cpu": 3}}]),
            "running[0].pods[1]",
            "no node of cluster hub takes a pod of this size",
        ),
        pytest.param(
            pools({**POOL, "node": {"allocatable": {"cpu": 1}}}),
            "clusters[0].potential[0].node.labels",
            "at least one label is required: it says which nodes are of the pool",
            id="pool-without-labels",
        ),
        pytest.param(
            pools(POOL, POOL),
            "clusters[0].potential[1].name",
            '"l4" names another one, too',
            id="twin-pools",
        ),
        pytest.param(
            pools(*({**POOL, "name": f"p{number}"} for number in range(17))),
            "clusters[0].potential",
            "has 17 entries; at most 16 are allowed",
            id="too-many-pools",
        ),
        pytest.param(
            document(queues=[{"name": f"q{number}"} for number in range(MOST_QUEUES + 1)]),
            "queues",
            "has 10001 entries; at most 10000 are allowed",
            id="too-many-queues",
        ),
        pytest.param(
            document(
                queues=[{"name": "q0"}, *({"name": f"q{n}", "parent": f"q{n - 1}"} for n in range(1, 1050))]
            ),
            "queues[1000].parent",
            "the queue is more than 1000 levels deep",
            id="too-deep-queues",
        ),
        pytest.param(
            nodes({f"r{number}": 1 for number in range(65)}),
            "clusters[0].nodes[0].allocatable",
            "has 65 resources; at most 64 are allowed",
            id="too-many-resources-of-a-node",
        ),
        pytest.param(
            nodes(*({f"r{number}-{name}": 1 for name in range(50)} for number in range(6))),
            "clusters[0].nodes[5].allocatable",
            "there are more than 256 names of resources up to here",
            id="too-many-resources-of-all-nodes",
        ),
        pytest.param(
            nodes(*({f"r{number}-{name}": 1 for name in range(50)} for number in range(5)), count=10_000),
            "clusters",
            "there are more than 2000000 amounts: nodes times names of resources in their cluster",
            id="too-many-amounts",
        ),
        pytest.param(
            document(pending=[gang(demand={f"r{number}": 1 for number in range(65)})]),
            "pending[0].demand",
            "has 65 resources; at most 64 are allowed",
            id="too-many-resources-of-a-gang",
        ),
        pytest.param(
            running(surplus=[{"requests": {f"r{number}": 1 for number in range(65)}}]),
            "running[0].surplus[0].requests",
            "has 65 resources; at most 64 are allowed",
            id="too-many-resources-of-surplus",
        ),
        pytest.param(
            pools({**POOL, "node": {"labels": {f"l{number}": "" for number in range(513)}}}),
            "clusters[0].potential[0].node.labels",
            "has 513 entries; at most 512 are allowed",
            id="too-many-labels",
        ),
        pytest.param(
            document(clusters=[{"name": "hub", "nodes": [{"name": "n", "taints": [TAINT] * 65}]}]),
            "clusters[0].nodes[0].taints",
            "has 65 entries; at most 64 are allowed",
            id="too-many-taints",
        ),
    ],
)
def test_a_wrong_document_is_refused_at_its_place(wrong: object, place: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_scenario(wrong)
    assert refused.value.path == place
    assert refused.value.problem.startswith(problem)
    assert "\n" not in str(refused.value)


@given(st.data())
def test_a_document_with_any_value_replaced_is_read_or_refused(data: st.DataObject) -> None:
    changed = copy.deepcopy(yaml.safe_load(EVERYTHING))
    holder, key = data.draw(st.sampled_from(_places(changed)))
    holder[key] = data.draw(_VALUES)
    try:
        parse_scenario(changed).plan()
    except SpecError as error:
        assert str(error).isprintable()  # noqa: PT017  # a document that is still right is no failure


def _places(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401
    """Every place of a document that has a value, as its holder and key."""
    if not isinstance(value, dict | list):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    below = [place for key in keys for place in _places(value[key])]
    return [*((value, key) for key in keys), *below]


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["node-0", "default", "a", "org", "Division", "east", "x-", "NoSchedule", "Exists", 10**400]
    ),
    st.lists(st.none() | st.integers() | st.just({"name": "p"}), max_size=2),
    st.dictionaries(
        st.sampled_from(["name", "cpu", "key", "x-a", ""]), st.text(max_size=3) | st.integers(0, 3)
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi", "ephemeral-storage", "pods"]),
        st.integers(0, LARGEST_AMOUNT) | st.integers(0, 4).map(lambda number: number << 30),
    ).map(Resources)
)
def test_written_amounts_are_read_back_exactly(amounts: Resources) -> None:
    assert resource_amounts(write_amounts(amounts)) == amounts

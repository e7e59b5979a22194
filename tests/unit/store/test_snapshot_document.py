"""The snapshot of a cluster as a document: back without loss, and refused if it is of another version or damaged."""

from __future__ import annotations

import zlib
from datetime import timedelta
from fractions import Fraction

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.api.clusters.potential import OnPotential
from dispatcher.api.clusters.provisioning import ProvisioningClass, RetryRule
from dispatcher.api.selector import EVERYTHING, parse_selector
from dispatcher.core.kinds.declaration import KindDeclaration, PodSetDeclaration
from dispatcher.core.kinds.pods.pod_defaults import ChargeRule, DefaultsSurvey
from dispatcher.core.kinds.registry import Kinds
from dispatcher.core.model.clusters.cluster_errors import ErrorCounts
from dispatcher.core.model.clusters.nodes import LabelOperator, LabelRequirement, Node, Taint
from dispatcher.core.model.clusters.potential import PotentialPool, Trust
from dispatcher.core.model.gangs.gang import Assignment
from dispatcher.core.model.gangs.growth import SurplusPod
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources
from dispatcher.core.queues.queue import (
    Preemption,
    Queue,
    QueueingStrategy,
    Quota,
    Reclaim,
    WhileBorrowing,
    WithinQueue,
)
from dispatcher.core.scheduling.capacity.capacity_ledger import FitMode
from dispatcher.core.scheduling.capacity.node_snapshot import Place
from dispatcher.core.scheduling.explain.leader_snapshot import ClusterFacts, OwnedPods, SchedulingRules
from dispatcher.core.scheduling.explain.world_facts import Cluster
from dispatcher.core.scheduling.fit.backfill_reservation import Before, Reservation
from dispatcher.core.scheduling.fit.cluster_filters import Closed
from dispatcher.core.scheduling.preemption.surplus import Surplus
from dispatcher.core.scheduling.sharing.quota_reservations import QuotaReservations
from dispatcher.errors import StoreError
from dispatcher.store.snapshot.snapshot_document import VERSION, document_of, facts_of
from tests.builders import NOW
from tests.unit.store.records import moments, pod_sorts, resources, small, texts

MILLISECONDS = st.integers(0, 10**9).map(lambda each: timedelta(milliseconds=each))
LABELS = st.dictionaries(texts, texts, max_size=2)
PLACES = st.lists(st.tuples(texts, small), max_size=2).map(tuple)
WORDS = st.lists(texts, max_size=2).map(tuple)
POD_SETS = st.builds(PodSetDeclaration, texts, texts | small, small, st.booleans())
DECLARED = st.builds(
    KindDeclaration,
    group=texts,
    kind=texts,
    pod_sets=st.lists(POD_SETS, max_size=2).map(tuple),
    suspend=texts,
    managed_by=texts,
    phase=texts,
    succeeded=WORDS,
    failed=WORDS,
)
RULES = st.builds(
    SchedulingRules,
    st.sampled_from(QueueingStrategy),
    st.sampled_from(FitMode),
    MILLISECONDS,
    MILLISECONDS,
    st.sampled_from(ChargeRule),
    st.lists(DECLARED, max_size=2).map(tuple).map(Kinds),
    namespaces=st.dictionaries(texts, LABELS, max_size=2),
    trees=WORDS,
    names=st.none() | st.frozensets(texts, max_size=2),
    usage=st.dictionaries(st.tuples(texts, texts), st.fractions(0), max_size=2),
    highest_priority=st.none() | small,
    ceilings=st.dictionaries(texts, st.none() | small, max_size=2),
)
NODES = st.builds(
    Node,
    texts,
    resources,
    st.booleans(),
    st.lists(st.builds(Taint, texts, texts, texts), max_size=2).map(tuple),
    st.booleans(),
    LABELS,
    st.none() | st.integers(0, LARGEST_AMOUNT),
    st.integers(0, 3),
)
PODS = st.builds(
    OwnedPods, texts, st.builds(Place, texts, resources, small, st.none() | pod_sorts), st.booleans()
)
RESERVATIONS = st.builds(
    Reservation,
    texts,
    moments,
    moments,
    moments,
    st.lists(texts, max_size=2).map(tuple),
    st.booleans(),
    small,
    small,
    st.booleans(),
    st.lists(PLACES, max_size=2).map(tuple).map(Assignment),
)
CLUSTERS = st.builds(
    Cluster,
    name=texts,
    nodes=st.lists(NODES, max_size=3).map(tuple),
    labels=LABELS,
    closed=st.none() | st.builds(Closed, texts, texts),
    reserve=resources,
    missing_kinds=st.frozensets(st.tuples(texts, texts), max_size=2),
    forbidden_kinds=st.frozensets(st.tuples(texts, st.tuples(texts, texts)), max_size=2),
    missing_namespaces=st.frozensets(texts, max_size=2),
    creates_namespaces=st.booleans(),
    closed_namespaces=st.frozensets(texts, max_size=2),
    errors=st.builds(ErrorCounts, small, st.dictionaries(texts, small, max_size=2)),
    pools=st.lists(st.builds(PotentialPool, texts, NODES, small), max_size=2).map(tuple),
    trust=st.builds(
        Trust,
        st.sampled_from(OnPotential),
        st.lists(st.tuples(texts, moments), max_size=2).map(tuple),
    ),
    device_resources=st.frozensets(texts, max_size=2),
)
QUANTITIES = st.dictionaries(texts, texts | small, max_size=2)
SURVEYS = st.builds(
    DefaultsSurvey,
    *[st.none() | st.dictionaries(texts, QUANTITIES, max_size=3) for _ in range(2)],
    has_more=st.booleans(),
)
SURPLUS = st.builds(
    Surplus,
    resources,
    resources,
    st.lists(
        st.builds(SurplusPod, texts, texts, texts, resources, texts, texts, st.booleans()), max_size=2
    ).map(tuple),
)
FACTS = st.builds(
    ClusterFacts,
    CLUSTERS,
    st.lists(PODS, max_size=3).map(tuple),
    RULES,
    st.dictionaries(texts, RESERVATIONS, max_size=2),
    moments,
    st.none() | SURVEYS,
    st.dictionaries(texts, SURPLUS, max_size=2),
)


_CPU = Resources({"cpu": 1})


@settings(max_examples=100)
@given(FACTS)
def test_the_facts_of_a_cluster_come_back_as_they_are(facts: ClusterFacts) -> None:
    assert facts.taken_at is not None
    assert facts_of(document_of(facts), facts.taken_at) == facts


def test_many_nodes_and_pods_come_back_in_their_order() -> None:
    nodes = tuple(Node(f"n{index}", _CPU) for index in range(250))
    term = PodTerm("zone", None, (LabelRequirement("app", LabelOperator.IN, ("web",)),))
    sorts = (None, PodSort.of("ns", [("app", "web")], (term,)), PodSort.of("ns", []))
    pods = tuple(
        OwnedPods(f"u{index}", Place(f"n{index}", _CPU, 1, sorts[index % 3])) for index in range(301)
    )
    facts = ClusterFacts(Cluster("east", nodes), pods, taken_at=NOW)
    assert facts_of(document_of(facts), NOW) == facts


def test_amounts_beyond_64_bits_come_back() -> None:
    """A pod may name its node and request 8 EiB in each container; it must not end the snapshots of a cluster."""
    huge = Resources({"memory": 2**80, "cpu": -(2**80), "pods": 3})
    facts = ClusterFacts(
        Cluster("east", (Node("n", huge),), reserve=huge), (OwnedPods("", Place("n", huge, 1)),), taken_at=NOW
    )
    assert facts_of(document_of(facts), NOW) == facts


def test_queues_and_held_queues_come_back() -> None:
    pool, node = Queue("pool", "org", {"cpu": Quota(8000, 0, 1)}), Queue("context/gold", "context/all")
    rules = SchedulingRules(
        queues=(Queue("org"),),
        held=(pool, node),
        charged_in={"pool": "org"},
        problems={"team": "Circle"},
        deleted={"pool": NOW, "node": None},
        invalid=(Queue("team", "team"), Queue("broken", "")),
        last=(pool, node, Queue("old")),
    )
    facts = ClusterFacts(Cluster("east"), rules=rules, taken_at=NOW)
    assert facts_of(document_of(facts), NOW) == facts


def test_every_field_of_a_queue_and_a_reservation_of_quota_come_back() -> None:
    asked = ProvisioningClass("check-capacity", frozenset({"cpu"}), (("a", "b"),), RetryRule(2))
    queue = Queue(
        "team",
        weight=Fraction(1, 3),
        starvation_bound=timedelta(seconds=1.5),
        preemption=Preemption(WithinQueue.LOWER_PRIORITY, Reclaim.ANY, WhileBorrowing(3)),
        cluster_selector=parse_selector("region in (eu, us), !spot", ""),
        namespace_selector=EVERYTHING,
        approvals=("budget",),
        provisioning=asked,
    )
    reservation = Reservation("team", NOW, NOW, NOW, ("pool",), before=Before.REST)
    facts = ClusterFacts(
        Cluster("east", provisioning=asked, kind_hints={("v1", "Pod"): "a hint"}),
        rules=SchedulingRules(queues=(queue,)),
        quota=QuotaReservations({"u": reservation}, {"team": NOW}),
        taken_at=NOW,
    )
    assert facts_of(document_of(facts), NOW) == facts


SMALL = document_of(ClusterFacts(Cluster("east", (Node("n", _CPU),)), (OwnedPods("a", Place("n", _CPU, 1)),)))
HEADER, *REST = zlib.decompress(SMALL).split(b"\n")


def compressed(*lines: bytes) -> bytes:
    """A document of these lines."""
    return zlib.compress(b"\n".join(lines))


def with_header(**fields: object) -> bytes:
    """The small document with other fields in its header."""
    return compressed(orjson.dumps({**orjson.loads(HEADER), **fields}), *REST)


def with_facts(**fields: object) -> bytes:
    """The small document with other facts in its header."""
    return with_header(facts={**orjson.loads(HEADER)["facts"], **fields})


def test_unknown_fields_are_passed_over() -> None:
    header = orjson.loads(HEADER)
    for each in (header, *map(header["facts"].get, ("cluster", "rules"))):
        each["of_tomorrow"] = 1
    assert facts_of(compressed(orjson.dumps(header), *REST), NOW) == facts_of(SMALL, NOW)


@pytest.mark.parametrize("version", [0, VERSION + 1, "1", None])
def test_a_document_of_another_version_is_refused(version: object) -> None:
    expected = f"the snapshot is of version {version}, this program reads {VERSION}: use the same release"
    with pytest.raises(StoreError) as refused:
        facts_of(with_header(version=version), NOW)
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b"", id="empty"),
        pytest.param(SMALL[:-10], id="cut"),
        pytest.param(b"\0" + SMALL, id="not-compressed"),
        pytest.param(compressed(HEADER[:-1], *REST), id="no-json"),
        pytest.param(compressed(b""), id="no-header"),
        pytest.param(compressed(b"[]", *REST), id="a-list-for-a-header"),
        pytest.param(compressed(b"{}"), id="an-empty-header"),
        pytest.param(compressed(HEADER, b"[]"), id="a-list-for-nodes"),
        pytest.param(compressed(HEADER, b'{"nodes": [{}]}'), id="a-node-without-fields"),
        pytest.param(compressed(HEADER, b'{"nodes": 1}'), id="a-number-for-nodes"),
        pytest.param(compressed(HEADER, b'{"pods": [["a"]]}'), id="a-short-pod"),
        pytest.param(
            compressed(HEADER, b'{"pods": [["a", "n", 9, 1, false, 0]]}'), id="requests-that-are-not-there"
        ),
        pytest.param(with_header(requests=[[]]), id="a-list-for-requests"),
        pytest.param(with_facts(rules=None), id="no-rules"),
        pytest.param(with_facts(rules={"policy": "LIFO"}), id="an-unknown-policy"),
        pytest.param(
            with_facts(rules={"starvation_bound": "P9999999999999D"}),
            id="an-endless-bound",
        ),
        pytest.param(with_facts(cluster=None), id="no-cluster"),
        pytest.param(with_facts(reservations=[]), id="a-list-for-reservations"),
        pytest.param(with_facts(reservations={"a": {"since": "soon"}}), id="a-reservation-without-a-date"),
    ],
)
def test_a_damaged_document_is_refused(document: bytes) -> None:
    with pytest.raises(StoreError, match=r"^the snapshot cannot be read: [A-Za-z]+$"):
        facts_of(document, NOW)


@settings(max_examples=200)
@given(st.integers(0, len(SMALL) - 1), st.integers(1, 255))
def test_a_document_with_a_wrong_byte_is_refused_or_read(index: int, change: int) -> None:
    """Never another error; the checksum of the compression finds nearly all."""
    damaged = bytearray(SMALL)
    damaged[index] ^= change
    try:
        facts = facts_of(bytes(damaged), NOW)
    except StoreError:
        return
    assert facts.taken_at == NOW

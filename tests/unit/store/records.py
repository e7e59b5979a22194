"""Any valid record, for property tests."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st
from msgspec.structs import replace

from dispatcher.api.conditions import ConditionType
from dispatcher.api.selector import LONGEST_SELECTOR, Selector, parse_selector
from dispatcher.core.model.clusters.nodes import (
    LabelOperator,
    LabelRequirement,
    NodeRequirements,
    NodeTerm,
    Toleration,
)
from dispatcher.core.model.gangs.gang import Assignment, Gang, PodSet, Spread
from dispatcher.core.model.gangs.growth import PodRef, Shrinking
from dispatcher.core.model.gangs.pod_terms import PodSort, PodTerm
from dispatcher.core.model.gangs.pods import PodFailure
from dispatcher.core.model.records.record import (
    Attempt,
    Borrower,
    Condition,
    NotedIssue,
    ObjectRef,
    Pending,
    Phase,
    QuotaSummary,
    Record,
)
from dispatcher.core.model.records.requirements import ANYWHERE, ClusterRequirements
from dispatcher.core.model.resources import LARGEST_AMOUNT, Resources

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
small = st.integers(0, 2**31 - 1)
resources = st.builds(
    Resources, st.dictionaries(texts, st.integers(-LARGEST_AMOUNT, LARGEST_AMOUNT), max_size=4)
)
tolerations = st.builds(Toleration, key=texts, operator=texts, value=texts, effect=texts)
words = st.lists(texts, max_size=2).map(tuple)
label_requirements = st.builds(LabelRequirement, texts, st.sampled_from(LabelOperator), words)
conditions_on_nodes = st.lists(label_requirements, max_size=2).map(tuple)
node_requirements = st.builds(
    NodeRequirements,
    st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    st.lists(st.builds(NodeTerm, conditions_on_nodes, conditions_on_nodes), max_size=2).map(tuple),
)
pod_terms = st.builds(
    PodTerm,
    texts,
    st.none() | st.frozensets(texts, max_size=2),
    st.lists(label_requirements, max_size=2).map(tuple),
    st.booleans(),
)
spreads = st.builds(
    Spread,
    texts,
    small,
    small,
    st.booleans(),
    st.booleans(),
    st.none() | pod_terms,
    counts=st.lists(small, max_size=2).map(tuple),
)
pod_sorts = st.builds(
    lambda namespace, labels, repels, is_ending: PodSort.of(
        namespace, labels.items(), repels, is_ending=is_ending
    ),
    texts,
    st.dictionaries(texts, texts, max_size=2),
    st.lists(pod_terms, max_size=2).map(tuple),
    st.booleans(),
)
_pod_sets = st.builds(
    PodSet,
    small,
    resources,
    st.lists(tolerations, max_size=2).map(tuple),
    node_requirements,
    words,
    words,
    words,
    texts,
    spread=st.lists(spreads, max_size=2).map(tuple),
    away=st.lists(st.tuples(texts, st.integers(-9, 9)), max_size=2).map(tuple),
    near=st.lists(st.tuples(texts, st.lists(st.integers(-9, 9), max_size=2).map(tuple)), max_size=2).map(
        tuple
    ),
    attracts=st.lists(pod_terms, max_size=2).map(tuple),
    sort=st.none() | pod_sorts,
)
pod_sets = _pod_sets.map(lambda each: replace(each, repels=each.sort.repels if each.sort else ()))


@st.composite
def _gangs(draw: st.DrawFn) -> Gang:
    gang = Gang(draw(resources), draw(st.integers(0, 2**62)), tuple(draw(st.lists(pod_sets, max_size=3))))
    if not gang.pod_sets:
        return gang
    smaller = {
        cluster: Gang(
            draw(resources),
            gang.pods,
            tuple(replace(each, requests=draw(resources)) for each in gang.pod_sets),
        )
        for cluster in draw(st.lists(texts, max_size=2, unique=True))
    }
    return replace(gang, smaller=tuple(smaller.items()))


gangs = _gangs()


def selector_of_many(one: str, count: int) -> Selector:
    """A selector as a user writes it: a requirement again and again, as often as fits."""
    return parse_selector(",".join([one] * min(count, (LONGEST_SELECTOR + 1) // (len(one) + 1))), "selector")


WRITTEN_REQUIREMENTS = (
    "a!=b",
    "a=b",
    "a=",
    "a",
    "!a",
    "a in(b,c,d)",
    "a notin(,b)",
    f"{'a' * 63}!={'b' * 63}",
)
"""`str` writes some of them longer than a user does; those of a few characters by the most."""
_AT_THE_BOUND = [selector_of_many(each, LONGEST_SELECTOR) for each in WRITTEN_REQUIREMENTS]
selectors = st.sampled_from(_AT_THE_BOUND) | st.lists(st.sampled_from(WRITTEN_REQUIREMENTS), max_size=3).map(
    lambda each: parse_selector(",".join(each), "selector")
)
pairs = st.frozensets(st.tuples(texts, texts), max_size=2)
requirements = st.just(ANYWHERE) | st.builds(
    ClusterRequirements,
    selector=selectors,
    prefers=selectors,
    kinds=st.frozensets(st.tuples(texts, texts), min_size=1, max_size=2),
    ruled_out=pairs,
    unprovisioned=pairs,
)
pod_failures = st.builds(
    PodFailure,
    texts,
    texts,
    st.none() | st.integers(-(2**31), 2**31 - 1),
    texts,
    texts,
    st.none() | moments,
    st.booleans(),
)
conditions = st.builds(
    Condition,
    st.sampled_from(ConditionType),
    st.booleans(),
    moments,
    moments,
    texts,
    texts,
    st.none() | pod_failures,
)
borrowers = st.lists(st.builds(Borrower, texts, texts), max_size=2).map(tuple)
summaries = st.builds(QuotaSummary, texts, texts, texts, texts, borrowers)
pendings = st.builds(
    Pending,
    texts,
    texts,
    texts,
    texts,
    queue=texts,
    quota=st.none() | summaries,
    preempting=words,
)
issues = st.builds(NotedIssue, texts, texts, moments)
objects = st.builds(ObjectRef, small, texts, texts, texts, texts, texts, done=st.booleans())
pod_refs = st.lists(st.builds(PodRef, texts, texts, texts), max_size=2).map(tuple)
attempts = st.builds(
    Attempt,
    number=small,
    cluster=texts,
    decided_at=moments,
    objects=st.lists(objects, max_size=3, unique_by=lambda each: each.item).map(
        lambda found: tuple(sorted(found, key=lambda each: each.item))
    ),
    created_at=st.none() | moments,
    started_at=st.none() | moments,
    ended_at=st.none() | moments,
    outcome=texts,
    preempted_by=texts,
    assignment=st.lists(st.lists(st.tuples(texts, small), max_size=2).map(tuple), max_size=2)
    .map(tuple)
    .map(Assignment),
    shrinking=st.none() | st.builds(Shrinking, pod_refs, resources, texts),
)
_records = st.builds(
    Record,
    uid=st.uuids().map(str),
    group=texts,
    namespace=texts,
    name=texts,
    created_at=moments,
    phase=st.sampled_from([phase for phase in Phase if phase is not Phase.DELETED]),
    phase_since=moments,
    user=texts,
    groups=st.lists(texts, max_size=2).map(tuple),
    spec_hash=texts,
    version=small,
    enqueue_seq=st.just(0),
    queue=texts,
    more_queues=words,
    priority=st.integers(-(2**31), 2**31 - 1),
    priority_slope=st.floats(-1e12, 1e12),
    gang=gangs,
    requirements=requirements,
    conditions=st.lists(conditions, max_size=4).map(tuple),
    reason=texts,
    message=texts,
    pending=st.none() | pendings,
    unhealthy=st.none() | issues,
    requeuings=small,
    retries=small,
    requeuing_seconds=small,
    expected_seconds=small,
    limit_seconds=small,
    kept_until=st.none() | moments,
    eligible_at=st.none() | moments,
    blocked_since=st.none() | moments,
    aged_from=st.none() | moments,
    age_stopped_at=st.none() | moments,
    attempts=small,
    attempt=st.none() | attempts,
    last_event_at=st.none() | moments,
    is_preempting=st.booleans(),
    preempted_at=st.lists(moments, max_size=3).map(tuple),
)


def required(record: Record, by: ClusterRequirements) -> Record:
    """The record with these requirements: their namespace is its own, and their kinds are always its first ones."""
    kinds = record.requirements.kinds
    return replace(
        record,
        requirements=replace(by, namespace=record.namespace, kinds=kinds) if kinds else ANYWHERE,
    )


records = _records.map(lambda record: required(record, record.requirements))
attempted_records = st.builds(lambda record, attempt: replace(record, attempt=attempt), records, attempts)
"""Records that all have an attempt. Few of `records` have one."""
